"""`fedcipher cluster up`, `run`, `status` and `down`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedcipher._optional import require
from fedcipher._options import whole
from fedcipher.cli.options import add_scheme, made
from fedcipher.cli.parser import Parser
from fedcipher.cli.services import add_run_options, flwr_arguments
from fedcipher.errors import ClusterError, ParameterError
from fedcipher.foreign_text import show
from fedcipher.keys.store import home

__all__ = ["add_cluster"]


def add_cluster(parser: Parser) -> None:
    """Add the four commands of `fedcipher cluster`."""
    parser.description = (
        "Run a SuperLink and SuperNodes as processes of this machine, with TLS, authentication and keys like a "
        "deployment on several machines."
    )
    parts = parser.add_subparsers(required=True, metavar="up|run|status|down", title="commands")
    up: Parser = parts.add_parser("up", help="make keys and certificates, and start all programs")
    run: Parser = parts.add_parser("run", help="sign a Flower app and start it on the cluster")
    status: Parser = parts.add_parser(
        "status", help="show whether the cluster runs, and how many SuperNodes are online"
    )
    down: Parser = parts.add_parser("down", help="end all processes of the cluster; keys and logs stay")
    _add_up(up)
    run.add_argument("app", help="folder of the app")
    add_run_options(run)
    run.example("my-app --stream")
    status.example("")
    down.example("")
    parser.examples += [*up.examples[:1], *run.examples, *down.examples]
    for part, work in ((up, _up), (run, _run), (status, _status), (down, _down)):
        group = part.add_argument_group("cluster")
        group.add_argument("--folder", type=Path, help="folder of the cluster (default: ~/.fedcipher/cluster)")
        part.set_defaults(run=work)


def _add_up(up: Parser) -> None:
    cohort = up.add_argument_group("cohort")
    cohort.add_argument(
        "--clients",
        type=whole(1, 1000),
        required=True,
        help="number of SuperNodes, each with its own partition and key",
    )
    cohort.add_argument("--per-round", type=whole(1, 1000), default=0, help="most clients in one round (default: all)")
    cohort.add_argument("--max-weight", type=whole(1), default=1, help="largest integer weight of a client")
    cohort.add_argument(
        "--engine", action="store_true", help="start an authority, and for each SuperNode an engine with its keys"
    )
    add_scheme(up)
    up.example("--clients 4", "--clients 4 --engine")


def _folder(options: argparse.Namespace) -> Path:
    require("fedcipher cluster", "flower", "flwr")
    if sys.platform == "win32":
        raise ClusterError("fedcipher cluster is for Linux and macOS")
    given: Path | None = options.folder
    return (home() / "cluster" if given is None else given).absolute()


def _up(options: argparse.Namespace, _: list[str]) -> int:
    folder = _folder(options)
    from fedcipher.cluster.local import FLOWER_HOME, up

    if options.per_round > options.clients:
        raise ParameterError(
            f"--per-round {options.per_round} is more than the {options.clients} clients: give a smaller --per-round, "
            "or more --clients"
        )
    scheme = made(options, options.per_round or options.clients, options.max_weight)
    members = int(scheme.params().get("members", 0))
    if members > options.clients:
        raise ParameterError(
            f"a committee of {members} members needs as many clients, and there are {options.clients}: give more "
            "--clients, or --set members=... threshold=..."
        )
    keys = up(
        folder,
        scheme,
        options.clients,
        members=members,
        engine=options.engine,
        on_progress=lambda text: show(f"  {text}", flush=True),
    )
    show(f"{options.clients} SuperNodes are online, under {scheme}")
    holder = "engine" if options.engine else "key"
    show(f"  keys  {keys}  (fedcipher-keys of an app; each SuperNode has its own {holder})")
    show(f"  logs  {folder / 'logs'}")
    where = "" if options.folder is None else f" --folder {folder}"
    show(f"  run   fedcipher cluster run APP{where} --stream --run-config \"fedcipher-keys='...'\"")
    show(f"  flwr  FLWR_HOME={folder / FLOWER_HOME} flwr list")
    show(f"  end   fedcipher cluster down{where}")
    return 0


def _run(options: argparse.Namespace, _: list[str]) -> int:
    folder = _folder(options)
    from fedcipher.cluster.local import run

    return run(folder, options.app, flwr_arguments(options))


def _status(options: argparse.Namespace, _: list[str]) -> int:
    folder = _folder(options)
    from fedcipher.cluster.local import status

    found = status(folder)
    if not found["running"]:
        show(f"{folder}: not running; {found['clients']} clients")
        return 1
    show(f"{folder}: running on port {found['port']}; {found['online']} of {found['clients']} SuperNodes are online")
    return 0 if found["online"] == found["clients"] else 1


def _down(options: argparse.Namespace, _: list[str]) -> int:
    folder = _folder(options)
    from fedcipher.cluster.local import down

    show(f"{folder}: {'ended' if down(folder) else 'was not running'}")
    return 0
