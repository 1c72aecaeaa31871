"""The search for clients that spoil sums, against liars that nobody knows."""

import math
import random

import pytest
from fedcipher.flower.suspects import Suspects


def run(clients, liars, least, rounds, sample=None):
    """Rounds of all clients, or of a random ``sample``; a sum that a liar is in does not open."""
    suspects, opened, draw = Suspects(), [], random.Random(1)
    for number in range(rounds):
        sampled = clients if sample is None else draw.sample(clients, sample)
        out = suspects.excluded(sampled, least)
        taking = [client for client in sampled if client not in out]
        assert out <= set(sampled) and len(taking) >= least
        if liars & set(taking):
            suspects.spoilt(taking)
        else:
            suspects.opened(taking)
            opened.append(number)
    return suspects, opened


@pytest.mark.parametrize("count", [4, 5, 8, 12, 100])
def test_one_liar_is_found_and_nobody_else(count):
    clients = list(range(count))
    for liar in clients[:: max(1, count // 7)]:
        # Where half of the clients are fewer than a sum may have, some tests are in vain.
        rounds = math.ceil(math.log2(count)) + (4 if count > 8 else 30)
        suspects, opened = run(clients, {liar}, 2, rounds)
        assert suspects.found == {liar}, liar
        assert not suspects.searching and opened[-1] == rounds - 1


def test_several_liars_are_found_one_after_the_other():
    suspects, opened = run(list(range(20)), {3, 11, 12}, 3, 40)
    assert suspects.found == {3, 11, 12} and len(opened) > 20


def test_a_liar_is_found_where_each_round_samples_some():
    suspects, opened = run(list(range(30)), {7, 19}, 3, 120, sample=8)
    assert suspects.found == {7, 19} and len(opened) > 60


def test_with_too_few_clients_to_leave_out_nobody_is_blamed():
    suspects, opened = run([0, 1, 2], {1}, 3, 10)
    assert suspects.found == set() and not opened and suspects.searching


def test_what_was_concluded_with_a_liar_is_taken_back():
    """4 is honest until it was cleared; then 0, which was with it, is found, and let in again as 4 lies on."""
    suspects = Suspects()
    suspects.spoilt([0, 1, 2, 3, 4])
    suspects.opened([1, 2, 3, 4])
    assert suspects.found == {0}
    suspects = Suspects()
    suspects.spoilt([0, 1, 4, 5])
    suspects.opened([4, 5])
    suspects.spoilt([0, 4, 5])
    assert suspects.found == {0} and suspects.excluded([0, 1, 4, 5], 2) == {0}
    suspects.spoilt([4, 5])
    assert suspects.found == set() and 0 not in suspects.excluded([0, 1, 4, 5], 2)
