"""Where the real data sets are."""

import os
from pathlib import Path

DATA = Path(os.environ.get("FEDCIPHER_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
