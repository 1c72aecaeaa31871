"""`python -m fedcipher_research`: what ``fedcipher-research`` runs."""

import sys

from fedcipher_research.cli import main

if __name__ == "__main__":
    sys.exit(main())
