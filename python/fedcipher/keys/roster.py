"""Files of parties that share no key: each party makes an identity, one maker makes the roster, each party joins it.

An identity is secret to its party. The party gives its card to the maker of the roster. The roster is the server's key
file. It is public and the same for all parties; its fingerprint shows this. A party that joins accepts the list of
parties. It gets its key file and a signature for the other parties.
"""

from __future__ import annotations

import base64
import binascii
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher._files import make_private_folder, refusal, resolved
from fedcipher.errors import FedcipherError, KeyFormatError, ParameterError, SignatureError, WrongRosterError
from fedcipher.federation.charter import SIGNATURE_BYTES
from fedcipher.foreign_files import MAX_CARD, parse_json, read_json
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.keys.store import (
    VERSION,
    load_client,
    load_server,
    replace_client_key,
    role_of,
    save_client,
    save_server,
    write_new,
)
from fedcipher.schemes import Scheme
from fedcipher.schemes.committee import Committee
from fedcipher.schemes.oneshot import Card, Party, roster

__all__ = [
    "Listed",
    "ListedParty",
    "add_joined",
    "coordinator_of",
    "expected",
    "fingerprint_of",
    "join",
    "look",
    "make",
    "new_identity",
    "read_card",
    "read_identity",
    "read_joined",
    "who_joined",
]

_DIGITS = 64
"""Hexadecimal digits of a fingerprint. With 256 bits it is infeasible to find two rosters, or keys, of one fingerprint.
"""
_GROUP = 4


def _grouped(digest: bytes) -> str:
    text = digest.hex()
    return "-".join(text[k : k + _GROUP] for k in range(0, _DIGITS, _GROUP))


def fingerprint_of(verify: bytes, sealing: bytes) -> str:
    """The fingerprint of a party's public keys, for people to compare."""
    return _grouped(sha256(b"fedcipher card 1\0" + verify + sealing).digest())


@dataclass(frozen=True)
class ListedParty:
    """A party's entry in a roster."""

    number: int
    name: str
    client: bool
    member: bool
    reader: bool
    keys: str
    """The fingerprint of the party's public keys."""

    @property
    def roles(self) -> str:
        """The party's roles as text."""
        return ", ".join(role for role in ("client", "member", "reader") if getattr(self, role))


@dataclass(frozen=True)
class Listed:
    """The contents of a roster, for a person to check."""

    parties: tuple[ListedParty, ...]
    digest: bytes
    """The digest that each joining party signs."""
    problems: tuple[str, ...]
    """Faults of the roster. A party refuses to join a roster with faults."""
    signing: dict[int, bytes]
    """The public key for signatures of each party, by the party's number."""
    corrupt_clients: int
    """Most clients that may lie."""
    joined: frozenset[int] | None = field(default=None, compare=False)
    """Numbers of the parties whose signatures this party's key holds. None in a key that needs no signatures, and in
    a server's key."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of everything in the roster: parties, keys, parameters of the scheme, epoch."""
        return _grouped(self.digest)

    def lacking(self, joined: Collection[int]) -> str:
        """Describe which parties, besides ``joined``, must join before any party encrypts; empty if none.

        The core applies the same rule (``oneshot/joined.rs``).
        """
        away = [party for party in self.parties if party.number not in joined]
        clients = sum(party.client for party in self.parties)
        have, needed = clients - sum(party.client for party in away), (clients + self.corrupt_clients) // 2 + 1
        names = [quoted(party.name, MAX_NAME) for party in away if party.member]
        parts = [f"members {', '.join(names)}"] if names else []
        return "; ".join([*parts, f"{needed - have} more clients"] if have < needed else parts)

    def lines(self) -> list[str]:
        """The lines that commands print about the roster."""
        clients, members, readers = (sum(getattr(p, r) for p in self.parties) for r in ("client", "member", "reader"))
        lines = [f"{len(self.parties)} parties: {clients} clients, {members} members, {readers} readers"]
        lines += [
            f"{party.number}: {quoted(party.name, MAX_NAME)} ({party.roles}), keys {party.keys}"
            for party in self.parties
        ]
        return [*lines, f"fingerprint {self.fingerprint}"]

    def expect(self, fingerprint: str) -> None:
        """Raise `WrongRosterError` if the roster has another fingerprint. All 64 digits count, separators do not."""
        digits = "".join(c for c in fingerprint.lower() if c not in "-: ")
        if len(digits) != _DIGITS or not set(digits) <= set("0123456789abcdef"):
            raise ParameterError(f"{quoted(fingerprint, MAX_NAME)!r} is not a fingerprint: give all {_DIGITS} digits")
        if bytes.fromhex(digits) != self.digest:
            raise WrongRosterError(
                f"this roster's fingerprint is {self.fingerprint}, not {_grouped(bytes.fromhex(digits))}: do not "
                "join this roster, and ask the other parties which roster they have"
            )


def expected(fingerprint: str) -> Callable[[Listed], None]:
    """Make a check for `join` that accepts only the roster of this fingerprint."""
    return lambda listed: listed.expect(fingerprint)


def _is_name(name: str) -> bool:
    """Whether ``name`` is printable and short enough to show."""
    return name.isprintable() and 0 < len(name) <= MAX_NAME


def new_identity(name: str, folder: str | Path) -> tuple[Path, Path]:
    """Make new keys for the party ``name``, and return the paths of two files in ``folder``.

    ``NAME.identity`` is secret; ``NAME.card`` is for the maker of the roster. Raises `ParameterError` for an unusable
    name, and `KeyFormatError` if one of the files exists or cannot be written.
    """
    if Path(name).name != name or name in ("", ".", "..") or not _is_name(name):
        raise ParameterError(
            f"{quoted(name, MAX_NAME)!r} is not a name for a party: give at most {MAX_NAME} characters, without folder "
            "separators or line ends"
        )
    folder = Path(folder)
    secret, card = folder / f"{name}.identity", folder / f"{name}.card"
    identity = _native.Identity.generate()
    verify, sealing = identity.public()
    content = {
        "fedcipher": VERSION,
        "role": "card",
        "name": name,
        "verify": base64.b64encode(verify).decode(),
        "sealing": base64.b64encode(sealing).decode(),
    }
    head = json.dumps({"fedcipher": VERSION, "role": "identity", "name": name}).encode()
    try:
        make_private_folder(folder)
        write_new(secret, head + b"\n" + identity.to_bytes(), 0o600)
        write_new(card, json.dumps(content, indent=1).encode() + b"\n", 0o644)
    except FileExistsError as error:
        raise KeyFormatError(f"{error.filename} exists and is never overwritten; choose another name") from None
    except OSError as error:
        raise KeyFormatError(f"cannot write an identity to {refusal(error, folder)}") from error
    return secret, card


def read_card(path: str | Path) -> tuple[str, bytes, bytes]:
    """Read (name, public signing key, public encryption key) from a card. Raises `KeyFormatError`."""
    path = Path(path)
    try:
        content: dict[str, Any] = read_json(path, MAX_CARD, follow=True)
        name = content["name"]
        if (
            content["fedcipher"] != VERSION
            or content["role"] != "card"
            or not (isinstance(name, str) and _is_name(name))
        ):
            raise KeyError("role")
        verify, sealing = (base64.b64decode(content[part], validate=True) for part in ("verify", "sealing"))
        return name, verify, sealing
    except OSError as error:
        raise KeyFormatError(f"cannot read card {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise KeyFormatError(
            f"{path} is not a card of this version: `fedcipher identity NAME` makes NAME.card; keep NAME.identity "
            "secret"
        ) from error


def coordinator_of(card: str | Path) -> str:
    """The public key, as base64, that checks the card holder's signatures on charters. Raises `KeyFormatError`."""
    return base64.b64encode(read_card(card)[1]).decode()


def read_joined(path: str | Path) -> tuple[int, bytes, bytes]:
    """Read (party's number, roster's digest, signature) from a file that `join` has made.

    Does not check the signature; `add_joined` and `who_joined` do. Raises `KeyFormatError`.
    """
    path = Path(path)
    try:
        content: dict[str, Any] = read_json(path, MAX_CARD, follow=True)
        number, digest = content["party"], bytes.fromhex(content["roster"].replace("-", ""))
        if content["fedcipher"] != VERSION or content["role"] != "joined" or type(number) is not int or number < 0:
            raise KeyError("role")
        signature = base64.b64decode(content["signature"], validate=True)
        if (len(digest), len(signature)) != (_DIGITS // 2, SIGNATURE_BYTES) or number >= 1 << 32:
            raise ValueError("lengths")
        return number, digest, signature
    except OSError as error:
        raise KeyFormatError(f"cannot read {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise KeyFormatError(
            f"{path} is not a proof that a party has joined: `fedcipher join` makes NAME.joined"
        ) from error


def who_joined(listed: Listed, files: Iterable[str | Path]) -> list[tuple[int, bytes]]:
    """Read and check the files of parties that have joined this roster. Returns (number, signature) for each.

    Raises `KeyFormatError`, `WrongRosterError` for a file of another roster, `SignatureError` for a false signature.
    """
    found: list[tuple[int, bytes]] = []
    for path in files:
        number, digest, signature = read_joined(path)
        if digest != listed.digest:
            raise WrongRosterError(
                f"{path} is for the roster {_grouped(digest)}, and this roster is {listed.fingerprint}: either the "
                "file is old, or the maker gave you two different rosters; ask the party which roster it has"
            )
        key = listed.signing.get(number)
        if key is None or not _native.roster_signature_holds(key, digest, signature):
            raise SignatureError(f"{path} has no valid signature of party {number}; ask that party for its file")
        found.append((number, signature))
    return found


def add_joined(key_file: str | Path, files: Iterable[str | Path]) -> Listed:
    """Add the signatures in ``files`` to a party's key file, and return its roster with all parties that have joined.

    Writes nothing if one file is refused. Raises the errors of `look` and `who_joined`.
    """
    try:
        path = resolved(key_file)
    except OSError as error:
        raise KeyFormatError(f"cannot read key file {refusal(error)}") from error
    scheme, key = load_client(path)
    replace_client_key(path, _committee_of(scheme).with_joined(key, who_joined(look(path), files)))
    return look(path)


def make(
    cards: Sequence[str | Path],
    scheme: Scheme,
    out: str | Path,
    *,
    members: Iterable[str],
    no_updates: Iterable[str] = (),
    no_decrypt: Iterable[str] = (),
    epoch: int = 1,
    examples_per_weight: float = 0.0,
) -> tuple[Path, Listed]:
    """Make a roster of the parties on ``cards``, and write it as the server's key file ``out``.

    Parties are numbered in the order of their names. ``members`` names the committee, ``no_updates`` the parties that
    send no updates, ``no_decrypt`` the parties that open no sums. ``examples_per_weight`` is as in
    `fedcipher.keys.save`. Returns the path and the contents. Raises `ParameterError`, also if the scheme has no roster,
    and `KeyFormatError`.
    """
    members, no_updates, no_decrypt = set(members), set(no_updates), set(no_decrypt)
    read = sorted(read_card(path) for path in cards)
    unknown = sorted((members | no_updates | no_decrypt) - {name for name, *_ in read})
    if unknown:
        raise ParameterError(
            f"no card of {', '.join(unknown)}; the cards are of {', '.join(name for name, *_ in read)}"
        )

    def party(number: int, name: str) -> Party:
        return Party(number, name, client=name not in no_updates, member=name in members, reader=name not in no_decrypt)

    listed = roster([Card(party(k, name), *keys) for k, (name, *keys) in enumerate(read)])
    key = _committee_of(scheme).roster_key(listed, epoch=epoch)
    shown = _listed(scheme, listed, key)
    if shown.problems:
        raise ParameterError(f"parties would refuse this roster: {'; '.join(shown.problems)}")
    return save_server(key, scheme, out, examples_per_weight=examples_per_weight), shown


def read_identity(path: str | Path) -> _native.Identity:
    """Read a party's own keys. Raises `KeyFormatError`, also if other users may read or replace the file."""
    path = Path(path)
    try:
        head, _, secret = _native.read_key_file(path).partition(b"\n")
        content: dict[str, Any] = parse_json(head)
        if content["fedcipher"] != VERSION or content["role"] != "identity":
            raise KeyError("role")
        return _native.Identity.from_bytes(secret)
    except (ValueError, KeyError, TypeError) as error:
        raise KeyFormatError(
            f"{path} is not an identity of this version; `fedcipher identity NAME` makes one"
        ) from error


def look(path: str | Path) -> Listed:
    """Read the roster in a server's or a party's key file, and list its parties and faults.

    Raises `KeyFormatError` if the file holds no roster, or another roster than it names.
    """
    if role_of(path) == "client":
        scheme, key = load_client(path)
        listed, joined = _committee_of(scheme).roster_of(key)
        known = None if joined is None else frozenset(joined)
        return replace(_listed(scheme, listed, key), joined=known)
    return _listed(*_roster_in(path))


def _roster_in(path: str | Path) -> tuple[Scheme, _native.Roster, _native.ServerKey]:
    """(scheme, roster, key) of a server's key file."""
    scheme, server = load_server(path)
    try:
        return scheme, _committee_of(scheme).roster_in(server), server
    except FedcipherError as error:
        raise KeyFormatError(f"{path} holds no roster: {error}; get the file from its maker again") from error


def _listed(made_by: Scheme, listed: _native.Roster, key: _native.ServerKey | _native.ClientKey) -> Listed:
    parties = tuple(
        ListedParty(number, name, *roles, fingerprint_of(*keys))
        for (number, name, roles), keys in zip(listed.parties(), listed.keys(), strict=True)
    )
    return Listed(
        parties,
        _committee_of(made_by).roster_fingerprint(listed, epoch=key.epoch, params=key.params),
        (*_problems(made_by, listed),),
        {party.number: verify for party, (verify, _) in zip(parties, listed.keys(), strict=True)},
        made_by.params()["corrupt_clients"],
    )


def _problems(made_by: Scheme, listed: _native.Roster) -> Iterable[str]:
    """Faults beyond those that the core refuses (equal numbers, names or keys, or a committee of another size)."""
    try:
        listed.check_keys()
    except FedcipherError as error:
        yield str(error)
    names = [name for _, name, _ in listed.parties()]
    for name in names:
        if not _is_name(name) or name != name.strip():
            yield f"{quoted(name, MAX_NAME)!r} is not a name that people can read unambiguously"
    alike = Counter(unicodedata.normalize("NFKC", name).casefold() for name in names)
    for name in names:
        if alike[unicodedata.normalize("NFKC", name).casefold()] > 1:
            yield f"another party's name looks like {quoted(name, MAX_NAME)!r}"
    clients, least = sum(client for _, _, (client, _, _) in listed.parties()), made_by.min_contributions
    if clients < least:
        yield f"the roster has {clients} clients, and a sum needs {least}"


def join(
    identity: str | Path,
    roster_file: str | Path,
    out: str | Path,
    *,
    accept: Callable[[Listed], None],
    coordinator: str = "",
    trusts_maker: bool = False,
) -> tuple[Path, Path | None, str]:
    """Join a roster as the party of ``identity``. Returns (key file ``out``, signature file, party's name).

    The signature file is ``NAME.joined`` beside the key file, where NAME is the stem of ``identity``. It is for the
    other parties. A party encrypts once it has enough signatures (`add_joined`). With ``trusts_maker``, as in a
    simulation, a party needs no signatures and makes none; the signature file is then None.

    ``accept`` is called with the roster before anything is written. It raises an error to refuse the roster, after a
    comparison (`expected`) or because a person decides. ``coordinator`` is the result of `coordinator_of`.

    Raises `KeyFormatError`, `WrongRosterError` for a roster with faults, and `ParameterError` if the identity is not in
    the roster.
    """
    own = read_identity(identity)
    made_by, listed, server = _roster_in(roster_file)
    committee = _committee_of(made_by)
    if committee.roster_key(listed, epoch=server.epoch).params != server.params:
        raise WrongRosterError(
            f"an earlier version of Fedcipher made the roster {roster_file}: parties that joined it can continue. To "
            "join now, ask for a roster made by this version"
        )
    shown = _listed(made_by, listed, server)
    accept(shown)
    if shown.problems:
        raise WrongRosterError(f"do not join this roster: {'; '.join(shown.problems)}")
    key = committee.join(listed, own, epoch=server.epoch)
    name = next(party.name for party in shown.parties if party.number == key.client)
    if trusts_maker:
        return save_client(key, made_by, out, coordinator=coordinator), None, name
    content = {
        "fedcipher": VERSION,
        "role": "joined",
        "party": key.client,
        "roster": shown.fingerprint,
        "signature": base64.b64encode(own.sign_roster(shown.digest)).decode(),
    }
    path = save_client(committee.with_joined(key, []), made_by, out, coordinator=coordinator)
    # Do not use the party's name in the roster: the maker chose it, and it could be a path.
    signed = path.with_name(f"{Path(identity).stem}.joined")
    try:
        write_new(signed, json.dumps(content, indent=1).encode() + b"\n", 0o644)
    except OSError as error:
        path.unlink()
        if isinstance(error, FileExistsError):
            raise KeyFormatError(
                f"{signed} exists: this identity has already joined a roster. Signatures on two rosters help their "
                "maker to split the parties; move the file away if the other roster is no longer used"
            ) from None
        raise KeyFormatError(f"cannot write {refusal(error, signed)}") from error
    return path, signed, name


def _committee_of(scheme: Scheme) -> Committee:
    if scheme.committee is None:
        raise ParameterError(f"scheme {scheme.name!r} has no roster: its clients share a key")
    return scheme.committee
