"""Rosters and committees of a scheme without a shared client key (`Scheme.committee`)."""

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
_ROSTER = "give a roster, as from fedcipher.schemes.oneshot.roster"


class Member(Protocol):
    """A member of the committee, which holds shares of the secrets of a round's clients."""

    def answer(self, request: bytes) -> bytes:
        """Answer a request of `CommitteeRound.requests`. A client is in at most one answered sum of a round.

        The same request gets the same bytes again. Another request of the round is answered only if both sums count in
        a memory, have no common client and keep the rule of sets. `state_dir` records the answers. If clients have sent
        no valid share, the answer is a complaint that names these clients; the member can then still answer for the
        round.

        Raises `SignatureError`, `TooFewContributionsError`, `SetRuleError`, `ReplayError`, `FrameError`, and
        `PrekeyError` for shares of a deleted prekey.
        """
        ...

    def prekey(self) -> bytes:
        """Return a signed frame with a fresh public key. Clients encrypt the next round's shares to this key.

        The key is deleted after ``prekey_rounds`` rounds of use, and ``prekey_hours`` after it was made.
        """
        ...

    def forget(self) -> None:
        """Delete all prekeys, so that nothing that was encrypted to them opens again. Call it at the end of a run."""
        ...


class _NativeMember:
    """A `Member` whose key is in this process."""

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
    """A round's exchange with the committee (`Aggregator.committee`)."""

    def __init__(self, native: _native.Aggregator) -> None:
        self._native = native

    def take_prekeys(self, frames: Sequence[bytes]) -> list[str]:
        """Check the prekeys for the round's clients. From then on, only shares encrypted to these are accepted.

        Returns a reason for each refused prekey.
        """
        return self._native.take_prekeys(as_frames(frames, "frames"))

    def requests(self) -> dict[int, bytes]:
        """Fix the clients of the sum, and return the next request for each member of the committee.

        Nothing can be added to the sum afterwards. While members are `agreeing`, the requests are proposals. Once no
        answer is `missing`, the next call returns the requests for the members' sums. Calls may be repeated.
        """
        return dict(self._native.requests())

    def answer(self, frame: bytes) -> int:
        """Check and store a member's answer. Returns the member's number.

        Raises `SignatureError`, `FrameError`, and for a complaint `FalseShareError`; `accused` then has the clients.
        """
        return self._native.answer(as_bytes(frame, "frame"))

    @property
    def accused(self) -> list[int]:
        """Clients that members accuse of a false share: leave them out of the next round."""
        return self._native.accused

    @property
    def agreeing(self) -> bool:
        """Whether the next requests are proposals: members first agree that the sum may exist."""
        return self._native.agreeing

    @property
    def missing(self) -> int:
        """The number of answers that the next step still needs."""
        return self._native.missing


class Committee:
    """The rosters, members and readers of a scheme without a shared client key."""

    def __init__(self, native: _native.Scheme, codec: Codec, *, needed: int, reveals_to_server: bool) -> None:
        self._native, self._codec = native, codec
        self.needed = needed
        """The number of members that must answer for a sum."""
        self.reveals_to_server = reveals_to_server
        """Whether the server itself opens each round's sum, with `server_decryptor`."""

    def readers(self, key: _native.ServerKey) -> frozenset[int]:
        """Numbers of the parties in the roster of ``key`` that open sums."""
        return frozenset(number for number, _, (_, _, reader) in self._parties(key) if reader)

    def members(self, key: _native.ServerKey | _native.ClientKey) -> frozenset[int]:
        """Numbers of the parties in the roster of ``key`` that are members of the committee."""
        return frozenset(number for number, _, (_, member, _) in self._parties(key) if member)

    def _parties(self, key: _native.ServerKey | _native.ClientKey) -> list[tuple[int, str, tuple[bool, bool, bool]]]:
        if isinstance(key, _native.ClientKey):
            return self.roster_of(key)[0].parties()
        return _native.Roster.from_bytes(server_key(key).public).parties()

    def member(self, key: _native.ClientKey) -> Member:
        """The member of the committee that holds ``key``."""
        return _NativeMember(self._native.member(client_key(key), state_dir()))

    def prekeys(self, keys: KeySet) -> list[bytes]:
        """The newest prekey of each member, for a simulation that has all keys in one process."""
        keys = instance_of(keys, KeySet, "keys", "give a KeySet, as from keygen")
        return [self.member(keys.client(member)).prekey() for member in sorted(self.members(keys.server()))]

    def server_decryptor(self, key: _native.ServerKey) -> Decryptor:
        """Make a decryptor for a server that may see each round's sum. Raises `UnsupportedError` for other servers."""
        return KernelDecryptor(self._native.server_decryptor(server_key(key)), self._codec)

    def for_reader(self, frame: bytes, reader: int) -> bytes:
        """Return the aggregate with the parts that ``reader`` needs, and nothing for other readers."""
        return self._native.for_reader(as_bytes(frame, "frame"), whole_number(reader, "reader", 0, _MAX_PARTY))

    def join(self, roster: _native.Roster, identity: _native.Identity, *, epoch: int = 1) -> _native.ClientKey:
        """Make the key of the party in ``roster`` whose identity is ``identity``. Raises `ParameterError`."""
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        identity = instance_of(identity, _native.Identity, "identity", "give a party's identity")
        return self._native.join(roster, identity, whole_number(epoch, "epoch"))

    def roster_key(self, roster: _native.Roster, *, epoch: int = 1) -> _native.ServerKey:
        """Make the server's key for ``roster``. Raises the errors of `join`."""
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        return self._native.roster_key(roster, whole_number(epoch, "epoch"))

    def roster_fingerprint(self, roster: _native.Roster, *, epoch: int = 1, params: bytes | None = None) -> bytes:
        """Return a digest of the roster's parties, keys, parameters and epoch. People compare it; parties sign it.

        ``params`` is the digest of parameters (16 bytes) in keys that an earlier version made. Raises the errors of
        `join`.
        """
        roster = instance_of(roster, _native.Roster, "roster", _ROSTER)
        params = None if params is None else as_bytes(params, "params")
        if params is not None and len(params) != _PARAMS_BYTES:
            raise ParameterError(f"params has {len(params)} bytes; the parameter digest of a key has {_PARAMS_BYTES}")
        return self._native.roster_fingerprint(roster, whole_number(epoch, "epoch"), params)

    def roster_in(self, key: _native.ServerKey) -> _native.Roster:
        """The roster in a server's key.

        Raises `KeyFormatError` if the key names another roster, and the errors of `join`.
        """
        return self._native.roster_in(server_key(key))

    def with_joined(self, key: _native.ClientKey, joined: Sequence[tuple[int, bytes]]) -> _native.ClientKey:
        """Return ``key`` with the signatures of parties that have joined its roster.

        ``joined`` has (party, signature). A key encrypts once it has enough signatures. Raises `SignatureError` for an
        invalid signature, and the errors of `join`.
        """
        return self._native.with_joined(client_key(key), _signed(joined))

    def roster_of(self, key: _native.ClientKey) -> tuple[_native.Roster, set[int] | None]:
        """The roster in a party's key, and the parties whose signatures the key holds; None if it needs none."""
        return self._native.roster_of(client_key(key))


def _signed(joined: Iterable[tuple[object, object]]) -> list[tuple[int, bytes]]:
    """Check a list of (party, signature). Raises `ParameterError`."""
    try:
        pairs = [(party, by) for party, by in joined]
    except (TypeError, ValueError) as error:
        raise ParameterError(f"joined is not a list of (party, signature): {quoted(error)}") from error
    return [(whole_number(party, "party", 0, _MAX_PARTY), as_bytes(by, "signature")) for party, by in pairs]
