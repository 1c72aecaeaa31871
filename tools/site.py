"""A hook of mkdocs. Pages have links for readers of the repository; the hook changes the links to fit the site.

README.md becomes the start page, and each example's README becomes a page. A link to a folder of results leads to its
report. A link to a source file leads to a copy of that file in the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "research/results"
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)")
# The folder of copied sources, which browsers show as text.
_SOURCES = "source"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/."""
    pages = {"index.md": ROOT / "README.md"}
    pages |= {f"examples/{path.parent.name}.md": path for path in sorted(ROOT.glob("examples/*/README.md"))}
    for path in sorted((ROOT / RESULTS).rglob("*")):
        name = path.relative_to(ROOT / "research").as_posix()
        if path.is_file() and "run" not in path.parts and path.suffix != ".npz":
            files.append(File.generated(config, name, abs_src_path=str(path)))
    texts = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    for name, path in pages.items():
        there = path.relative_to(ROOT).as_posix()
        texts[there] = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_relinked(texts[there], there, name)))
    for page, text in texts.items():
        for _, target in _LINK.findall(text):
            source = _source(page, target)
            if source is not None and files.get_file_from_path(_copied(source)) is None:
                files.append(File.generated(config, _copied(source), abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links of a page of docs/."""
    if page.file.generated_by is not None:
        return markdown
    return _relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _copied(source: str) -> str:
    # mkdocs and many web servers leave out names that begin with a dot.
    return f"{_SOURCES}/{source.lstrip('.')}.txt"


def _source(page: str, target: str) -> str | None:
    """The repository's file behind a link of ``page``; None if the target is part of the site."""
    there = normpath(f"{PurePosixPath(page).parent}/{target}")
    inside = there.startswith("docs/") or there in ("README.md", "docs") or there.startswith("examples/")
    return None if inside or not (ROOT / there).is_file() else there


def _relinked(text: str, page: str, name: str) -> str:
    """The text of the repository's file ``page``, with links for the site's page ``name``."""

    def fitted(match: re.Match[str]) -> str:
        return match[1] + _fitted(match[2], page, name)

    return _LINK.sub(fitted, text)


def _fitted(target: str, page: str, name: str) -> str:
    there = normpath(f"{PurePosixPath(page).parent}/{target}")
    path = ROOT / there
    source = _source(page, target)
    if source is not None:
        goal = _copied(source)
    elif there == "README.md":
        goal = "index.md"
    elif there.startswith("examples/"):
        goal = f"examples/{there.split('/')[1]}.md"
    elif there == RESULTS:
        goal = "evidence/study.md"
    elif path.is_dir() and there.startswith(f"{RESULTS}/"):
        report = "README.md" if (path / "README.md").exists() else "report.html"
        goal = f"{there.removeprefix('research/')}/{report}"
    else:
        goal = there.removeprefix("docs/")
    return relpath(goal, str(PurePosixPath(name).parent))
