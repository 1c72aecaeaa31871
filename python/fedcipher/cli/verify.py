"""`fedcipher verify` checks sites' logs against each other, offline, and writes a report."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedcipher._files import write_whole
from fedcipher.cli.parser import Parser
from fedcipher.errors import ParameterError, StateError
from fedcipher.foreign_text import show

__all__ = ["add_verify"]


def add_verify(parser: Parser) -> None:
    """Add the options of `fedcipher verify`."""
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="the folder of a site's log")
    beside = parser.add_argument_group("compare with")
    beside.add_argument(
        "--run",
        dest="runs",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="a run's folder, with heads of the logs",
    )
    beside.add_argument(
        "--keys", type=Path, action="append", default=[], metavar="FILE", help="server.key with the sites' public keys"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, help="report to write: .html, or .md")
    parser.example("log-a log-b --run my-app --keys server.key --out report.html")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.guard.audit import audit
    from fedcipher.guard.log import is_log
    from fedcipher.guard.report import as_html, as_markdown
    from fedcipher.keys.store import load_server, locate_run

    for folder in options.logs:
        if not is_log(folder):
            raise ParameterError(f"{folder} is not the folder of a log; name the folder that has the log's head.json")
    runs = [locate_run(run) for run in options.runs]
    result = audit(options.logs, runs, [load_server(path)[1] for path in options.keys])
    if options.out is not None:
        form = as_markdown if options.out.suffix == ".md" else as_html
        write_whole(options.out, form(result).encode(), follow=True)
        show(f"report: {options.out}")
    for note in result.notes:
        show(f"note: {note}")
    for finding in result.findings:
        show(f"finding: {finding}")
    lines = sum(len(log.lines) for log in result.logs)
    inside = sum(fate.in_sum is True for fate in result.fates)
    show(
        f"{len(result.logs)} logs with {lines} lines; {inside} of {len(result.fates)} frames are in a sum that a log "
        f"shows; {result.heads} heads of servers fit; {len(result.findings)} findings"
    )
    if result.findings:
        raise StateError(
            f"the logs have {len(result.findings)} findings that need an explanation; they are listed above"
        )
    return 0
