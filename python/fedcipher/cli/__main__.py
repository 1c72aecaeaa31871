"""Runs `fedcipher` as ``python -m fedcipher.cli``."""

import sys

from fedcipher.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
