"""Files of parties that share no key: each makes its identity, somebody makes the roster, each joins it.

An identity is a secret of its party alone. What a party gives away is its card. The roster is the server's key file:
public, and the same for everybody, which the fingerprint shows. Who joins it accepts the list of its parties, and gets
the party's key file and a signature for the others.
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
"""Of a fingerprint: with 256 bits, nobody finds two rosters, or keys, of one."""
_GROUP = 4


def _grouped(digest: bytes) -> str:
    text = digest.hex()
    return "-".join(text[k : k + _GROUP] for k in range(0, _DIGITS, _GROUP))


def fingerprint_of(verify: bytes, sealing: bytes) -> str:
    """Of a party's public keys, for people to compare."""
    return _grouped(sha256(b"fedcipher card 1\0" + verify + sealing).digest())


@dataclass(frozen=True)
class ListedParty:
    """A party as a roster has it."""

    number: int
    name: str
    client: bool
    member: bool
    reader: bool
    keys: str
    """Their fingerprint."""

    @property
    def roles(self) -> str:
        """In words."""
        return ", ".join(role for role in ("client", "member", "reader") if getattr(self, role))


@dataclass(frozen=True)
class Listed:
    """Who is in a roster, for a person to look at."""

    parties: tuple[ListedParty, ...]
    digest: bytes
    """What a party signs that joins."""
    problems: tuple[str, ...]
    """What is wrong with it; nobody joins where something is."""
    signing: dict[int, bytes]
    """By number, what a party's signatures are checked with."""
    corrupt_clients: int
    """Most clients that may lie."""
    joined: frozenset[int] | None = field(default=None, compare=False)
    """Who has joined it, as far as this party's key knows; None where it needs no signatures, and in a server's key."""

    @property
    def fingerprint(self) -> str:
        """Of all: parties, keys, parameters of the scheme, epoch."""
        return _grouped(self.digest)

    def lacking(self, joined: Collection[int]) -> str:
        """Who must join it yet, where ``joined`` have, before anybody encrypts; empty where these are enough.

        As the core counts (``oneshot/joined.rs``).
        """
        away = [party for party in self.parties if party.number not in joined]
        clients = sum(party.client for party in self.parties)
        have, needed = clients - sum(party.client for party in away), (clients + self.corrupt_clients) // 2 + 1
        names = [quoted(party.name, MAX_NAME) for party in away if party.member]
        said = [f"members {', '.join(names)}"] if names else []
        return "; ".join([*said, f"{needed - have} more clients"] if have < needed else said)

    def lines(self) -> list[str]:
        """All of it, as it is printed."""
        clients, members, readers = (sum(getattr(p, r) for p in self.parties) for r in ("client", "member", "reader"))
        said = [f"{len(self.parties)} parties: {clients} clients, {members} members, {readers} readers"]
        said += [
            f"{party.number}: {quoted(party.name, MAX_NAME)} ({party.roles}), keys {party.keys}"
            for party in self.parties
        ]
        return [*said, f"fingerprint {self.fingerprint}"]

    def expect(self, fingerprint: str) -> None:
        """Raise `WrongRosterError` where it has another fingerprint. All 64 digits count; separators do not."""
        digits = "".join(c for c in fingerprint.lower() if c not in "-: ")
        if len(digits) != _DIGITS or not set(digits) <= set("0123456789abcdef"):
            raise ParameterError(f"{quoted(fingerprint, MAX_NAME)!r} is no fingerprint: give all {_DIGITS} digits")
        if bytes.fromhex(digits) != self.digest:
            raise WrongRosterError(
                f"this roster's fingerprint is {self.fingerprint} and not {_grouped(bytes.fromhex(digits))}: do not "
                "join it, and ask the others which roster they have"
            )


def expected(fingerprint: str) -> Callable[[Listed], None]:
    """For `join`: accepts the roster of this fingerprint only."""
    return lambda listed: listed.expect(fingerprint)


def _is_name(name: str) -> bool:
    """One that others can be shown."""
    return name.isprintable() and 0 < len(name) <= MAX_NAME


def new_identity(name: str, folder: str | Path) -> tuple[Path, Path]:
    """Fresh keys of the party ``name``: ``NAME.identity``, a secret, and ``NAME.card``, for whoever makes the roster.

    Raises `KeyFormatError` where one of the files exists, or cannot be written.
    """
    if Path(name).name != name or name in ("", ".", "..") or not _is_name(name):
        raise ParameterError(
            f"{quoted(name, MAX_NAME)!r} is no name for a party: no more than {MAX_NAME} characters, no folder "
            "separators or line ends, please"
        )
    folder = Path(folder)
    secret, card = folder / f"{name}.identity", folder / f"{name}.card"
    identity = _native.Identity.generate()
    verify, sealing = identity.public()
    said = {
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
        write_new(card, json.dumps(said, indent=1).encode() + b"\n", 0o644)
    except FileExistsError as error:
        raise KeyFormatError(f"{error.filename} exists; an identity is made once, so choose another name") from None
    except OSError as error:
        raise KeyFormatError(f"cannot write an identity to {refusal(error, folder)}") from error
    return secret, card


def read_card(path: str | Path) -> tuple[str, bytes, bytes]:
    """Name and public keys on a card. Raises `KeyFormatError`."""
    path = Path(path)
    try:
        said: dict[str, Any] = read_json(path, MAX_CARD, follow=True)
        name = said["name"]
        if said["fedcipher"] != VERSION or said["role"] != "card" or not (isinstance(name, str) and _is_name(name)):
            raise KeyError("role")
        verify, sealing = (base64.b64decode(said[part], validate=True) for part in ("verify", "sealing"))
        return name, verify, sealing
    except OSError as error:
        raise KeyFormatError(f"cannot read card {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise KeyFormatError(
            f"{path} is no card of this version: `fedcipher identity NAME` makes NAME.card; NAME.identity stays secret"
        ) from error


def coordinator_of(card: str | Path) -> str:
    """The key that a charter's signature by this card's party is checked with, as base64. Raises `KeyFormatError`."""
    return base64.b64encode(read_card(card)[1]).decode()


def read_joined(path: str | Path) -> tuple[int, bytes, bytes]:
    """Who has joined a roster, by a file that `join` made: number, the roster's digest, signature.

    Raises `KeyFormatError`. Whether the signature holds, `add_joined` and `who_joined` say.
    """
    path = Path(path)
    try:
        said: dict[str, Any] = read_json(path, MAX_CARD, follow=True)
        number, digest = said["party"], bytes.fromhex(said["roster"].replace("-", ""))
        if said["fedcipher"] != VERSION or said["role"] != "joined" or type(number) is not int or number < 0:
            raise KeyError("role")
        signature = base64.b64decode(said["signature"], validate=True)
        if (len(digest), len(signature)) != (_DIGITS // 2, SIGNATURE_BYTES) or number >= 1 << 32:
            raise ValueError("lengths")
        return number, digest, signature
    except OSError as error:
        raise KeyFormatError(f"cannot read {refusal(error, path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise KeyFormatError(
            f"{path} says of nobody that they have joined: `fedcipher join` makes NAME.joined"
        ) from error


def who_joined(listed: Listed, files: Iterable[str | Path]) -> list[tuple[int, bytes]]:
    """Number and signature of each party whose file this is, of this roster, under a signature that holds.

    Raises `KeyFormatError`, and `WrongRosterError` for a file of another roster, `SignatureError` for a false one.
    """
    found: list[tuple[int, bytes]] = []
    for path in files:
        number, digest, signature = read_joined(path)
        if digest != listed.digest:
            raise WrongRosterError(
                f"{path} is of the roster {_grouped(digest)}, and this one is {listed.fingerprint}: whoever made both "
                "has told you apart, or a file is old; ask its party which roster it has"
            )
        key = listed.signing.get(number)
        if key is None or not _native.roster_signature_holds(key, digest, signature):
            raise SignatureError(f"{path} does not bear the signature of party {number}; ask that party for its file")
        found.append((number, signature))
    return found


def add_joined(key_file: str | Path, files: Iterable[str | Path]) -> Listed:
    """Put into a party's key file who else has joined, as `who_joined` finds; and its roster, with all who have.

    Raises as `look` and `who_joined`. Nothing is written where one file is refused.
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
    """The roster of these parties, numbered by name, as the server's key file ``out``; and who is in it.

    ``members`` names the committee, ``no_updates`` the parties that send none, ``no_decrypt`` those that open no sums.
    Raises `ParameterError`, `KeyFormatError`, and `UnsupportedError` where the scheme has no roster.
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
        raise ParameterError(f"nobody would join this roster: {'; '.join(shown.problems)}")
    return save_server(key, scheme, out, examples_per_weight=examples_per_weight), shown


def read_identity(path: str | Path) -> _native.Identity:
    """A party's own keys. Raises `KeyFormatError`: also where other users may read the file, or replace it."""
    path = Path(path)
    try:
        head, _, secret = _native.read_key_file(path).partition(b"\n")
        said: dict[str, Any] = parse_json(head)
        if said["fedcipher"] != VERSION or said["role"] != "identity":
            raise KeyError("role")
        return _native.Identity.from_bytes(secret)
    except (ValueError, KeyError, TypeError) as error:
        raise KeyFormatError(f"{path} is no identity of this version; `fedcipher identity NAME` makes one") from error


def look(path: str | Path) -> Listed:
    """Who is in the roster of a server's or a party's key file, and what is wrong with it.

    Raises `KeyFormatError` where it holds no roster, or not the one that it names.
    """
    if role_of(path) == "client":
        scheme, key = load_client(path)
        listed, joined = _committee_of(scheme).roster_of(key)
        known = None if joined is None else frozenset(joined)
        return replace(_listed(scheme, listed, key), joined=known)
    return _listed(*_roster_in(path))


def _roster_in(path: str | Path) -> tuple[Scheme, _native.Roster, _native.ServerKey]:
    """Of a server's key file."""
    scheme, server = load_server(path)
    try:
        return scheme, _committee_of(scheme).roster_in(server), server
    except FedcipherError as error:
        raise KeyFormatError(f"{path} holds no roster: {error}; take it again") from error


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
    """Beyond what the core refuses: two parties of one number, name or key, and committees of another size."""
    try:
        listed.check_keys()
    except FedcipherError as error:
        yield str(error)
    names = [name for _, name, _ in listed.parties()]
    for name in names:
        if not _is_name(name) or name != name.strip():
            yield f"{quoted(name, MAX_NAME)!r} is no name that people can tell"
    alike = Counter(unicodedata.normalize("NFKC", name).casefold() for name in names)
    for name in names:
        if alike[unicodedata.normalize("NFKC", name).casefold()] > 1:
            yield f"another party is called nearly as {quoted(name, MAX_NAME)!r}"
    clients, least = sum(client for _, _, (client, _, _) in listed.parties()), made_by.min_contributions
    if clients < least:
        yield f"it has {clients} clients and a sum needs {least}"


def join(
    identity: str | Path,
    roster_file: str | Path,
    out: str | Path,
    *,
    accept: Callable[[Listed], None],
    coordinator: str = "",
    trusts_maker: bool = False,
) -> tuple[Path, Path | None, str]:
    """The key file ``out`` of the party that ``identity`` is, what it gives to the others, and its name.

    The second is ``NAME.joined`` beside the key file, as ``NAME.identity`` is called: a signature of the roster. The
    party encrypts when it has enough of these (`add_joined`). With ``trusts_maker``, as in a simulation, it needs none
    and makes none.

    ``accept`` is called with the roster before anything is written, and raises an error where the roster is not to be
    joined: `expected`, or a person who looks. ``coordinator`` is `coordinator_of` its card. Raises `KeyFormatError`,
    `WrongRosterError` where something is wrong with the roster, and `ParameterError` where it does not have the
    identity.
    """
    own = read_identity(identity)
    made_by, listed, server = _roster_in(roster_file)
    committee = _committee_of(made_by)
    if committee.roster_key(listed, epoch=server.epoch).params != server.params:
        raise WrongRosterError(
            f"an earlier version of Fedcipher has made the roster {roster_file}: parties that have joined it go on. "
            "Whoever joins now needs a roster that this version has made"
        )
    shown = _listed(made_by, listed, server)
    accept(shown)
    if shown.problems:
        raise WrongRosterError(f"this roster is not to be joined: {'; '.join(shown.problems)}")
    key = committee.join(listed, own, epoch=server.epoch)
    name = next(party.name for party in shown.parties if party.number == key.client)
    if trusts_maker:
        return save_client(key, made_by, out, coordinator=coordinator), None, name
    said = {
        "fedcipher": VERSION,
        "role": "joined",
        "party": key.client,
        "roster": shown.fingerprint,
        "signature": base64.b64encode(own.sign_roster(shown.digest)).decode(),
    }
    path = save_client(committee.with_joined(key, []), made_by, out, coordinator=coordinator)
    # Not the roster's name for the party: whoever made the roster chose it, and it could name a folder.
    signed = path.with_name(f"{Path(identity).stem}.joined")
    try:
        write_new(signed, json.dumps(said, indent=1).encode() + b"\n", 0o644)
    except OSError as error:
        path.unlink()
        if isinstance(error, FileExistsError):
            raise KeyFormatError(
                f"{signed} exists: this identity has joined a roster already. Whoever signs two helps their maker to "
                "split the others; move the file away where the other roster is no longer used"
            ) from None
        raise KeyFormatError(f"cannot write {refusal(error, signed)}") from error
    return path, signed, name


def _committee_of(scheme: Scheme) -> Committee:
    if scheme.committee is None:
        raise ParameterError(f"scheme {scheme.name!r} has no roster: its clients share a key")
    return scheme.committee
