"""Attacks 32 and 33: sums of nearly the same clients, whose differences would speak of few of them."""

import fedcipher
import numpy as np
import pytest
from engine_harness import flashe
from fedcipher import Codec, errors, keys
from fedcipher.engine import connect
from test_ledger import engine

CLIENTS = 8
ROUNDS = 8
MEMORY, OTHER = b"\1first positions", b"\1queries"
CODEC = Codec(bits=8, clip=1.0, target="weights")
MORE = {
    "flashe": {},
    "bfv": {"preset": "fast"},
    "paillier": {},
    "oneshot": {"preset": "fast", "members": 3, "threshold": 2, "corrupt": 0},
}


class World:
    """Clients that send an update of their own every round, and a server that sums whichever it likes."""

    def __init__(self, name):
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, min_contributions=3, codec=CODEC, **MORE[name])
        self.issued = self.scheme.keygen(CLIENTS)
        self.encryptors = [self.scheme.encryptor(self.issued.client(k)) for k in range(CLIENTS)]
        self.frames = {}

    def decryptor(self):
        """As in a new process."""
        return self.scheme.decryptor(self.issued.client(0))

    def asked(self, number, clients, memory=MEMORY):
        """An aggregator of their updates."""
        aggregator = self.scheme.aggregator(self.issued.server(), round=number)
        for k in clients:
            if (number, k) not in self.frames:
                update = [np.full(3, k / 10, np.float32)]
                self.frames[number, k] = self.encryptors[k].encrypt(update, round=number, memory=memory)
            aggregator.add(self.frames[number, k])
        return aggregator

    def total(self, number, clients, memory=MEMORY):
        aggregator = self.asked(number, clients, memory)
        for member, request in aggregator.requests().items():
            # Members that remember nothing: what is tried is who opens.
            aggregator.answer(self.scheme._native.member(self.issued.client(member), None).answer(request))
        return aggregator.finish()

    def open(self, number, clients, memory=MEMORY):
        opened = self.decryptor().decrypt(self.total(number, clients, memory), round=number, memory=memory)
        np.testing.assert_allclose(opened[0], np.mean(list(clients)) / 10, atol=0.01)


@pytest.fixture(params=MORE)
def world(request):
    return World(request.param)


def test_attack_32_sets_that_set_few_clients_apart_are_not_opened(world):
    world.open(1, range(1, 7))
    for number, clients in enumerate((range(1, 6), (1, 2, 3, 4, 5, 7), range(1, 8)), 2):
        with pytest.raises(errors.SetRuleError, match="at least 3"):
            world.open(number, clients)
    # A refusal has spent nothing; sets of one round are disjoint.
    world.open(4, (4, 5, 6))
    with pytest.raises(errors.ReplayError):
        world.open(4, (3, 4, 5))
    # No pair of sets differs by fewer than three, and the three of them give client 7.
    with pytest.raises(errors.SetRuleError):
        world.open(5, (1, 2, 3, 7))
    world.open(5, (1, 2, 3))
    world.open(6, (1, 2, 3, 7), OTHER)


def test_attack_32_sets_of_one_round_without_a_memory_stay_one(world):
    world.open(1, (1, 2, 3), b"")
    with pytest.raises(errors.ReplayError):
        world.open(1, (4, 5, 6), b"")


def test_attack_33_sums_over_changing_sets_give_no_client(world):
    """What stays the same over rounds, such as a number of examples, from sums that are opened in one memory."""
    random, sets = np.random.default_rng(33), []
    for number in range(1, ROUNDS + 1):
        clients = [k for k in range(CLIENTS) if random.random() < 0.8]
        try:
            world.open(number, clients)
            sets.append(np.isin(range(CLIENTS), clients))
        except (errors.SetRuleError, errors.TooFewContributionsError):
            pass
    assert sets
    rank = np.linalg.matrix_rank(sets)
    for k in range(CLIENTS):
        alone = np.arange(CLIENTS) == k
        assert np.linalg.matrix_rank([*sets, alone]) == rank + 1, f"client {k} follows from {len(sets)} sums"


def test_attack_32_sets_are_refused_by_members():
    world = World("oneshot")

    def answered(number, clients, memory=MEMORY):
        request = world.asked(number, clients, memory).requests()[1]
        return world.scheme.member(world.issued.client(1)).answer(request)

    first = answered(1, range(1, 7))
    assert answered(1, range(1, 7)) == first, "the same request gets the same bytes"
    with pytest.raises(errors.ReplayError):
        answered(1, range(1, 6))
    with pytest.raises(errors.SetRuleError):
        answered(2, range(1, 6))
    halves = answered(2, (1, 2, 3)), answered(2, (4, 5, 6))
    assert halves == (answered(2, (1, 2, 3)), answered(2, (4, 5, 6)))
    # A client that was in a sum of this round, and a set that would set clients apart: either is reason enough.
    with pytest.raises((errors.ReplayError, errors.SetRuleError)):
        answered(2, (0, 6, 7))
    with pytest.raises(errors.SetRuleError):
        answered(3, (1, 2, 3, 7))
    answered(4, (1, 2, 3, 7), OTHER)


@pytest.mark.parametrize("name", ["flashe", "bfv"])
def test_attack_32_sets_are_refused_by_engines(name, tmp_path):
    world = World(name)
    folder = keys.save(world.issued, world.scheme, tmp_path / "keys")

    def opened(number, clients, memory=MEMORY):
        # An engine each: it begins anew and has the same state folder.
        with engine(tmp_path, folder / "client-0.key", "engine") as running:
            decryptor = connect(running.address, device="client-0").decryptor()
            return decryptor.decrypt(world.total(number, clients, memory), round=number, memory=memory)

    opened(1, range(1, 7))
    with pytest.raises(errors.SetRuleError):
        opened(2, range(1, 6))
    opened(2, (1, 2, 3))
    opened(2, (4, 5, 6))
    with pytest.raises(errors.ReplayError):
        opened(2, (0, 6, 7))
    with pytest.raises(errors.SetRuleError):
        opened(3, (1, 2, 3, 7))
    # In another memory, and so in frames of another round.
    opened(4, (1, 2, 3, 7), OTHER)


def test_openings_with_a_memory_that_nobody_names_count_in_it():
    """A decryptor that is not told which memory a sum counts in goes by the header's tag."""
    made = flashe(CLIENTS, min_contributions=3)
    issued = made.keygen(CLIENTS)
    encryptors = [made.encryptor(issued.client(k)) for k in range(CLIENTS)]
    for number, clients in enumerate((range(6), range(5)), 1):
        aggregator = made.aggregator(issued.server())
        for k in clients:
            aggregator.add(encryptors[k].encrypt([np.zeros(3, np.float32)], round=number, memory=MEMORY))
        frame = aggregator.finish()
        if number == 1:
            made.decryptor(issued.client(0)).decrypt(frame)
            continue
        for told in (None, MEMORY):
            with pytest.raises(errors.SetRuleError):
                made.decryptor(issued.client(0)).decrypt(frame, memory=told)
