"""`python -m fedcipher_research`, which is the same as ``fedcipher-research``."""

import sys

from fedcipher_research.cli import main

if __name__ == "__main__":
    sys.exit(main())
