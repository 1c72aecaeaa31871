"""Rosters and committees: what a scheme has whose clients share no key (`Scheme.committee`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from fedcipher import _native
from fedcipher._arguments import as_bytes, as_frames, instance_of, whole_number
from fedcipher.codec import Codec
from fedcipher.errors import ParameterError
from fedcipher.foreign_text import quoted
from fedcipher.schemes.base import (
    Decryptor,
    KernelDecryptor,
    KeySet,
    client_key,
    refuse_copy,
    server_key,
    state_dir,
)

__all__ = ["Committee", "CommitteeRound", "Member"]

_MAX_PARTY = (1 << 32) - 1
_PARAMS_BYTES = 16
_ROSTER = "give one of fedcipher.schemes.oneshot.roster"


class Member(Protocol):
    """One of a committee that holds shares of what a round's clients have drawn."""

    def answer(self, request: bytes) -> bytes:
        """The answer to a request of `CommitteeRound.requests`, once a client and round.

        The same request again gets the same bytes. Another of the round is answered only where both count in a memory,
        have no client in common and keep to the rule of sets. What was answered is remembered in `state_dir`. Raises
        `SignatureError`, `TooFewContributionsError`, `SetRuleError`, `ReplayError` and what any frame may
        raise, and `PrekeyError` for shares of a prekey that is gone. Clients that have sent no share are named in a
        complaint in place of an answer; nothing is spent then.
        """
        ...

    def prekey(self) -> bytes:
        """The frame that publishes the key that shares of the next round are sealed to, under the member's signature.

        The key is deleted once it has served ``prekey_rounds`` rounds, and ``prekey_hours`` after it was made.
        """
        ...

    def forget(self) -> None:
        """Delete all prekeys: nothing that was sealed to them opens any more. For the end of a run."""
        ...


class _NativeMember:
    """A `Member` whose key is here."""

    def __init__(self, native: _native.Member) -> None:
        self._native = native

    def answer(self, request: bytes) -> bytes:
        return self._native.answer(as_bytes(request, "request"))

    def prekey(self) -> bytes:
        return self._native.prekey()

    def forget(self) -> None:
        self._native.forget()

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


class CommitteeRound:
    """A round's work with the committee (`Aggregator.committee`)."""

    def __init__(self, native: _native.Aggregator) -> None:
        self._native = native

    def take_prekeys(self, frames: Sequence[bytes]) -> list[str]:
        """Check the prekeys that the round's clients are given, and take what was sealed to these only.

        Why each that is refused is.
        """
        return self._native.take_prekeys(as_frames(frames, "frames"))

    def requests(self) -> dict[int, bytes]:
        """Fix who is in the sum: what to send next to each member of the committee.

        From here on nothing more is added. Where members are `agreeing`, these are proposals, and once no answer is
        `missing` the requests for their sums come next. The same may be asked for again.
        """
        return dict(self._native.requests())

    def answer(self, frame: bytes) -> int:
        """Check a member's answer and keep it: whose it is.

        Raises `SignatureError`, `FrameError`, and `FalseShareError` for a complaint: then see `accused`.
        """
        return self._native.answer(as_bytes(frame, "frame"))

    @property
    def accused(self) -> list[int]:
        """Clients that members have found to spoil the round: leave them out of the next."""
        return self._native.accused

    @property
    def agreeing(self) -> bool:
        """Whether members agree that the sum may exist, before they are asked for theirs."""
        return self._native.agreeing

    @property
    def missing(self) -> int:
        """How many more answers the next step needs."""
        return self._native.missing


class Committee:
    """The parties of a scheme whose clients share no key: rosters, members and readers."""

    def __init__(self, native: _native.Scheme, codec: Codec, *, needed: int, reveals_to_server: bool) -> None:
        self._native, self._codec = native, codec
        self.needed = needed
        """How many members must answer for a sum."""
        self.reveals_to_server = reveals_to_server
        """Whether the server opens each round's sum itself, with `server_decryptor`."""

    def readers(self, key: _native.ServerKey) -> frozenset[int]:
        """The parties of the roster in ``key`` that open sums."""
        return frozenset(number for number, _, (_, _, reader) in self._parties(key) if reader)

    def members(self, key: _native.ServerKey | _native.ClientKey) -> frozenset[int]:
        """The parties of the roster in ``key`` that are members of the committee."""
        return frozenset(number for number, _, (_, member, _) in self._parties(key) if member)

    def _parties(self, key: _native.ServerKey | _native.ClientKey) -> list[tuple[int, str, tuple[bool, bool, bool]]]:
        if isinstance(key, _native.ClientKey):
            return self.roster_of(key)[0].parties()
        return _native.Roster.from_bytes(server_key(key).public).parties()

    def member(self, key: _native.ClientKey) -> Member:
        """The member of the committee that holds ``key``."""
        return _NativeMember(self._native.member(client_key(key), state_dir()))

    def prekeys(self, keys: KeySet) -> list[bytes]:
        """The newest prekey of each member, where one place has all keys, as in a simulation."""
        keys = instance_of(keys, KeySet, "keys", "give a KeySet, as from keygen")
        return [self.member(keys.client(member)).prekey() for member in sorted(self.members(keys.server()))]

    def server_decryptor(self, key: _native.ServerKey) -> Decryptor:
        """For a server that may see each round's sum. Raises `UnsupportedError` where it may not."""
        return KernelDecryptor(self._native.server_decryptor(server_key(key)), self._codec)

    def addressed(self, frame: bytes, reader: int) -> bytes:
        """An aggregate with what ``reader`` needs of it, and no more."""
        return self._native.addressed(as_bytes(frame, "frame"), whole_number(reader, "reader", 0, _MAX_PARTY))

    def join(self, roster: _native.Roster, identity: _native.Identity, *, epoch: int = 1) -> _native.ClientKey:
        """The key of the party that ``identity`` is in ``roster``. Raises `ParameterError`."""
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        identity = instance_of(identity, _native.Identity, "identity", "give a party's identity")
        return self._native.join(roster, identity, whole_number(epoch, "epoch"))

    def roster_key(self, roster: _native.Roster, *, epoch: int = 1) -> _native.ServerKey:
        """The server's key to ``roster``. Raises as `join`."""
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        return self._native.roster_key(roster, whole_number(epoch, "epoch"))

    def roster_fingerprint(self, roster: _native.Roster, *, epoch: int = 1, params: bytes | None = None) -> bytes:
        """What names ``roster`` to people, and what its parties sign: of parties, keys, parameters and epoch.

        ``params`` are those of the roster's keys, which an earlier version may have made. Raises as `join`.
        """
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        params = None if params is None else as_bytes(params, "params")
        if params is not None and len(params) != _PARAMS_BYTES:
            raise ParameterError(f"params has {len(params)} bytes, and a key's have {_PARAMS_BYTES}")
        return self._native.roster_fingerprint(roster, whole_number(epoch, "epoch"), params)

    def roster_in(self, key: _native.ServerKey) -> _native.Roster:
        """The roster in a server's key. Raises `KeyFormatError` where the key names another one, and as `join`."""
        return self._native.roster_in(server_key(key))

    def with_joined(self, key: _native.ClientKey, joined: Sequence[tuple[int, bytes]]) -> _native.ClientKey:
        """``key``, which encrypts once enough parties have joined, with these parties' signatures of its roster.

        Raises `SignatureError` for one that does not hold, and as `join`.
        """
        return self._native.with_joined(client_key(key), _signed(joined))

    def roster_of(self, key: _native.ClientKey) -> tuple[_native.Roster, set[int] | None]:
        """The roster in a party's key, and who has joined it as the key knows; None where it needs no signatures."""
        return self._native.roster_of(client_key(key))


def _signed(joined: Iterable[tuple[object, object]]) -> list[tuple[int, bytes]]:
    """Parties and their signatures. Raises `ParameterError`."""
    try:
        pairs = [(party, by) for party, by in joined]
    except (TypeError, ValueError) as error:
        raise ParameterError(f"joined is no list of parties with their signatures: {quoted(error)}") from error
    return [(whole_number(party, "party", 0, _MAX_PARTY), as_bytes(by, "signature")) for party, by in pairs]
