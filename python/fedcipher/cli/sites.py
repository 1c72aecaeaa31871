"""`fedcipher policy` shows what a site allows, and `fedcipher charter` what a run asks for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedcipher._files import make_private_folder, refusal
from fedcipher.cli.parser import Parser
from fedcipher.errors import CharterError, ParameterError
from fedcipher.federation.policy import POLICY_FILE, Policy, load_policy, policy_path
from fedcipher.foreign_text import show
from fedcipher.keys.roster import read_identity
from fedcipher.keys.store import home, locate_run, write_new

__all__ = ["add_charter", "add_policy"]


def add_policy(parser: Parser) -> None:
    """Add the options of `fedcipher policy`."""
    group = parser.add_argument_group("file")
    group.add_argument("--write", action="store_true", help="write the default policy to the file, as a start")
    parser.example("", "--write")
    parser.set_defaults(run=_policy)


def add_charter(parser: Parser) -> None:
    """Add the options of `fedcipher charter`."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of SecureStrategy(out=...), or its name")
    sign = parser.add_argument_group("signature")
    sign.add_argument(
        "--sign", type=Path, metavar="IDENTITY", help="sign the charter with the coordinator's NAME.identity"
    )
    sign.add_argument(
        "--digest",
        default="",
        metavar="SHA256",
        help="with --sign: digest of the charter that the coordinator has read",
    )
    parser.example("my-app")
    parser.set_defaults(run=_charter)


def _default_place() -> Path:
    return home() / "policy.json"


def _policy(options: argparse.Namespace, _: list[str]) -> int:
    place = policy_path(_default_place())
    if options.write:
        _write(place)
        return 0
    found = place.exists()
    policy = load_policy(_default_place())
    state = "in force" if found else "missing, so the default is in force"
    show(f"{place}: {state} ({POLICY_FILE} can name another file)")
    print(json.dumps(policy.to_values(), indent=2))
    if not found:
        show("`fedcipher policy --write` makes the file; docs/how-to/policy.md says what each line allows")
    return 0


def _write(place: Path) -> None:
    content = json.dumps(Policy().to_values(), indent=2).encode() + b"\n"
    try:
        make_private_folder(place.parent)
        write_new(place, content, 0o600)
    except FileExistsError:
        raise ParameterError(f"{place} exists: change it with an editor; `fedcipher policy` shows it") from None
    except OSError as error:
        raise ParameterError(f"the policy cannot be written: {refusal(error, place)}") from error
    show(f"{place}: the default policy; docs/how-to/policy.md says what each line allows")


def _charter(options: argparse.Namespace, _: list[str]) -> int:
    from fedcipher.federation.server.run_folder import read_run

    run = read_run(locate_run(options.folder))
    charter = run.charter
    # ASCII only, because a run's folder may come from an untrusted party.
    print(json.dumps(json.loads(charter.encode()), indent=2))
    show(f"SHA-256 of the charter: {charter.digest.hex()}")
    if options.sign is not None:
        # The folder may have changed since the coordinator read the charter.
        if options.digest != charter.digest.hex():
            raise ParameterError(
                "--sign needs --digest, the SHA-256 of the charter that you have read; this charter has another"
            )
        run.sign(read_identity(options.sign))
        show("signed: the server sends the signature with the charter, to clients that know this coordinator")
    try:
        load_policy(_default_place()).judge(charter, run.signature)
        show("this site's policy allows it")
    except CharterError as error:
        show(str(error))
    return 0
