"""The code of a page: blocks whose first line is ```` ```python title="FILE" ````, so that no file repeats a page."""

import re
import sys
from types import ModuleType

from places import ROOT

CONTRIBUTOR = ROOT / "docs" / "contributor"
SCHEME, ADAPTER = CONTRIBUTOR / "add-a-scheme.md", CONTRIBUTOR / "add-an-adapter.md"
_FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```sh( checkout)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files(page):
    """Its files by name. Blocks of one name are one file, with two empty lines between them."""
    found = {}
    for name, content in _FILE.findall(page.read_text(encoding="utf-8")):
        found[name] = f"{found[name]}\n\n{content}" if name in found else content
    return found


def module(page, name):
    """The file ``name.py`` of the page as a module, which ``import`` then finds."""
    made = ModuleType(name)
    made.__file__ = f"{page}:{name}.py"
    sys.modules[name] = made
    exec(compile(files(page)[f"{name}.py"], made.__file__, "exec"), vars(made))
    return made


def written(page, folder):
    """Write the page's files into ``folder``, which is made, and give it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(page).items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def commands(page, checkout=False):
    """The commands of its shell blocks, or of those that are for a checkout."""
    blocks = [text for mark, text in _COMMANDS.findall(page.read_text(encoding="utf-8")) if bool(mark) == checkout]
    return "".join(blocks)
