"""What a training is set up with: ranges by layer, learning rates, a client's own parts, and when it stops."""

import argparse
from dataclasses import fields, replace

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.app.answers import COUNTS, evaluate_answers, evaluated, pool_evaluations, train_answers
from fedcipher.app.client_app import make_client_app
from fedcipher.app.examples import examples, sizes, test_examples
from fedcipher.app.layers import clip_option
from fedcipher.app.server_app import make_server_app
from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.dp import Privacy
from fedcipher.errors import ParameterError
from fedcipher.federation.answers import Lanes, Tally, part_of
from fedcipher.federation.curves import Curves
from fedcipher.models import Learner
from fedcipher.watch.metrics import Metrics
from flower_harness import LocalGrid
from flwr.app import Context, MetricRecord, RecordDict

test_examples.__test__ = False

TENSORS = [f"params/{layer}/{part}" for layer in ("Conv_0", "Conv_1", "Dense_0") for part in ("bias", "kernel")]


def test_a_run_config_has_no_number_that_no_float_holds():
    numbers = [field.name for field in fields(Settings) if type(field.default) is float]
    for name in numbers:
        with pytest.raises(ParameterError, match=name):
            Settings(keys="keys", **{name: 10**400})
    assert "learning_rate" in numbers


def test_clip_ranges_by_layer():
    assert clip_option("auto") == "auto" and clip_option("5") == "5"
    assert clip_option("conv1=2,fc=0.5,7").of(TENSORS) == [2, 2, 7, 7, 0.5, 0.5]
    assert clip_option("conv=3,conv2=1,fc=2").of(TENSORS) == [3, 3, 1, 1, 2, 2]
    with pytest.raises(ParameterError, match="no range for conv2, fc1: name these layers"):
        clip_option("conv1=2").of(TENSORS)
    with pytest.raises(ParameterError, match="--clip conv3=2: the model's layers are conv1, conv2, fc1"):
        clip_option("conv3=2,1").of(TENSORS)
    for wrong in ("conv1=0", "conv1=inf", "conv1=x", "conv1=2,conv1=3", "conv1=2,3,4", "=2"):
        with pytest.raises(argparse.ArgumentTypeError):
            clip_option(wrong)


def test_a_learning_rate_follows_a_cosine_from_end_to_end():
    shape = {"learning_rate": 0.01, "learning_rate_end": 1e-6, "rounds": 5}
    rates = [Settings("keys", **shape).rate(k) for k in range(1, 6)]
    assert rates[0] == 0.01 and rates[-1] == pytest.approx(1e-6) and rates[2] == pytest.approx((0.01 + 1e-6) / 2)
    assert rates == sorted(rates, reverse=True)
    assert Settings("keys", learning_rate=0.01, rounds=5).rate(5) == 0.01


@pytest.mark.parametrize(
    "shape",
    [
        {"optimiser": "sgd"},
        {"test_share": 1.0},
        {"validation_share": -0.1},
        {"patience": 0},
        {"learning_rate_end": -1.0},
    ],
)
def test_training_that_cannot_be_is_refused(shape):
    with pytest.raises(ParameterError, match=next(iter(shape))):
        Settings("keys", **shape)


def test_a_client_s_examples_are_cut_in_three_that_share_nothing():
    data = load("digits")
    settings = Settings("keys", clients=4, test_share=0.2, validation_share=0.25)
    cuts = [examples(settings, data.train_y, k) for k in range(4)]
    every = np.concatenate([part for cut in cuts for part in (cut.train, cut.validation, cut.test)])
    assert sorted(every.tolist()) == list(range(len(data.train_y)))
    whole = len(data.train_y) / 4
    assert [abs(len(cuts[0].test) - 0.2 * whole) < 1, abs(len(cuts[0].validation) - 0.2 * whole) < 1] == [True, True]
    assert sizes(settings, data.train_y) == [len(cut.train) for cut in cuts]
    again = examples(settings, data.train_y, 0)
    assert (again.train == cuts[0].train).all() and len(test_examples(settings, data, 0)[1]) == len(cuts[0].test)
    plain = Settings("keys", clients=4)
    assert len(examples(plain, data.train_y, 0).test) == 0
    assert len(test_examples(plain, data, 0)[1]) == pytest.approx(len(data.test_y) / 4, abs=1)
    with pytest.raises(ParameterError, match="too few"):
        examples(Settings("keys", clients=1000, test_share=0.01), data.train_y, 0)


def test_training_stops_where_the_held_out_loss_rises_and_keeps_the_best():
    data = load("digits")
    learner = Learner("cnn-8k", 10, data.train_x[0], batch=16, optimiser="adam")
    start, x, y = learner.initial(), data.train_x[:64], data.train_y[:64]
    # Wrong labels: the better it learns, the worse it does on these.
    held = data.train_x[64:128], (data.train_y[64:128] + 1) % 10
    once, _ = learner.fit(start, x, y, epochs=1, seed=0)
    kept, _ = learner.fit(start, x, y, epochs=20, seed=0, held_out=held)
    assert 1 < learner.passes < 20
    stopped = learner.passes
    losses = [
        learner.evaluate(learner.fit(start, x, y, epochs=k, seed=0)[0], *held).loss for k in range(1, stopped + 1)
    ]
    assert learner.evaluate(kept, *held).loss == pytest.approx(min(losses))
    assert losses[-1] >= losses[-2]
    still, _ = learner.fit(start, x, y, epochs=1, seed=0, learning_rate=1e-12)
    assert max(float(np.abs(a - b).max()) for a, b in zip(once, start, strict=True)) > 1e-4
    moved = [np.abs(a - b).max() for n, a, b in zip(learner.names, still, start, strict=True) if n.startswith("params")]
    assert max(moved) < 1e-6
    with pytest.raises(ParameterError, match="sgd"):
        Learner("cnn-8k", 10, data.train_x[0], optimiser="sgd")


def test_the_evaluation_of_many_classes_is_pooled_as_one_from_its_encrypted_sums():
    rng = np.random.default_rng(0)
    confusions = [rng.integers(0, 5, (65, 65)) for _ in range(2)]
    data = replace(load("digits"), classes=65)
    answers = evaluate_answers(Settings("keys"), replace(data, test_y=np.zeros(100_000, np.int32)))
    lanes = Lanes(answers, largest_weight=1 << 20, largest_digit=2047)
    frames = []
    for found in confusions:
        counts = dict(zip(COUNTS, (np.diag(found), found.sum(1), found.sum(0)), strict=True))
        values = {"loss": [1.25], **{name: held.tolist() for name, held in counts.items()}}
        frames.append(lanes.encode(Tally(True, int(found.sum()), values)))
    sums = lanes.decode([int(x) for x in sum(frames)], 2)
    part = MetricRecord(part_of(sums, answers, "num-examples", 2))
    pooled, whole = pool_evaluations([RecordDict({"metrics": part})] * 2, "num-examples"), sum(confusions)
    assert pooled["accuracy"] == pytest.approx(np.trace(whole) / whole.sum()) and pooled["loss"] == 1.25
    assert pooled["recall"] == pytest.approx(np.mean(np.diag(whole) / whole.sum(1)))
    assert pooled["precision"] == pytest.approx(np.mean(np.diag(whole) / whole.sum(0)))


def test_a_client_says_how_many_passes_it_took_where_it_may_stop():
    named = [[a.name for a in train_answers(Settings("keys", validation_share=v))] for v in (0.0, 0.2)]
    assert named == [["loss"], ["loss", "passes"]]


@pytest.mark.parametrize("privacy", [None, Privacy(clip=1.0, noise_multiplier=0.5, rounds=2, delta=1e-5)])
def test_the_app_answers_in_frames_only_and_a_key_has_its_accuracy(tmp_path, privacy):
    """Without Ray. No noise covers what a training says, so that with privacy nobody says anything."""
    scheme = fedcipher.scheme("flashe", clients=3, codec=fedcipher.Codec(bits=16, privacy=privacy))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    settings = Settings(str(folder), clients=3, rounds=2, epochs=1, out=str(tmp_path / "run"))
    seen = []
    grid = LocalGrid(make_client_app(settings), 3, folder)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    make_server_app(settings, seen.append)(grid=grid, context=context)
    assert [made.accepted for made in seen] == [3, 3] and not any(made.metrics or made.counted for made in seen)
    for _, reply in grid.received:
        assert set(reply.content.config_records) == {"fedcipher.context"}
        assert set(reply.content.metric_records) == {"fedcipher.metrics"}
    # Whoever watches needs not know the app's own function.
    rounds = Metrics(tmp_path / "run", folder / "client-2.key").past().rounds
    if privacy is not None:
        assert not any(made.metrics or made.counted or made.evaluated for made in rounds)
        return
    assert all(set(made.metrics["evaluate"]) == {"accuracy", "loss", "precision", "recall", "f1"} for made in rounds)
    assert all(made.metrics["train"]["loss"] > 0 and made.counted["clipped"] >= 0 for made in rounds)
    # The same as of all test examples in one place.
    curves = Curves(tmp_path / "run", folder / "client-1.key")
    curves.read()
    assert evaluated(settings, curves.arrays) == pytest.approx(rounds[-1].metrics["evaluate"], rel=1e-4)
    assert rounds[-1].metrics["evaluate"]["accuracy"] > 0.5
