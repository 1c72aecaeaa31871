"""When a round closes: quorum, deadline, who is late, and what the server keeps of whom it has added."""

import gc
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import fedcipher
import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.adapters.flower.polling import Arrivals, FlowerLink
from fedcipher.federation.server import polling as replies
from fedcipher.federation.server.journal import read_journal
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import Error, Message
from flwr.serverapp.strategy import FedAvg

CLIENTS = 6
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
CODEC = fedcipher.Codec(bits=16, clip=2.0)


class SlowGrid(LocalGrid):
    """Client k answers ``delays[k]`` seconds after it was asked to train, by a clock of its own."""

    slow = ("train",)

    def __init__(self, *arguments, delays, monkeypatch):
        super().__init__(*arguments)
        self.delays, self.now, self.due, self.trained, self.kept_silent = delays, 0.0, {}, {}, True
        monkeypatch.setattr(replies.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(replies.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def push_messages(self, messages):
        messages = list(messages)
        asked = super().push_messages(messages)
        for name, message in zip(asked, messages, strict=True):
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            self.due[name] = self.now + (self.delays[node - 1000] if kind in self.slow else 0)
            self.trained[name] = node if kind == "train" else None
        return asked

    def pull_messages(self, message_ids):
        return super().pull_messages([name for name in message_ids if self.due[name] <= self.now])


@pytest.mark.parametrize("call", ["push_messages", "pull_messages", "get_node_ids"])
def test_a_superlink_that_never_answers_ends_the_run_by_name_and_lets_the_next_have_it(
    tmp_path, rng, monkeypatch, call
):
    """Flower asks for ever."""
    here = Federation(tmp_path, rng, monkeypatch, [1.0] * CLIENTS, deadline=60)
    asked = threading.Event()

    def silent(*_):
        # The clock of this test goes on only here.
        here.grid.now += 1000
        asked.set()
        threading.Event().wait()

    def gone(*_):
        # What waits for a reply asks whether anybody is there.
        monkeypatch.setattr(here.grid, "get_node_ids", silent)
        silent()

    real = {name: getattr(here.grid, name) for name in (call, "get_node_ids")}
    monkeypatch.setattr(here.grid, call, gone)
    with pytest.raises(errors.StrategyError, match="the SuperLink does not answer"):
        here.start(2)
    assert asked.is_set()
    for name, works in real.items():
        monkeypatch.setattr(here.grid, name, works)
    again = SecureStrategy(FedAvg(**ALL), here.keys, out=tmp_path / "run", resume=True)
    again.start(here.grid, record(initial()), num_rounds=2)
    assert [r.round for r in again.rounds if r.unfinished is None] == [1, 2]


class Failed(Exception):
    """As httpx has it."""

    def __init__(self, status):
        super().__init__(f"Server error '{status}'")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize("status", [500, 507, 599])
@pytest.mark.parametrize("call", ["push_messages", "pull_messages", "get_node_ids"])
def test_a_superlink_that_fails_in_a_call_is_called_again(tmp_path, rng, monkeypatch, caplog, call, status):
    here = Federation(tmp_path, rng, monkeypatch, [1.0] * CLIENTS, deadline=60)
    works, left = getattr(here.grid, call), [status, status]

    def fails(*arguments):
        if left:
            raise Failed(left.pop())
        return works(*arguments)

    monkeypatch.setattr(here.grid, call, fails)
    rounds = here.start(2)
    assert [len(senders(made)) for made in rounds] == [CLIENTS] * 2 and not left
    said = [text for text in caplog.messages if "a call to the SuperLink has failed" in text]
    assert len(said) == 2 and all(str(status) in text for text in said)


@pytest.mark.parametrize("status", [400, 403, 413])
def test_a_call_that_the_superlink_refuses_is_not_made_again(tmp_path, rng, monkeypatch, status):
    here = Federation(tmp_path, rng, monkeypatch, [1.0] * CLIENTS, deadline=60)
    asked = []

    def refuses(*_):
        asked.append(1)
        raise Failed(status)

    monkeypatch.setattr(here.grid, "pull_messages", refuses)
    with pytest.raises(Failed):
        here.start(1)
    assert len(asked) == 1


def test_a_superlink_that_goes_on_failing_ends_the_run_by_name(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [1.0] * CLIENTS, deadline=60)

    def fails(*_):
        here.grid.now += 100
        raise Failed(500)

    monkeypatch.setattr(here.grid, "push_messages", fails)
    with pytest.raises(errors.StrategyError, match=r"the SuperLink (has failed for 600 s: .*500|does not answer)"):
        here.start(1)


@pytest.mark.parametrize("after", [0.3, 1.1, 4.0, 30.0])
def test_a_reply_is_seen_late_by_a_part_of_what_it_took(after, monkeypatch):
    """A round waits twice: with looks ever twice as far apart, one of two seconds took three."""

    class Grid:
        now, looks = 0.0, 0

        def push_messages(self, messages):
            return ["asked"]

        def pull_messages(self, message_ids):
            self.looks += 1
            asked = SimpleNamespace(reply_to_message_id="asked")
            return [SimpleNamespace(metadata=asked)] if self.now >= after else []

        def sleep(self, seconds):
            self.now += seconds

    grid = Grid()
    monkeypatch.setattr(replies.time, "monotonic", lambda: grid.now)
    monkeypatch.setattr(replies.time, "sleep", grid.sleep)
    to = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=7))
    (reply,) = Arrivals(FlowerLink(grid), lambda send, _: send(until=100.0)).send_and_receive([to])
    assert reply.metadata._src_node_id == 7
    assert after <= grid.now <= 1.1 * after + 0.05
    assert grid.looks <= 70


def test_a_server_that_waits_for_its_superlink_hears_an_interrupt_of_another_thread(tmp_path):
    """As Flower tells an app to end whose parent has died."""
    code = """
import signal, sys, threading, time
from fedcipher.federation.server.polling import wait_for_call
# Ignored in what a shell has started in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
wait_for_call(lambda: threading.Event().wait())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr


class Federation:
    def __init__(self, folder, rng, monkeypatch, delays, **options):
        scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=CODEC)
        self.keys = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        app = make_app(self.goals, [10] * CLIENTS)
        self.grid = SlowGrid(app, CLIENTS, self.keys, delays=delays, monkeypatch=monkeypatch)
        self.strategy = SecureStrategy(FedAvg(**ALL), self.keys, out=folder / "run", **options)

    def start(self, rounds, **options):
        self.strategy.start(self.grid, record(initial()), num_rounds=rounds, **options)
        return self.strategy.rounds

    def check_model(self, folder):
        model = initial()
        for made in self.strategy.rounds:
            senders = [client.client for client in made.clients if client.left_out is None]
            moved = [[0.5 * (a + t) for a, t in zip(model, self.goals[k], strict=True)] for k in senders]
            model = [np.mean([m[k] for m in moved], axis=0) for k in range(len(model))]
        for got, want in zip(open_run(folder / "run", self.keys / "client-0.key").values(), model, strict=True):
            np.testing.assert_allclose(got, want, atol=len(self.strategy.rounds) * 4 / 2**16)


def senders(made):
    return sorted(client.client for client in made.clients if client.left_out is None)


def test_a_round_closes_some_time_after_its_quorum(tmp_path, rng, monkeypatch, caplog):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 3, 8, 20, 60], quorum=0.5, grace=10)
    rounds = here.start(2)
    assert [senders(made) for made in rounds] == [[0, 1, 2, 3]] * 2
    for made in rounds:
        closed = {client.node: client.left_out for client in made.clients if client.left_out}
        assert closed == dict.fromkeys((1004, 1005), "no answer when the round closed")
    here.check_model(tmp_path)
    # One of the first round came while the second was under way.
    assert rounds[0].late == [1004] and rounds[1].late == []
    # What others see of it is in the journal.
    assert [made.late for made in read_journal(tmp_path / "run").rounds] == [[1004], []]
    assert "node 1004 has answered round 1 after it closed" in caplog.text


def test_a_round_closes_at_its_deadline_and_not_before(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 19, 21, 1, 1], deadline=20)
    (made,) = here.start(1)
    assert senders(made) == [0, 1, 2, 4, 5] and 20 <= here.grid.now < 22


def test_without_a_quorum_everybody_is_waited_for_until_flowers_own_time_out(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 500, 3, 4, 10**9])
    (made,) = here.start(1, timeout=1000)
    assert senders(made) == [0, 1, 2, 3, 4] and here.grid.now >= 1000


def evaluators(made):
    return sorted(client.client for client in made.evaluations if client.left_out is None)


def test_an_evaluation_closes_at_the_deadline_too(tmp_path, rng, monkeypatch, caplog):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 3, 500, 1, 1], deadline=20)
    here.grid.slow = ("evaluate",)
    rounds = here.start(2, timeout=1000)
    assert [senders(made) for made in rounds] == [[0, 1, 2, 3, 4, 5]] * 2 and 40 <= here.grid.now < 44
    for made in rounds:
        assert evaluators(made) == [0, 1, 2, 4, 5]
        closed = {client.node: client.left_out for client in made.evaluations if client.left_out}
        assert closed == {1003: "no answer when the evaluation closed"}
    here.check_model(tmp_path)
    here.grid.now = 1000
    here.strategy.setup.round_close.collect_late(here.strategy._link)
    assert rounds[0].late == rounds[1].late == []
    assert [text for text in caplog.messages if "1003 has" in text] == [
        f"node 1003 has evaluated round {n} after it closed; its answer is not used" for n in (1, 2)
    ]


@pytest.mark.parametrize(
    ("delays", "grace", "heard", "seconds"),
    [
        ([1, 2, 3, 10**6, 1, 1], 0, [0, 1, 2, 4, 5], 2),
        ([1, 2, 3, 10**6, 10**6, 5], 4, [0, 1, 2, 5], 7),
        ([10**6, 1, 1, 1, 4, 10**6], 2, [1, 2, 3], 3),
    ],
)
def test_an_evaluation_closes_with_its_quorum_and_waits_for_no_silent_client(
    tmp_path, rng, monkeypatch, delays, grace, heard, seconds
):
    here = Federation(tmp_path, rng, monkeypatch, delays, quorum=0.5, grace=grace, deadline=10**5)
    here.grid.slow = ("evaluate",)
    rounds = here.start(2, timeout=10**5)
    assert [senders(made) for made in rounds] == [[0, 1, 2, 3, 4, 5]] * 2
    # Those who answer within the same look are all heard.
    assert all(set(heard) >= set(evaluators(made)) and len(evaluators(made)) >= 3 for made in rounds)
    assert here.grid.now < 2 * (seconds + 2)


def test_a_quorum_is_at_least_what_a_sum_needs(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 50, 60, 70, 80], quorum=0.1, grace=0)
    (made,) = here.start(1)
    assert senders(made) == [0, 1, 2]


def withheld(grid, monkeypatch, nodes):
    """These announce their update, and send it when the event is set: a SuperLink waits for what is announced."""
    sent, pull = threading.Event(), grid.pull_messages

    def pulled(message_ids):
        names = [name for name in message_ids if grid.due[name] <= grid.now]
        if any(grid.trained[name] in nodes for name in names):
            sent.wait()
        return pull(names)

    monkeypatch.setattr(grid, "pull_messages", pulled)
    return sent


def test_attack_a_reply_that_is_announced_and_never_sent_holds_up_nobody(tmp_path, rng, monkeypatch, caplog):
    """As of a node that is killed while it sends."""
    here = Federation(tmp_path, rng, monkeypatch, [3, 1, 2, 4, 5, 6], deadline=20)
    sent = withheld(here.grid, monkeypatch, {1000})
    rounds = here.start(2)
    assert [senders(made) for made in rounds] == [[1, 2, 3, 4, 5]] * 2
    for made in rounds:
        closed = {client.node: client.left_out for client in made.clients if client.left_out}
        assert closed == {1000: "no answer when the round closed"}
    assert 40 <= here.grid.now < 44
    here.check_model(tmp_path)
    # It comes in the end, and is late.
    assert rounds[0].late == []
    sent.set()
    for made in list(here.strategy._link.pulls._calls.values()):
        made.result(60)
    here.strategy.setup.round_close.collect_late(here.strategy._link)
    assert rounds[0].late == rounds[1].late == [1000]


def test_the_superlinks_word_for_a_node_that_has_gone_is_no_late_answer(tmp_path, rng, monkeypatch, caplog):
    here = Federation(tmp_path, rng, monkeypatch, [1, 1, 1, 1, 1, 99], deadline=20)
    here.start(1)
    (name,) = here.strategy.setup.round_close._outstanding
    reply = here.grid.pushed[name]
    reply.metadata.__dict__["_src_node_id"] = 1
    here.grid.due[name] = 0
    here.strategy.setup.round_close.collect_late(here.strategy._link)
    assert here.strategy.rounds[0].late == [] and "has answered round" not in caplog.text
    assert here.strategy.setup.round_close._outstanding == {}


def test_what_the_superlink_answers_for_a_node_is_said_of_the_node(tmp_path, rng, monkeypatch, caplog):
    here = Federation(tmp_path, rng, monkeypatch, [1] * CLIENTS, deadline=20)

    def lost(message, reply, client):
        if client != 2 or message.metadata.message_type != "train":
            return reply
        failed = Message(Error(code=5, reason="Node is unavailable"), reply_to=message)
        failed.metadata.__dict__["_src_node_id"] = 1
        return failed

    here.grid.tamper = lost
    (made,) = here.start(1)
    assert {client.node: client.left_out for client in made.clients if client.left_out} == {
        1002: "StrategyError: Node is unavailable"
    }
    assert "node 1 " not in caplog.text


def test_no_update_is_kept_once_it_is_in_the_sum(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [10, 20, 30, 40, 50, 60])
    given, collected, alive = [], [], []
    pull = here.grid.pull_messages

    def pulled(message_ids):
        here.grid.received.clear()
        if len(given) > len(collected):
            gc.collect()
        collected[:] = given
        alive.append(sum(update() is not None for update in given))
        made = pull(message_ids)
        for reply in made:
            arrays = [a for r in reply.content.array_records.values() for a in r.values()]
            given.extend(weakref.ref(array) for array in arrays)
        return made

    monkeypatch.setattr(here.grid, "pull_messages", pulled)
    here.start(1)
    # An update and an evaluation's answers of each client.
    assert len(given) == 2 * CLIENTS and len(alive) > CLIENTS and max(alive) == 0


@pytest.mark.parametrize(
    "bad", [{"quorum": 0}, {"quorum": 1.5}, {"deadline": 0}, {"grace": -1}, {"quorum": float("nan")}]
)
def test_what_cannot_close_a_round_is_refused_at_once(tmp_path, rng, monkeypatch, bad):
    with pytest.raises(errors.ParameterError, match=next(iter(bad))):
        Federation(tmp_path, rng, monkeypatch, [1] * CLIENTS, **bad)


def test_waiting_for_replies_is_no_work_of_the_aggregator(tmp_path, rng, monkeypatch):
    here = Federation(tmp_path, rng, monkeypatch, [1, 2, 3, 8, 20, 60])
    # By a clock on which only waiting takes time.
    monkeypatch.setattr(replies.time, "perf_counter", lambda: here.grid.now)
    rounds = here.start(2)
    assert here.grid.now > 100 and [made.aggregate_seconds for made in rounds] == [0, 0]
