"""The search for clients that make sums fail, without a sum of too few clients.

A sum that does not open contains the frame of at least one liar, but no scheme shows which frame it is. `FaultFinder`
chooses the groups of the next round so that honest clients make progress and each liar ends up alone. It uses two
numbers of the run: at most ``c`` (`corrupt_clients`) clients lie, and every sum has at least ``k``
(`min_contributions`) clients.

*Sums.* The liar in a failed sum can open that sum for itself, because it knows its own lie. So a failed sum counts as
opened. All sets of one position, failed or opened, must divide their clients into cells of at least ``k`` clients.
Every combination of the sums is then constant on a cell, so it concerns no client at all, or at least ``k``. At a new
position nothing has been summed, and all disjoint groups of at least ``k`` clients are allowed. At the second try of a
position each group is a part of one cell, and the rest of that cell is empty or has at least ``k`` clients. This is why
clients sit out when others of their cell are away. A client gives at most two frames from one position, so a failed
sum is divided once. Halving a failed sum again and again would break this rule: its sets differ by fewer than ``k``
clients.

*Proof.* A client is left out of the run when it was in ``c + 1`` failed groups of which no two had another client in
common. If the client were honest, each of these groups would contain a different liar, and that is one liar too many.
So no honest client is ever left out while at most ``c`` clients lie, alone or together. In the same
way ``c + 1`` failed groups without a common client prove that more than ``c`` clients lie; then the run ends. Proof
needs ``1 + (c + 1)(k - 1)`` clients. A group that opened proves nothing, since a liar may behave.

*Doubt.* Doubt is not proof; it only chooses the groups. The doubt of a client is the chance that its next sum fails
because of it. A failed group divides the doubt of its clients by the chance that at least one of them lies. A group
that opens reduces the doubt of its clients to almost nothing. But a liar may behave, so three such groups are needed to
forget a certain liar. Clients whose doubts are tiny even together count as cleared; the others are suspects. At the
next position the suspects are spread evenly by doubt over the groups. Cleared clients fill these groups up to ``k``,
and the remaining cleared clients are one more group.

*Consequences.* ``n`` clients are present, and all frames arrive.

1. With ``n >= (c + 1) k`` each position ends in a step after at most two tries. The second try has at least ``c + 1``
   groups, so one of them has no liar. This holds too when liars stay away from the second try: at most ``k - 1``
   clients sit out for them, which costs one group, but one liar is missing too. The same holds at a position of the
   search, where the first try has fewer groups: the large group of cleared clients is divided if no group opens.
2. One client that always lies, with ``n >= 2k``, makes the sum of round 1 fail, and one group of round 2 with at most
   ``ceil(n / 2)`` suspects. Each later round spreads the suspects over two groups or more, so at most half of them,
   rounded up, remain. For ``n = 2k`` these are ``k``, then ``ceil(k / 2)``, and so on, each time with as many cleared
   clients as make ``k``. One suspect remains after ``1 + ceil(log2 n)`` rounds. The next round puts the suspect
   together with clients that were not in its smallest failed group. For ``c = 1`` that is proof, after
   ``ceil(log2 n) + 2`` rounds. For larger ``c`` proof takes up to ``c`` rounds more if there are enough clients for
   proof. From then on the liar makes one group of ``k`` fail, with other clients each round, and all others make the
   step.
3. With ``n < (c + 1) k`` liars may sit in every group. With three groups or more, ``k`` cleared clients are a group of
   their own, and the most doubted clients stay together, so that one group fails and not all. Two groups leave no such
   choice. Both get suspects, as if one client lied, until one suspect is certain. For 20 liars of 100 with ``k = 22``
   proof is out of reach (it would need 442 clients), and it is not needed. Each group that opens is free of lies, so
   the mean is a mean of honest clients. If all groups of a second try fail, no further sum is allowed at that position,
   and the run ends. Of 100 clients five liars do that in 25 of 100 runs, in their first search only. Twenty liars do it
   nearly always, since a group of 22 without any of them has a chance of 0.4 %.
4. A liar that lies only together with one victim cannot be distinguished from that victim. Both have the same doubt, so
   the next groups keep them apart, and then the liar does not lie. A liar that behaves during the search makes a whole
   sum fail again when all are summed together again. Each such relapse doubles the rounds in which clients stay in
   groups, so ``r`` rounds have at most about ``log2 r`` of them between two proofs. A suspect that was away comes back
   into a group, not into the sum of all clients.

The seed is public. Nothing depends on a liar not knowing the groups. A liar must only be unable to choose them.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcipher.errors import ParameterError, RunError

__all__ = ["FaultFinder", "Outcome", "Plan", "cells", "why_no_sum"]

_MAX_FRAMES = 2
"""Frames that a client gives from one position."""
_FIRST_DOUBT = 1e-24
"""Doubt of a client that was in no failed sum yet. It is so small that a failed group counts as one liar only."""
_OPENED_FACTOR = 1e-8
"""The part of a client's doubt that remains when its sum opens. Three such sums forget a certain liar."""
_CLEARED = 1e-5
"""Clients whose doubts add up to at most this value count as cleared. One suspect of many has more."""
_SURE = 0.9
"""From this doubt on a client is treated as a liar, although nothing is proven."""
_MAX_GROUP_DOUBT = 1.0
"""The largest sum of doubts in a group that is meant to open."""
_MAX_EVIDENCE = 1000
"""Failed groups that are kept. The largest are dropped first, because they prove least."""
_MAX_DOUBLINGS = 16
"""How often the number of rounds doubles in which clients stay in groups after a search."""
_FORMAT = 3


@dataclass(frozen=True)
class Plan:
    """The groups of the next round, and the clients that are in no group."""

    groups: tuple[tuple[int, ...], ...]
    """Disjoint groups. Each has at least as many clients as its clients were promised: `min_contributions` or more."""
    second_try: bool
    """Whether the sums of this position failed. Then these groups refine them, and the model has not changed."""
    waiting: tuple[int, ...]
    """Present clients that sit this round out, so that no two sums differ by too few clients."""
    left_out: tuple[int, ...]
    """Present clients that are proven liars."""
    end: str
    """Empty, or the reason why these clients make no sum, and what to do. Other clients may still make a sum."""


@dataclass(frozen=True)
class Outcome:
    """The result of a round's sums."""

    opened: tuple[frozenset[int], ...]
    failed: tuple[frozenset[int], ...]
    proven: tuple[int, ...]
    """Clients that this round has proved to be liars; they are left out of the run from now on."""

    @property
    def step(self) -> bool:
        """Whether the model makes a step: at least one sum opened."""
        return bool(self.opened)


def cells(sets: Iterable[Collection[int]]) -> list[frozenset[int]]:
    """The clients of ``sets`` in cells. Clients of one cell are in exactly the same sets."""
    member_of: dict[int, int] = {}
    for number, clients in enumerate(sets):
        for client in clients:
            member_of[client] = member_of.get(client, 0) | 1 << number
    grouped: dict[int, set[int]] = {}
    for client, mark in member_of.items():
        grouped.setdefault(mark, set()).add(client)
    return sorted((frozenset(cell) for cell in grouped.values()), key=min)


def why_no_sum(minimum: int) -> str:
    """The reason why earlier sums forbid a sum of these clients, and what to do."""
    return (
        f"Clients that were always summed together can be divided only into groups of at least {minimum}. Wait for the "
        "clients that are away. If some never come back, make new keys; with a roster, make new identities"
    )


def _promises(counted: Sequence[tuple[frozenset[int], int]]) -> Iterator[tuple[frozenset[int], int]]:
    """Each cell of these sets, and how many clients it must have: the largest minimum of the sets that contain it."""
    for cell in cells(clients for clients, _ in counted):
        yield cell, max(minimum for clients, minimum in counted if cell <= clients)


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
    """For each client, the chance that its next sum fails because of it."""

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
            self._values[client] = max(self[client] * _OPENED_FACTOR, _FIRST_DOUBT)

    def suspects(self, clients: Sequence[int]) -> int:
        """How many of ``clients`` are not cleared. The argument is sorted by falling doubt."""
        total, count = 0.0, len(clients)
        while count and (total := total + self[clients[count - 1]]) <= _CLEARED:
            count -= 1
        return count


class _Evidence:
    """The failed groups of a run, as proof that clients lie. At most ``corrupt`` clients lie."""

    def __init__(self, corrupt: int, groups: Iterable[frozenset[int]] = ()) -> None:
        self._corrupt = corrupt
        self.groups: list[frozenset[int]] = []
        """Sorted by size, then by age: small and old groups come first."""
        for group in groups:
            self.add(group)

    def add(self, group: frozenset[int]) -> None:
        bisect.insort(self.groups, group, key=len)
        del self.groups[_MAX_EVIDENCE:]

    def disjoint_groups(self, centre: int | None = None) -> list[frozenset[int]]:
        """Failed groups of which no two have a client in common, except ``centre``.

        If ``centre`` is given, every group contains it. Small groups come first, then old ones.
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
        """Groups that prove ``client`` a liar; an empty list if there is no proof."""
        found = self.disjoint_groups(client)
        return found[: self._corrupt + 1] if len(found) > self._corrupt else []

    def too_many(self) -> list[frozenset[int]]:
        """Groups that prove that more than ``corrupt`` clients lie; an empty list if there is no proof."""
        found = self.disjoint_groups()
        return found[: self._corrupt + 1] if len(found) > self._corrupt else []


class _Division:
    """Divides clients that may be grouped freely into groups of at least ``minimum``."""

    def __init__(
        self,
        clients: Sequence[int],
        *,
        minimum: int,
        corrupt: int,
        doubts: _Doubts,
        evidence: _Evidence,
        last_try: bool,
    ) -> None:
        """``clients`` are in random order. After the ``last_try`` no group of this position is divided again."""
        self._minimum = minimum
        self._doubts = doubts
        self._evidence = evidence
        self._last_try = last_try
        self._place = {client: place for place, client in enumerate(clients)}
        ordered = sorted(clients, key=lambda client: -doubts[client])
        count = doubts.suspects(ordered) or len(ordered)
        self._suspects, self._cleared = ordered[:count], ordered[count:]
        # More groups would make sums smaller and the search hardly faster.
        self._max_groups = max_groups = min(len(clients) // minimum, 2 * (corrupt + 1))
        self._some_group_is_honest = max_groups > corrupt
        self._set_aside: list[int] = []
        self._groups = self._empty_groups(max_groups)

    def groups(self) -> list[list[int]]:
        """The groups, sorted by falling doubt."""
        if not self._groups:
            return [[*self._suspects, *self._cleared]]
        self._spread(self._keep_together())
        self._groups = [group for group in self._groups if group]
        self._cleared.sort(key=self._place.__getitem__)
        for group in self._groups:
            self._fill(group)
        self._place_the_rest()
        return self._groups

    def _empty_groups(self, max_groups: int) -> list[list[int]]:
        """Empty groups for the suspects. Sets ``minimum`` cleared clients aside if liars might sit in every group."""
        if max_groups < 2:
            return []
        some_sure, all_sure = (self._doubts[self._suspects[i]] >= _SURE for i in (0, -1))
        if all_sure:
            # The search is over. Random order gives each cleared client the same chance to be with the liars.
            self._cleared.sort(key=self._place.__getitem__)
        enough = len(self._cleared) >= self._minimum
        if not self._some_group_is_honest and enough and (max_groups > 2 or some_sure):
            self._set_aside, self._cleared = self._cleared[-self._minimum :], self._cleared[: -self._minimum]
            max_groups -= 1
        return [[] for _ in range(min(max_groups, len(self._suspects)))]

    def _keep_together(self) -> int:
        """Put the most doubted clients into the first group, so that other groups may open; returns how many."""
        if self._some_group_is_honest or len(self._groups) < 2:
            return 0
        others = len(self._groups) - 1
        room = len(self._suspects) + len(self._cleared) - others * self._minimum
        count = min(sum(self._doubts[client] >= _SURE for client in self._suspects), room)
        rest = sum(self._doubts[client] for client in self._suspects[count:])
        if not count and rest <= _MAX_GROUP_DOUBT * (others + 1):
            return 0
        while rest > _MAX_GROUP_DOUBT * others and count < room:
            rest -= self._doubts[self._suspects[count]]
            count += 1
        self._groups[0].extend(self._suspects[:count])
        return count

    def _spread(self, together: int) -> None:
        """Put each suspect after the first ``together`` into the group with the least doubt.

        Every group must still be able to reach its least size.
        """
        doubt = [0.0] * len(self._groups)
        if together:
            doubt[0] = math.inf
        for placed in range(together, len(self._suspects)):
            client = self._suspects[placed]
            left = len(self._suspects) - placed + len(self._cleared)
            missing = sum(max(self._minimum - len(group), 0) for group in self._groups)
            allowed = [i for i, group in enumerate(self._groups) if left > missing or len(group) < self._minimum]
            chosen = min(allowed, key=lambda i: (doubt[i], len(self._groups[i])))
            self._groups[chosen].append(client)
            doubt[chosen] += self._doubts[client]

    def _fill(self, group: list[int]) -> None:
        """Add cleared clients until the group has its least size.

        A single suspect gets clients that make its next failure count as proof.
        """
        need = self._minimum - len(group)
        if need <= 0:
            return
        known = self._known_company(group[0], need) if len(group) == 1 else set[int]()
        self._cleared.sort(key=lambda client: client in known)
        group.extend(self._cleared[:need])
        del self._cleared[:need]

    def _known_company(self, suspect: int, need: int) -> set[int]:
        """The clients of earlier failed groups of ``suspect``: as many groups as leave ``need`` other clients."""
        known: set[int] = set()
        for group in self._evidence.disjoint_groups(suspect):
            wider = known | group
            if sum(client not in wider for client in self._cleared) < need:
                break
            known = wider
        return known

    def _place_the_rest(self) -> None:
        """Put the remaining cleared clients into one group if it can be divided later, else into many groups."""
        rest = [*self._set_aside, *self._cleared]
        limit = max(self._max_groups - len(self._groups), 1) if self._last_try else 1
        more = min(len(rest) // self._minimum, limit)
        self._groups.extend(rest[i::more] for i in range(more))
        if not more:
            for client in rest:
                min(self._groups, key=len).append(client)


class FaultFinder:
    """Finds clients that make sums fail, over the rounds of a run. A client is its number in the key set.

    In each round call `plan`, then `fix_sums` with the clients whose frames arrived, then `record_result` with the
    clients that refused. The class uses no randomness of its own: ``seed`` and the calls determine the groups. Raises
    `ParameterError` if ``min_contributions`` is below ``corrupt_clients + 2``.
    """

    def __init__(self, *, corrupt_clients: int, min_contributions: int, seed: int) -> None:
        if corrupt_clients < 0 or min_contributions < corrupt_clients + 2:
            raise ParameterError(
                f"min_contributions is {min_contributions} and corrupt_clients {corrupt_clients}: a sum needs two "
                "honest clients, so min_contributions must be at least corrupt_clients + 2"
            )
        self._corrupt = corrupt_clients
        self._minimum = min_contributions
        self._seed = seed
        self._round = 0
        self._position = _Position()
        self._other_sets: list[tuple[frozenset[int], int]] = []
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
        """The clients left out of the run, each with the failed groups that prove it a liar."""
        return dict(self._proofs)

    def doubt(self, client: int) -> float:
        """The chance that the next sum of ``client`` fails because of it, as estimated from the sums so far."""
        return self._doubts[client]

    def searching(self, clients: Collection[int]) -> bool:
        """Whether `plan` would divide ``clients``: this position's sums failed, or the search is not over."""
        return bool(self._position.failed) or self._searching(clients)

    def plan(self, present: Collection[int], remembered: Iterable[tuple[Collection[int], int]] = ()) -> Plan:
        """The groups of the next round, made of the clients that are ``present``.

        ``remembered`` are sets of other rounds that the rule of sets counts to this position. They are from the first
        positions of other runs, or from all rounds of a run whose models the server sets. Each comes with the
        ``min_contributions`` that it was made under. Its clients keep this minimum if it is larger than the run's.
        """
        self._round += 1
        self._other_sets = [(frozenset(clients), minimum) for clients, minimum in remembered]
        clients = sorted(set(present) - self._proofs.keys())
        end = self._too_many_liars()
        groups = [] if end else self._groups(clients)
        if not groups and not end:
            end = self._why_no_sum(clients)
        self._planned, self._sums = [frozenset(group) for group in groups], None
        taking_part = frozenset[int]().union(*self._planned)
        return Plan(
            groups=tuple(tuple(sorted(group)) for group in groups),
            second_try=bool(self._position.failed),
            waiting=tuple(client for client in clients if client not in taking_part),
            left_out=tuple(sorted(set(present) & self._proofs.keys())),
            end=end,
        )

    def fix_sums(self, arrived: Collection[int]) -> tuple[frozenset[int], ...]:
        """The sets that may be summed, of the clients ``arrived``. They count as opened at once.

        A group is left out as a whole if its missing clients would make two sums differ by too few clients. Raises
        `ParameterError` if it is called twice after one `plan`.
        """
        if self._sums is not None:
            raise ParameterError("the sets of this round are fixed: call plan for the next round first")
        there = [group.intersection(arrived) for group in self._planned]
        sums = [group for group, planned in zip(there, self._planned, strict=True) if group == planned]
        for group, planned in zip(there, self._planned, strict=True):
            if group != planned and len(group) >= self._minimum and self._fits([*sums, group]):
                sums.append(group)
        self._position.add(sums, (client for group in there for client in group))
        self._sums, self._arrived = sums, frozenset(arrived)
        return tuple(sums)

    def drop_sums(self, *, asked: bool = False) -> None:
        """Record that no sum of `fix_sums` was made.

        ``asked``: a committee was asked to open the sums. It remembers their sets, so they still count. Raises
        `ParameterError` without `fix_sums` before.
        """
        if self._sums is None:
            raise ParameterError("no sets of this round are fixed: call fix_sums first")
        there = frozenset[int]().union(*self._planned) & self._arrived
        if not asked:
            del self._position.sets[len(self._position.sets) - len(self._sums) :]
        for client in there:
            self._position.frames[client] -= 1
        self._planned, self._sums = [], None

    def record_result(self, refusals: Sequence[Collection[int]]) -> Outcome:
        """Record the result of the round. ``refusals`` has, for each set of `fix_sums`, the clients that refused.

        Up to ``corrupt_clients`` refusals count as nothing, because all of them may be lies. So call this method when,
        for each set, more clients than that have refused or have continued; otherwise a failed sum counts as opened. A
        server that opens sums itself, or has an opener, passes all clients for a sum that did not open. Raises
        `ParameterError` for another number of lists than sets.
        """
        sums = self._sums
        if sums is None or len(refusals) != len(sums):
            raise ParameterError(
                f"{len(refusals)} lists of refusals for {len(sums or [])} sums: call record_result once after each "
                "fix_sums, with one list of clients for each set"
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
        """Whether ``clients`` are summed in groups: some are suspects, or too few rounds opened since a search."""
        patience = (1 << min(self._searches, _MAX_DOUBLINGS)) // 2 - 1
        return self._quiet < patience or bool(self._doubts.suspects(sorted(clients, key=lambda c: -self._doubts[c])))

    def _groups(self, clients: list[int]) -> list[list[int]]:
        parts = list(self._parts(clients))
        if not self._position.failed and not self._searching(clients):
            whole = [client for part, _ in parts for client in part]
            return [whole] if whole else []
        groups = [group for part, minimum in parts for group in self._divide(part, minimum)]
        tried = set(self._position.failed)
        fresh = [group for group in groups if frozenset(group) not in tried]
        # Several groups that all failed are tried again, since a liar may behave. A single sum is not.
        return fresh or (groups if len(groups) > 1 else [])

    def _parts(self, clients: list[int]) -> Iterator[tuple[list[int], int]]:
        """Sets of clients that may be grouped freely among themselves, each with the least size of a group."""
        counted = self._counted()
        able = [client for client in self._shuffled(clients) if self._position.may_send(client)]
        for cell, promised in _promises(counted):
            there = [client for client in able if client in cell]
            missing = len(cell) - len(there)
            waiting = max(promised - missing, 0) if missing else 0
            there.sort(key=lambda client: self._doubts[client])
            minimum = max(promised, self._minimum)
            if len(there) - waiting >= minimum:
                yield there[: len(there) - waiting], minimum
        known = frozenset[int]().union(*(clients for clients, _ in counted))
        new = [client for client in able if client not in known]
        if len(new) >= self._minimum:
            yield new, self._minimum

    def _counted(self, sums: Iterable[frozenset[int]] = ()) -> list[tuple[frozenset[int], int]]:
        """All sets that count to this position, with ``sums``, each with the minimum that it was made under."""
        return [*self._other_sets, *((clients, self._minimum) for clients in [*self._position.sets, *sums])]

    def _divide(self, part: Sequence[int], minimum: int) -> list[list[int]]:
        division = _Division(
            self._shuffled(part),
            minimum=minimum,
            corrupt=self._corrupt,
            doubts=self._doubts,
            evidence=self._evidence,
            last_try=bool(self._position.failed),
        )
        return division.groups()

    def _shuffled(self, clients: Iterable[int]) -> list[int]:
        def lot(client: int) -> bytes:
            return hashlib.blake2b(f"{self._seed} {self._round} {client}".encode(), digest_size=16).digest()

        return sorted(clients, key=lot)

    def _fits(self, sums: Iterable[frozenset[int]]) -> bool:
        return all(len(cell) >= promised for cell, promised in _promises(self._counted(sums)))

    def _too_many_liars(self) -> str:
        groups = self._evidence.too_many()
        if not groups and len(self._proofs) <= self._corrupt:
            return ""
        what = (
            f"{len(groups)} groups without a common client did not open"
            if groups
            else f"{len(self._proofs)} clients are proven to lie"
        )
        return (
            f"{what}, so more than {self._corrupt} of the clients lie. Sums that were opened so far stay valid. Look "
            "at the clients of these groups, and begin a new run without the liars or with a larger corrupt_clients"
        )

    def _why_no_sum(self, clients: Collection[int]) -> str:
        failed = self._position.failed
        counted = self._counted()
        if not failed and counted and len(clients) >= self._minimum:
            minimum = max(promised for _, promised in _promises(counted))
            return f"{len(clients)} clients are present, and earlier sums forbid a sum of them. {why_no_sum(minimum)}"
        if not failed:
            return (
                f"{len(clients)} clients are present, and fewer than {self._minimum} of them can still send at this "
                "position: let more clients take part"
            )
        if len(failed) == 1:
            return (
                f"The sum of {len(failed[0])} clients did not open, and its clients that can send again cannot be "
                f"divided into two groups of at least {self._minimum}. Sums that were opened so far stay valid. Begin "
                f"a new run with at least {2 * self._minimum} clients a round, or without the clients that you trust "
                "least"
            )
        return (
            f"No sum of this model opens: each of {len(failed)} sets has a client that lies, and no other set leaves "
            f"{self._minimum} clients in every difference. Sums that were opened so far stay valid. Begin a new run "
            "with more clients, or without the clients that you trust least"
        )

    def export(self) -> dict[str, Any]:
        """The state of the search as plain data for JSON, which `restore` reads."""
        return {
            "format": _FORMAT,
            "corrupt_clients": self._corrupt,
            "min_contributions": self._minimum,
            "seed": self._seed,
            "round": self._round,
            "searches": self._searches,
            "quiet": self._quiet,
            "sets": _plain(self._position.sets),
            "failed_here": _plain(self._position.failed),
            "frames": [list(pair) for pair in sorted(self._position.frames.items())],
            "elsewhere": [[sorted(clients), minimum] for clients, minimum in self._other_sets],
            "planned": _plain(self._planned),
            "sums": None if self._sums is None else _plain(self._sums),
            "arrived": sorted(self._arrived),
            "doubts": [list(pair) for pair in self._doubts.items()],
            "failed": _plain(self._evidence.groups),
            "proofs": [[client, _plain(groups)] for client, groups in sorted(self._proofs.items())],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> FaultFinder:
        """The search with the state of `export`, also after JSON. Raises `RunError` for damaged data."""
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
        finder._other_sets = [(_set(clients), _number(minimum)) for clients, minimum in data["elsewhere"]]
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
