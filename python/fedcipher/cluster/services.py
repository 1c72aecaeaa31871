"""`fedcipher access`, `run`, `superlink` and `supernode`: a federation's programs, and who may use them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedcipher._addresses import host_and_port, joined
from fedcipher._optional import require
from fedcipher.errors import ClusterError
from fedcipher.foreign_text import show

__all__ = ["add_run_options", "add_services", "flwr_arguments"]


def add_services(commands: Any) -> None:
    """Adds the commands to the parser's."""
    access: argparse.ArgumentParser = commands.add_parser(
        "access", help="make the token that starts runs on a SuperLink, and the key that signs apps"
    )
    access.add_argument("folder", type=Path, help="to make; control.token in it is the SuperLink's too")
    access.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the SuperLink's address")
    access.add_argument(
        "--root-certificates", type=Path, required=True, help="certificate of the SuperLink's authority"
    )
    access.set_defaults(run=_access)

    run: argparse.ArgumentParser = commands.add_parser("run", help="sign a Flower app and start it on a SuperLink")
    run.add_argument("app", help="folder of the app")
    run.add_argument("--access", type=Path, required=True, help="folder that `fedcipher access` has made")
    add_run_options(run)
    run.set_defaults(run=_run)

    link: argparse.ArgumentParser = commands.add_parser(
        "superlink",
        help="flower-superlink, where only a token starts runs",
        epilog="Options after -- are Flower's own.",
    )
    link.add_argument("--control-token", type=Path, required=True, help="file of the token, from `fedcipher access`")
    node: argparse.ArgumentParser = commands.add_parser(
        "supernode", help="flower-supernode, for signed apps only", epilog="Options after -- are Flower's own."
    )
    for program, work in ((link, _superlink), (node, _supernode)):
        program.add_argument("--private", type=Path, required=True, help="folder of this program alone")
        program.add_argument("flower", nargs="*", metavar="-- OPTIONS", help="of Flower's program")
        program.set_defaults(run=work)
    executor: argparse.ArgumentParser = commands.add_parser("superexec", help="what these two start apps with")
    executor.add_argument("--tokens", type=Path, required=True, help="folder for the apps' tokens")
    executor.add_argument("flower", nargs="*", metavar="-- OPTIONS", help="of flower-superexec")
    executor.set_defaults(run=_superexec)


def add_run_options(run: argparse.ArgumentParser) -> None:
    """Those of `flwr run`."""
    run.add_argument("--run-config", action="append", default=[], metavar="SETTINGS", help="as `flwr run` takes it")
    run.add_argument("--stream", action="store_true", help="show the run's log until it ends")
    run.add_argument("--format", choices=["default", "json"], default="default", help="of what is printed")


def flwr_arguments(options: argparse.Namespace) -> list[str]:
    """Of `add_run_options`."""
    configs = [word for text in options.run_config for word in ("--run-config", text)]
    return [*configs, *(["--stream"] * options.stream), "--format", options.format]


def _access(options: argparse.Namespace, _: list[str]) -> int:
    _require("access")
    from fedcipher.cluster.access import CONTROL_TOKEN, FLOWER_HOME, TRUSTED, new_access

    folder: Path = options.folder.absolute()
    if not options.root_certificates.is_file():
        raise ClusterError(f"{options.root_certificates} is no file: name the certificate of the SuperLink's authority")
    if folder.exists():
        raise ClusterError(f"{folder} exists: name a new folder")
    superlink = joined(*host_and_port(options.superlink, "--superlink"))
    new_access(folder, superlink, options.root_certificates.absolute())
    show(f"{folder}")
    show(f"  {CONTROL_TOKEN}  for the SuperLink (fedcipher superlink --control-token); whoever has it starts runs")
    show(f"  {TRUSTED}   for every SuperNode (--trusted-entities); not secret")
    show(f"  run            fedcipher run APP --access {folder}")
    show(f"  flwr           FLWR_HOME={folder / FLOWER_HOME} flwr list")
    return 0


def _run(options: argparse.Namespace, _: list[str]) -> int:
    _require("run")
    from fedcipher.cluster.access import run_app

    return run_app(options.access.absolute(), options.app, flwr_arguments(options))


def _superlink(options: argparse.Namespace, _: list[str]) -> int:
    _require("superlink")
    from fedcipher.cluster.programs import superlink

    return superlink(options.control_token, options.private, options.flower)


def _supernode(options: argparse.Namespace, _: list[str]) -> int:
    _require("supernode")
    from fedcipher.cluster.programs import supernode

    return supernode(options.private, options.flower)


def _superexec(options: argparse.Namespace, _: list[str]) -> int:
    _require("superexec")
    from fedcipher.cluster.programs import superexec

    return superexec(options.tokens, options.flower)


def _require(command: str) -> None:
    require(f"fedcipher {command}", "flower", "flwr")
    if sys.platform == "win32":
        raise ClusterError(f"fedcipher {command} is for Linux and macOS")
