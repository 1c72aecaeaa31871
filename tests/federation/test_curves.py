"""Whoever has a client's key sees the metrics of a run whose server sees none, while it grows and after."""

import json
import shutil

import fedcipher
import numpy as np
import pytest
from engine_harness import deployment
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from fedcipher.adapters.flower.wrapped_strategy import aggregate_by
from fedcipher.federation.answers import Answer
from fedcipher.federation.curves import Curves
from fedcipher.federation.server import journal
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, initial, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, one_key, schemes_that

CLIENTS, ROUNDS = 4, 3
ANSWERS = {"train_answers": ["loss"], "evaluate_answers": ["distance", Answer("hits", 3, 1.0, 100.0, "sum")]}


def pooled(records, weighted_by):
    """An app's own: a share over all clients together."""
    held = [next(iter(r.metric_records.values())) for r in records]
    hits = np.sum([m["hits"] for m in held], axis=0)
    return MetricRecord({"share": float(hits[0] / hits.sum()), "examples": sum(m[weighted_by] for m in held)})


def answering(examples):
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        arrays = [a + np.float32(0.1 * (client + 1)) for a in message.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": examples[client], "loss": float(client)})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        at = float(message.content["arrays"].to_numpy_ndarrays()[1][0])
        metrics = {"num-examples": examples[client], "distance": at - client, "hits": [client, 2, 10]}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


class Run:
    """A run in a folder, whose server has no key unless ``opener`` is given."""

    def __init__(self, folder, scheme="flashe", *, watch=None, **options):
        self.folder, self.keys = folder / "run", folder / "keys"
        made = fedcipher.scheme(scheme, clients=CLIENTS, codec=fedcipher.Codec(bits=16))
        keys.save(made.keygen(CLIENTS), made, self.keys)
        sampled = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
        strategy = FedAvg(**sampled, evaluate_metrics_aggr_fn=pooled)
        self.strategy = SecureStrategy(strategy, self.keys, out=self.folder, on_round=watch, **{**ANSWERS, **options})
        grid = LocalGrid(answering([10, 20, 30, 40]), CLIENTS, self.keys)
        self.strategy.start(grid, record(initial()), num_rounds=ROUNDS)

    def key(self, client=0):
        return self.keys / f"client-{client}.key"

    def curves(self, **functions):
        return Curves(self.folder, self.key(), **functions)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.mark.parametrize("scheme", schemes_that(hides, one_key, adds))
def test_a_key_opens_what_a_server_with_an_opener_sees(tmp_path, scheme):
    blind = Run(tmp_path / "blind", scheme)
    seen = Run(tmp_path / "seen", scheme, opener="client-3.key")
    assert all(not r.metrics and not r.counted for r in blind.strategy.rounds)
    curves = blind.curves(evaluate=aggregate_by(pooled))
    assert sorted(curves.read()) == [1, 2, 3] and curves.notice() == ""
    for ours, theirs in zip(blind.strategy.rounds, seen.strategy.rounds, strict=True):
        opened = curves.filled(ours)
        assert opened.metrics == theirs.metrics and opened.metrics["evaluate"]["share"] == pytest.approx(6 / 54)
        assert opened.metrics["train"]["loss"] == 2.0 and opened.metrics["evaluate"]["examples"] == pytest.approx(100)
        assert opened.counted.keys() == theirs.counted.keys() and opened.counted["train_seconds"] >= 0
    # A server that opens its sums says the same in its journal; its own words go before.
    assert seen.curves().filled(seen.strategy.rounds[0]).metrics == seen.strategy.rounds[0].metrics


def test_without_a_function_of_the_app_metrics_are_flowers_means(run):
    curves = run.curves()
    curves.read()
    held = curves.metrics(1)["evaluate"]
    assert held["hits"] == pytest.approx([1.5, 2, 10]) and held["distance"] == pytest.approx(0.25 - 2.0, abs=1e-3)
    assert curves.rounds[1].evaluate.numbers["hits"] == [6, 8, 40] and curves.rounds[1].evaluate.examples == 100


def test_a_run_is_read_as_it_grows(tmp_path):
    seen = []

    def watch(made):
        curves = (
            seen[0][0]
            if seen
            else Curves(tmp_path / "run", tmp_path / "keys" / "client-1.key", evaluate=aggregate_by(pooled))
        )
        curves.read()
        seen.append((curves, curves.filled(made)))

    run = Run(tmp_path, watch=watch)
    assert [sorted(made.metrics) for _, made in seen] == [["evaluate", "train"]] * ROUNDS
    models = [curves.rounds[k].model for k, (curves, _) in enumerate(seen, 1)]
    assert len(set(models)) == ROUNDS and len(journal.read_journal(run.folder).rounds) == ROUNDS


def test_the_clients_own_ledgers_stay_as_they_are(run):
    def files():
        return {path: path.read_bytes() for path in state_dir().rglob("*") if path.is_file()}

    before = files()
    assert before
    run.curves().read()
    assert files() == before


def test_a_step_that_is_taken_back_and_one_that_does_not_open(run, tmp_path):
    grows = tmp_path / "copy"
    shutil.copytree(run.folder, grows)
    whole = json.loads((grows / "run.json").read_text())
    curves = Curves(grows, run.key())
    assert sorted(curves.read()) == [1, 2, 3]
    fewer = {**whole, "steps": whole["steps"][:3], "evaluations": {"1": 2, "2": 3}}
    (grows / "run.json").write_text(json.dumps(fewer))
    assert sorted(curves.read()) == [1, 2]
    (grows / "run.json").write_text(json.dumps(whole))
    assert sorted(curves.read()) == [1, 2, 3]
    # Another round's sum in the place of the second; the first step is the histograms'.
    (grows / "aggregate-00000003-0000.fedc").write_bytes((run.folder / "aggregate-00000004-0000.fedc").read_bytes())
    broken = Curves(grows, run.key())
    assert sorted(broken.read()) == [1] and "round 2: its aggregate and all later ones do not open" in broken.notice()
    assert "\n" not in broken.notice()
    # The server takes it back, and the run goes on.
    (grows / "run.json").write_text(json.dumps({**whole, "steps": whole["steps"][:2], "evaluations": {"1": 2}}))
    assert sorted(broken.read()) == [1] and broken.notice() == ""


def test_an_evaluation_that_does_not_open_hides_no_other(run):
    (run.folder / "evaluation-00000002.fedc").write_bytes((run.folder / "evaluation-00000003.fedc").read_bytes())
    curves = run.curves()
    assert sorted(curves.read()) == [1, 2, 3]
    assert curves.rounds[2].evaluate is None and curves.rounds[3].evaluate is not None
    assert curves.notice().startswith("not opened: round 2; round 2: its evaluation no longer opens")


def test_a_key_of_another_cohort_and_a_folder_that_is_no_run(run, tmp_path):
    other = fedcipher.scheme("flashe", clients=9)
    folder = keys.save(other.keygen(9), other, tmp_path / "other")
    with pytest.raises(errors.RunError, match="other keys"):
        Curves(run.folder, folder / "client-0.key").read()
    same = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16))
    folder = keys.save(same.keygen(CLIENTS), same, tmp_path / "same")
    strange = Curves(run.folder, folder / "client-0.key")
    assert strange.read() == {} and "round 1" in strange.notice()
    with pytest.raises(errors.RunError):
        Curves(tmp_path, run.key()).read()


def test_a_function_of_the_app_that_fails_is_named(run):
    curves = run.curves(evaluate=lambda records, key: records[0]["nothing"])
    curves.read()
    with pytest.raises(errors.StrategyError, match="aggregates metrics failed"):
        curves.metrics(1)


def test_an_engine_opens_promptly_and_what_comes_too_late_is_named(tmp_path, monkeypatch):
    """Its client opens an aggregate with the next round's message; an older evaluation is not opened after that."""
    scheme = fedcipher.scheme("flashe", clients=3, codec=fedcipher.Codec(bits=16))
    folder, prompt = tmp_path / "run", []
    with deployment(scheme, 3, tmp_path / "engine") as engines:
        monkeypatch.setenv("FEDCIPHER_ENGINE", engines.local.target)

        def watch(made):
            if not prompt:
                prompt.append(Curves(folder, engines.connect(0)))
            assert made.round in prompt[0].read()

        sampled = {"min_train_nodes": 3, "min_evaluate_nodes": 3, "min_available_nodes": 3}
        strategy = SecureStrategy(FedAvg(**sampled), engines.keys(), out=folder, on_round=watch, **ANSWERS)
        strategy.start(LocalGrid(answering([10, 20, 30]), 3, ""), record(initial()), num_rounds=ROUNDS)
        assert prompt[0].notice() == "" and all(r.train and r.evaluate for r in prompt[0].rounds.values())
        late = Curves(folder, engines.connect(1))
        assert sorted(late.read()) == [1, 2, 3] and late.rounds[3].evaluate == prompt[0].rounds[3].evaluate
        assert late.notice().startswith("not opened: rounds 1, 2; round 1: its evaluation no longer opens")
        assert [late.rounds[k].train for k in (1, 2, 3)] == [prompt[0].rounds[k].train for k in (1, 2, 3)]
