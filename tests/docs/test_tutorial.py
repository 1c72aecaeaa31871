"""docs/tutorial/library.md runs: its Python blocks in order, in one namespace, in a process without Flower."""

import os
import re
import subprocess
import sys

from places import ROOT

PAGE = ROOT / "docs" / "tutorial" / "library.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python") > 10
    # As many empty lines before a block as the page has: a traceback then names the page's line.
    program = "import sys; sys.modules['flwr'] = None"
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        program += "\n" * (line - program.count("\n")) + block[1]
    (tmp_path / "tutorial.py").write_text(program, encoding="utf-8")
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, tmp_path / "tutorial.py"], capture_output=True, text=True, env=temporary, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == text.count("print(")
