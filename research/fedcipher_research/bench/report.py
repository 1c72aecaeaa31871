"""The report of a measurement: README.md, PNG pictures and one self-contained page, beside results.json and its CSV."""

from __future__ import annotations

from pathlib import Path

from fedcipher import _figures
from fedcipher._files import refusal
from fedcipher.bench import results
from fedcipher.bench.results import put
from fedcipher.bench.study import Study
from fedcipher.bench.tables import overview, problems
from fedcipher.errors import ReportError

from fedcipher_research.bench import plots
from fedcipher_research.bench.page import page
from fedcipher_research.bench.preset import Preset
from fedcipher_research.bench.tables import compared, facts
from fedcipher_research.published.tables import markdown_table
from fedcipher_research.published.verdict import RULE

__all__ = ["markdown", "write"]


def write(study: Study, preset: Preset, folder: Path) -> None:
    """Write all files of the report into ``folder``. Raises `ReportError` if a file cannot be written."""
    pictures = list(plots.figures(study.results))
    results.write(study, folder)
    try:
        for name, _, figure in pictures:
            put(folder / f"{name}.png", _figures.png(figure))
        text = markdown(study, preset, [(name, caption) for name, caption, _ in pictures])
        put(folder / "README.md", text.encode())
        drawn = [(caption, _figures.svg(figure, caption)) for _, caption, figure in pictures]
        put(folder / "report.html", page(study, preset, drawn).encode())
    except OSError as error:
        raise ReportError(f"the report cannot be written: {refusal(error, folder)}") from error


def markdown(study: Study, preset: Preset, pictures: list[tuple[str, str]]) -> str:
    """The report as Markdown."""
    parts = [f"# {preset.name}", preset.summary + ".", "Averages over the runs; a phase is summed over all updates."]
    parts += [markdown_table(overview(study))]
    if any(problems(study)):
        parts += ["**Not complete:**", "\n".join(f"* {text}" for text in problems(study))]
    if preset.comparisons:
        shown = compared(study, preset)
        parts += [
            "## Beside the published figures",
            f"Source: {preset.source}. {RULE}",
            *(f"**{text}**" for text in shown.reversed),
            markdown_table(shown.rows),
            *(f"{head}:\n\n" + "\n".join(f"* {text}" for text in texts) for head, texts in shown.notes),
            "Differences from the published set-up:\n\n" + "\n".join(f"* {text}" for text in preset.differs),
        ]
    parts += ["## Pictures", *(f"![{caption}]({name}.png)" for name, caption in pictures)]
    parts += ["## How it was measured", "\n".join(f"* {name}: {text}" for name, text in facts(study))]
    parts += [
        "CPU, resident memory, bytes on the connection and disk of both processes every 0.1 s; keys are exchanged "
        "before a run and not in it. Minimum, average, maximum and sum of every figure are in results.csv, every "
        "sample in results.json."
    ]
    return "\n\n".join(parts) + "\n"
