"""`fedcipher dashboard`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedcipher._optional import require
from fedcipher.foreign_text import show

__all__ = ["add_commands", "require_dashboard"]


def require_dashboard() -> None:
    """Raise `DependencyError` where a package of the extra is missing."""
    require("the dashboard", "dashboard", "flwr", "starlette", "uvicorn", "prometheus_client", "matplotlib")


def add_commands(
    commands: Any,
    run_folder: Callable[[Path], Path],
    key_options: Callable[[argparse.ArgumentParser], None],
    key_of: Callable[[argparse.Namespace], Any],
) -> None:
    """Adds the command to the parser's; what finds a run by its name, and a key by its options, is the caller's."""
    shown = commands.add_parser("dashboard", help="a page in the browser that shows a run while it grows")
    shown.add_argument("folder", type=Path, metavar="RUN", help="the folder of SecureStrategy(out=...), or its name")
    shown.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="default: 127.0.0.1:8080")
    shown.add_argument("--host", action="append", default=[], help="another name that browsers call it by; repeat")
    key_options(shown)
    shown.set_defaults(run=partial(_dashboard, run_folder, key_of))


def _dashboard(
    run_folder: Callable[[Path], Path],
    key_of: Callable[[argparse.Namespace], Any],
    options: argparse.Namespace,
    _: list[str],
) -> int:
    require_dashboard()
    from fedcipher.federation.server.journal import read_journal
    from fedcipher.watch.app import address, check_host, listener, readers, serve
    from fedcipher.watch.run import WatchedRun

    hosts = [check_host(name) for name in options.host]
    folder = run_folder(options.folder).absolute()
    read_journal(folder)
    run = WatchedRun(folder, key_of(options))
    with listener(options.listen) as at:
        show(f"dashboard: {address(at)}", flush=True)
        show(f"fedcipher: the page has no login: {readers(at)} can read it", to=sys.stderr)
        serve(run, at, hosts)
    return 0
