"""`oneshot`: additive BFV without a shared key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedcipher import _native
from fedcipher._arguments import whole_number
from fedcipher.codec import Codec, codec_or
from fedcipher.errors import ParameterError
from fedcipher.schemes.base import (
    Aggregator,
    KeySet,
    NativeAggregator,
    NativeScheme,
    SchemeInfo,
    cohort_of,
    round_of,
    server_key,
)
from fedcipher.schemes.committee import Committee, CommitteeRound

__all__ = ["Card", "Oneshot", "Party", "roster"]


_MAX_PARTIES = 1 << 20


class Oneshot(NativeScheme):
    """Each client encrypts each round under a fresh secret, and shares the secret with a committee.

    The goal is to withstand eavesdroppers and a malicious server that colludes with up to ``corrupt_clients`` clients
    and ``corrupt_members`` members of the committee. Some attacks succeed: with invented parties, or with a model that
    is kept unchanged. docs/explanation/oneshot.md has these attacks and what to do. Members delete the keys that shares
    are encrypted to, so that recorded updates cannot be opened later.

    A client sends one message in a round. A client that drops out costs nothing. Up to
    ``members - threshold - pack + 1`` members may be away. A client that lies makes the round fail.

    Secrecy assumes ring-LWE at 128 bits with sums of secrets and errors shown (Hint-RLWE,
    docs/reference/parameters.md), X-Wing, and Ed25519 or ML-DSA-65. That a sum is the sum of the named clients assumes
    HMAC-SHA256, and that no client gives the cohort's tag secret to the server.

    Parameters
    ----------
    clients, max_weight
        Most clients in a round, and largest weight of a client.
    members, threshold
        Size of the committee, and one more than the number of members that learn nothing together. The default
        ``threshold`` is the least that ``corrupt_members`` allows: more than half of ``members + corrupt_members``.
    corrupt_clients
        Most clients that collude with the server, as a count. Must be at least two fewer than ``min_contributions``,
        else `ParameterError`.
    corrupt_members
        Most members that collude with the server, as a count. ``threshold`` must be more than half of
        ``members + corrupt_members``, else `ParameterError`. A party that is both client and member counts in both.
    min_contributions
        Fewest clients in a sum, as a count or as a share of ``clients`` between 0 and 1. Must be at least
        ``corrupt_clients + 2``, so that two honest clients hide each other, else `ParameterError`. The default is the
        largest of 3, ``corrupt_clients + 2`` and a tenth of ``clients``, rounded up.
    preset
        ``"compact"``: N = 4096. ``"fast"``: N = 2048, half the bytes for shares, fewer values per ciphertext.
    pack
        Coefficients of the secret in one shared polynomial. Shares have 1/pack of the size, and ``pack - 1`` more
        members must answer.
    reveal
        Who opens a round's sum: ``"clients"`` for the readers of the roster, ``"server"`` for the server too.
    prekey_rounds, prekey_hours
        How long a member keeps a prekey: rounds from its first use, and hours (1 to 8,766) from its creation. After
        that, no file of a member opens recorded updates.
    """

    name = "oneshot"
    split: ClassVar[dict[str, str]] = {
        "corrupt": "corrupt_clients (most clients) and corrupt_members (most members of the committee)"
    }
    info = SchemeInfo(
        summary="ring-LWE with a fresh key per client and round, shared with a committee; no shared key",
        withstands="a malicious server that colludes with up to `corrupt_clients` clients and"
        " `corrupt_members` members; eavesdroppers;"
        " with the exceptions of docs/explanation/oneshot.md",
        broken_by="more than `corrupt_members` members of the committee together with the server",
        cost="`bfv` and a share for each member: 20 to 30 kB and a millisecond or two per client and round,"
        " for any model",
        source="LERNA, Willow, OPA, Flamingo",
        committee=True,
        widths=True,
    )

    def __init__(
        self,
        *,
        clients: int,
        max_weight: int = 1,
        min_contributions: float | None = None,
        preset: Literal["compact", "fast"] = "compact",
        members: int = 5,
        threshold: int | None = None,
        corrupt_clients: int = 1,
        corrupt_members: int = 1,
        pack: int = 1,
        reveal: Literal["clients", "server"] = "clients",
        prekey_rounds: int = 1,
        prekey_hours: int = 24,
        codec: Codec | None = None,
    ) -> None:
        members = whole_number(members, "members", 1, _MAX_PARTIES)
        corrupt_clients = whole_number(corrupt_clients, "corrupt_clients", 0, _MAX_PARTIES)
        corrupt_members = whole_number(corrupt_members, "corrupt_members", 0, _MAX_PARTIES)
        params = {
            "clients": clients,
            "max_weight": max_weight,
            "min_contributions": min_contributions,
            "preset": preset,
            "members": members,
            "threshold": (members + corrupt_members) // 2 + 1 if threshold is None else threshold,
            "corrupt_clients": corrupt_clients,
            "corrupt_members": corrupt_members,
            "pack": pack,
            "reveal": reveal,
            "prekey_rounds": prekey_rounds,
            "prekey_hours": prekey_hours,
        }
        super().__init__(codec_or(codec, 12), params)
        needed, reveals = self._params["threshold"] + self._params["pack"] - 1, self._params["reveal"] == "server"
        self._committee = Committee(self._native, self.codec, needed=needed, reveals_to_server=reveals)

    def keygen(self, cohort: int | Iterable[int], *, epoch: int = 1) -> KeySet:
        ids, members = cohort_of(cohort, epoch), self._params["members"]
        if len(ids) < members:
            # An odd number needs the smallest fraction of members for a majority.
            fewer = max(2, len(ids) - 1 + len(ids) % 2)
            raise ParameterError(
                f"{len(ids)} clients are too few for a committee of {members}: take members={fewer} (--set "
                f"members={fewer}) without threshold, or more clients"
            )
        return super().keygen(ids, epoch=epoch)

    @property
    def noise_shares(self) -> int:
        # Clients that collude with the server may omit their noise. A reader may be one of them.
        return max(1, self.min_contributions - max(1, self._params["corrupt_clients"]))

    @property
    def committee(self) -> Committee:
        return self._committee

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        native = self._native.aggregator(server_key(key), round_of(round))
        return NativeAggregator(native, committee=CommitteeRound(native))


@dataclass(frozen=True)
class Party:
    """A party of a roster, with its roles: client (sends updates), member (holds shares), reader (opens aggregates)."""

    id: int
    name: str
    client: bool = True
    member: bool = False
    reader: bool = True


@dataclass(frozen=True)
class Card:
    """A party and the public halves of its keys."""

    party: Party
    verify: bytes
    sealing: bytes

    @classmethod
    def of(cls, identity: _native.Identity, party: Party) -> Card:
        """Make the card of ``identity``. Its holder gives the card to the maker of the roster."""
        return cls(party, *identity.public())


def roster(cards: Sequence[Card]) -> _native.Roster:
    """Make the roster of these parties, for `Committee.join` and `Committee.roster_key`.

    The server must not make the roster: together with the server, its maker can forge aggregates for readers. Raises
    `ParameterError` if two parties have the same number, name or key.
    """

    def row(card: Card) -> tuple[int, str, tuple[bool, bool, bool], bytes, bytes]:
        party = card.party
        return party.id, party.name, (party.client, party.member, party.reader), card.verify, card.sealing

    return _native.Roster([row(card) for card in cards])
