"""The search for clients that spoil sums, without a sum of too few clients.

A sum that does not open holds the frame of at least one liar, but no scheme shows whose frame it is. `FaultFinder`
chooses the groups of the next round so that honest clients go on and liars end up alone. It uses two numbers of the
run: at most ``c`` (`corrupt_clients`) clients lie, and every sum has at least ``k`` (`min_contributions`) clients.

*Sums.* The liar in a failed sum opens it for itself, because it knows its own lie. So a failed sum counts as
opened. All sets of one position, failed or opened, must divide their clients into cells of at least ``k``: every
combination of the sums is then constant on a cell, so it concerns no client at all, or at least ``k``. At a new
position nothing has been summed, and any disjoint groups of at least ``k`` will do. At the second try of a position
each group is a part of one cell, and what is left of that cell is empty or has at least ``k`` clients; this is why
clients sit out when others of their cell are away. A client gives at most two frames from one position, so a failed
sum is divided once. Halving breaks this rule: its sets differ by fewer than ``k`` clients.

*Proof.* A client is left out of the run when it was in ``c + 1`` failed groups of which no two had another client in
common. If it were honest, each of these groups would hold a different liar, and that is one liar too many. So no
honest client is ever left out while at most ``c`` clients lie, whatever they do, alone or together. In the same way
``c + 1`` failed groups without a common client prove that more than ``c`` clients lie; then the run ends. Proof needs
``1 + (c + 1)(k - 1)`` clients. A group that opened proves nothing, since a liar may behave.

*Doubt.* Doubt is not proof; it only chooses the groups. It is, for each client, the chance that it spoils its next
sum. A failed group divides the doubt of its clients by the chance that one of them lies. A group that opens reduces
the doubt of its clients to almost nothing, but a liar may behave, so three such groups are needed to forget a sure
liar. Clients with hardly any doubt together count as cleared, the others are suspects. At the next position the
suspects are spread evenly by doubt over the groups, cleared clients fill these up to ``k``, and the cleared clients
that remain are one more group.

*Consequences.* ``n`` clients are present, and all frames arrive.

1. With ``n >= (c + 1) k`` each position ends in a step after at most two tries. The groups of the second try are at
   least ``c + 1``, so one has no liar. This holds too when liars stay away from the second try: at most ``k - 1``
   clients sit out for them, which costs one group, and one liar less is there. The same at a position of the search,
   where the first try has fewer groups: the large group of cleared clients is divided if no group opens.
2. One client that always lies, with ``n >= 2k``, spoils the sum of round 1, and one group of round 2 with at most
   ``ceil(n / 2)`` suspects. Each later round spreads the suspects over two groups or more, so at most half of them,
   rounded up, remain. For ``n = 2k`` these are ``k``, then ``ceil(k / 2)``, and so on, each time with as many cleared
   clients as make ``k``. One suspect remains after ``1 + ceil(log2 n)`` rounds. The next round puts it together with
   clients that were not in its smallest failed group. For ``c = 1`` that is proof, after ``ceil(log2 n) + 2`` rounds.
   For larger ``c`` proof takes up to ``c`` rounds more where the clients suffice for it. From there on the liar spoils
   one group of ``k``, with other clients each round, and all others make the step.
3. With ``n < (c + 1) k`` liars may sit in every group. Where there are three groups or more, ``k`` cleared clients are
   a group of their own, and the most doubted are kept together, so that they spoil one group and not all. Two groups
   leave no such choice: both get suspects, as if one client lied, until one is sure. For 20 liars of 100 with
   ``k = 22`` proof is out of reach (it would need 442 clients), and it is not needed: each group that opens is one
   without a lie, so the mean is that of honest clients. If all groups of a second try fail, no further sum is allowed
   at that position, and the run ends. Of 100 clients five liars do that in 25 of 100 runs, in their first search
   only; twenty do it nearly always, since a group of 22 without any of them has a chance of 0.4 %.
4. A liar that lies only together with one victim cannot be told from it. Both have the same doubt, so the next groups
   keep them apart, and then it does not lie. A liar that behaves while it is searched spoils a whole sum again when
   all are summed together again. Each such relapse doubles the rounds in which clients stay in groups, so ``r`` rounds
   have at most about ``log2 r`` of them between two proofs. A suspect that was away comes back into a group, not into
   the sum of all.

The seed is public. Nothing depends on a liar not knowing the groups; it only must not choose them.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcipher.errors import ParameterError, RunError

__all__ = ["FaultFinder", "Outcome", "Plan", "cells", "no_part"]

_MAX_FRAMES = 2
"""Frames that a client gives from one position."""
_FIRST_DOUBT = 1e-24
"""Of a client that was in no failed sum yet. So small that a failed group counts as one liar, not as several."""
_CLEARING = 1e-8
"""The part of a client's doubt that remains when its sum opens. Three such sums forget a sure liar."""
_CLEARED = 1e-5
"""Clients whose doubts together are at most this count as cleared. One suspect of many has more."""
_SURE = 0.9
"""A client is taken for a liar, though not proven, from this doubt on."""
_HOPEFUL = 1.0
"""The most doubt in a group that is meant to open."""
_MAX_EVIDENCE = 1000
"""Failed groups that are kept. The largest are dropped first: they prove least."""
_MAX_DOUBLINGS = 16
"""Of the rounds in which clients stay in groups after a search."""
_FORMAT = 3


@dataclass(frozen=True)
class Plan:
    """The groups of the next round, and the clients that are in none."""

    groups: tuple[tuple[int, ...], ...]
    """Disjoint, each of at least as many clients as its clients were promised: `min_contributions` or more."""
    second_try: bool
    """The sums of this position have failed; these groups refine them, and the model has not moved."""
    waiting: tuple[int, ...]
    """Clients that are present and sit this round out, so that no two sums differ by too few clients."""
    left_out: tuple[int, ...]
    """Clients that are present and proven liars."""
    end: str
    """Empty, or the cause why these clients make no sum, with the remedy. Other clients may change that."""


@dataclass(frozen=True)
class Outcome:
    """The result of a round's sums."""

    opened: tuple[frozenset[int], ...]
    failed: tuple[frozenset[int], ...]
    proven: tuple[int, ...]
    """Clients that are left out of the run from now on."""

    @property
    def step(self) -> bool:
        """Whether the model moves, by the sums that opened."""
        return bool(self.opened)


def cells(sets: Iterable[Collection[int]]) -> list[frozenset[int]]:
    """The clients of ``sets``, grouped by which of the sets they are in."""
    member_of: dict[int, int] = {}
    for number, clients in enumerate(sets):
        for client in clients:
            member_of[client] = member_of.get(client, 0) | 1 << number
    grouped: dict[int, set[int]] = {}
    for client, mark in member_of.items():
        grouped.setdefault(mark, set()).add(client)
    return sorted((frozenset(cell) for cell in grouped.values()), key=min)


def no_part(least: int) -> str:
    """Why the rule of sets allows no sum of some clients, beside earlier sums, and what helps."""
    return (
        f"Clients that were always summed together can be divided only into groups of at least {least}. Wait for those "
        "that are away. If some never come back, make new keys, or new identities where a roster lists them"
    )


def _promises(counted: Sequence[tuple[frozenset[int], int]]) -> Iterator[tuple[frozenset[int], int]]:
    """Each cell of these sets, and how many clients it must have: the largest minimum of the sets that it is in."""
    for cell in cells(clients for clients, _ in counted):
        yield cell, max(least for clients, least in counted if cell <= clients)


@dataclass
class _Position:
    """The sets that were summed from one model, and the frames that clients gave from it."""

    sets: list[frozenset[int]] = field(default_factory=list[frozenset[int]])
    failed: list[frozenset[int]] = field(default_factory=list[frozenset[int]])
    frames: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, sets: Iterable[frozenset[int]], arrived: Iterable[int]) -> None:
        self.sets.extend(sets)
        for client in arrived:
            self.frames[client] = self.frames.get(client, 0) + 1

    def may_send(self, client: int) -> bool:
        return self.frames.get(client, 0) < _MAX_FRAMES


class _Doubts:
    """For each client the chance that it spoils its next sum."""

    def __init__(self, values: Mapping[int, float] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, client: int) -> float:
        return self._values.get(client, _FIRST_DOUBT)

    def items(self) -> list[tuple[int, float]]:
        return sorted(self._values.items())

    def forget(self, client: int) -> None:
        self._values.pop(client, None)

    def failed(self, group: Iterable[int]) -> None:
        clients = sorted(group)
        some_lie = 0.0
        for client in clients:
            some_lie += (1 - some_lie) * self[client]
        for client in clients:
            self._values[client] = min(self[client] / some_lie, 1.0)

    def opened(self, group: Iterable[int]) -> None:
        for client in group:
            self._values[client] = max(self[client] * _CLEARING, _FIRST_DOUBT)

    def suspects(self, clients: Sequence[int]) -> int:
        """How many of ``clients``, the most doubted first, are not cleared."""
        total, count = 0.0, len(clients)
        while count and (total := total + self[clients[count - 1]]) <= _CLEARED:
            count -= 1
        return count


class _Evidence:
    """The failed groups of a run, as proof that clients lie. At most ``corrupt`` of them do."""

    def __init__(self, corrupt: int, groups: Iterable[frozenset[int]] = ()) -> None:
        self._corrupt = corrupt
        self.groups: list[frozenset[int]] = []
        """The smallest first, then the oldest."""
        for group in groups:
            self.add(group)

    def add(self, group: frozenset[int]) -> None:
        bisect.insort(self.groups, group, key=len)
        del self.groups[_MAX_EVIDENCE:]

    def apart(self, centre: int | None = None) -> list[frozenset[int]]:
        """Failed groups, those with ``centre`` if it is given, of which no two have another client in common.

        The smallest come first, then the oldest. So a group that is disjoint from all of these makes one more.
        """
        found: list[frozenset[int]] = []
        taken: set[int] = set()
        for group in self.groups:
            if centre is not None and centre not in group:
                continue
            others = group - {centre}
            if taken.isdisjoint(others):
                found.append(group)
                taken |= others
        return found

    def proof(self, client: int) -> list[frozenset[int]]:
        """Groups that prove ``client`` a liar, or none."""
        found = self.apart(client)
        return found[: self._corrupt + 1] if len(found) > self._corrupt else []

    def too_many(self) -> list[frozenset[int]]:
        """Groups that prove that more clients lie than may, or none."""
        found = self.apart()
        return found[: self._corrupt + 1] if len(found) > self._corrupt else []


class _Division:
    """Clients that may be grouped at will, divided into groups of at least ``least``."""

    def __init__(
        self,
        clients: Sequence[int],
        *,
        least: int,
        corrupt: int,
        doubts: _Doubts,
        evidence: _Evidence,
        last_try: bool,
    ) -> None:
        """``clients`` are in the order of a lot. After the ``last_try`` no group of this position is divided again."""
        self._least = least
        self._doubts = doubts
        self._evidence = evidence
        self._last_try = last_try
        self._place = {client: place for place, client in enumerate(clients)}
        ordered = sorted(clients, key=lambda client: -doubts[client])
        count = doubts.suspects(ordered) or len(ordered)
        self._suspects, self._cleared = ordered[:count], ordered[count:]
        # More groups than this make sums smaller and hardly the search faster.
        self._most = most = min(len(clients) // least, 2 * (corrupt + 1))
        self._some_group_is_honest = most > corrupt
        self._aside: list[int] = []
        self._groups = self._empty_groups(most)

    def groups(self) -> list[list[int]]:
        """The groups, those with the most doubt first."""
        if not self._groups:
            return [[*self._suspects, *self._cleared]]
        self._spread(self._keep_together())
        self._groups = [group for group in self._groups if group]
        self._cleared.sort(key=self._place.__getitem__)
        for group in self._groups:
            self._fill(group)
        self._place_the_rest()
        return self._groups

    def _empty_groups(self, most: int) -> list[list[int]]:
        """Room for the suspects, with ``least`` cleared clients set aside where liars might sit in every group."""
        if most < 2:
            return []
        some_sure, all_sure = (self._doubts[self._suspects[i]] >= _SURE for i in (0, -1))
        if all_sure:
            # Nothing is searched any more. So each cleared client has the same chance to be with the liars.
            self._cleared.sort(key=self._place.__getitem__)
        enough = len(self._cleared) >= self._least
        if not self._some_group_is_honest and enough and (most > 2 or some_sure):
            self._aside, self._cleared = self._cleared[-self._least :], self._cleared[: -self._least]
            most -= 1
        return [[] for _ in range(min(most, len(self._suspects)))]

    def _keep_together(self) -> int:
        """How many of the most doubted are kept in the first group, so that the others' groups may open."""
        if self._some_group_is_honest or len(self._groups) < 2:
            return 0
        others = len(self._groups) - 1
        room = len(self._suspects) + len(self._cleared) - others * self._least
        count = min(sum(self._doubts[client] >= _SURE for client in self._suspects), room)
        rest = sum(self._doubts[client] for client in self._suspects[count:])
        if not count and rest <= _HOPEFUL * (others + 1):
            return 0
        while rest > _HOPEFUL * others and count < room:
            rest -= self._doubts[self._suspects[count]]
            count += 1
        self._groups[0].extend(self._suspects[:count])
        return count

    def _spread(self, together: int) -> None:
        """Each suspect but the first to the group with the least doubt, while every group can still be filled."""
        doubt = [0.0] * len(self._groups)
        if together:
            doubt[0] = math.inf
        for placed in range(together, len(self._suspects)):
            client = self._suspects[placed]
            left = len(self._suspects) - placed + len(self._cleared)
            missing = sum(max(self._least - len(group), 0) for group in self._groups)
            open_to_it = [i for i, group in enumerate(self._groups) if left > missing or len(group) < self._least]
            chosen = min(open_to_it, key=lambda i: (doubt[i], len(self._groups[i])))
            self._groups[chosen].append(client)
            doubt[chosen] += self._doubts[client]

    def _fill(self, group: list[int]) -> None:
        """Adds cleared clients up to the least size; to a single suspect those that make its next failure proof."""
        need = self._least - len(group)
        if need <= 0:
            return
        known = self._known_company(group[0], need) if len(group) == 1 else set[int]()
        self._cleared.sort(key=lambda client: client in known)
        group.extend(self._cleared[:need])
        del self._cleared[:need]

    def _known_company(self, suspect: int, need: int) -> set[int]:
        """The clients of as many failed groups of ``suspect`` as leave ``need`` others."""
        known: set[int] = set()
        for group in self._evidence.apart(suspect):
            wider = known | group
            if sum(client not in wider for client in self._cleared) < need:
                break
            known = wider
        return known

    def _place_the_rest(self) -> None:
        """The remaining cleared clients are one group if it can be divided later, else as many as possible."""
        rest = [*self._aside, *self._cleared]
        most = max(self._most - len(self._groups), 1) if self._last_try else 1
        more = min(len(rest) // self._least, most)
        self._groups.extend(rest[i::more] for i in range(more))
        if not more:
            for client in rest:
                min(self._groups, key=len).append(client)


class FaultFinder:
    """The search, over the rounds of a run. Clients are named by their number in the key set.

    Each round is `plan`, then `summed` with the clients whose frames arrived, then `settle` with those that refused.
    """

    def __init__(self, *, corrupt_clients: int, min_contributions: int, seed: int) -> None:
        if corrupt_clients < 0 or min_contributions < corrupt_clients + 2:
            raise ParameterError(
                f"min_contributions is {min_contributions} and corrupt_clients {corrupt_clients}: a sum needs two "
                "honest clients, so min_contributions must be at least corrupt_clients + 2"
            )
        self._corrupt = corrupt_clients
        self._least = min_contributions
        self._seed = seed
        self._round = 0
        self._position = _Position()
        self._elsewhere: list[tuple[frozenset[int], int]] = []
        self._planned: list[frozenset[int]] = []
        self._sums: list[frozenset[int]] | None = None
        self._arrived = frozenset[int]()
        self._doubts = _Doubts()
        self._evidence = _Evidence(corrupt_clients)
        self._proofs: dict[int, list[frozenset[int]]] = {}
        self._searches = 0
        self._quiet = 0

    @property
    def proofs(self) -> dict[int, list[frozenset[int]]]:
        """The clients left out of the run, each with the failed groups that prove its lie."""
        return dict(self._proofs)

    def doubt(self, client: int) -> float:
        """The chance that ``client`` spoils its next sum, as far as the sums so far tell."""
        return self._doubts[client]

    def searching(self, clients: Collection[int]) -> bool:
        """Whether `plan` would divide ``clients``: the sums of this position failed, or some clients are suspects."""
        return bool(self._position.failed) or self._searching(clients)

    def plan(self, present: Collection[int], remembered: Iterable[tuple[Collection[int], int]] = ()) -> Plan:
        """The groups of the next round, of the clients that are ``present``.

        ``remembered`` are sets of other rounds that the rule of sets counts to this position: of the first positions
        of other runs, or of all rounds of a run whose models the server sets. Each comes with the
        ``min_contributions`` that it was made under, which its clients keep where it is the larger one.
        """
        self._round += 1
        self._elsewhere = [(frozenset(clients), least) for clients, least in remembered]
        clients = sorted(set(present) - self._proofs.keys())
        end = self._too_many_lies()
        groups = [] if end else self._groups(clients)
        if not groups and not end:
            end = self._no_sum(clients)
        self._planned, self._sums = [frozenset(group) for group in groups], None
        taking_part = frozenset[int]().union(*self._planned)
        return Plan(
            groups=tuple(tuple(sorted(group)) for group in groups),
            second_try=bool(self._position.failed),
            waiting=tuple(client for client in clients if client not in taking_part),
            left_out=tuple(sorted(set(present) & self._proofs.keys())),
            end=end,
        )

    def summed(self, arrived: Collection[int]) -> tuple[frozenset[int], ...]:
        """The sets that may be summed, now that the frames of ``arrived`` are there. They count as opened at once.

        A group whose missing clients would be a difference of too few between two sums is left out whole.
        """
        if self._sums is not None:
            raise ParameterError("the sets of this round are fixed: call plan for the next round first")
        there = [group.intersection(arrived) for group in self._planned]
        sums = [group for group, planned in zip(there, self._planned, strict=True) if group == planned]
        for group, planned in zip(there, self._planned, strict=True):
            if group != planned and len(group) >= self._least and self._fits([*sums, group]):
                sums.append(group)
        self._position.add(sums, (client for group in there for client in group))
        self._sums, self._arrived = sums, frozenset(arrived)
        return tuple(sums)

    def drop(self, *, asked: bool = False) -> None:
        """No sum of `summed` was made. ``asked``: its sets still count, since a committee remembers them."""
        if self._sums is None:
            raise ParameterError("no sets of this round are fixed: call summed first")
        there = frozenset[int]().union(*self._planned) & self._arrived
        if not asked:
            del self._position.sets[len(self._position.sets) - len(self._sums) :]
        for client in there:
            self._position.frames[client] -= 1
        self._planned, self._sums = [], None

    def settle(self, refusals: Sequence[Collection[int]]) -> Outcome:
        """Records the result of the round. ``refusals`` are, for each set of `summed`, the clients that refused it.

        Up to `corrupt_clients` refusals count for nothing: all of them may be lies. So call it once it is clear of
        each set whether more clients than that refuse it or go on with it, or a failed sum passes for an opened one. A
        server that opens sums itself, or has an opener, passes all clients for a sum that did not open.
        """
        sums = self._sums
        if sums is None or len(refusals) != len(sums):
            raise ParameterError(
                f"{len(refusals)} lists of refusals for {len(sums or [])} sums: call settle once after each summed, "
                "with one list of clients a set"
            )
        refused = [len(set(clients) - self._proofs.keys()) > self._corrupt for clients in refusals]
        failed = tuple(group for group, no in zip(sums, refused, strict=True) if no)
        opened = tuple(group for group, no in zip(sums, refused, strict=True) if not no)
        self._planned, self._sums = [], None
        self._judge(opened, failed)
        if opened:
            self._position = _Position()
        self._position.failed.extend(() if opened else failed)
        return Outcome(opened, failed, self._prove(failed))

    def _judge(self, opened: Iterable[frozenset[int]], failed: Sequence[frozenset[int]]) -> None:
        if failed and not self._searching(failed[0]):
            self._searches += 1
        for group in opened:
            self._doubts.opened(group)
        for group in failed:
            self._doubts.failed(group)
            self._evidence.add(group)
        self._quiet = 0 if failed else self._quiet + bool(opened)

    def _prove(self, failed: Iterable[frozenset[int]]) -> tuple[int, ...]:
        if self._evidence.too_many():
            return ()
        proven = {client: self._evidence.proof(client) for group in failed for client in sorted(group)}
        found = {client: groups for client, groups in proven.items() if groups and client not in self._proofs}
        self._proofs.update(found)
        for client in found:
            self._doubts.forget(client)
            self._searches = 0
        return tuple(sorted(found))

    def _searching(self, clients: Iterable[int]) -> bool:
        """Whether ``clients`` are summed in groups: some of them are suspects, or it is too early to trust them."""
        patience = (1 << min(self._searches, _MAX_DOUBLINGS)) // 2 - 1
        return self._quiet < patience or bool(self._doubts.suspects(sorted(clients, key=lambda c: -self._doubts[c])))

    def _groups(self, clients: list[int]) -> list[list[int]]:
        parts = list(self._parts(clients))
        if not self._position.failed and not self._searching(clients):
            whole = [client for part, _ in parts for client in part]
            return [whole] if whole else []
        groups = [group for part, least in parts for group in self._divide(part, least)]
        tried = set(self._position.failed)
        fresh = [group for group in groups if frozenset(group) not in tried]
        # Of several groups that all failed a liar may leave one alone; a single sum is not tried again.
        return fresh or (groups if len(groups) > 1 else [])

    def _parts(self, clients: list[int]) -> Iterator[tuple[list[int], int]]:
        """Clients that may be grouped at will among themselves, and how many a group of them must have."""
        counted = self._counted()
        able = [client for client in self._by_lot(clients) if self._position.may_send(client)]
        for cell, promised in _promises(counted):
            there = [client for client in able if client in cell]
            missing = len(cell) - len(there)
            waiting = max(promised - missing, 0) if missing else 0
            there.sort(key=lambda client: self._doubts[client])
            least = max(promised, self._least)
            if len(there) - waiting >= least:
                yield there[: len(there) - waiting], least
        known = frozenset[int]().union(*(clients for clients, _ in counted))
        new = [client for client in able if client not in known]
        if len(new) >= self._least:
            yield new, self._least

    def _counted(self, sums: Iterable[frozenset[int]] = ()) -> list[tuple[frozenset[int], int]]:
        """All sets that count to this position, with ``sums``, and the minimum that each is made under."""
        return [*self._elsewhere, *((clients, self._least) for clients in [*self._position.sets, *sums])]

    def _divide(self, part: Sequence[int], least: int) -> list[list[int]]:
        division = _Division(
            self._by_lot(part),
            least=least,
            corrupt=self._corrupt,
            doubts=self._doubts,
            evidence=self._evidence,
            last_try=bool(self._position.failed),
        )
        return division.groups()

    def _by_lot(self, clients: Iterable[int]) -> list[int]:
        def lot(client: int) -> bytes:
            return hashlib.blake2b(f"{self._seed} {self._round} {client}".encode(), digest_size=16).digest()

        return sorted(clients, key=lot)

    def _fits(self, sums: Iterable[frozenset[int]]) -> bool:
        return all(len(cell) >= promised for cell, promised in _promises(self._counted(sums)))

    def _too_many_lies(self) -> str:
        groups = self._evidence.too_many()
        if not groups and len(self._proofs) <= self._corrupt:
            return ""
        what = (
            f"{len(groups)} groups without a common client did not open"
            if groups
            else f"{len(self._proofs)} clients are proven to lie"
        )
        return (
            f"{what}, so more than {self._corrupt} of the clients lie. What was opened so far stays. Look at the "
            "clients of these groups, and begin a new run without the liars or with a larger corrupt_clients"
        )

    def _no_sum(self, clients: Collection[int]) -> str:
        failed = self._position.failed
        counted = self._counted()
        if not failed and counted and len(clients) >= self._least:
            least = max(promised for _, promised in _promises(counted))
            return f"{len(clients)} clients are present, and no sum of them fits the sums before. {no_part(least)}"
        if not failed:
            return (
                f"{len(clients)} clients are present, and those that can still send at this position make no sum of "
                f"{self._least}: let more clients take part"
            )
        if len(failed) == 1:
            return (
                f"The sum of {len(failed[0])} clients did not open, and those of them that can send again cannot be "
                f"divided into two groups of at least {self._least}. What was opened so far stays. Begin a new run "
                f"with at least {2 * self._least} clients a round, or without the clients that you trust least"
            )
        return (
            f"No sum of this model opens: each of {len(failed)} sets has a client that lies, and no other set leaves "
            f"{self._least} clients in every difference. What was opened so far stays. Begin a new run with more "
            "clients, or without those that you trust least"
        )

    def export(self) -> dict[str, Any]:
        """Plain data of the search, for `restore`."""
        return {
            "format": _FORMAT,
            "corrupt_clients": self._corrupt,
            "min_contributions": self._least,
            "seed": self._seed,
            "round": self._round,
            "searches": self._searches,
            "quiet": self._quiet,
            "sets": _plain(self._position.sets),
            "failed_here": _plain(self._position.failed),
            "frames": [list(pair) for pair in sorted(self._position.frames.items())],
            "elsewhere": [[sorted(clients), least] for clients, least in self._elsewhere],
            "planned": _plain(self._planned),
            "sums": None if self._sums is None else _plain(self._sums),
            "arrived": sorted(self._arrived),
            "doubts": [list(pair) for pair in self._doubts.items()],
            "failed": _plain(self._evidence.groups),
            "proofs": [[client, _plain(groups)] for client, groups in sorted(self._proofs.items())],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> FaultFinder:
        """The search as `export` gave it, also after a way through JSON."""
        try:
            return cls._restored(data)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"the state of the search for liars cannot be read ({type(error).__name__}: {error}): take the run's "
                "folder from a copy, or begin a new run"
            ) from error

    @classmethod
    def _restored(cls, data: Mapping[str, Any]) -> FaultFinder:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']!r}, not {_FORMAT}")
        corrupt = _number(data["corrupt_clients"])
        finder = cls(
            corrupt_clients=corrupt, min_contributions=_number(data["min_contributions"]), seed=_integer(data["seed"])
        )
        finder._round, finder._searches, finder._quiet = (_number(data[key]) for key in ("round", "searches", "quiet"))
        frames = {_number(client): _number(count) for client, count in data["frames"]}
        finder._position = _Position(_sets(data["sets"]), _sets(data["failed_here"]), frames)
        finder._elsewhere = [(_set(clients), _number(least)) for clients, least in data["elsewhere"]]
        finder._planned = _sets(data["planned"])
        finder._sums = None if data["sums"] is None else _sets(data["sums"])
        finder._arrived = _set(data["arrived"])
        finder._doubts = _Doubts({_number(client): _chance(value) for client, value in data["doubts"]})
        finder._evidence = _Evidence(corrupt, _sets(data["failed"]))
        finder._proofs = {_number(client): _sets(groups) for client, groups in data["proofs"]}
        return finder


def _plain(sets: Iterable[frozenset[int]]) -> list[list[int]]:
    return [sorted(clients) for clients in sets]


def _set(data: Iterable[Any]) -> frozenset[int]:
    return frozenset(_number(client) for client in data)


def _sets(data: Iterable[Iterable[Any]]) -> list[frozenset[int]]:
    return [_set(clients) for clients in data]


def _integer(data: Any) -> int:
    if type(data) is not int:
        raise ValueError(f"{data!r} is not a whole number")
    return data


def _number(data: Any) -> int:
    if _integer(data) < 0:
        raise ValueError(f"{data!r} is negative")
    return data


def _chance(data: Any) -> float:
    if type(data) not in (int, float) or not 0 < data <= 1:
        raise ValueError(f"{data!r} is not a chance")
    return data
