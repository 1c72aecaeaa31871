"""Writes a measurement to disk: results.json with all samples, results.csv with all figures over the runs."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path

from fedcipher._files import refusal
from fedcipher.bench.statistics import FIGURES, summarise
from fedcipher.bench.study import Study
from fedcipher.errors import ReportError
from fedcipher.foreign_files import MAX_REPORT, read_json

__all__ = ["load", "put", "table_csv", "write", "write_results"]


def put(path: Path, content: bytes) -> None:
    """Write a file of a report. Raises `OSError`."""
    # Atomic: the file of an earlier run stays until the new one is complete.
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
    """Write results.json alone, to ``folder`` or, if that fails, to a temporary folder.

    Returns the folder. Raises `ReportError` if both fail.
    """
    content = _encoded(study)
    try:
        put(folder / "results.json", content)
        return folder
    except OSError as error:
        try:
            other = Path(tempfile.mkdtemp(prefix="fedcipher-bench-"))
            put(other / "results.json", content)
        except OSError:
            raise ReportError(
                f"results can be written neither to {folder} nor to a temporary folder: {error}"
            ) from error
        return other


def load(path: Path) -> Study:
    """Read the study in a results.json. Raises `ReportError`."""
    try:
        return Study.from_dict(read_json(path, MAX_REPORT, follow=True))
    except OSError as error:
        raise ReportError(f"cannot read {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is not a results.json of this version; run the study again") from error


def write(study: Study, folder: Path) -> None:
    """Write results.json and results.csv. Raises `ReportError`."""
    try:
        put(folder / "results.json", _encoded(study))
        put(folder / "results.csv", table_csv(study).encode())
    except OSError as error:
        raise ReportError(f"the results cannot be written: {refusal(error, folder)}") from error


def table_csv(study: Study) -> str:
    """A CSV text with a row per case and figure: minimum, average, maximum and sum over the runs."""
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
