"""A server that chooses models, ranges, settings and optimisers learns nothing of one client (13 to 17, 31)."""

import logging
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import fedcipher
import numpy as np
import pytest
import wire_tools
from attack_harness import Federation
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.federation import messages as protocol
from fedcipher.federation.chain import Chain
from fedcipher.federation.charter import Charter, Settings, arrays_digest
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.store import Store
from fedcipher.frame import inspect
from fedcipher.schemes.base import state_dir
from flower_harness import NAMES, LocalGrid, bytes_array, initial, make_app, record, reference_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAdam, FedAvg
from places import IMPORTED
from scheme_lists import adds, hides, in_core, of_committee, schemes_that
from test_ledger import engine

CLIENTS = 4
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
SCHEMES = schemes_that(hides, adds)


class Attack:
    """A server that has run honest rounds and now sends what it likes."""

    def __init__(self, folder, name, rng, *, rounds=1, strategy=FedAvg, own_keys=False, app=None, **given):
        committee = of_committee(name, members=CLIENTS)
        scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=16), **committee)
        self.issued = scheme.keygen(CLIENTS)
        self.keys = keys.save(self.issued, scheme, folder / f"keys-{name}")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        self.grid = LocalGrid(app or make_app(self.goals, [10] * CLIENTS), CLIENTS, self.keys)
        if own_keys:
            for k, context in enumerate(self.grid.contexts.values()):
                context.node_config["fedcipher-key"] = str(self.keys / f"client-{k}.key")
        self.out = folder / f"run-{name}"
        self.strategy = SecureStrategy(strategy(**ALL), self.keys, out=self.out, evaluate_answers=["distance"], **given)
        self.strategy.start(self.grid, record(initial()), num_rounds=rounds)
        self.sent = [(k, content) for k, content in self.grid.sent if protocol.CONFIG in content]

    @property
    def charter(self):
        return self.strategy.run.model.charter

    def last(self, client, kind):
        """The last message of ``kind`` that ``client`` was sent."""
        return next(c for k, c in reversed(self.sent) if k == client and ("evaluate" in kind) == self._evaluates(c))

    def _evaluates(self, content):
        number = content[protocol.CONFIG]["round"]
        return number in {r.evaluated for r in self.strategy.rounds}

    def settings(self, **changes):
        """Settings of a round after all that have been."""
        self.strategy.run.number += 1
        plain = RoundSettings(
            charter=self.charter.digest,
            round=self.strategy.run.number,
            index=self.strategy.rounds[-1].round,
            steps=self.strategy.run.model.steps,
            last=self.strategy.run.model.last,
            document=self.charter.encode(),
            indices=[self.strategy.run.model.folder.round_of(n) for n in range(1, self.strategy.run.model.steps + 1)],
            prekeys=wire_tools.prekeys(self.strategy.setup.scheme, self.issued),
        )
        return replace(plain, **changes)

    def arrays(self, first=None):
        """The first model and every sum of the run, as a client that lacks everything is sent them."""
        folder = self.strategy.run.model.folder
        arrays = dict(record(folder.first() if first is None else first).items())
        for step in range(1, folder.count + 1):
            for group, frame in enumerate(folder.step(step)):
                arrays[protocol.aggregate_key(step, group)] = bytes_array(frame)
        return ArrayRecord(arrays)

    def send(self, settings, arrays, *, client=0, kind="evaluate", config=None):
        content = RecordDict({"arrays": arrays, "config": config or ConfigRecord({"server-round": settings.index})})
        content[protocol.CONFIG] = ConfigRecord(settings.to_record())
        message = Message(content, dst_node_id=1000 + client, message_type=kind)
        return self.grid.app(message, self.grid.contexts[1000 + client])


def refused(reply):
    return reply.has_error() and reference_of(reply) is not None


def frame_of(reply):
    ((name, array),) = [item for r in reply.content.array_records.values() for item in r.items()]
    assert name == protocol.UPDATE
    return protocol.frame_bytes(array)


@pytest.mark.parametrize("name", SCHEMES)
def test_attack_13_no_model_of_the_servers_choice_is_evaluated_with_an_aggregate(tmp_path, rng, name):
    """X + mean, evaluated for any X, gives a mean coordinate by coordinate; two aggregates give one client."""
    attack = Attack(tmp_path, name, rng)
    chosen = [np.full_like(a, 3) for a in initial()]
    # The same charter with another first model, and a charter of a run of its own with that model.
    assert refused(attack.send(attack.settings(index=2), attack.arrays(chosen), client=0))
    fresh = replace(attack.charter, run=attack.charter.run + 99, first=arrays_digest(NAMES, chosen).hex())
    hostile = attack.settings(index=2, charter=fresh.digest, document=fresh.encode())
    assert refused(attack.send(hostile, attack.arrays(chosen), client=0))
    # The genuine chain evaluates once; nothing but one frame of fixed length leaves.
    reply = attack.send(attack.settings(), attack.arrays(), client=1)
    assert refused(reply), "this position was evaluated in the run's own round"


def test_attack_13_a_client_that_is_new_takes_the_charters_first_model_only(tmp_path, rng, caplog):
    attack = Attack(tmp_path, "flashe", rng)
    chosen = [np.full_like(a, 3) for a in initial()]
    fresh = replace(attack.charter, run=attack.charter.run + 1)
    hostile = attack.settings(charter=fresh.digest, document=fresh.encode(), index=1, steps=0, last=b"", indices=[])
    assert refused(attack.send(hostile, record(chosen)))
    assert "the first model is not the one that the charter names" in caplog.text


def test_attack_13_a_reply_has_no_metric_in_the_clear(tmp_path, rng):
    attack = Attack(tmp_path, "flashe", rng, rounds=2)
    assert attack.grid.received
    for _, reply in attack.grid.received:
        assert set(reply.content) == {"arrays", protocol.METRICS, protocol.CONTEXT}
        said = set(reply.content[protocol.METRICS])
        assert not {name for name in said if name.split("_")[0] in ("train", "evaluate", "clipped", "vanished")}
        frame_of(reply)
    lengths = {len(frame_of(reply)) for _, reply in attack.grid.received}
    assert len(lengths) == 3, "one of histograms, one of updates and one of evaluations"


@pytest.mark.parametrize("name", SCHEMES)
def test_attack_13_two_models_of_one_round_are_not_evaluated(tmp_path, rng, name):
    """A position is evaluated once, so that two servers' worlds cannot be compared on one client."""
    attack = Attack(tmp_path, name, rng, rounds=2)
    folder = attack.strategy.run.model.folder
    first = Chain.step_digest(folder.step(1), folder.round_of(1))
    for client in range(CLIENTS):
        assert refused(attack.send(attack.settings(index=3), attack.arrays(), client=client)), "where it is"
        for steps, last in ((1, first), (0, b"")):
            back = attack.settings(index=3, steps=steps, last=last, indices=[])
            assert refused(attack.send(back, ArrayRecord({}), client=client)), f"back at step {steps}"
    # Not because of the messages: a client trains at the same place.
    assert not attack.send(attack.settings(index=3), attack.arrays(), kind="train").has_error()


def test_attack_14_no_optimiser_or_type_of_the_servers_choice_measures_a_mean(tmp_path, rng):
    """Refusals by overflow compared a mean with a bound; a step saturates now, and other numbers are another run."""
    attack = Attack(tmp_path, "flashe", rng, strategy=FedAdam)
    for kind, numbers in (("adam", (1e6, 0.0, 0.0, 1e-30)), ("avgm", (1e6, 0.0)), (None, ())):
        optimiser = None if kind is None else (kind, numbers)
        fresh = replace(attack.charter, run=attack.charter.run + 5, optimiser=optimiser)
        hostile = attack.settings(index=2, charter=fresh.digest, document=fresh.encode())
        assert refused(attack.send(hostile, attack.arrays(), client=0))
    half = [a.astype(np.float16) for a in initial()]
    described = [(n, "<f2", a.shape) for n, a in zip(NAMES, half, strict=True)]
    fresh = replace(
        attack.charter, run=attack.charter.run + 9, arrays=described, first=arrays_digest(NAMES, half).hex()
    )
    hostile = attack.settings(index=2, charter=fresh.digest, document=fresh.encode())
    assert refused(attack.send(hostile, attack.arrays(half), client=1))


def test_attack_14_a_step_out_of_range_saturates(tmp_path, rng):
    from fedcipher.federation.optimiser_step import Optimiser, Steps

    steps = Steps(Optimiser("avgm", (1e6, 0.0)))
    model = [np.zeros(3, np.float16)]
    made = steps.step(model, [np.array([1e4, -1e4, 0], np.float16)], 1)
    assert np.isfinite(made[0]).all() and made[0][0] == np.finfo(np.float16).max == -made[0][1]


@pytest.mark.parametrize(
    ("strategy", "codec", "dtype", "size"),
    [
        # A mean that leaves the model's type, at the second step of an app that has left it too.
        (FedAvg, {"clip": 3e4}, np.float16, 4e4),
        (FedAdam, {"clip": 3e4}, np.float16, 4e4),
        (FedAvg, {"clip": 6.6e4, "target": "weights"}, np.float16, 7e4),
        # What a client sends of its range underflows, and its share of the largest weight.
        (FedAvg, {"clip": "auto"}, np.float32, 1e-38),
        (FedAdam, {"clip": "auto"}, np.float32, 1e-38),
    ],
)
@pytest.mark.parametrize("examples", [0, 100])
def test_attack_14_an_app_that_makes_an_overflow_an_exception_makes_no_refusal(
    tmp_path, strategy, codec, dtype, size, examples
):
    """A refusal by `numpy.seterr`, which an app may set for its own arithmetic, would compare a mean with a bound."""
    scheme = fedcipher.scheme("plain", clients=CLIENTS, codec=fedcipher.Codec(**{"bits": 16, **codec}))
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys", examples_per_weight=examples)
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
    shown = []

    @app.train()
    def train(msg, ctxt):
        old = msg.content["arrays"]["x"].numpy()
        shown.append(old)
        with np.errstate(all="ignore"):
            base = old if scheme.codec.target == "delta" else np.zeros_like(old)
            moved = (base + np.float32(size)).astype(dtype)
        np.seterr(all="raise")
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"arrays": record([moved], ["x"]), "metrics": metrics}), reply_to=msg)

    made = SecureStrategy(strategy(**ALL, fraction_evaluate=0), folder, out=tmp_path / "run")
    before = np.geterr()
    try:
        made.start(LocalGrid(app, CLIENTS, folder), record([np.zeros(8, dtype)], ["x"]), num_rounds=4)
    finally:
        np.seterr(**before)
    assert [r.accepted for r in made.rounds] == [CLIENTS] * 4
    assert len(shown) == 4 * CLIENTS and all(np.isfinite(x).all() for x in shown)


def test_attack_16_what_is_cut_leaves_encrypted_and_no_range_is_the_servers(tmp_path, rng):
    attack = Attack(tmp_path, "flashe", rng)
    fields = set(RoundSettings.__dataclass_fields__)
    assert not fields & {"ranges", "unit", "weighted_by", "optimiser", "segment", "names", "record"}
    for extra in ({"ranges": [0.1, 0.1]}, {"unit": 1.0}, {"segment": 1}):
        record_ = ConfigRecord({**attack.settings(index=2).to_record(), **extra})
        content = RecordDict({"arrays": attack.arrays(), "config": ConfigRecord({"server-round": 2})})
        content[protocol.CONFIG] = record_
        reply = attack.grid.app(Message(content, dst_node_id=1000, message_type="train"), attack.grid.contexts[1000])
        assert refused(reply)
    for _, reply in attack.grid.received:
        assert not {"clipped", "elements", "vanished"} & set(reply.content[protocol.METRICS])
    # Whoever has a key reads their sums.
    opened = attack.strategy.open_model(_opener(attack.keys))
    assert len(opened) == 2


def _opener(folder):
    scheme, key = keys.load_client(folder / "client-0.key")
    return scheme.decryptor(key)


def test_attack_17_a_second_first_model_ends_the_run_and_is_logged(tmp_path, rng, caplog):
    caplog.set_level(logging.INFO, "fedcipher.federation")
    attack = Attack(tmp_path, "flashe", rng)
    assert attack.charter.digest.hex() in caplog.text and attack.charter.first in caplog.text
    caplog.clear()
    chosen = [np.full_like(a, 3) for a in initial()]
    fresh = replace(attack.charter, run=attack.charter.run + 1, first=arrays_digest(NAMES, chosen).hex())
    hostile = attack.settings(charter=fresh.digest, document=fresh.encode(), index=1, steps=0, last=b"", indices=[])
    reply = attack.send(hostile, record(chosen), client=2)
    assert not refused(reply), "a run of its own, at its first model"
    assert fresh.digest.hex() in caplog.text and fresh.first in caplog.text
    # The earlier run is over for this client, for ever, also in a new process.
    _holders.clear()
    assert refused(attack.send(attack.settings(index=2), attack.arrays(), client=2))
    assert "ends all earlier ones" in caplog.text


def settings_app(rng):
    """Clients whose update is their own number times the learning rate that they are told."""
    app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])

    @app.train()
    def train(msg, ctxt):
        rate = float(msg.content["config"].get("lr", 1.0))
        client = ctxt.node_config["partition-id"]
        arrays = [a + rate * (client + 1) for a in msg.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=msg)

    return app


def tell(grid, victim, change, instead=""):
    """From here on ``victim``'s training messages are changed on their way, and of the type ``instead``."""
    real = grid.send_and_receive

    def lying(messages, *, timeout=None):
        out = []
        for message in messages:
            if message.metadata.dst_node_id == 1000 + victim and protocol.CONFIG in message.content:
                content = RecordDict(dict(message.content.items()))
                change(content)
                kind = instead or message.metadata.message_type
                message = Message(content, dst_node_id=1000 + victim, message_type=kind)
            out.append(message)
        return real(out, timeout=timeout)

    grid.send_and_receive = lying


def with_engines(grid, clients, folder, stack):
    """Each of ``clients`` has its key in an engine of its own, and no policy file."""
    for k in clients:
        running = stack.enter_context(engine(folder.parent, folder / f"client-{k}.key", f"engine-{k}"))
        grid.contexts[1000 + k].node_config["fedcipher-engine"] = running.address


WITH_AND_WITHOUT_ENGINES = [
    *(pytest.param(p.id, (), id=f"{p.id}-key files", marks=p.marks) for p in SCHEMES),
    *(pytest.param(p.id, (0, 1), id=f"{p.id}-engines", marks=p.marks) for p in schemes_that(hides, adds, in_core)),
]


@pytest.mark.parametrize(("name", "engines"), WITH_AND_WITHOUT_ENGINES)
@pytest.mark.parametrize("honest_charter", [True, False])
def test_attack_31_clients_that_were_told_different_settings_do_not_sum(tmp_path, rng, name, engines, honest_charter):
    """A learning rate of 1 to one client and of 0 to the others makes their sum that client's update."""
    committee = of_committee(name, members=CLIENTS)
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=16), **committee)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    grid = LocalGrid(settings_app(rng), CLIENTS, folder)
    with ExitStack() as stack:
        with_engines(grid, engines, folder, stack)
        told_differently(tmp_path, folder, grid, honest_charter)


def told_differently(tmp_path, folder, grid, honest_charter):
    strategy = SecureStrategy(FedAvg(**ALL, fraction_evaluate=0), folder, out=tmp_path / "run")

    def change(content):
        content["config"] = ConfigRecord({**content["config"], "lr": 1.0})
        if not honest_charter:
            # A charter of the victim's own, which allows just that.
            said = RoundSettings.parse(content[protocol.CONFIG])
            charter = Charter.decode(said.document)
            own = {n: dict(r) for n, r in charter.settings["train"].values.items()}
            own["config:config"]["lr"] = {"is": {"float": (1.0).hex()}}
            other = replace(charter, settings={**charter.settings, "train": Settings(own)})
            changed = replace(said, charter=other.digest, document=other.encode())
            content[protocol.CONFIG] = ConfigRecord(changed.to_record())

    tell(grid, 0, change)
    strategy.start(grid, record(initial()), num_rounds=1, train_config=ConfigRecord({"lr": 0.0}))
    (made,) = strategy.rounds
    assert made.accepted == CLIENTS - 1 and [c.node for c in made.clients if c.left_out] == [1000]
    model = open_run(tmp_path / "run", folder / "client-1.key")
    assert np.abs(model[NAMES[0]]).max() < 1e-3, "the victim's update is in no sum"


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("what", ["record", "type", "arrays", "run_config", "message type", "app"])
def test_attack_31_nothing_else_that_an_app_can_see_differs_between_clients_of_a_sum(
    tmp_path, rng, monkeypatch, what, name
):
    committee = of_committee(name, members=CLIENTS)
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=16), **committee)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    app = settings_app(rng)
    app.train("other")(lambda msg, ctxt: None)
    grid = LocalGrid(app, CLIENTS, folder)
    if what == "app":
        # Flower's folder of installed apps; another app is another folder.
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
        real = grid.app

        def installed(message, context):
            version = "one" if context.node_id == 1000 else "other"
            with monkeypatch.context() as patch:
                patch.syspath_prepend(str(tmp_path / "flower" / "apps" / version))
                return real(message, context)

        grid.app = installed
    if what == "run_config":
        grid.contexts[1000].run_config = {**grid.run_config, "lr": 7.0}
    strategy = SecureStrategy(FedAvg(**ALL, fraction_evaluate=0), folder, out=tmp_path / "run")

    def change(content):
        if what == "record":
            content["more"] = ConfigRecord({"lr": 1.0})
        if what == "arrays":
            content["control"] = ArrayRecord({"c": Array(np.ones(3))})
        if what == "type":
            content["config"] = MetricRecord({"server-round": 1})

    tell(grid, 0, change, "train.other" if what == "message type" else "")
    strategy.start(grid, record(initial()), num_rounds=1)
    (made,) = strategy.rounds
    assert made.accepted == CLIENTS - 1 and [c.node for c in made.clients if c.left_out] == [1000]


def test_a_strategy_that_tells_its_clients_different_things_is_refused_before_the_run(tmp_path, rng):
    class Unequal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for k, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
                content = RecordDict(dict(message.content.items()))
                content["config"] = ConfigRecord({**content["config"], "lr": float(k)})
                message.content = content
                yield message

    with pytest.raises(errors.StrategyError, match="different settings cannot be summed"):
        Attack(tmp_path, "flashe", rng, strategy=Unequal)


def test_a_schedule_of_the_strategys_own_is_in_the_charter_round_by_round(tmp_path, rng):
    class Scheduled(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 0.1 * 0.5**server_round
            return super().configure_train(server_round, arrays, config, grid)

    attack = Attack(tmp_path, "flashe", rng, strategy=Scheduled, rounds=3)
    said = attack.charter.settings["train"].values["config:config"]["lr"]
    assert said == {"of": [{"float": (0.1 * 0.5**n).hex()} for n in (1, 2, 3)]} and attack.charter.rounds == 3
    assert all(r.accepted == CLIENTS for r in attack.strategy.rounds)


@pytest.mark.parametrize("name", SCHEMES)
def test_without_a_policy_file_a_charter_that_lets_the_server_set_models_is_refused(
    tmp_path, rng, name, caplog, monkeypatch
):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    attack = Attack(tmp_path, name, rng, own_keys=True)
    chosen = [np.full_like(a, 3) for a in initial()]
    for k, changes in enumerate(
        (
            {"sets_models": True},
            {"optimiser": ("adam", (1e-30, 0.9, 0.99, 1e-3))},
            {"optimiser": ("adam", (0.1, 0.9, 0.99, 0.2))},
            {"optimiser": ("avgm", (1.0, 0.999))},
            {"answers": {"train": [], "evaluate": [fedcipher.federation.answers.Answer("n", 65)]}},
            {"clear": {"train": [], "evaluate": ["distance"]}},
        )
    ):
        fresh = replace(attack.charter, run=attack.charter.run + 1 + k, **changes)
        hostile = attack.settings(charter=fresh.digest, document=fresh.encode(), index=1, steps=0, last=b"", indices=[])
        caplog.clear()
        assert refused(attack.send(hostile, record(chosen)))
        assert "this site's policy does not allow the charter" in caplog.text


def test_without_a_policy_file_no_client_shows_which_coordinates_it_sends(tmp_path, rng, caplog, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    codec = fedcipher.Codec(bits=16, clip=1.0)
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=codec, per_client_top=0.1)
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    app = make_app([initial()] * CLIENTS, [10] * CLIENTS)
    strategy = SecureStrategy(FedAvg(**ALL, fraction_evaluate=0), folder, out=tmp_path / "run", may_lose=1)
    with pytest.raises(errors.FedcipherError):
        strategy.start(LocalGrid(app, CLIENTS, folder, sites=True), record(initial()), num_rounds=1)
    assert "this site's policy does not allow the charter" in caplog.text and "per_client_top" in caplog.text


@pytest.mark.parametrize("name", SCHEMES)
def test_under_a_charter_whose_server_sets_models_no_sum_is_applied(tmp_path, rng, name, caplog):
    attack = Attack(tmp_path, name, rng)
    fresh = replace(attack.charter, run=attack.charter.run + 1, sets_models=True, reports=False)
    hostile = attack.settings(charter=fresh.digest, document=fresh.encode(), index=1, steps=1)
    assert refused(attack.send(hostile, attack.arrays(), kind="train"))
    assert "a message must bring a model and no sums" in caplog.text


def test_models_of_the_servers_that_differ_in_one_place_count_as_one_position(tmp_path, rng):
    attack = Attack(tmp_path, "flashe", rng)
    charter = replace(attack.charter, sets_models=True)
    chain = Chain(charter, attack.strategy.setup.scheme, b"c" * 32, first=initial())
    near = initial()
    near[0][3, 4] = np.nextafter(np.float32(0), np.float32(1))
    found = []
    for model in (initial(), near):
        chain.set_model(model)
        found.append((chain.memory("train"), chain.associated_data("train", 1)))
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_attack_31_no_metric_of_the_servers_choice_weights_clients(tmp_path, rng, caplog, monkeypatch):
    """A metric that one client alone has would make the weighted mean that client's update."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    attack = Attack(tmp_path, "flashe", rng, own_keys=True)
    for k, (by, equal) in enumerate((("class-7", False), ("class-7", True), ("num-examples", False))):
        changes = {"equal_weights": equal, "weighted_by": by, "largest_weight": 100}
        fresh = replace(attack.charter, run=attack.charter.run + 1 + k, **changes)
        hostile = attack.settings(charter=fresh.digest, document=fresh.encode(), index=1, steps=0, last=b"", indices=[])
        reply = attack.send(hostile, record(initial()), kind="train")
        assert refused(reply) is (by == "class-7")
    assert "it weights clients by 'class-7'" in caplog.text


def test_a_fourth_run_of_an_epoch_is_refused_counted_over_two_key_sets(tmp_path, rng, monkeypatch, caplog):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    one = Attack(tmp_path / "one", "flashe", rng, own_keys=True)
    two = Attack(tmp_path / "two", "bfv", rng, own_keys=True)
    again = SecureStrategy(FedAvg(**ALL), one.keys, out=tmp_path / "third")
    again.start(one.grid, record(initial()), num_rounds=1)
    fourth = SecureStrategy(FedAvg(**ALL), two.keys, out=tmp_path / "fourth")
    with pytest.raises(errors.StrategyError, match="none of 1 rounds has an aggregate"):
        fourth.start(two.grid, record(initial()), num_rounds=1)
    assert "this site has had 3 runs in key epoch 1" in caplog.text
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "policy.json").write_text('{"fedcipher_policy": 1, "runs": 5}')
    SecureStrategy(FedAvg(**ALL), two.keys, out=tmp_path / "fifth").start(two.grid, record(initial()), num_rounds=1)


def test_a_charter_of_an_earlier_run_is_refused_after_state_context_and_process_were_lost(tmp_path, rng, caplog):
    attack = Attack(tmp_path, "flashe", rng)
    second = SecureStrategy(FedAvg(**ALL), attack.keys, out=tmp_path / "second")
    second.start(attack.grid, record(initial()), num_rounds=1)
    _holders.clear()
    for context in attack.grid.contexts.values():
        context.state = RecordDict()
        context.run_id = 2
    caplog.clear()
    hostile = attack.settings(index=1, steps=0, last=b"", indices=[])
    assert all(refused(attack.send(hostile, record(initial()), client=k, kind="train")) for k in range(CLIENTS))
    assert caplog.text.count("ends all earlier ones") == CLIENTS
    assert inspect(frame_of(attack.grid.received[0][1])).kind == 1


@pytest.mark.parametrize("sites", [True, False])
def test_at_a_site_nobody_else_knows_the_draws_that_round_an_update(tmp_path, rng, monkeypatch, sites):
    """With the draws of all clients a sum tells which client has moved an array, and how far."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=4))
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
    grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, folder, sites=sites)
    known, used = Chain.rounding_seed, []
    monkeypatch.setattr(Chain, "rounding_seed", lambda *given: used.append(given) or known(*given))
    strategy = SecureStrategy(FedAvg(**ALL, fraction_evaluate=0), folder, out=tmp_path / "run")
    strategy.start(grid, record(initial()), num_rounds=1)
    assert strategy.rounds[0].accepted == CLIENTS
    # A simulation is made again to the bit.
    assert len(used) == (0 if sites else CLIENTS)


# --- two processes at once ----------------------------------------------------------------------

PROCESS = """
import sys, time
sys.path[:0] = {tests!r}
from pathlib import Path
from fedcipher.federation import store
from flower_harness import LocalGrid, initial, make_app
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message
read = store._read
# Between what is read and what is written there is room for the other process.
store._read = lambda path: (read(path), time.sleep(0.02))[0]
grid = LocalGrid(make_app([initial()], [10]), 1, Path(sys.argv[1]), sites=True)
print("ready", flush=True)
for _ in sys.stdin:
    made = message_from_proto(Message.FromString(Path(sys.argv[2]).read_bytes()))
    reply = grid.app(made, grid.contexts[1000])
    print("refused" if reply.has_error() else "trained", flush=True)
"""


@contextmanager
def at_once(folder, *key_folders):
    """Two processes of client 0; the function sends each a message at the same moment, and says what came of it."""
    program = PROCESS.format(tests=IMPORTED)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": os.environ}
    places = [folder / f"message-{k}" for k in range(len(key_folders))]
    with ExitStack() as stack:
        commands = [[sys.executable, "-c", program, *map(str, pair)] for pair in zip(key_folders, places, strict=True)]
        processes = [stack.enter_context(subprocess.Popen(command, **pipes)) for command in commands]
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * len(processes)

        def send(*contents):
            for place, content in zip(places, contents, strict=True):
                made = Message(content, dst_node_id=1000, message_type="train")
                place.write_bytes(message_to_proto(made).SerializeToString())
            for process in processes:
                process.stdin.write("now\n")
                process.stdin.flush()
            return [process.stdout.readline().strip() for process in processes]

        yield send


def policy_file(tmp_path, monkeypatch, text):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "policy.json").write_text(text)


@pytest.mark.parametrize("apart", [0, 1])
def test_of_two_processes_with_one_key_and_two_charters_one_trains(tmp_path, rng, monkeypatch, apart):
    """Their runs have one number, or the second one's is ``apart`` from it and ends the first for ever."""
    policy_file(tmp_path, monkeypatch, '{"fedcipher_policy": 1, "runs": 0}')
    federation = Federation(tmp_path, "flashe", rng)
    store, rounds, numbers = Store(state_dir(), f"{federation.charter.key_set}-0"), iter(range(1, 1000)), [0]

    def content(charter):
        return federation.content(federation.settings(charter=charter, round=federation.run + next(rounds)))

    with at_once(tmp_path, federation.folder, federation.folder) as send:
        for repetition in range(10):
            begins = federation.run + 10 * (repetition + 1)
            pair = [federation.make_charter(run=begins + k * apart, rounds=50 + k) for k in range(2)]
            first = send(*map(content, pair))
            if not apart:
                assert sorted(first) == ["refused", "trained"], repetition
            newest = first.index("trained") if not apart else 1
            assert first[newest] == "trained", repetition
            # What was taken goes on, and the other never does.
            again = send(*map(content, pair))
            assert again == [("refused", "trained")[k == newest] for k in range(2)], repetition
            numbers.append(store.recall()["run"])
            assert numbers[-1] == pair[newest].run > numbers[-2] and store.accepted() == pair[newest]


def test_two_processes_with_two_key_sets_share_the_runs_of_their_site(tmp_path, rng, monkeypatch):
    """Without a policy file a site has three runs an epoch, also where two processes begin theirs at once."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    both = [Federation(tmp_path / name, "flashe", rng) for name in ("one", "two")]
    found = []
    with at_once(tmp_path, *(federation.folder for federation in both)) as send:
        for number in range(1, 4):
            charters = [federation.make_charter(run=federation.run + number) for federation in both]
            settings = [f.settings(number, charter=charter) for f, charter in zip(both, charters, strict=True)]
            settings = [ConfigRecord({**said, "index": 1}) for said in settings]
            found += send(*(f.content(said) for f, said in zip(both, settings, strict=True)))
    assert found[:2] == ["trained"] * 2 and sorted(found[2:4]) == ["refused", "trained"]
    assert found[4:] == ["refused"] * 2


def test_attack_34_no_update_leaves_a_position_whose_sets_may_be_forgotten(tmp_path, rng, caplog):
    """A part of the cohort is held at a position until the others' sums have taken its sets out of all memories."""
    attack = Attack(tmp_path, "flashe", rng, rounds=2)
    settings = attack.settings()

    def sent(later):
        return attack.send(replace(settings, round=settings.round + later), attack.arrays(), kind="train")

    assert not refused(sent(0)) and not refused(sent(128))
    assert refused(sent(129)) and "may have forgotten" in caplog.text
