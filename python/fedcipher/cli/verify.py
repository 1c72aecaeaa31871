"""`fedcipher verify` checks sites' logs against each other, offline, and writes a report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedcipher._files import refusal, write_whole
from fedcipher.cli.parser import Parser
from fedcipher.errors import ParameterError, StateError
from fedcipher.foreign_files import read_file
from fedcipher.foreign_text import show

__all__ = ["add_verify"]


def add_verify(parser: Parser) -> None:
    """Add the options of `fedcipher verify`."""
    parser.add_argument(
        "logs", type=Path, nargs="+", metavar="LOG", help="the folder of a site's log, or a receipt of --line"
    )
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
    output.add_argument("--out", type=Path, help="report to write: .html or .md; with --line the receipt")
    output.add_argument("--line", type=int, metavar="N", help="write a receipt of line N of one log, and no report")
    parser.example("log-a log-b --run my-app --keys server.key --out report.html", "log-a --line 0 --out line.receipt")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.guard.audit import audit
    from fedcipher.guard.log import is_log
    from fedcipher.guard.report import as_html, as_markdown
    from fedcipher.keys.store import load_server, locate_run

    if options.line is not None:
        return _write_receipt(options)
    keys = [load_server(path)[1] for path in options.keys]
    logs = [path for path in options.logs if is_log(path)]
    for path in options.logs:
        if path not in logs:
            _show_receipt(path, {key.hex() for known in keys for key in known.verify_keys.values()})
    if not logs:
        return 0
    result = audit(logs, [locate_run(run) for run in options.runs], keys)
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


def _write_receipt(options: argparse.Namespace) -> int:
    """Write the receipt of one line of a log, which must be free of findings."""
    from fedcipher.guard.audit import audit
    from fedcipher.guard.receipt import make_receipt

    if len(options.logs) != 1 or options.out is None:
        raise ParameterError("--line needs one log, and --out for the receipt")
    result = audit(options.logs)
    if result.findings:
        raise StateError(result.findings[0])
    write_whole(options.out, make_receipt(result.logs[0], options.line), follow=True)
    show(f"{options.out}: line {options.line} of {result.logs[0].site}; it shows no other line")
    return 0


def _show_receipt(path: Path, known: set[str]) -> None:
    """Show the line of a receipt from another party. Raises `StateError` if it does not hold."""
    from fedcipher.guard.receipt import MAX_RECEIPT, Receipt

    try:
        receipt = Receipt(read_file(path, MAX_RECEIPT))
    except OSError as error:
        raise ParameterError(f"neither a log nor a receipt: {refusal(error, path)}") from error
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    key = receipt.verify.hex()
    if known and key not in known:
        raise StateError(f"{path}: the receipt is signed with a key that --keys does not have")
    # ASCII only, because a receipt comes from another party.
    show(f"{path}: line {receipt.line.n} of a log with {receipt.head.size} lines, signed with the key {key}")
    show(f"  {receipt.line.kind}: {json.dumps(receipt.line.facts, sort_keys=True)}")
