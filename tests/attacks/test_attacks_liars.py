"""One client that lies costs itself, in every scheme, and no honest client is left out (attacks 19 and 32)."""

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.records import ClientRecord
from fedcipher.federation.server.liar_search import LiarSearch
from fedcipher.frame import inspect
from flower_harness import NAMES, LocalGrid, initial, make_app, party_of, record
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, of_committee, schemes_that

CLIENTS = 8
SCHEMES = schemes_that(hides, adds)


def federation(tmp_path, rng, name, liars, *, clients=CLIENTS, lies=lambda number: True, counts_twice=False, **params):
    """Clients of which some make tags that are not those of what they send, or count twice in a histogram."""
    _holders.clear()
    committee = of_committee(name, members=5)
    codec = fedcipher.Codec(bits=12 if name == "pasta-bfv" else 16)
    scheme = fedcipher.scheme(name, clients=clients, codec=codec, **committee, **params)
    folder = keys.save(scheme.keygen(clients), scheme, tmp_path / "keys")
    goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(clients)]
    grid = LocalGrid(make_app(goals, [10] * clients, step=1.0), clients, folder)
    for liar in liars:
        encryptor = party_of(grid.contexts[1000 + liar]).encryptor()
        honest, counts = encryptor._seal, {"frames": 0}

        def seal(layout, arrays, said, bound=b"", honest=honest, counts=counts):
            counts["frames"] += 1
            if counts_twice:
                arrays[-1][-1] += 1
                return honest(layout, arrays, said, bound)
            # What both ends know and no header says is in the tag: with something else the sum does not open.
            return honest(layout, arrays, said, b"a lie" if lies(counts["frames"]) else bound)

        encryptor._seal = seal
    return grid, folder, goals


def run(grid, folder, out, rounds, clients=CLIENTS, opener=None, evaluate=1.0, **given):
    everybody = {"min_train_nodes": clients, "min_evaluate_nodes": clients, "min_available_nodes": clients}
    inner = FedAvg(**everybody, fraction_evaluate=evaluate)
    strategy = SecureStrategy(inner, folder, out=out, opener=opener, **{"may_lose": rounds, **given})
    strategy.start(grid, record(initial()), num_rounds=rounds)
    return strategy


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("sees", ["opener", "evaluates", "trains"])
def test_attack_19_one_wrong_tag_ends_no_run(tmp_path, rng, name, sees):
    liar, rounds = 5, 9
    grid, folder, goals = federation(tmp_path, rng, name, [liar])
    opener = "client-0.key" if sees == "opener" else None
    strategy = run(grid, folder, tmp_path / "run", rounds, opener=opener, evaluate=float(sees != "trains"))
    ended = [r.unfinished is None for r in strategy.rounds]
    # One round is lost, or two where nobody evaluates: its sum was divided at the next.
    assert sum(ended) >= rounds - 2 and ended[-1], [r.unfinished for r in strategy.rounds]
    model = open_run(tmp_path / "run", folder / "client-1.key")
    honest = np.mean([g[0] for k, g in enumerate(goals) if k != liar], axis=0)
    # The liar's groups count nothing, so the last steps are means of honest clients.
    assert np.abs(model[NAMES[0]]).max() > 0 and np.isfinite(model[NAMES[0]]).all()
    assert np.abs(model[NAMES[0]] - honest).max() < np.abs(honest).max()
    assert set(strategy.run.search.found) <= {liar}


@pytest.mark.parametrize("counts_twice", [False, True])
def test_attack_19_a_liar_is_found_and_left_out(tmp_path, rng, caplog, counts_twice):
    liar = 5
    grid, folder, goals = federation(tmp_path, rng, "flashe", [liar], counts_twice=counts_twice)
    strategy = run(grid, folder, tmp_path / "run", 9, opener="client-0.key")
    assert list(strategy.run.search.found) == [liar] and "client 5 has lied" in caplog.text
    last = strategy.rounds[-1]
    assert liar not in [c.client for c in last.clients] and last.accepted == CLIENTS - 1
    model = open_run(tmp_path / "run", folder / "client-1.key")
    honest = np.mean([g[0] for k, g in enumerate(goals) if k != liar], axis=0)
    np.testing.assert_allclose(model[NAMES[0]], honest, atol=1e-3)


def test_a_run_that_lost_rounds_ends_with_an_error_that_says_whose_fault_it_was(tmp_path, rng):
    grid, folder, _ = federation(tmp_path, rng, "flashe", [5])
    with pytest.raises(errors.LostRoundsError) as caught:
        run(grid, folder, tmp_path / "run", 9, opener="client-0.key", may_lose=0)
    lost = caught.value
    assert lost.liars == [5] and "clients [5] have lied and are left out" in str(lost)
    assert list(lost.lost) == [1] and "1 of 9 rounds have no aggregate: [1]" in str(lost)
    # All else is there: what opened stays, and the run's model with it.
    model = open_run(tmp_path / "run", folder / "client-1.key")
    for name, array in lost.result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), model[name])


def test_attack_32_no_two_sums_of_a_position_differ_by_fewer_than_the_minimum(tmp_path, rng):
    """What a lying client could open of a search: every sum that was broadcast, the failed ones too."""
    grid, folder, _ = federation(tmp_path, rng, "flashe", [1])
    broadcast = {}
    strategy = SecureStrategy(
        FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS), folder, out=tmp_path / "run", may_lose=8
    )
    real = strategy.run._accepting._summed_in_sets

    def watched(*given):
        frames = real(*given)
        if not isinstance(frames, str):
            position = strategy.run.model.steps
            sets = broadcast.setdefault(position, [])
            sets += [frozenset(inspect(frame).clients) for frame in frames]
        return frames

    strategy.run._accepting._summed_in_sets = watched
    strategy.start(grid, record(initial()), num_rounds=8)
    assert any(len(sets) > 1 for sets in broadcast.values()), "there was a search"
    for sets in broadcast.values():
        cells = {}
        for client in frozenset().union(*sets):
            cells.setdefault(tuple(client in s for s in sets), set()).add(client)
        assert all(len(cell) >= 3 for cell in cells.values()), sets


def test_fewer_clients_than_can_be_divided_end_the_run_and_it_says_so(tmp_path, rng):
    grid, folder, _ = federation(tmp_path, rng, "flashe", [1], clients=4)
    with pytest.raises(errors.StrategyError, match="cannot be divided into two groups of at least 3"):
        run(grid, folder, tmp_path / "run", 6, clients=4, opener="client-0.key")


def test_a_search_goes_on_after_the_server_was_killed(tmp_path, rng):
    grid, folder, _ = federation(tmp_path, rng, "flashe", [5])
    run(grid, folder, tmp_path / "run", 3, opener="client-0.key")
    again = run(grid, folder, tmp_path / "run", 9, opener="client-0.key", resume=True)
    assert list(again.run.search.found) == [5] and again.rounds[-1].accepted == CLIENTS - 1


@pytest.mark.parametrize(("clients", "minimum", "share"), [(4, 4, 1.0), (10, 5, 0.5), (10, 8, 0.8)])
def test_as_few_as_a_sum_needs_say_that_it_opened(tmp_path, rng, clients, minimum, share):
    """Nobody lies, and fewer take part than twice those that might: each round has its sum all the same."""
    grid, folder, _ = federation(tmp_path, rng, "flashe", [], clients=clients, min_contributions=minimum)
    inner = FedAvg(fraction_train=share, min_train_nodes=minimum, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, folder, out=tmp_path / "run")
    strategy.start(grid, record(initial()), num_rounds=5)
    assert [r.unfinished for r in strategy.rounds] == [None] * 5
    assert [r.accepted for r in strategy.rounds] == [minimum] * 5


def test_few_that_refuse_for_other_reasons_withdraw_no_sum(tmp_path):
    """With c = 1, a liar and a client of another policy refuse a good sum of ten; the others have not answered yet."""
    search = LiarSearch(tmp_path, corrupt=1, minimum=3, seed=1)
    sums, _ = search.sets(range(10))
    refusals = [ClientRecord(k, k, {}, "no", refused=True) for k in (0, 1)]
    assert search.judge(refusals, {}) is None and search.pending == sums
    outcome = search.judge([*refusals, *(ClientRecord(k, k, {}) for k in (2, 3))], {})
    assert outcome is not None and outcome.opened == sums
