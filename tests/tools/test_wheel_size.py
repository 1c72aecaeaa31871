"""What a wheel has of Python: no more than it may, and nothing of research."""

import ast
import zipfile
from pathlib import Path

import fedcipher

PACKAGE = Path(fedcipher.__file__).parent
MOST = 550_000
"""Bytes as a wheel packs them: 500,000 for Flower, and 50,000 for the guard, its log, NVFlare and declearn.

What only measures or compares belongs into research/.
"""


def files():
    """Everything of the package that a wheel has beside the native module."""
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyd"):
            yield path


def test_a_wheels_python_does_not_grow_unseen(tmp_path):
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in files():
            wheel.write(path, path.relative_to(PACKAGE.parent))
        packed = sum(entry.compress_size for entry in wheel.infolist())
    assert packed <= MOST


def imported(path):
    """The modules that a source names in an import, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_product_names_no_module_of_research():
    found = {path.name for path in files() if path.suffix == ".py" for name in imported(path) if "research" in name}
    assert found == set()
