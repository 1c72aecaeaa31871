"""`fedcipher identity`, `roster`, `join`, `joined` and `forget`: keys for schemes without a shared key."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from fedcipher import keys
from fedcipher._options import whole
from fedcipher.cli.options import (
    MAX_EPOCH,
    add_coordinator,
    add_per_round,
    add_privacy,
    add_scheme,
    add_weights,
    coordinator_of,
    examples_per_weight,
    made,
    max_weight,
    privacy_of_keys,
    sets,
    show_privacy,
)
from fedcipher.cli.parser import OptionGroup, Parser, RenamedOption
from fedcipher.errors import ParameterError, WrongRosterError
from fedcipher.foreign_text import MAX_NAME, quoted, show
from fedcipher.keys.roster import (
    Listed,
    fingerprint_of,
    look,
    new_identity,
    read_card,
    who_joined,
)
from fedcipher.keys.roster import add_joined as note_joined
from fedcipher.keys.roster import join as join_roster
from fedcipher.keys.roster import make as make_roster
from fedcipher.schemes import Member
from fedcipher.schemes.base import state_dir

__all__ = ["add_forget", "add_identity", "add_join", "add_joined", "add_roster"]

_SCHEME = "oneshot"


def add_identity(parser: Parser) -> None:
    """Add the options of `fedcipher identity`."""
    parser.add_argument("name", help="name of the party; NAME.identity is its secret, NAME.card is for the roster")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, default=Path(), help="folder for both files (default: here)")
    parser.example("ada")
    parser.set_defaults(run=_identity)


def add_roster(parser: Parser) -> None:
    """Add the options of `fedcipher roster`."""
    parser.add_argument("cards", type=Path, nargs="*", metavar="CARD", help="NAME.card of each party")
    _add_roles(parser)
    cohort = parser.add_argument_group("cohort")
    add_per_round(cohort)
    cohort.add_argument(
        "--epoch", type=whole(1, MAX_EPOCH), default=1, help="epoch of these keys, higher than all before"
    )
    add_weights(parser, required=False)
    add_scheme(parser, scheme=_SCHEME)
    add_privacy(parser, rounds=True)
    parser.add_argument_group("output").add_argument("--out", type=Path, help="file to make: server.key")
    check = parser.add_argument_group("check a roster instead of making one")
    check.add_argument("--check", type=Path, metavar="FILE", help="show the roster of a server's or party's key")
    _add_expect(check)
    check.add_argument(
        "--joined",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="with --check: NAME.joined of parties that have joined",
    )
    parser.example(
        "ada.card bob.card cid.card --equal --member ada --member bob --member cid --out server.key",
        "--check server.key",
    )
    parser.set_defaults(run=_roster)


def _add_roles(parser: Parser) -> None:
    roles = parser.add_argument_group("roles; repeat each for every party that has it")
    roles.add_argument("--member", action="append", default=[], metavar="NAME", help="a member of the committee")
    roles.add_argument(
        "--no-updates", action="append", default=[], metavar="NAME", help="a party that sends no updates"
    )
    roles.add_argument("--no-decrypt", action="append", default=[], metavar="NAME", help="a party that opens no sums")
    for earlier, name in (("--silent", "--no-updates"), ("--blind", "--no-decrypt")):
        roles.add_argument(earlier, action=RenamedOption, const=name)


def add_join(parser: Parser) -> None:
    """Add the options of `fedcipher join`."""
    parser.add_argument("identity", type=Path, help="NAME.identity of the party")
    parser.add_argument("roster", type=Path, help="server.key")
    trust = parser.add_argument_group("trust")
    _add_expect(trust)
    add_coordinator(trust)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, required=True, help="key file to make: NAME.key; NAME.joined is written beside it"
    )
    parser.example("ada.identity server.key --out ada.key")
    parser.set_defaults(run=_join)


def add_joined(parser: Parser) -> None:
    """Add the options of `fedcipher joined`."""
    parser.add_argument("key", type=Path, help="a party's key file")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="NAME.joined of the others")
    parser.example("ada.key bob.joined cid.joined")
    parser.set_defaults(run=_joined)


def add_forget(parser: Parser) -> None:
    """Add the options of `fedcipher forget`."""
    parser.add_argument("keys", type=Path, nargs="+", metavar="KEY", help="key file of a member of the committee")
    parser.example("ada.key")
    parser.set_defaults(run=_forget)


def _add_expect(group: OptionGroup) -> None:
    group.add_argument(
        "--expect", metavar="FINGERPRINT", help="the roster's fingerprint from the other parties, all 64 digits"
    )


def _identity(options: argparse.Namespace, __: list[str]) -> int:
    secret, card = new_identity(options.name, options.out)
    _, *public = read_card(card)
    show(
        f"{secret}: secret; keep it on this machine",
        f"{card}: for the party that makes the roster",
        f"keys {fingerprint_of(*public)}: every roster with this party must list these keys",
    )
    return 0


def _roster(options: argparse.Namespace, __: list[str]) -> int:
    if options.check is not None:
        return _check_roster(options)
    if not options.cards or options.out is None or not (options.equal or options.examples is not None):
        raise ParameterError(
            "to make a roster, give cards, --out and one of --equal and --examples; to check one, give --check"
        )
    if options.expect is not None or options.joined:
        raise ParameterError("--expect and --joined need --check: they are for a roster that already exists")
    largest = max_weight(options)
    senders = len(options.cards) - len(set(options.no_updates))
    if options.per_round is not None and options.per_round > senders:
        raise ParameterError(f"--per-round {options.per_round}: {senders} parties of the roster send updates")
    if not sets(options, "members"):
        options.set.append(f"members={len(set(options.member))}")
    privacy = privacy_of_keys(options)
    scheme = made(options, options.per_round or senders, largest, privacy)
    of_keys = {"epoch": options.epoch, "examples_per_weight": examples_per_weight(options)}
    names = {"members": options.member, "no_updates": options.no_updates, "no_decrypt": options.no_decrypt}
    out, listed = make_roster(options.cards, scheme, options.out, **of_keys, **names)
    show(f"{out}: for {scheme}", *listed.lines())
    show_privacy(privacy, scheme)
    return 0


def _check_roster(options: argparse.Namespace) -> int:
    if options.cards or options.out is not None:
        raise ParameterError("--check reads a roster and does not make one: leave out cards and --out")
    listed = look(options.check)
    show(*listed.lines())
    if options.expect is not None:
        listed.expect(options.expect)
    problems = list(listed.problems)
    if options.joined or listed.joined is not None:
        signed = {number for number, _ in who_joined(listed, options.joined)}
        problems += _show_joined(listed, signed | (listed.joined or set()))
    for problem in problems:
        show(f"fedcipher: {problem}", to=sys.stderr)
    return 1 if problems else 0


def _show_joined(listed: Listed, joined: Collection[int]) -> list[str]:
    """Show the parties that have joined. Returns a sentence on parties that must still join, or nothing."""
    names = [quoted(party.name, MAX_NAME) for party in listed.parties if party.number in joined]
    show(f"{len(names)} of {len(listed.parties)} parties have joined", *(f"joined: {name}" for name in names))
    lacking = listed.lacking(joined)
    return [f"no party encrypts before these have joined: {lacking}"] if lacking else []


def _joined(options: argparse.Namespace, __: list[str]) -> int:
    listed = note_joined(options.key, options.files)
    for lacking in _show_joined(listed, listed.joined or ()):
        show(lacking)
    return 0


def _forget(options: argparse.Namespace, __: list[str]) -> int:
    # All keys are checked to be members' keys before anything is deleted.
    for path, member in [(path, _member_of(path)) for path in options.keys]:
        member.forget()
        show(f"{path}: everything sealed to this member so far can no longer be opened")
    return 0


def _member_of(path: Path) -> Member:
    """The member that holds this key. Raises `ParameterError` if it is not a member's, or has no prekeys here."""
    scheme, key = keys.load_client(path)
    committee = scheme.committee
    if committee is None:
        raise ParameterError(f"{path} is a key of {scheme.name}, which has no committee and therefore no prekeys")
    if key.client not in committee.members(key):
        raise ParameterError(f"{path} is the key of party {key.client}, which is not a member of the committee")
    if not (state_dir() / f"{key.fingerprint}-{key.client}.prekeys").exists():
        raise ParameterError(
            f"{path}: this member has no prekeys in {state_dir()}; run this as the user that the member runs as, "
            "with the same FEDCIPHER_STATE_DIR"
        )
    return committee.member(key)


def _join(options: argparse.Namespace, __: list[str]) -> int:
    coordinator = coordinator_of(options)

    def accept(listed: Listed) -> None:
        show(*listed.lines())
        if options.expect is not None:
            listed.expect(options.expect)
        else:
            _confirm(listed)

    path, signed, name = join_roster(
        options.identity, options.roster, options.out, accept=accept, coordinator=coordinator
    )
    show(
        f"{path}: the key of {name}; it encrypts when enough others have joined: fedcipher joined {path} FILES...",
        f"{signed}: for the other parties",
    )
    return 0


def _confirm(listed: Listed) -> None:
    """Ask the user to confirm the parties. Raises `WrongRosterError` without a confirmation."""
    if not sys.stdin.isatty():
        raise WrongRosterError(
            "the parties of this roster are not confirmed: check the list, and ask the other parties for the "
            f"fingerprint that they see. If it is the same: fedcipher join ... --expect {listed.fingerprint}"
        )
    show("If you know all these parties, and they see the same fingerprint, type the number of parties:", flush=True)
    if sys.stdin.readline().strip() != str(len(listed.parties)):
        raise WrongRosterError("the roster is not confirmed; nothing was written")
