"""The rule of sets: the core's against a second implementation, which looks at memberships and at nothing else."""

import os

import numpy as np
import pytest
from fedcipher import errors
from fedcipher.schemes import SetMemory

TRIES = int(os.environ.get("FEDCIPHER_ATTACK_TRIES", "2000"))


class Reference:
    """Every set that was admitted; a group is the clients that are in the same of them."""

    def __init__(self, k):
        self.k, self.sets, self.exempt = k, [], set()

    def groups(self, sets):
        found = {}
        for client in set().union(*sets):
            found.setdefault(tuple(client in one for one in sets), set()).add(client)
        return {frozenset(group) for group in found.values()}

    def admit(self, wanted, exempt):
        exempt = self.exempt | set(exempt)
        before = {group - exempt for group in self.groups(self.sets)} if self.sets else set()
        after = {group - exempt for group in self.groups([*self.sets, set(wanted)])}
        # A group that loses nobody but the exempt is as it was, however few they have left of it.
        if any(group and len(group) < self.k for group in after - before):
            return False
        self.sets.append(set(wanted))
        self.exempt = exempt
        return True


def some(random, clients, share):
    return [int(client) for client in range(clients) if random.random() < share]


def test_attack_32_two_implementations_of_the_rule_of_sets_agree():
    random = np.random.default_rng()
    outcomes = {True: 0, False: 0}
    for _ in range(TRIES):
        k, clients = int(random.integers(1, 5)), int(random.integers(3, 16))
        memory, reference, wanted = SetMemory(k), Reference(k), []
        for _ in range(10):
            near = [client for client in range(clients) if (client in wanted) != (random.random() < 0.15)]
            wanted = near if wanted and random.random() < 0.5 else some(random, clients, random.random())
            exempt = some(random, clients, 0.05)
            if not wanted:
                continue
            if random.random() < 0.4:
                wanted = memory.largest_fitting(wanted, exempt) or wanted
            expected = reference.admit(wanted, exempt)
            before = memory.to_bytes()
            try:
                memory.would_admit([wanted], exempt)
                assert memory.to_bytes() == before
                memory.admit(wanted, exempt)
                admitted = True
            except errors.SetRuleError:
                admitted = False
                assert memory.to_bytes() == before
            assert admitted == expected, (k, reference.sets, reference.exempt, wanted, exempt)
            outcomes[admitted] += 1
            memory = SetMemory.from_bytes(memory.to_bytes())
            if reference.sets:
                assert {frozenset(group) for group in memory.groups()} == reference.groups(reference.sets)
    assert min(outcomes.values()) > TRIES


def test_three_sets_whose_pairs_differ_enough_still_give_one_client():
    memory = SetMemory(3)
    memory.admit([1, 2, 3, 4, 5, 6])
    memory.admit([4, 5, 6])
    with pytest.raises(errors.SetRuleError, match=r"set 1 clients apart.*at least 3"):
        memory.admit([1, 2, 3, 7])
    assert memory.groups() == [[1, 2, 3], [4, 5, 6]]
    assert memory.largest_fitting([1, 2, 3, 7]) == [1, 2, 3]


def test_bad_memories_are_refused_by_name():
    with pytest.raises(errors.ParameterError):
        SetMemory(0)
    with pytest.raises(errors.EmptyCohortError):
        SetMemory(2).admit([])
    for wrong in (b"", SetMemory(2).to_bytes()[:-1], SetMemory(2).to_bytes() + b"\0"):
        with pytest.raises(errors.FrameError):
            SetMemory.from_bytes(wrong)
