"""A study on disk: results.json, results.csv, README.md, PNG pictures and one self-contained page."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

from fedcipher import _figures
from fedcipher._files import refusal
from fedcipher.bench import plots
from fedcipher.bench.page import page
from fedcipher.bench.preset import Preset
from fedcipher.bench.statistics import FIGURES, summarise
from fedcipher.bench.study import Study
from fedcipher.bench.tables import compared, facts, overview, problems
from fedcipher.errors import ReportError
from fedcipher.foreign_files import MAX_REPORT, read_json
from fedcipher.published.tables import markdown_table
from fedcipher.published.verdict import RULE

__all__ = ["load", "markdown", "write", "write_results"]


def _put(path: Path, content: bytes) -> None:
    # Whole or not at all: what an earlier run has written stays until this one is complete.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        scratch = Path(file.name)
        try:
            file.write(content)
            file.close()
            scratch.chmod(0o644)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


def _encoded(study: Study) -> bytes:
    return json.dumps(study.to_dict()).encode()


def write_results(study: Study, folder: Path) -> Path:
    """results.json alone, after each run. Falls back to a temporary folder when this one fails.

    Returns the folder it is in; raises `ReportError` when there is none left.
    """
    content = _encoded(study)
    try:
        _put(folder / "results.json", content)
        return folder
    except OSError as error:
        try:
            other = Path(tempfile.mkdtemp(prefix="fedcipher-bench-"))
            _put(other / "results.json", content)
        except OSError:
            raise ReportError(
                f"results can be written neither to {folder} nor to a temporary folder: {error}"
            ) from error
        return other


def load(path: Path) -> Study:
    """The study in a results.json. Raises `ReportError`."""
    try:
        return Study.from_dict(read_json(path, MAX_REPORT, follow=True))
    except OSError as error:
        raise ReportError(f"cannot read {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is no results.json of this version; run the study again") from error


def write(study: Study, preset: Preset, folder: Path) -> None:
    """Everything. Raises `ReportError` where a file cannot be written."""
    pictures = list(plots.figures(study.results))
    try:
        _put(folder / "results.json", _encoded(study))
        _put(folder / "results.csv", table_csv(study).encode())
        for name, _, figure in pictures:
            _put(folder / f"{name}.png", _figures.png(figure))
        text = markdown(study, preset, [(name, caption) for name, caption, _ in pictures])
        _put(folder / "README.md", text.encode())
        drawn = [(caption, _figures.svg(figure)) for _, caption, figure in pictures]
        _put(folder / "report.html", page(study, preset, drawn).encode())
    except OSError as error:
        raise ReportError(f"the report cannot be written: {refusal(error, folder)}") from error


def table_csv(study: Study) -> str:
    """A row a case and figure: minimum, average, maximum and sum over the runs."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["case", "scheme", "values", "clients", "sums", "runs", "figure", "unit", "min", "avg", "max", "sum"])
    units = {figure.name: figure.unit for figure in FIGURES}
    for result in study.results:
        case = result.case
        shape = [case.label, case.scheme, case.values, case.clients, case.sums, len(result.runs)]
        for name, summary in summarise(result).items():
            numbers = (summary.minimum, summary.average, summary.maximum, summary.total)
            rows.writerow([*shape, name, units[name], *(f"{x:.9g}" for x in numbers)])
    return out.getvalue()


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
            "What differs:\n\n" + "\n".join(f"* {text}" for text in preset.differs),
        ]
    parts += ["## Pictures", *(f"![{caption}]({name}.png)" for name, caption in pictures)]
    parts += ["## How it was measured", "\n".join(f"* {name}: {text}" for name, text in facts(study))]
    parts += [
        "CPU, resident memory, bytes on the connection and disk of both processes every 0.1 s; keys are exchanged "
        "before a run and not in it. Minimum, average, maximum and sum of every figure are in results.csv, every "
        "sample in results.json."
    ]
    return "\n\n".join(parts) + "\n"
