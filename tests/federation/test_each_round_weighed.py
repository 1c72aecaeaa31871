"""Runs of which every round begins with a sum of histograms: updates are beside the largest weight of their round."""

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.federation import messages as protocol
from fedcipher.federation.chain import Chain
from fedcipher.frame import inspect
from scheme_lists import adds, hides, one_of_each_kind_of_key, schemes_that
from test_first_ranges import Federation, Killed, sat_out, settings_of

EXAMPLES = [60_000, *[60] * 9]
ROUNDS = 4


def lose(here, client, message):
    """``client`` does not answer from round 2 on, to the messages that ``message`` chooses by round and steps."""

    def tamper(sent, reply, answers):
        told = here.grid.sent[-1][1]
        if protocol.CONFIG not in told or answers != client:
            return reply
        said = settings_of(told)
        return None if said.index > 1 and message(said) else reply

    here.grid.tamper = tamper


@pytest.mark.parametrize("name", schemes_that(hides, adds))
def test_small_clients_are_not_lost_in_rounds_without_the_large_one(tmp_path, name, caplog):
    """The mean of the later rounds, whose updates are a thousandth of what the first round's largest weighs."""
    error = {}
    for each in (True, False):
        codec = fedcipher.Codec(bits=6)
        here = Federation(tmp_path / str(each), clients=10, name=name, codec=codec, examples=EXAMPLES)
        lose(here, 0, lambda said: True)
        caplog.clear()
        model = here.run(ROUNDS, weigh_each_round=each)
        assert [made.unfinished for made in here.strategy.rounds] == [None] * ROUNDS
        assert here.trained[1:] == [list(range(1, ROUNDS + 1))] * 9, "the app is called once a round"
        assert [bool(made.measured) for made in here.strategy.rounds] == [each or k == 0 for k in range(ROUNDS)]
        first = np.average([u[0][0] for u in here.updates], axis=0, weights=EXAMPLES)
        later = sum(np.mean([u[number][0] for u in here.updates[1:]], axis=0) for number in range(1, ROUNDS))
        error[each] = np.linalg.norm(model[0] - first - later) / np.linalg.norm(later)
        assert ("use SecureStrategy(weigh_each_round=True)" in caplog.text) == (not each)
    assert error[True] < 0.3 < 0.8 < error[False], error


@pytest.mark.parametrize("name", one_of_each_kind_of_key())
def test_attack_32_updates_of_fewer_clients_than_their_rounds_histograms_fit_the_rule_of_sets(tmp_path, name, caplog):
    here = Federation(tmp_path, clients=6, name=name, examples=[10, 20, 30, 40, 50, 600])
    # After the sum of round 2's histograms: the chain has three steps.
    lose(here, 5, lambda said: said.steps == 3)
    here.run(2, weigh_each_round=True)
    assert [len(here.clients_of(step)) for step in (1, 2, 3, 4)] == [6, 6, 6, 3]
    assert sat_out(caplog.text) == [sorted(set(range(5)) - set(here.clients_of(4)))]
    if name == "oneshot":
        return
    # No client opens the sum of the five beside that of the six histograms.
    run, scheme, number = here.strategy.run.model.folder, here.strategy.setup.scheme, here.strategy.rounds[1].number
    aggregator = scheme.aggregator(here.strategy.setup.key, round=number)
    for frame in (protocol.frame_bytes(r.content["arrays"][protocol.UPDATE]) for k, r in here.grid.received if k < 5):
        if inspect(frame).round == number:
            aggregator.add(frame)
    decryptor = scheme.decryptor(keys.load_client(here.keys / "client-1.key")[1], in_memory=True)
    chain = Chain(run.charter, scheme, run.context, first=run.first())
    for step in (1, 2, 3):
        chain.step(decryptor, run.step(step), run.round_of(step))
    with pytest.raises(errors.SetRuleError):
        chain.step(decryptor, [aggregator.finish()], 2)
    chain.step(decryptor, run.step(4), 2)


@pytest.mark.parametrize("sees", [False, True])
def test_a_server_that_dies_between_a_later_rounds_two_sums_goes_on_from_its_histograms(tmp_path, monkeypatch, sees):
    here = Federation(tmp_path, examples=[10, 20, 30, 40])
    given = {"weigh_each_round": True, **({"opener": "client-0.key"} if sees else {})}
    real, steps = fedcipher.federation.server.run_folder.RunFolder.append, []

    def dying(folder, frames, index):
        real(folder, frames, index)
        steps.append(index)
        if len(steps) == 3:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(fedcipher.federation.server.run_folder.RunFolder, "append", dying)
        here.run(3, **given)
    model = here.run(3, resume=True, **given)
    assert here.trained == [[1, 2, 3]] * 4, "what round 2 has told of itself is what it sends"
    assert here.strategy.run.model.steps == 6
    for got, *updates in zip(model, *(zip(*made, strict=True) for made in here.updates), strict=True):
        mean = sum(np.average(of_round, axis=0, weights=here.examples) for of_round in zip(*updates, strict=True))
        np.testing.assert_allclose(got, mean, atol=1e-7)


def test_a_round_is_weighed_only_where_weights_differ_and_ranges_follow(tmp_path):
    with pytest.raises(errors.StrategyError, match="clients of different weights"):
        Federation(tmp_path / "equal").run(1, weigh_each_round=True)
    here = Federation(tmp_path / "start", codec=fedcipher.Codec(bits=12, start=4e-5), examples=[10] * 4)
    with pytest.raises(errors.StrategyError, match="without start"):
        here.run(1, weigh_each_round=True)
