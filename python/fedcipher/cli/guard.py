"""`fedcipher guard run`, `check`, `list`, `approve`, `deny`, `rules` and `app`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from fedcipher._files import make_private_folder, refusal
from fedcipher._optional import require
from fedcipher.cli.parser import OptionGroup, Parser
from fedcipher.errors import GuardError, ParameterError
from fedcipher.foreign_files import read_file
from fedcipher.foreign_text import MAX_LINE, quoted, show
from fedcipher.keys.store import home, write_new

__all__ = ["add_guard"]

_SECRET_BYTES = 32
_MAX_CERTIFICATES = 1 << 20


def add_guard(parser: Parser) -> None:
    """Add the commands of `fedcipher guard`."""
    parser.description = (
        "Stand between a Flower SuperNode and the apps of runs: an app gets plaintext models behind walls, and only "
        "encrypted frames leave the site. The client app needs no change (Linux, Flower 1.35 and later)."
    )
    parts = parser.add_subparsers(required=True, metavar="run|check|list|approve|deny|rules|app", title="commands")
    run: Parser = parts.add_parser("run", help="take the tasks of a SuperNode")
    check: Parser = parts.add_parser("check", help="try each wall around apps on this machine")
    listed: Parser = parts.add_parser("list", help="show the runs that wait for consent, and earlier decisions")
    approve: Parser = parts.add_parser("approve", help="agree to a run")
    deny: Parser = parts.add_parser("deny", help="refuse a run")
    rules: Parser = parts.add_parser("rules", help="show the rules for apps")
    app: Parser = parts.add_parser("app", help="in an app's container: run the app of one message")
    _add_run(run)
    _add_socket(check.add_argument_group("container"), "look at this folder instead: apps run in a container")
    check.example("", "--socket /run/fedcipher-apps")
    _add_socket(app.add_argument_group("container"), "the folder with the guard's sockets, mounted read-only", True)
    app.example("--socket /run/fedcipher-apps")
    rules.add_argument_group("file").add_argument(
        "--write", action="store_true", help="write the default rules to the file, as a start"
    )
    rules.example("", "--write")
    for part, example in ((listed, ""), (approve, "9542"), (deny, "9542")):
        part.example(example)
        _add_folder(part.add_argument_group("guard"))
    for part in (approve, deny):
        part.add_argument("request", help="the beginning of the request's name in `fedcipher guard list`")
    parser.examples += [*check.examples, *run.examples, *listed.examples, *approve.examples]
    deciding = ((listed, _list), (approve, _approve), (deny, _deny), (rules, _rules))
    works = ((run, _run), (check, _check), (app, _app), *deciding)
    for part, work in works:
        part.set_defaults(run=work)


def _add_folder(group: OptionGroup) -> None:
    group.add_argument("--folder", type=Path, help="the guard's own folder (default: ~/.fedcipher/guard)")


def _add_socket(group: OptionGroup, text: str, required: bool = False) -> None:
    group.add_argument("--socket", type=Path, metavar="FOLDER", required=required, help=text)


def _add_run(run: Parser) -> None:
    node = run.add_argument_group("SuperNode")
    node.add_argument("--supernode", required=True, metavar="HOST:PORT", help="its Runtime API: its --host and --port")
    node.add_argument(
        "--secret-file",
        type=Path,
        required=True,
        help="the file of its --superexec-auth-secret-file; made if it does not exist",
    )
    node.add_argument("--root-certificates", type=Path, help="certificate of its authority, if it has TLS")
    key = run.add_argument_group("key")
    holder = key.add_mutually_exclusive_group(required=True)
    holder.add_argument("--key", help="the client's key file")
    holder.add_argument("--engine", metavar="ADDRESS", help="the engine that holds the key")
    key.add_argument("--device", default="", help="with --engine: the device")
    key.add_argument("--credentials", type=Path, help="with --engine: the folder for TLS")
    guard = run.add_argument_group("guard")
    _add_folder(guard)
    _add_socket(guard, "apps run in a container without a network, which this folder of sockets is mounted into")
    guard.add_argument("--rules", type=Path, help="file of the rules for apps (default: ~/.fedcipher/guard.json)")
    run.example("--supernode 127.0.0.1:9094 --secret-file guard.secret --key client-0.key")


def _folder_of(options: argparse.Namespace) -> Path:
    return (options.folder or home() / "guard").absolute()


def _rules_path(options: argparse.Namespace) -> Path:
    return options.rules or home() / "guard.json"


def _run(options: argparse.Namespace, _: list[str]) -> int:
    require("the guard", "flower", "flwr", "uvicorn")
    from fedcipher._signals import raise_on_termination
    from fedcipher.guard.apps import BehindWalls
    from fedcipher.guard.container import InContainer
    from fedcipher.guard.policy import load_rules
    from fedcipher.guard.supernode import SuperNode
    from fedcipher.guard.worker import Guard

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    for noisy in ("httpx", "uvicorn", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    rules = load_rules(_rules_path(options))
    start_app = BehindWalls(rules) if options.socket is None else InContainer(options.socket.absolute(), rules)
    supernode = SuperNode(options.supernode, _secret(options.secret_file), _certificates(options.root_certificates))
    try:
        supernode.wait_until_up()
        if supernode.is_open_to_all():
            raise GuardError(
                f"the SuperNode at {options.supernode} gives tasks to any process: start it with --isolation process "
                f"and --superexec-auth-secret-file {options.secret_file}"
            )
        guard = Guard(supernode, _own_settings(options), _folder_of(options), rules, start_app)
        where = "behind walls" if options.socket is None else "in a container, whose engine is the wall"
        show(f"the guard takes the tasks of {options.supernode}; apps run {where}")
        with raise_on_termination():
            guard.run()
    finally:
        supernode.close()
    return 0


def _own_settings(options: argparse.Namespace) -> dict[str, str]:
    # An empty list also overrides FEDCIPHER_CLEAR: behind a guard, no answer leaves in the clear.
    none_in_clear = {"fedcipher-clear": ""}
    if options.key is not None:
        log = str(_folder_of(options) / "log")
        return {**none_in_clear, "fedcipher-key": options.key, "fedcipher-log": log}
    given = {"engine": options.engine, "device": options.device, "credentials": options.credentials}
    return {**none_in_clear, **{f"fedcipher-{name}": str(value) for name, value in given.items() if value}}


def _certificates(path: Path | None) -> bytes | None:
    try:
        return None if path is None else read_file(path, _MAX_CERTIFICATES, follow=True)
    except OSError as error:
        raise ParameterError(f"--root-certificates: {refusal(error, path)}") from error


def _secret(path: Path) -> bytes:
    """The secret in ``path``; a new one if the file does not exist."""
    import secrets

    from fedcipher.keys.store import read_secret

    try:
        if not path.exists():
            write_new(path, secrets.token_hex(_SECRET_BYTES).encode(), 0o600)
            show(f"{path}: a new secret; start the SuperNode with it")
        return read_secret(path).strip()
    except OSError as error:
        raise ParameterError(f"the secret: {refusal(error, path)}") from error


def _check(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.guard.container import check_folder
    from fedcipher.guard.jail import check

    if options.socket is None:
        return check()
    try:
        check_folder(options.socket)
    except OSError as error:
        raise GuardError(f"--socket: {refusal(error, options.socket)}; `fedcipher guard run` makes it") from error
    show(
        f"folder     holds   {options.socket} is reached by the guard's user alone",
        "container  UNKNOWN  nothing that a program in a container says proves anything to the guard. Ask the engine: "
        "no network, a read-only root, this folder read-only, no capabilities, no other mount but data",
    )
    return 0


def _app(options: argparse.Namespace, _: list[str]) -> int:
    require("an app", "flower", "flwr")
    from fedcipher._signals import raise_on_termination
    from fedcipher.guard.app_container import serve_one_message

    if sys.platform != "linux":
        raise GuardError("an app's container is one of Linux")
    with raise_on_termination():
        serve_one_message(options.socket.absolute())
    return 0


def _list(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.guard.consent import Consents
    from fedcipher.guard.policy import AppRules

    found = list(Consents(_folder_of(options), AppRules()).all())
    for request in found:
        show(f"{request.name}  {request.decision}  asked {request.asked}")
        show(f"  app       {request.app}, package {request.package}")
        for name, value in sorted(request.settings.items()):
            mark = "changed by the run" if name in request.changed else "the app's default"
            show(f"  setting   {quoted(name, MAX_LINE)} = {quoted(value, MAX_LINE)} ({mark})")
        # ASCII only, because the document comes from the server.
        show(*(f"  charter   {line}" for line in json.dumps(request.document, indent=1).splitlines()))
    if not found:
        show("no run has asked for consent yet")
    return 0


def _approve(options: argparse.Namespace, _: list[str]) -> int:
    return _decide(options, agree=True)


def _deny(options: argparse.Namespace, _: list[str]) -> int:
    return _decide(options, agree=False)


def _decide(options: argparse.Namespace, *, agree: bool) -> int:
    from fedcipher.guard.consent import Consents
    from fedcipher.guard.policy import AppRules

    request = Consents(_folder_of(options), AppRules()).decide(options.request, agree=agree)
    show(f"{request.name}: {'agreed; the run begins when its server asks again' if agree else 'denied'}")
    return 0


def _rules(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.guard.policy import AppRules, load_rules

    place = home() / "guard.json"
    if options.write:
        try:
            make_private_folder(place.parent)
            write_new(place, json.dumps(AppRules().to_values(), indent=2).encode() + b"\n", 0o600)
        except FileExistsError:
            raise ParameterError(
                f"{place} exists: change it with an editor; `fedcipher guard rules` shows it"
            ) from None
        except OSError as error:
            raise ParameterError(f"the rules cannot be written: {refusal(error, place)}") from error
        show(f"{place}: the default rules")
        return 0
    show(f"{place}: {'in force' if place.exists() else 'missing, so the default is in force'}")
    print(json.dumps(load_rules(place).to_values(), indent=2))
    return 0
