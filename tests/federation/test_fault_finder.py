"""The search for liars: its sums, its proofs and its cost, against liars that see every plan."""

import json
import math
import os
import random
import time
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise

import pytest
from fedcipher.errors import ParameterError, RunError, SetRuleError
from fedcipher.federation.fault_finder import FaultFinder, cells
from fedcipher.schemes import SetMemory

LONG = "FEDCIPHER_LONG" in os.environ


# The checker knows nothing of cells: it looks for the combination of the sums that concerns the fewest clients.


def solve(rows):
    """The vectors that are orthogonal to all ``rows``, exactly: a basis, and the rank of the rows."""
    width = len(rows[0])
    matrix, pivots = [[Fraction(value) for value in row] for row in rows], []
    for column in range(width):
        row = next((i for i in range(len(pivots), len(matrix)) if matrix[i][column]), None)
        if row is None:
            continue
        place = len(pivots)
        matrix[place], matrix[row] = matrix[row], matrix[place]
        lead = matrix[place][column]
        matrix[place] = [value / lead for value in matrix[place]]
        for i, other in enumerate(matrix):
            if i != place and other[column]:
                factor = other[column]
                matrix[i] = [a - factor * b for a, b in zip(other, matrix[place], strict=True)]
        pivots.append(column)
    basis = []
    for free in (column for column in range(width) if column not in pivots):
        vector = [Fraction(0)] * width
        vector[free] = Fraction(1)
        for place, column in enumerate(pivots):
            vector[column] = -matrix[place][free]
        basis.append(vector)
    return basis, len(pivots)


@cache
def supports(columns):
    """Which of the distinct ``columns`` (a client's membership of each set) a minimal combination does not cancel.

    A combination with minimal support vanishes on columns that span one dimension less than all: each such choice of
    columns leaves one combination.
    """
    rows = [[1 if set_ in column else 0 for set_ in range(max(map(max, columns)) + 1)] for column in columns]
    _, rank = solve(rows)
    found = set()
    for chosen in combinations(rows, rank - 1):
        basis, reached = solve(list(chosen)) if chosen else (solve([[0] * len(rows[0])])[0], 0)
        if reached < rank - 1:
            continue
        for weights in basis:
            values = [sum(w * v for w, v in zip(weights, row, strict=True)) for row in rows]
            if any(values):
                found.add(tuple(bool(value) for value in values))
    return found


def fewest(sets):
    """Of how many clients a combination of these sums tells at least."""
    member_of = {}
    for number, clients in enumerate(dict.fromkeys(frozenset(clients) for clients in sets)):
        for client in clients:
            member_of.setdefault(client, []).append(number)
    counts = {}
    for mark in member_of.values():
        counts[tuple(mark)] = counts.get(tuple(mark), 0) + 1
    columns = tuple(sorted(counts))
    sizes = [counts[column] for column in columns]
    return min(sum(size for size, there in zip(sizes, support, strict=True) if there) for support in supports(columns))


def test_the_checker_sees_more_than_pairs():
    assert fewest([range(7)]) == 7
    assert fewest([range(10), range(7)]) == 3
    # No two of them differ by fewer than two clients; together they give client 7 alone.
    assert fewest([{1, 2, 3, 7}, {1, 2, 3, 4, 5, 6}, {4, 5, 6}]) == 1
    assert fewest([{1, 2, 3, 4}, {1, 2, 5, 6}, {3, 4, 5, 6}]) == 2
    assert fewest([range(9), range(3), range(3, 6), range(6, 9)]) == 3


# Liars: whether one lies in a group, and whether it is there. They see all that the server plans.


class Always:
    def __init__(self, seed):
        self.draw = random.Random(seed)

    def present(self, client, searched):
        return True

    def lies(self, client, group, number):
        return True


class InTurn(Always):
    def lies(self, client, group, number):
        return number % 2 == 1


class AtRandom(Always):
    def lies(self, client, group, number):
        return self.draw.random() < 0.5


class WithTheVictim(Always):
    """The victim is the client with the highest number, which is honest."""

    victim = 0

    def lies(self, client, group, number):
        return self.victim in group


class FirstRounds(Always):
    def lies(self, client, group, number):
        return number <= 3


class AwayWhenSearched(Always):
    def present(self, client, searched):
        return not searched


class HonestWhenSearched(Always):
    def lies(self, client, group, number):
        return not self.searched

    def present(self, client, searched):
        self.searched = searched
        return True


STRATEGIES = [Always, InTurn, AtRandom, WithTheVictim, FirstRounds, AwayWhenSearched, HonestWhenSearched]


class Federation:
    """Honest clients and liars around a `FaultFinder`, with the rules checked after every round."""

    def __init__(self, count, least, corrupt, liars, strategy=Always, seed=0, absence=0.0, resumed=False):
        self.finder = FaultFinder(corrupt_clients=corrupt, min_contributions=least, seed=seed)
        self.count, self.least, self.corrupt = count, least, corrupt
        self.liars = frozenset(liars)
        self.behaviour = strategy(seed)
        self.behaviour.victim = count - 1
        self.draw, self.absence, self.resumed = random.Random(seed + 1), absence, resumed
        self.number, self.searched, self.end = 0, False, ""
        self.sets, self.frames, self.failed = [], {}, []
        self.rounds = []

    def there(self):
        for client in range(self.count):
            if client in self.liars:
                if self.behaviour.present(client, self.searched):
                    yield client
            elif self.draw.random() >= self.absence:
                yield client

    def play(self, rounds):
        for _ in range(rounds):
            self.round()
            if self.end:
                break
        return self

    def round(self):
        self.number += 1
        present = set(self.there())
        self.resume()
        plan = self.finder.plan(present)
        self.check_plan(plan, present)
        if plan.end and (self.absence == 0 or len(present) >= self.least):
            self.end = plan.end
            return
        self.searched = len(plan.groups) > 1 or plan.second_try
        asked = [client for group in plan.groups for client in group]
        arrived = [client for client in asked if self.draw.random() >= self.absence / 4]
        sums = self.finder.fix_sums(arrived)
        for client in arrived:
            self.frames[client] = self.frames.get(client, 0) + 1
        self.sets.extend(sums)
        self.check_sums(plan, sums, arrived)
        self.resume()
        bad = [any(self.behaviour.lies(c, group, self.number) for c in group & self.liars) for group in sums]
        honest = set(range(self.count)) - self.liars
        # The liars refuse what opens and none of what they have spoilt.
        outcome = self.finder.record_result([honest if spoilt else self.liars for spoilt in bad])
        self.check_outcome(outcome, sums, bad)
        self.rounds.append((outcome, plan))
        if outcome.step:
            self.sets, self.frames = [], {}

    def resume(self):
        if self.resumed:
            state = json.dumps(self.finder.export())
            self.finder = FaultFinder.restore(json.loads(state))
            assert json.dumps(self.finder.export()) == state

    def check_plan(self, plan, present):
        grouped = [client for group in plan.groups for client in group]
        assert len(grouped) == len(set(grouped))
        assert sorted([*grouped, *plan.waiting, *plan.left_out]) == sorted(present)
        assert all(len(group) >= self.least for group in plan.groups)
        assert bool(plan.groups) != bool(plan.end)
        assert all(self.frames.get(client, 0) < 2 for client in grouped)

    def check_sums(self, plan, sums, arrived):
        planned = [frozenset(group) for group in plan.groups]
        for group in sums:
            assert len(group) >= self.least and group <= set(arrived)
            assert any(group <= other for other in planned)
            if plan.second_try:
                assert all(group <= other or not group & other for other in self.sets)
        if self.sets:
            assert fewest(self.sets) >= self.least
        assert all(count <= 2 for count in self.frames.values())

    def check_outcome(self, outcome, sums, bad):
        assert outcome.failed == tuple(group for group, spoilt in zip(sums, bad, strict=True) if spoilt)
        assert outcome.opened == tuple(group for group, spoilt in zip(sums, bad, strict=True) if not spoilt)
        self.failed.extend(outcome.failed)
        for client, groups in self.finder.proofs.items():
            assert len(groups) == self.corrupt + 1 and all(group in self.failed for group in groups)
            assert all(a & b == {client} for a, b in combinations(groups, 2))
            assert client in self.liars, "an honest client is left out"

    def lost(self):
        """Rounds in which no sum opened."""
        return sum(not outcome.step for outcome, _ in self.rounds)


def cases(seconds, seed=0):
    """All allowed counts, least sizes and numbers of liars up to 40, in random order until the time is up.

    Of fewer than 2c + 1 clients the honest ones cannot refuse a sum often enough.
    """
    allowed = [(n, k, c) for n in range(2, 41) for k in range(2, n + 1) for c in range(min(k - 1, (n + 1) // 2))]
    random.Random(seed).shuffle(allowed)
    end = time.process_time() + seconds
    for number, case in enumerate(allowed):
        if not LONG and time.process_time() > end:
            assert number > 50, "a machine that is too slow for this test"
            return
        yield number, *case


def test_attack_32_a_search_gives_no_sum_below_k():
    """Whatever the liars do, who is away and which frames are lost; `Federation` checks each round."""
    for number, count, least, corrupt in cases(6):
        draw = random.Random(number)
        for strategy in draw.sample(STRATEGIES, 2):
            liars = draw.sample(range(count - 1), min(draw.randint(1, max(corrupt, 1)), count - 1))
            absence = draw.choice([0.0, 0.0, 0.05, 0.2])
            Federation(count, least, corrupt, liars[:corrupt], strategy, number, absence).play(12)


class Halving:
    """The search as it was: while sums fail, half of the suspects sit out, so that what fails has fewer of them."""

    def __init__(self, count, least, seed):
        self.count, self.least, self.draw = count, least, random.Random(seed)
        self.suspects = set(range(count))

    def sums(self, behaviour, liar, tries):
        """The sets of one position: a sum that fails moves no model."""
        sets = [set(range(self.count))]
        while len(sets) < tries and liar in sets[-1] and behaviour.lies(liar, sets[-1], len(sets)):
            self.suspects &= sets[-1]
            out = self.draw.sample(sorted(self.suspects), min(len(self.suspects) // 2, self.count - self.least))
            sets.append(set(range(self.count)) - set(out))
        return sets


@pytest.mark.parametrize("strategy", [Always, InTurn, WithTheVictim])
def test_attack_32_halving_fails_the_same_checker(strategy):
    """The liar opens the failed sum itself, and the next one lacks few clients: their sum is the difference."""
    broken = {}
    for count in (4, 5, 10, 16):
        for seed in range(8):
            behaviour = strategy(seed)
            behaviour.victim = count - 1
            sets = Halving(count, 3, seed).sums(behaviour, 0, 6)
            broken[count] = broken.get(count, 0) + (fewest(sets) < 3)
            # `Federation` calls the same checker on the sums of the search as it is.
            Federation(count, 3, 1, [0], strategy, seed).play(8)
    assert broken[4] == broken[5] == 8, broken
    # Of more clients a second half is needed, which a liar that behaves by then does not give.
    assert strategy is not Always or (broken[10] and broken[16]), broken


def test_the_rule_is_broken_by_a_group_that_misses_one():
    """At the second try a group without its late client would give that client's frame: `summed` leaves it out."""
    finder = FaultFinder(corrupt_clients=1, min_contributions=3, seed=1)
    finder.plan(range(16))
    finder.fix_sums(range(16))
    finder.record_result([range(2)])
    plan = finder.plan(range(16))
    assert plan.second_try and [len(group) for group in plan.groups] == [4, 4, 4, 4]
    late = plan.groups[1][0]
    sums = finder.fix_sums(set(range(16)) - {late})
    assert [tuple(sorted(group)) for group in sums] == [plan.groups[0], *plan.groups[2:]]
    assert fewest([range(16), *sums]) == 4
    assert fewest([range(16), *sums, set(plan.groups[1]) - {late}]) == 1


def test_clients_sit_out_beside_those_that_are_away():
    finder = FaultFinder(corrupt_clients=1, min_contributions=4, seed=1)
    finder.plan(range(12))
    finder.fix_sums(range(12))
    finder.record_result([range(2)])
    plan = finder.plan(range(1, 12))
    assert plan.second_try and len(plan.waiting) == 3 and sorted(map(len, plan.groups)) == [4, 4]
    # Clients that were not in the failed sum may form a group of their own, and no other.
    plan = finder.plan(range(1, 15))
    assert not {12, 13} & {client for group in plan.groups for client in group}
    plan = finder.plan(range(1, 16 + 1))
    assert (12, 13, 14, 15, 16) in plan.groups


def test_sets_of_other_rounds_count_where_the_server_sets_the_models():
    finder = FaultFinder(corrupt_clients=1, min_contributions=3, seed=1)
    plan = finder.plan(range(9), remembered=[(range(10), 3)])
    assert len(plan.waiting) == 2 and len(plan.groups[0]) == 7
    plan = finder.plan(range(10), remembered=[(range(10), 3)])
    assert plan.groups == (tuple(range(10)),)
    # Two groups at the first of these rounds: a later one may sum both, and not a part of one and all of the other.
    plan = finder.plan(range(10), remembered=[(range(5), 3), (range(5, 10), 3)])
    assert plan.groups == (tuple(range(10)),)
    plan = finder.plan(range(9), remembered=[(range(5), 3), (range(5, 10), 3)])
    assert plan.groups == (tuple(range(5)),) and plan.waiting == (5, 6, 7, 8)


def test_a_larger_minimum_of_earlier_sums_holds_for_its_clients_and_no_others():
    finder = FaultFinder(corrupt_clients=0, min_contributions=2, seed=1)
    plan = finder.plan(range(5), [(range(6), 3)])
    assert len(plan.waiting) == 2 and len(plan.groups[0]) == 3
    finder = FaultFinder.restore(json.loads(json.dumps(finder.export())))
    assert not finder.fix_sums(plan.groups[0][:2]), "two are fewer than three"
    finder.drop_sums()
    assert "groups of at least 3" in finder.plan(range(4), [(range(5), 3)]).end
    # Beside them two others are enough; and all of a group, as large as it was made.
    assert finder.plan([0, 6, 7], [(range(6), 3)]).groups == ((6, 7),)
    assert sorted(finder.plan(range(8), [(range(6), 3)]).groups[0]) == list(range(8))
    assert sorted(finder.plan(range(4), [(range(2), 2), (range(2, 4), 2)]).groups[0]) == list(range(4))
    # Two are too few for a sum that promises three.
    strict = FaultFinder(corrupt_clients=0, min_contributions=3, seed=1)
    assert strict.plan(range(5), [(range(2), 2), (range(2, 5), 2)]).groups == ((2, 3, 4),)


def test_the_finder_has_a_sum_of_as_many_clients_as_fit():
    """Beside sets of other runs, under other minimums: what `SetMemory` says that fits."""
    draw = random.Random(36)
    for _ in range(3000):
        k, clients = draw.randint(2, 4), draw.randint(4, 12)
        memory = SetMemory(1)
        for _ in range(draw.randint(0, 4)):
            memory = SetMemory.from_bytes(memory.to_bytes(), draw.randint(2, 4))
            with suppress(SetRuleError):
                memory.admit(draw.sample(range(clients), draw.randint(1, clients)))
        memory = SetMemory.from_bytes(memory.to_bytes(), k)
        groups = [(group, memory.least(group)) for group in memory.groups()]
        present = draw.sample(range(clients), draw.randint(1, clients))
        finder = FaultFinder(corrupt_clients=0, min_contributions=k, seed=draw.randrange(99))
        plan = finder.plan(present, groups)
        fitting = memory.largest_fitting(present)
        assert sum(map(len, plan.groups)) == len(fitting) and bool(plan.end) == (not fitting), (k, groups, present)
        memory.would_admit([list(group) for group in plan.groups])
        arrived = [client for client in present if draw.random() < 0.9]
        memory.would_admit([list(group) for group in finder.fix_sums(arrived)])


def test_sets_that_a_committee_was_asked_for_count_although_no_sum_came():
    finder = FaultFinder(corrupt_clients=0, min_contributions=3, seed=1)
    for present, summed in ((5, 5), (6, 5), (5, 5)):
        plan = finder.plan(range(present))
        assert [len(group) for group in plan.groups] == [summed]
        finder.fix_sums(range(present))
        finder.drop_sums(asked=True)
    finder.plan(range(5))
    finder.fix_sums(range(5))
    finder.drop_sums()


# The cost of liars.


def bound(count):
    return math.ceil(math.log2(count)) + 2


def test_one_liar_is_proven_within_the_bound():
    """With one liar at most: for every count of at least 2k clients, wherever it stands."""
    for count in range(6, 41, 1 if LONG else 2):
        for least in range(3, count // 2 + 1) if LONG else {3, count // 4, count // 3, count // 2 - 1, count // 2}:
            if least < 3:
                continue
            for liar in (0, count // 2, count - 1):
                federation = Federation(count, least, 1, [liar], seed=count + liar).play(bound(count))
                assert set(federation.finder.proofs) == {liar}, (count, least, liar)
                assert federation.lost() == 1
                federation.round()
                assert federation.rounds[-1][0].opened == (frozenset(range(count)) - {liar},)


def test_one_liar_is_harmless_within_the_bound_where_proof_takes_longer():
    """From there on it spoils one group of the least size, until it is proven where the clients suffice for that."""
    for number, count, least, corrupt in cases(2.5, seed=1):
        if corrupt < 1 or count < 2 * least:
            continue
        liar = number % count
        federation = Federation(count, least, corrupt, [liar], seed=number).play(bound(count) + corrupt + 1)
        assert not federation.end and federation.lost() == 1
        for outcome, _ in federation.rounds[bound(count) :]:
            spoilt = sum(map(len, outcome.failed))
            assert spoilt <= least and sum(map(len, outcome.opened)) >= count - 1 - max(spoilt - 1, 0)
        if count >= 1 + (corrupt + 1) * (least - 1) + least:
            assert liar in federation.finder.proofs, (count, least, corrupt)


def test_the_company_of_a_liar_changes_so_that_nobody_pays_for_it_always():
    federation = Federation(20, 10, 8, [3]).play(40)
    assert not federation.finder.proofs and federation.lost() == 1
    spoilt = [sum(client in group for o, _ in federation.rounds[8:] for group in o.failed) for client in range(20)]
    assert spoilt[3] == 32 and max(spoilt[:3] + spoilt[4:]) < 28


def test_where_a_group_without_a_liar_must_exist_every_position_ends_in_a_step():
    """At least (c + 1) k clients: at most the first of two tries is lost, whatever the liars do, and all run on."""
    for number, count, least, corrupt in cases(2.5, seed=2):
        if corrupt < 1 or count < (corrupt + 1) * least:
            continue
        liars = random.Random(number).sample(range(count - 1), corrupt)
        for strategy in STRATEGIES:
            federation = Federation(count, least, corrupt, liars, strategy, number).play(30)
            assert not federation.end, (count, least, corrupt, strategy, federation.end)
            steps = [outcome.step for outcome, _ in federation.rounds]
            assert all(a or b for a, b in pairwise(steps))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nobody_honest_is_left_out_and_the_run_goes_on(strategy):
    """`Federation` checks each proof by itself. A liar that behaves when searched spoils ever fewer sums."""
    for seed in range(4):
        liars = random.Random(seed).sample(range(39), 3)
        federation = Federation(40, 6, 3, liars, strategy, seed, absence=0.03, resumed=seed == 0).play(100)
        assert not federation.end
        assert federation.lost() <= 12, (strategy, federation.lost())


def test_a_liar_that_is_proven_stays_out_and_is_named_with_its_evidence():
    federation = Federation(12, 3, 1, [4], resumed=True).play(bound(12) + 1)
    assert set(federation.finder.proofs) == {4}
    plan = federation.finder.plan(range(12))
    assert plan.left_out == (4,) and 4 not in plan.groups[0] and len(plan.groups) == 1


def test_fewer_than_two_groups_end_the_run_and_say_so():
    for count, least, corrupt in [(3, 3, 1), (5, 3, 1), (7, 4, 2), (19, 10, 8), (39, 20, 1)]:
        federation = Federation(count, least, corrupt, [0]).play(5)
        assert len(federation.rounds) == 1
        assert f"sum of {count} clients" in federation.end and f"two groups of at least {least}" in federation.end
        assert f"at least {2 * least} clients" in federation.end
        # Not for ever: others that were not in that sum may be summed at this position.
        plan = federation.finder.plan(range(count + least))
        assert plan.groups == (tuple(range(count, count + least)),) and not plan.end


def test_more_liars_than_were_expected_end_the_run_and_say_so():
    finder = FaultFinder(corrupt_clients=1, min_contributions=3, seed=0)
    finder.plan(range(12))
    finder.fix_sums(range(12))
    finder.record_result([range(12)])
    finder.plan(range(12))
    finder.fix_sums(range(12))
    finder.record_result([range(12), range(12), [], []])
    plan = finder.plan(range(12))
    assert not plan.groups and "more than 1 of the clients lie" in plan.end and "corrupt_clients" in plan.end
    finder = FaultFinder(corrupt_clients=0, min_contributions=2, seed=0)
    finder.plan(range(4))
    finder.fix_sums(range(4))
    assert not finder.record_result([[3]]).proven
    assert "more than 0 of the clients lie" in finder.plan(range(4)).end


def test_c_refusals_begin_no_search():
    for corrupt in (1, 2, 5):
        finder = FaultFinder(corrupt_clients=corrupt, min_contributions=corrupt + 2, seed=0)
        everybody = list(range(4 * (corrupt + 2)))
        for _ in range(20):
            assert finder.plan(everybody).groups == (tuple(everybody),)
            finder.fix_sums(everybody)
            # The same client twice is one.
            assert finder.record_result([[*range(corrupt), *range(corrupt)]]).step
        finder.plan(everybody)
        finder.fix_sums(everybody)
        assert not finder.record_result([range(corrupt + 1)]).step
        assert finder.plan(everybody).second_try


def test_a_proven_liar_refuses_nothing_any_more():
    federation = Federation(12, 3, 1, [4]).play(bound(12))
    federation.finder.plan(range(12))
    sums = federation.finder.fix_sums(range(12))
    assert federation.finder.record_result([[4, 5] for _ in sums]).step


def test_frames_that_do_not_arrive_are_no_lie():
    finder = FaultFinder(corrupt_clients=1, min_contributions=3, seed=0)
    for _ in range(3):
        finder.plan(range(9))
        assert finder.fix_sums([0, 1]) == ()
        assert finder.record_result([]).failed == ()
    # 0 and 1 have sent two frames from this position.
    assert finder.plan(range(9)).groups == (tuple(range(2, 9)),)
    finder.fix_sums(range(2, 9))
    assert finder.record_result([[]]).step
    assert finder.plan(range(9)).groups == (tuple(range(9)),)
    assert "2 clients are present" in finder.plan(range(2)).end


# Twenty hostile clients of 100, which proof cannot reach: 21 groups of 22 that have one client in common need 442.


def test_five_wrong_tags_of_twenty_hostile_among_a_hundred():
    ended = 0
    for seed in range(60 if LONG else 8):
        federation = Federation(100, 22, 20, random.Random(seed).sample(range(99), 5), seed=seed).play(2)
        divided = federation.rounds[1][0]
        if not divided.opened:
            federation.play(1)
            assert "No sum of this model opens" in federation.end
            ended += 1
            continue
        federation.play(48)
        assert not federation.end and federation.lost() == 1
        # Every round makes a step, of honest clients alone; in the end it is that of all but the liars' group.
        assert all(not group & federation.liars for outcome, _ in federation.rounds for group in outcome.opened)
        assert sum(len(group) for group in federation.rounds[-1][0].opened) == 78
    # All four groups of the first division have a liar with a chance of 0.249.
    assert ended <= (25 if LONG else 6)


def test_twenty_that_always_lie_among_a_hundred_end_the_run_with_what_was_opened():
    for seed in range(5):
        federation = Federation(100, 22, 20, range(20), seed=seed).play(30)
        opened = [group for outcome, _ in federation.rounds for group in outcome.opened]
        assert all(not group & federation.liars for group in opened)
        assert federation.end or federation.lost() == 1
        assert not federation.finder.proofs


def test_several_liars_are_proven_where_the_clients_suffice():
    federation = Federation(60, 6, 4, [3, 17, 31, 44]).play(30)
    assert set(federation.finder.proofs) == {3, 17, 31, 44} and federation.lost() == 1
    assert federation.rounds[-1][0].opened == (frozenset(range(60)) - federation.liars,)


# State.


def test_the_same_seed_and_history_give_the_same_groups_after_a_restart():
    whole = Federation(40, 6, 3, [1, 2, 3], AtRandom, seed=5).play(25)
    resumed = Federation(40, 6, 3, [1, 2, 3], AtRandom, seed=5, resumed=True).play(25)
    assert [plan for _, plan in whole.rounds] == [plan for _, plan in resumed.rounds]
    other = Federation(40, 6, 3, [1, 2, 3], AtRandom, seed=6).play(25)
    assert [plan for _, plan in whole.rounds] != [plan for _, plan in other.rounds]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 1),
        ("corrupt_clients", 9),
        ("min_contributions", -1),
        ("seed", "1"),
        ("round", None),
        ("searches", True),
        ("sets", [["a"]]),
        ("frames", [[1, 2, 3]]),
        ("doubts", [[1, 0.0]]),
        ("doubts", [[1, math.nan]]),
        ("failed", 7),
        ("proofs", [[1, [[-1]]]]),
    ],
)
def test_a_damaged_state_is_refused(key, value):
    state = Federation(12, 3, 1, [4]).play(4).finder.export()
    FaultFinder.restore(state)
    with pytest.raises(RunError, match="begin a new run"):
        FaultFinder.restore({**state, key: value})
    del state[key]
    with pytest.raises(RunError, match="begin a new run"):
        FaultFinder.restore(state)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ParameterError, match=r"at least corrupt_clients \+ 2"):
        FaultFinder(corrupt_clients=2, min_contributions=3, seed=0)
    finder = FaultFinder(corrupt_clients=1, min_contributions=3, seed=0)
    with pytest.raises(ParameterError, match="record_result once after each fix_sums"):
        finder.record_result([])
    finder.plan(range(3))
    finder.fix_sums(range(3))
    with pytest.raises(ParameterError, match="are fixed"):
        finder.fix_sums(range(3))
    with pytest.raises(ParameterError, match="one list of clients for each set"):
        finder.record_result([])


def test_cells_are_clients_of_the_same_sets():
    assert cells([{1, 2, 3, 7}, {1, 2, 3, 4, 5, 6}, {4, 5, 6}]) == [{1, 2, 3}, {4, 5, 6}, {7}]
