"""Folders that tests use: of the repository, of the tests, and of the real data sets."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DATA = Path(os.environ.get("FEDCIPHER_DATA", ROOT.parent / "shared" / "data"))
IMPORTED = [str(TESTS), *sorted({str(path.parent) for path in TESTS.glob("*/test_*.py")})]
"""Folders on the path of every test: a test takes what it shares with one of another folder by the file's name."""
