"""`fedcipher access`, `run`, `superlink` and `supernode`: a federation's programs and their credentials."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedcipher._addresses import host_and_port, joined
from fedcipher._optional import require
from fedcipher.cli.parser import OptionGroup, Parser
from fedcipher.errors import ClusterError
from fedcipher.foreign_text import show

__all__ = [
    "add_access",
    "add_run",
    "add_run_options",
    "add_superexec",
    "add_superlink",
    "add_supernode",
    "flwr_arguments",
]


def add_access(parser: Parser) -> None:
    """Add the options of `fedcipher access`."""
    parser.add_argument("folder", type=Path, help="folder to make; copy its control.token to the SuperLink")
    link = parser.add_argument_group("SuperLink")
    link.add_argument("--superlink", required=True, metavar="HOST:PORT", help="address of its control service")
    link.add_argument("--root-certificates", type=Path, required=True, help="certificate of the SuperLink's authority")
    parser.example("access-token --superlink superlink.example:9093 --root-certificates ca.crt")
    parser.set_defaults(run=_access)


def add_run(parser: Parser) -> None:
    """Add the options of `fedcipher run`."""
    parser.add_argument("app", help="folder of the app")
    add_run_options(parser, access=True)
    parser.example("my-app --access access-token --stream")
    parser.set_defaults(run=_run)


def add_superlink(parser: Parser) -> None:
    """Add the options of `fedcipher superlink`."""
    group = parser.add_argument_group("SuperLink")
    group.add_argument("--control-token", type=Path, required=True, help="file of the token, from `fedcipher access`")
    _add_flower(parser, group)
    parser.example(
        "--control-token access-token/control.token --private private -- --ssl-ca-certfile ca.crt "
        "--ssl-certfile link.crt --ssl-keyfile link.key"
    )
    parser.set_defaults(run=_superlink)


def add_supernode(parser: Parser) -> None:
    """Add the options of `fedcipher supernode`."""
    group = parser.add_argument_group("SuperNode")
    group.add_argument(
        "--guard", default="", metavar="KEY", help="this client's key file: a guard starts apps behind walls (Linux)"
    )
    _add_flower(parser, group)
    parser.example(
        "--private private -- --superlink superlink.example:9092 --root-certificates ca.crt --trusted-entities "
        "trusted.yaml"
    )
    parser.set_defaults(run=_supernode)


def add_superexec(parser: Parser) -> None:
    """Add the options of `fedcipher superexec`."""
    group = parser.add_argument_group("apps")
    group.add_argument("--tokens", type=Path, required=True, help="folder for the apps' tokens")
    parser.add_argument("flower", nargs="*", metavar="-- OPTIONS", help="options of flower-superexec")
    parser.example("--tokens tokens -- --plugin-type clientapp")
    parser.set_defaults(run=_superexec)


def _add_flower(parser: Parser, group: OptionGroup) -> None:
    group.add_argument("--private", type=Path, required=True, help="folder for this program's secrets")
    parser.add_argument("flower", nargs="*", metavar="-- OPTIONS", help="options of Flower's program")


def add_run_options(parser: Parser, *, access: bool = False) -> None:
    """Add the options of `flwr run`; ``access``: also the folder with the credentials."""
    group = parser.add_argument_group("run")
    if access:
        group.add_argument("--access", type=Path, required=True, help="folder made by `fedcipher access`")
    group.add_argument(
        "--run-config", action="append", default=[], metavar="SETTINGS", help="settings like those of `flwr run`"
    )
    group.add_argument("--stream", action="store_true", help="show the run's log until it ends")
    group.add_argument("--format", choices=["default", "json"], default="default", help="output format")


def flwr_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments of `flwr run` for the options of `add_run_options`."""
    configs = [word for text in options.run_config for word in ("--run-config", text)]
    return [*configs, *(["--stream"] * options.stream), "--format", options.format]


def _access(options: argparse.Namespace, _: list[str]) -> int:
    _require("access")
    from fedcipher.cluster.access import CONTROL_TOKEN, FLOWER_HOME, TRUSTED, new_access

    folder: Path = options.folder.absolute()
    if not options.root_certificates.is_file():
        raise ClusterError(
            f"{options.root_certificates} is not a file: name the certificate of the SuperLink's authority"
        )
    if folder.exists():
        raise ClusterError(f"{folder} exists: name a new folder")
    superlink = joined(*host_and_port(options.superlink, "--superlink"))
    new_access(folder, superlink, options.root_certificates.absolute())
    show(f"{folder}")
    show(f"  {CONTROL_TOKEN}  for the SuperLink (fedcipher superlink --control-token); starts runs, so keep it secret")
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

    return supernode(options.private, options.flower, options.guard)


def _superexec(options: argparse.Namespace, _: list[str]) -> int:
    _require("superexec")
    from fedcipher.cluster.programs import superexec

    return superexec(options.tokens, options.flower)


def _require(command: str) -> None:
    require(f"fedcipher {command}", "flower", "flwr")
    if sys.platform == "win32":
        raise ClusterError(f"fedcipher {command} is for Linux and macOS")
