"""`fedcipher status`, `dashboard` and `open`: a run's progress and its model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedcipher._files import refuse_to_replace
from fedcipher._optional import require
from fedcipher.cli.options import add_key, key_of
from fedcipher.cli.parser import Parser
from fedcipher.foreign_text import show
from fedcipher.keys.store import locate_run

__all__ = ["add_dashboard", "add_open", "add_status", "require_dashboard"]

_KEY = "--key ~/.fedcipher/keys/my-app/client-0.key"


def add_status(parser: Parser) -> None:
    """Add the options of `fedcipher status`."""
    _add_run(parser)
    add_key(parser)
    parser.example("my-app", f"my-app {_KEY}")
    parser.set_defaults(run=_status)


def add_dashboard(parser: Parser) -> None:
    """Add the options of `fedcipher dashboard`."""
    _add_run(parser)
    page = parser.add_argument_group("page")
    page.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="address of the page")
    page.add_argument(
        "--host", action="append", default=[], help="another host name of the page in browsers; may be repeated"
    )
    add_key(parser)
    parser.example("my-app", f"my-app {_KEY}")
    parser.set_defaults(run=_dashboard)


def add_open(parser: Parser) -> None:
    """Add the options of `fedcipher open`."""
    _add_run(parser)
    add_key(parser, required=True)
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, required=True, help="model.npz to write, with an array for each name")
    parser.example(f"my-app {_KEY} --out model.npz")
    parser.set_defaults(run=_open)


def _add_run(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of SecureStrategy(out=...), or its name")


def require_dashboard() -> None:
    """Raise `DependencyError` if a package of the extra ``dashboard`` is missing."""
    require("the dashboard", "dashboard", "flwr", "starlette", "uvicorn", "prometheus_client", "matplotlib")


def _status(options: argparse.Namespace, __: list[str]) -> int:
    require("fedcipher status", "flower", "flwr")
    from fedcipher.federation.server.outcome import Outcome
    from fedcipher.watch.metrics import Metrics

    folder = locate_run(options.folder)
    shown = Metrics(folder, key_of(options))
    past = shown.past()
    good = sum(record.unfinished is None for record in past.finished)
    state = "running" if past.running else "not running"
    show(f"{folder}: {state}; {len(past.rounds)} rounds asked for, {good} with an aggregate")
    for record in past.rounds:
        left_out = len(record.clients) - record.accepted
        said = f"{record.accepted} updates, {left_out} left out, {len(record.late)} late"
        if record.unfinished is not None:
            said = f"no aggregate: {record.unfinished}"
        elif record.number not in past.ended:
            said = "active"
        figures = shown.figures(record)
        show(f"round {record.round} (key epoch {record.epoch}): {said}{f'; {figures}' if figures else ''}")
        for lost in shown.losses(record):
            show(f"    {lost}")
        for client in record.clients:
            if client.left_out is not None:
                show(f"    client {'?' if client.client is None else client.client}: {client.left_out}")
    if shown.notice():
        show(shown.notice())
    if past.over:
        show(Outcome.of(past.over).text())
    return 0


def _open(options: argparse.Namespace, __: list[str]) -> int:
    require("fedcipher open", "flower", "flwr")
    from fedcipher.federation.server.run_folder import open_run, save_model

    folder = locate_run(options.folder)
    refuse_to_replace(options.out, [folder])
    model = open_run(folder, key_of(options))
    save_model(options.out, model)
    show(f"{options.out}: {len(model)} arrays, {sum(x.size for x in model.values())} values")
    return 0


def _dashboard(options: argparse.Namespace, _: list[str]) -> int:
    require_dashboard()
    from fedcipher.federation.server.journal import read_journal
    from fedcipher.watch.app import address, check_host, listener, readers, serve
    from fedcipher.watch.run import WatchedRun

    hosts = [check_host(name) for name in options.host]
    folder = locate_run(options.folder).absolute()
    read_journal(folder)
    run = WatchedRun(folder, key_of(options))
    with listener(options.listen) as at:
        show(f"dashboard: {address(at)}", flush=True)
        show(f"fedcipher: the page has no login: {readers(at)} can read it", to=sys.stderr)
        serve(run, at, hosts)
    return 0
