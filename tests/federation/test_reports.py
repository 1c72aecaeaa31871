"""Under `oneshot` a server without a key has the curves: readers report answers, and enough of them say the same."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import fedcipher
import numpy as np
import pytest
import wire_tools
from attack_harness import ALL, CLIENTS, Federation, says_nothing
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.errors import StrategyError
from fedcipher.federation import messages as protocol
from fedcipher.federation.answers import Answer
from fedcipher.federation.chain import Chain
from fedcipher.federation.server.journal import read_journal
from fedcipher.federation.server.run_folder import read_run
from flower_harness import LocalGrid, bytes_array, initial, record, wire_record
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg
from places import IMPORTED
from scheme_lists import adds, hides, of_committee, one_key, schemes_that

LOSSES = [0.5, 1.25, 3.0, 4.5, 0.125]
EXAMPLES = [10, 20, 30, 40, 50]
MEAN = sum(a * b for a, b in zip(LOSSES, EXAMPLES, strict=True)) / sum(EXAMPLES)
CLASSES = [[float(k), 2.0 * k, 1.0] for k in range(CLIENTS)]


def app_of():
    app = ClientApp(mods=[client_mod])

    @app.train()
    def train(msg, ctxt):
        k = ctxt.node_config["partition-id"]
        moved = [a + np.float32(0.01 * (k + 1)) for a in msg.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": EXAMPLES[k], "loss": LOSSES[k]})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=msg)

    @app.evaluate()
    def evaluate(msg, ctxt):
        k = ctxt.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": EXAMPLES[k], "error": 2 * LOSSES[k], "classes": CLASSES[k]})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


class Run:
    """A run of `oneshot` whose server has no key; ``tamper(reply, client)`` changes replies with a report."""

    def __init__(self, folder, tamper=None, *, rounds=2, corrupt=1, inner=None, name="oneshot"):
        more = of_committee(name, members=CLIENTS, corrupt_clients=corrupt, corrupt_members=0)
        scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=12), **more)
        self.keys = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", examples_per_weight=100)
        self.reports = []

        def seen(message, reply, client):
            if protocol.REPORT in message.content and not reply.has_error():
                self.reports.append((client, reply))
                return reply if tamper is None else tamper(reply, client)
            return reply

        self.grid = LocalGrid(app_of(), CLIENTS, self.keys, seen)
        self.strategy = SecureStrategy(
            inner or FedAvg(**ALL),
            self.keys,
            out=folder / "run",
            train_answers=["loss"],
            evaluate_answers=["error", Answer("classes", 3, 1e-3, 1e3, "sum")],
        )
        self.result = self.strategy.start(self.grid, record(initial()), num_rounds=rounds)


def test_a_server_without_a_key_has_the_curves_of_one_with_it(tmp_path):
    asked = []

    def own(contents, weighted_by):
        asked.append([content["metrics"]["loss"] for content in contents])
        return MetricRecord({"mine": contents[0]["metrics"]["loss"]})

    run = Run(tmp_path, inner=FedAvg(**ALL, train_metrics_aggr_fn=own), rounds=3)
    for number in (1, 2, 3):
        assert run.result.train_metrics_clientapp[number]["mine"] == pytest.approx(MEAN, abs=1e-6)
        evaluated = run.result.evaluate_metrics_clientapp[number]
        assert evaluated["error"] == pytest.approx(2 * MEAN, abs=1e-6)
        assert np.array(evaluated["classes"]) * CLIENTS == pytest.approx(np.sum(CLASSES, axis=0), abs=1e-6)
    assert asked == [[pytest.approx(MEAN, abs=1e-6)] * CLIENTS] * 3
    # In the journal, from which the dashboard has them.
    past = read_journal(tmp_path / "run")
    assert [set(record.metrics) for record in past.finished] == [{"train", "evaluate"}] * 3
    # Two lie at most of three, so three are asked, once for each sum; and clients open what they did before.
    assert len(run.reports) <= 3 * 3 * 2
    assert open_run(tmp_path / "run", run.keys / "client-4.key")
    assert not any(record.metrics and record.unfinished for record in run.strategy.rounds)


def test_a_report_that_is_too_long_is_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("fedcipher.federation.server.reports._MAX_BYTES", 10)
    run = Run(tmp_path, rounds=1)
    assert not run.result.train_metrics_clientapp
    assert "is left out; the limit is 10 bytes" in caplog.text and "3 of 3 readers have reported" in caplog.text


def says(reply, text):
    reply.content[protocol.REPORT] = ConfigRecord({"report": text})
    return reply


def test_as_many_liars_as_may_lie_change_nothing(tmp_path):
    first = []

    def lie(reply, client):
        first[:] = first or [client]
        false = b'{"loss":1.0}' if b"loss" in reply.content[protocol.REPORT]["report"] else b'{"error":9.0}'
        return says(reply, false) if client == first[0] else reply

    run = Run(tmp_path, lie)
    assert run.result.train_metrics_clientapp[2]["loss"] == pytest.approx(MEAN, abs=1e-6)
    assert run.result.evaluate_metrics_clientapp[2]["error"] == pytest.approx(2 * MEAN, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"loss":1e999}',
        b'{"loss":[1,2]}',
        b"\xff",
        b'{"loss":["x"]}',
        b"[" * 100_000,
        b'{"loss":[1%s]}' % (b"0" * 4000),
    ],
)
def test_what_no_two_say_or_what_is_no_report_is_no_metric(tmp_path, caplog, text):
    run = Run(tmp_path, lambda reply, client: says(reply, text), rounds=1)
    assert not run.result.train_metrics_clientapp and not run.result.evaluate_metrics_clientapp
    assert "the readers' report cannot be read" in caplog.text
    caplog.clear()
    (tmp_path / "other").mkdir()
    run = Run(tmp_path / "other", lambda reply, client: says(reply, b'{"loss":[%d]}' % client), rounds=1)
    assert not run.result.train_metrics_clientapp and "fewer than 2 reports agree" in caplog.text


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_attack_13_under_a_common_key_no_client_reports(tmp_path, rng, name):
    """Two sums of one round, sent to two clients, would make two reports that differ by one client's answer."""
    answers = {"train": [Answer("loss")], "evaluate": [Answer("distance")]}
    federation = Federation(tmp_path, name, rng, sites=True)
    for charter in (replace(federation.charter, reports=True, answers=answers), federation.charter):
        for kind in ("train", "evaluate"):
            content = federation.content(federation.settings(charter=charter))
            content[protocol.REPORT] = ConfigRecord({"purpose": kind})
            assert says_nothing(federation.send(content, kind))


READER = """
import sys
sys.path[:0] = {tests!r}
from pathlib import Path
from attack_harness import CLIENTS
from flower_harness import LocalGrid
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message
from test_reports import app_of, said
grid = LocalGrid(app_of(), CLIENTS, Path(sys.argv[1]))
for path in sys.argv[2:]:
    message = message_from_proto(Message.FromString(Path(path).read_bytes()))
    reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
    print("refused" if reply.has_error() else said(reply).decode(), flush=True)
"""


def restarted(folder, messages):
    """What readers say to ``messages`` in a new process, which has their keys and their state folder: None refuses."""
    places = [folder / f"asked-{k}" for k in range(len(messages))]
    for place, message in zip(places, messages, strict=True):
        place.write_bytes(message_to_proto(message).SerializeToString())
    command = [sys.executable, "-c", READER.format(tests=IMPORTED), folder / "keys", *places]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=os.environ)
    return [None if line == "refused" else line.encode() for line in done.stdout.splitlines()]


def test_attack_13_a_reader_reports_the_committees_one_sum_of_its_position(tmp_path, rng):
    run = Run(tmp_path)
    (honest,) = {reply.content[protocol.REPORT]["report"] for _, reply in run.reports if b"error" in said(reply)}
    sent = [(k, c) for k, c in run.grid.sent if protocol.EVALUATION in c]
    # Three of five clients are asked in each of two rounds.
    client = next(k for k, _ in sent if sum(k == other for other, _ in sent) == 2)
    (_, earlier), (_, content) = [(k, c) for k, c in sent if k == client]

    def asked(**changes):
        made = RecordDict({**dict(content.items()), protocol.CONFIG: ConfigRecord(dict(content[protocol.CONFIG]))})
        for name, value in changes.items():
            made[name.replace("_", ".")] = value
        kind = "evaluate" if made[protocol.REPORT].get("purpose") == "evaluate" else "train"
        return Message(made, dst_node_id=1000 + client, message_type=kind)

    def ask(**changes):
        return run.grid.app(asked(**changes), run.grid.contexts[1000 + client])

    # The same bytes again bring the same report.
    assert said(ask()) == honest
    update = next(
        protocol.frame_bytes(array)
        for _, reply in run.grid.received
        for held in reply.content.array_records.values()
        for key, array in held.items()
        if key == protocol.UPDATE
    )
    good = protocol.frame_bytes(content[protocol.EVALUATION][protocol.EVALUATION])
    # With a checksum that is right again, so that the tag refuses it.
    flipped = wire_tools.with_flip(good, len(good) // 2, 1)
    frames = (protocol.frame_bytes(earlier[protocol.EVALUATION][protocol.EVALUATION]), update, flipped, b"")
    others = [{"fedcipher_evaluation": wire_record({protocol.EVALUATION: frame})} for frame in frames]
    assert all(says_nothing(ask(**other)) for other in others)
    # After a restart too, whatever comes first.
    again = [asked(), *(asked(**other) for other in others), asked()]
    assert restarted(tmp_path, again) == [honest, *[None] * len(others), honest]
    assert restarted(tmp_path, again[1:]) == [*[None] * len(others), honest]
    assert says_nothing(ask(fedcipher_evaluation=ArrayRecord({})))
    for purpose in ({"purpose": "query"}, {"purpose": 1}, {}):
        assert says_nothing(ask(fedcipher_report=ConfigRecord(purpose)))


def said(reply):
    return reply.content[protocol.REPORT]["report"]


class Killed(BaseException):
    """The server's end, in mid-round."""


class Dying(LocalGrid):
    """Its server is killed as readers report, from round 2 on: ``heard`` says whether three have the sum by then."""

    kills, heard, asked, held = 0, True, 0, None

    def send_and_receive(self, messages, *, timeout=None):
        (message,) = messages
        asks = protocol.REPORT in message.content and message.content[protocol.CONFIG]["index"] > 1 and self.kills
        if asks and not self.heard:
            self.held = message
        replies = [] if asks and not self.heard else super().send_and_receive(messages, timeout=timeout)
        self.asked += bool(asks)
        if asks and (not self.heard or self.asked % 3 == 0):
            self.kills -= 1
            raise Killed
        return replies


def begin(folder):
    """A grid, and a function that begins its run or goes on with it."""
    scheme = fedcipher.scheme(
        "oneshot",
        clients=CLIENTS,
        members=CLIENTS,
        corrupt_clients=1,
        corrupt_members=1,
        codec=fedcipher.Codec(bits=12),
    )
    made = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", examples_per_weight=100)
    grid = Dying(app_of(), CLIENTS, made)

    def start():
        strategy = SecureStrategy(
            FedAvg(**ALL), made, out=folder / "run", resume=True, train_answers=["loss"], may_lose=9
        )
        with suppress(Killed, StrategyError):
            strategy.start(grid, record(initial()), num_rounds=4)
        return strategy

    return grid, start


@pytest.mark.parametrize("heard", [False, True])
def test_a_server_killed_twice_while_readers_report_loses_no_client(tmp_path, heard):
    grid, start = begin(tmp_path)
    grid.kills, grid.heard = 2, heard
    start(), start()
    assert grid.kills == 0
    rounds = start().rounds
    assert rounds[-1].unfinished is None and not any(client.refused for client in rounds[-1].clients)
    assert set(rounds[-1].metrics) == {"train"}


def test_a_step_that_a_reader_has_opened_and_refused_is_not_reported(tmp_path):
    grid, start = begin(tmp_path)
    grid.kills, grid.heard = 1, False
    start()
    first = grid.held
    grid.kills = 1
    strategy = start()
    second, node = grid.held, first.metadata.dst_node_id
    # The later sum as it would have been sent to the same reader.
    frame = (tmp_path / "run" / "aggregate-00000001-0000.fedc").read_bytes()
    sum_ = bytes_array(strategy.setup.scheme.committee.for_reader(frame, node - 1000))
    here = first.content[protocol.CONFIG]["last"]
    assert second.content[protocol.CONFIG]["last"] != here

    def asked(message, arrays, **changes):
        config = {**message.content[protocol.CONFIG], **changes}
        if not arrays:
            config.pop("indices", None)
        content = RecordDict(dict(message.content.items()))
        content["arrays"], content[protocol.CONFIG] = ArrayRecord(arrays), ConfigRecord(config)
        return Message(content, dst_node_id=node, message_type="train")

    def ask(*given, **changes):
        return grid.app(asked(*given, **changes), grid.contexts[node])

    whole = dict(first.content["arrays"].items())
    told = said(ask(first, whole))
    assert said(ask(first, {})) == told
    # A process that begins anew has opened that sum and no other one.
    other = {protocol.aggregate_key(1): sum_}
    (only,) = restarted(tmp_path, [asked(first, {})])
    assert only == told
    assert restarted(tmp_path, [asked(second, other, last=here)]) == [None]
    assert says_nothing(ask(second, other, last=here))
    again = ask(first, {})
    assert again.has_error() or said(again) == told
    assert set(restarted(tmp_path, [asked(first, {}), asked(first, whole)])) <= {None, told}


OPENER = """
import sys
sys.path[:0] = {tests!r}
from pathlib import Path
from test_reports import opened_again
print("".join(opened_again(Path(sys.argv[1]))))
"""


def opened_again(folder):
    """What a server's opener does with sums of the run's first position: "o" for each that opens, "r" for a refusal."""
    scheme, key = keys.load_client(folder / "keys" / "client-0.key")
    run = read_run(folder / "run")
    for path in sorted(folder.glob("sum-*")):
        chain = Chain(run.charter, scheme, run.context, first=run.first())
        try:
            # As a strategy's opener, which has its memory in the state folder.
            chain.step(scheme.decryptor(key), [path.read_bytes()], 1)
            yield "o"
        except errors.FedcipherError:
            yield "r"


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_an_opener_opens_and_reports_one_list_of_a_position_after_a_restart_too(tmp_path, name):
    """A sum without one client, beside the sum that the opener has reported, would tell of this client alone."""
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=12, clip=1.0))
    made = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys", examples_per_weight=100)
    grid = LocalGrid(app_of(), CLIENTS, made)
    given = {"opener": "client-0.key", "train_answers": ["loss"]}
    strategy = SecureStrategy(FedAvg(**ALL, fraction_evaluate=0), made, out=tmp_path / "run", **given)
    result = strategy.start(grid, record(initial()), num_rounds=1)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(MEAN, abs=1e-6)
    sent = [protocol.frame_bytes(reply.content["arrays"][protocol.UPDATE]) for _, reply in grid.received]
    for number, clients in enumerate((range(CLIENTS), range(CLIENTS - 1), range(1, CLIENTS), range(CLIENTS))):
        aggregator = scheme.aggregator(strategy.setup.key, round=strategy.rounds[0].number)
        for client in clients:
            aggregator.add(sent[client])
        (tmp_path / f"sum-{number}").write_bytes(aggregator.finish())
    command = [sys.executable, "-c", OPENER.format(tests=IMPORTED), str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        assert done.stdout == "orro\n"
