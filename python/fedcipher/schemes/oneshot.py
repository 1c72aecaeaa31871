"""`oneshot`: additive BFV without any shared key."""

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
    """Each client encrypts each round under a secret of its own, which it shares with a committee.

    Meant to withstand eavesdroppers and a server that cheats, also together with up to ``corrupt_clients`` clients and
    ``corrupt_members`` members of the committee. Attacks that succeed, by parties that are made up and by a model that
    is made to stand still, are in docs/explanation/oneshot.md, with what to do meanwhile. Members delete the keys that
    shares are sealed to, so that recorded updates stay closed later. One message a client a round;
    whoever drops out costs
    nothing, and ``members - threshold - pack + 1`` members may be away. A client that lies spoils a round.
    Assumptions: ring-LWE at 128 bits with sums of secrets and errors shown (Hint-RLWE, docs/reference/parameters.md),
    X-Wing, Ed25519 or ML-DSA-65; for the sum to be the named clients', HMAC-SHA256 and that no client gives the server
    the cohort's secret for tags.

    Parameters
    ----------
    clients, max_weight
        Most clients of a round and largest weight of one.
    members, threshold
        Size of the committee, and one more than how many of it learn nothing together. Without a ``threshold``, it is
        the least that ``corrupt_members`` allows: more than half of ``members + corrupt_members``.
    corrupt_clients
        Most clients that work with the server, as a count. At least two fewer than ``min_contributions``, else
        `ParameterError`.
    corrupt_members
        Most members of the committee that work with the server, as a count. More than half of
        ``members + corrupt_members`` is at most ``threshold``, else `ParameterError`. A party that is both a client and
        a member counts in both.
    min_contributions
        Fewest clients of a sum, as a count or as a share of ``clients`` between 0 and 1; at least
        ``corrupt_clients + 2``, so that two honest ones hide each other, else `ParameterError`. Without it: the largest
        of 3, ``corrupt_clients + 2`` and a tenth of ``clients``, rounded up.
    preset
        ``"compact"``: N = 4096; ``"fast"``: N = 2048, half of the shares' bytes, fewer values a ciphertext.
    pack
        Coefficients of the secret in one shared polynomial: shares of 1/pack the size, ``pack - 1`` more members
        needed.
    reveal
        Who opens a round's sum: ``"clients"``, the readers of the roster, or ``"server"`` too.
    prekey_rounds, prekey_hours
        How long a member keeps a key that shares are sealed to: rounds from its first use on, and hours from when it
        was made, 1 to 8,766. Recorded updates open with no file of a member after that.
    """

    name = "oneshot"
    split: ClassVar[dict[str, str]] = {
        "corrupt": "corrupt_clients (most clients) and corrupt_members (most members of the committee)"
    }
    info = SchemeInfo(
        summary="ring-LWE with a fresh key a client and round, shared with a committee; nobody holds a key",
        withstands="a server that cheats, also together with up to `corrupt_clients` clients and"
        " `corrupt_members` members; eavesdroppers;"
        " with the exceptions of docs/explanation/oneshot.md",
        broken_by="more than `corrupt_members` members of the committee together with the server",
        cost="`bfv` and a share a member: 20 to 30 kB and a millisecond or two a client and round, whatever the model",
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
            # An odd number, of which a majority is the smallest part.
            fewer = max(2, len(ids) - 1 + len(ids) % 2)
            raise ParameterError(
                f"{len(ids)} clients cannot give a committee of {members}: take members={fewer} (--set "
                f"members={fewer}), and no threshold, or more clients"
            )
        return super().keygen(ids, epoch=epoch)

    @property
    def noise_shares(self) -> int:
        # Clients that work with the server, a reader among them, may leave out their noise.
        return max(1, self.min_contributions - max(1, self._params["corrupt_clients"]))

    @property
    def committee(self) -> Committee:
        return self._committee

    def aggregator(self, key: _native.ServerKey, *, round: int | None = None) -> Aggregator:
        native = self._native.aggregator(server_key(key), round_of(round))
        return NativeAggregator(native, committee=CommitteeRound(native))


@dataclass(frozen=True)
class Party:
    """A party of a roster and what it does: sends updates, holds shares, opens aggregates."""

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
        """What the holder of ``identity`` gives to whoever makes the roster."""
        return cls(party, *identity.public())


def roster(cards: Sequence[Card]) -> _native.Roster:
    """The roster of these parties, for `Committee.join` and `Committee.roster_key`.

    With the server's help, whoever makes it could forge aggregates towards readers: not to be made by the server.
    Raises `ParameterError` for two parties of one number, name or key.
    """

    def row(card: Card) -> tuple[int, str, tuple[bool, bool, bool], bytes, bytes]:
        party = card.party
        return party.id, party.name, (party.client, party.member, party.reader), card.verify, card.sealing

    return _native.Roster([row(card) for card in cards])
