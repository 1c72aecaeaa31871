"""Files of parties that share no key: each makes its identity, somebody makes the roster, each joins it.

An identity is a secret of its party alone. What a party gives away is its card. The roster is the server's key file:
public, and the same for everybody, which the fingerprint shows. Joining makes the party's key file.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedcipher import _native
from fedcipher._files import make_private_folder, refusal
from fedcipher.errors import FedcipherError, KeyFormatError, ParameterError
from fedcipher.foreign_files import MAX_CARD, parse_json, read_json
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.keys.store import VERSION, load_server, save_client, save_server, write_new
from fedcipher.schemes import Scheme
from fedcipher.schemes.base import NativeScheme
from fedcipher.schemes.oneshot import Card, Party, roster

__all__ = ["coordinator_of", "join", "make", "new_identity", "read_card", "read_identity"]


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


def make(
    cards: Sequence[str | Path],
    scheme: Scheme,
    out: str | Path,
    *,
    members: Iterable[str],
    silent: Iterable[str] = (),
    blind: Iterable[str] = (),
    epoch: int = 1,
    examples_per_weight: float = 0.0,
) -> tuple[Path, str]:
    """The roster of these parties, numbered by name, as the server's key file ``out``; and its fingerprint.

    ``members`` names the committee, ``silent`` who sends no updates, ``blind`` who opens no aggregates. Raises
    `ParameterError`, `KeyFormatError`, and `UnsupportedError` where the scheme has no roster.
    """
    members, silent, blind = set(members), set(silent), set(blind)
    read = sorted(read_card(path) for path in cards)
    unknown = sorted((members | silent | blind) - {name for name, *_ in read})
    if unknown:
        raise ParameterError(
            f"no card of {', '.join(unknown)}; the cards are of {', '.join(name for name, *_ in read)}"
        )

    def party(number: int, name: str) -> Party:
        return Party(number, name, client=name not in silent, member=name in members, reader=name not in blind)

    listed = roster([Card(party(k, name), *keys) for k, (name, *keys) in enumerate(read)])
    key = _native_scheme(scheme).roster_key(listed, epoch=epoch)
    return save_server(key, scheme, out, examples_per_weight=examples_per_weight), key.fingerprint


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


def join(
    identity: str | Path, roster_file: str | Path, out: str | Path, *, coordinator: str = ""
) -> tuple[Path, str, str]:
    """The key file ``out`` of the party that ``identity`` is: where it is, the party's name, and the fingerprint.

    ``coordinator`` is `coordinator_of` its card. Raises `KeyFormatError`, and `ParameterError` where the roster does
    not have the identity.
    """
    own = read_identity(identity)
    scheme, server = load_server(roster_file)
    made_by = _native_scheme(scheme)
    try:
        listed = _native.Roster.from_bytes(server.public)
        sound = made_by.roster_key(listed, epoch=server.epoch).to_bytes() == server.to_bytes()
    except FedcipherError as error:
        raise KeyFormatError(f"{roster_file} holds no roster: {error}") from error
    if not sound:
        raise KeyFormatError(f"{roster_file} is damaged: its roster is not the one that it names; take it again")
    key = made_by.join(listed, own, epoch=server.epoch)
    name = next(name for number, name, _ in listed.parties() if number == key.client)
    return save_client(key, scheme, out, coordinator=coordinator), name, server.fingerprint


def _native_scheme(scheme: Scheme) -> NativeScheme:
    if not isinstance(scheme, NativeScheme):
        raise ParameterError(f"scheme {scheme.name!r} has no roster: its clients share a key")
    return scheme
