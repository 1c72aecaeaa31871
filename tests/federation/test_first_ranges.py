"""The first ranges of a run: a sum of histograms, then the updates of the same training."""

import ast
import re
import shutil

import fedcipher
import numpy as np
import pytest
from fedcipher import _native, keys
from fedcipher.adapters.flower import SecureStrategy, open_run
from fedcipher.federation import messages as protocol
from fedcipher.federation.chain import Chain, lanes_of
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.liar_search import LiarSearch
from fedcipher.federation.server.run_folder import RunFolder
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.frame import inspect
from fedcipher.keys import store
from fedcipher.schemes.base import state_dir
from fedcipher.schemes.oneshot import Card, Party, roster
from flower_harness import NAMES, LocalGrid, bytes_array, party_of, record
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, of_committee, one_key, one_of_each_kind_of_key, schemes_that

SIZE = 1e-5
FIRST = [np.zeros((4, 5), np.float32), np.zeros(3, np.float32)]


def settings_of(content):
    return RoundSettings.parse(content[protocol.CONFIG])


class Federation:
    """Clients whose every training gives another update; ``trained`` has the rounds that their app was asked for."""

    def __init__(self, folder, *, clients=4, minimum=3, name="flashe", codec=None, lost=None, examples=None):
        _holders.clear()
        self.examples = examples or [10] * clients
        self.trained = [[] for _ in range(clients)]
        self.updates = [[] for _ in range(clients)]
        self.app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
        self.app.train()(self.train)
        more = of_committee(name, members=3, corrupt_clients=0, corrupt_members=0)
        codec = codec or fedcipher.Codec(bits=12)
        self.given = dict(name=name, clients=clients, min_contributions=minimum, codec=codec, **more)
        scheme = fedcipher.scheme(**self.given)
        weights = {"examples_per_weight": max(examples)} if examples else {}
        self.scheme, self.keys = scheme, keys.save(scheme.keygen(clients), scheme, folder / "keys", **weights)
        self.grid, self.clients = LocalGrid(self.app, clients, self.keys, self.lose), clients
        self.lost = lost
        self.out, self.rng = folder / "run", np.random.default_rng(7)

    def new_roster(self, identities, numbers, **changes):
        """Key files of a roster that gives these parties, in the order of their nodes, these numbers."""
        self.scheme = fedcipher.scheme(**{**self.given, **changes})
        parties = [Party(number, f"site-{k}", member=k < 3) for k, number in enumerate(numbers)]
        listed = roster([Card.of(own, party) for own, party in zip(identities, parties, strict=True)])
        shutil.rmtree(self.keys)
        self.keys.mkdir(mode=0o700)
        store.save_server(self.scheme.committee.roster_key(listed), self.scheme, self.keys / "server.key")
        for k, own in enumerate(identities):
            store.save_client(self.scheme.committee.join(listed, own), self.scheme, store.client_file(self.keys, k))
        _holders.clear()

    def train(self, msg, ctxt):
        k = ctxt.node_config["partition-id"]
        self.trained[k].append(msg.content["config"]["server-round"])
        update = [self.rng.normal(0.5, 1, x.shape).astype(np.float32) * np.float32(SIZE) for x in FIRST]
        self.updates[k].append(update)
        arrays = [a + u for a, u in zip(msg.content["arrays"].to_numpy_ndarrays(), update, strict=True)]
        metrics = MetricRecord({"num-examples": self.examples[k], "loss": float(k)})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=msg)

    def lose(self, message, reply, client):
        """``lost``: whose reply is lost in the first round, to the message whose chain has so many steps."""
        sent = self.grid.sent[-1][1]
        if protocol.CONFIG not in sent or settings_of(sent).index > 1:
            return reply
        return None if (client, settings_of(sent).steps) == self.lost else reply

    def run(self, rounds=1, **given):
        everybody = {"min_train_nodes": self.clients, "min_available_nodes": self.clients, "fraction_evaluate": 0.0}
        self.strategy = SecureStrategy(FedAvg(**everybody), self.keys, out=self.out, **given)
        self.strategy.start(self.grid, record(FIRST), num_rounds=rounds)
        return list(open_run(self.out, self.keys / "client-1.key").values())

    def frames(self, step):
        return [inspect(f) for f in self.strategy.run.model.folder.step(step)]

    def clients_of(self, step):
        return sorted(client for frame in self.frames(step) for client, _ in frame[4])

    def check(self, model, clients):
        """The model is the mean of these clients' first updates, nearly."""
        for got, *updates in zip(model, *(self.updates[k][0] for k in clients), strict=True):
            np.testing.assert_allclose(got, np.mean(updates, axis=0), atol=SIZE / 200)


@pytest.mark.parametrize("name", schemes_that(hides, adds))
@pytest.mark.parametrize("sees", [False, True])
def test_a_run_begins_with_histograms_and_each_app_trains_once_a_round(tmp_path, name, sees):
    here = Federation(tmp_path, name=name)
    given = {"opener": "client-0.key", "train_answers": ["loss"]} if sees and name != "oneshot" else {}
    model = here.run(2, **given)
    assert here.trained == [[1, 2]] * here.clients
    (first,), (second,) = here.frames(1), here.frames(2)
    # The first frame has no values of the update.
    charter, scheme = here.strategy.run.model.charter, here.strategy.setup.scheme
    lanes = [lanes_of(charter, scheme, "train", steps).count for steps in (0, 1)]
    assert [first[5], second[5]] == [lanes[0], 23 + lanes[1]] and len(first[4]) == len(second[4]) == 4
    assert [r.unfinished for r in here.strategy.rounds] == [None, None]
    assert all(set(c.phases) >= {"upload_bytes", "encrypt_seconds"} for c in here.strategy.rounds[0].clients)
    assert 0 < here.strategy.rounds[0].measured < here.strategy.rounds[0].number
    mean = [sum(np.mean([u[r][i] for u in here.updates], axis=0) for r in (0, 1)) for i in range(2)]
    for got, want in zip(model, mean, strict=True):
        np.testing.assert_allclose(got, want, atol=SIZE / 100)
    assert not list(state_dir().rglob("work.bin")), "what the app has made is in a frame, and nowhere else"


def test_a_start_that_is_given_is_the_first_range(tmp_path):
    here = Federation(tmp_path, codec=fedcipher.Codec(bits=12, start=4e-5))
    here.check(here.run(1), range(4))
    assert here.strategy.rounds[0].measured == 0 and len(here.frames(1)[0][4]) == 4
    assert here.strategy.run.model.steps == 1


def test_attack_32_updates_of_fewer_clients_than_the_histograms_fit_the_rule_of_sets(tmp_path, caplog):
    """The sum of six and that of five would set the sixth client apart: two more sit out."""
    here = Federation(tmp_path, clients=6, lost=(5, 1))
    model = here.run(1)
    assert here.clients_of(1) == list(range(6)) and len(here.clients_of(2)) == 3
    assert 5 not in here.clients_of(2) and "are not summed in this round" in caplog.text
    here.check(model, here.clients_of(2))


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_attack_32_no_client_opens_updates_of_one_fewer_than_the_histograms(tmp_path, name):
    here = Federation(tmp_path, clients=6, name=name)
    here.run(1)
    run, scheme, number = here.strategy.run.model.folder, here.strategy.setup.scheme, here.strategy.rounds[0].number
    aggregator = scheme.aggregator(here.strategy.setup.key, round=number)
    replies = [r for k, r in here.grid.received if k < 5]
    frames = [protocol.frame_bytes(r.content["arrays"][protocol.UPDATE]) for r in replies]
    for frame in (f for f in frames if inspect(f).round == number):
        aggregator.add(frame)
    decryptor = scheme.decryptor(keys.load_client(here.keys / "client-1.key")[1], in_memory=True)
    chain = Chain(run.charter, scheme, run.context, first=run.first())
    chain.step(decryptor, run.step(1), 1)
    with pytest.raises(fedcipher.errors.SetRuleError):
        chain.step(decryptor, [aggregator.finish()], 1)
    chain.step(decryptor, run.step(2), 1)


def test_a_client_that_is_lost_before_the_histograms_is_asked_for_no_update(tmp_path):
    here = Federation(tmp_path, clients=6, lost=(5, 0))
    here.check(here.run(1), range(5))
    asked = [k for k, content in here.grid.sent if protocol.CONFIG in content and settings_of(content).steps == 1]
    assert sorted(asked) == list(range(5))


def test_too_few_updates_after_the_histograms_lose_the_round_and_not_the_run(tmp_path):
    here = Federation(tmp_path, lost=(3, 1))
    here.run(2, may_lose=1)
    assert [bool(r.unfinished) for r in here.strategy.rounds] == [True, False]
    assert "clients [3] were in the sum of histograms and have sent no update" in here.strategy.rounds[0].unfinished
    # The ranges are there: the second round begins with none.
    assert [r.measured > 0 for r in here.strategy.rounds] == [True, False]
    assert here.clients_of(1) == here.clients_of(2) == list(range(4))
    assert here.trained == [[1, 2]] * 4


class Killed(BaseException):
    """As far as any code is concerned the process is gone."""


def killed_with_histograms(here, monkeypatch, rounds=1, **options):
    """The server of ``here`` dies when it has kept its first sum."""
    real = RunFolder.append

    def dying(folder, frames, index):
        real(folder, frames, index)
        raise Killed

    # The test's own state folder stays: `undo` would leave it for the user's.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "append", dying)
        here.run(rounds, **options)


def sat_out(text):
    """Whom each line of the log says to sit a round out."""
    return [ast.literal_eval(found) for found in re.findall(r"clients (\[[^]]*\]) are not summed in this round", text)]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", schemes_that(hides, adds))
def test_attack_32_a_second_run_while_a_client_is_away_goes_on_and_says_who_sits_out(
    tmp_path, monkeypatch, caplog, name, killed
):
    """Its first sums count beside those of the run before, which had the client; later ones have all who are there."""
    here = Federation(tmp_path, clients=6, name=name)
    here.run(2)
    assert not sat_out(caplog.text)
    here.grid.tamper = lambda message, reply, client: None if client == 5 else reply
    here.out = tmp_path / "second"
    if killed:
        killed_with_histograms(here, monkeypatch, 3, resume=True)
    here.run(3, resume=True)
    assert [made.unfinished for made in here.strategy.rounds if made.round > 1 or not killed] == [None] * (3 - killed)
    there = set(range(5))
    # Histograms and updates of the first position, then the other two rounds.
    assert [len(here.clients_of(step)) for step in range(1, 5)] == [3, 3, 5, 5]
    # Whoever is in no sum of histograms is asked for no update, unless a new server does not know that.
    assert here.clients_of(1) == here.clients_of(2)
    assert sat_out(caplog.text) == [sorted(there - set(here.clients_of(1)))] * (2 if killed else 1)
    assert all(set(here.clients_of(step)) <= there for step in range(1, 5))


def test_attack_32_a_run_under_another_roster_goes_on_while_a_client_is_away(tmp_path, caplog):
    """Members and readers remember parties by identity, and so does a server that asks for sums which they open."""
    here, own = Federation(tmp_path, clients=6, name="oneshot"), [_native.Identity.generate() for _ in range(6)]
    here.new_roster(own, range(6))
    here.run(1)
    # Node 5 is away, whose number another has now.
    here.new_roster(own, [3, 4, 5, 0, 1, 2])
    here.grid.tamper = lambda message, reply, client: None if client == 5 else reply
    here.out = tmp_path / "second"
    here.run(2)
    assert [made.unfinished for made in here.strategy.rounds] == [None, None]
    assert [len(here.clients_of(step)) for step in range(1, 4)] == [3, 3, 5]
    assert here.clients_of(1) == here.clients_of(2)
    assert sat_out(caplog.text) == [sorted({0, 1, 3, 4, 5} - set(here.clients_of(1)))]


def test_attack_32_a_run_under_a_roster_with_a_smaller_minimum_keeps_to_the_larger_one(tmp_path, caplog):
    """Its members have promised three to clients of the run before, so sums of four of these six are not asked for."""
    here, own = Federation(tmp_path, clients=6, name="oneshot"), [_native.Identity.generate() for _ in range(6)]
    here.new_roster(own, range(6))
    here.run(1)
    here.new_roster(own, range(6), min_contributions=2)
    here.grid.tamper = lambda message, reply, client: None if client == 5 else reply
    here.out = tmp_path / "second"
    here.run(2)
    assert [made.unfinished for made in here.strategy.rounds] == [None, None]
    assert [len(here.clients_of(step)) for step in range(1, 4)] == [3, 3, 5]


@pytest.mark.parametrize("name", one_of_each_kind_of_key())
def test_attack_32_a_run_that_another_run_comes_before_makes_no_sum_and_goes_on(tmp_path, monkeypatch, name):
    """Another server remembers a sum when this one has chosen its own, of all six, which does not fit beside it."""
    here, chosen = Federation(tmp_path, clients=6, name=name), LiarSearch.sets

    def sets(search, *arguments, **options):
        found = chosen(search, *arguments, **options)
        ServerSets("first", here.strategy.setup.scheme, here.strategy.setup.key).remember(range(5))
        return found

    monkeypatch.setattr(LiarSearch, "sets", sets)
    here.run(2, may_lose=1)
    assert "another run has summed other clients since" in here.strategy.rounds[0].unfinished
    assert here.strategy.rounds[1].unfinished is None
    assert here.clients_of(1) == here.clients_of(2) == list(range(5)), "the sixth alone would be set apart"


def test_attack_32_a_set_whose_answers_were_lost_counts_for_the_server_as_for_members(tmp_path):
    """Members have answered for five, and their answers come too late: a sum of all six would set the sixth apart."""
    here, done = Federation(tmp_path, clients=6, name="oneshot"), []

    def lost(message, reply, client):
        # Prekeys are heard of.
        return None if not done and (client == 5 or "fedcipher.committee" in message.content.array_records) else reply

    here.grid.tamper = lost
    here.run(3, may_lose=1, committee_timeout=1.0, on_round=done.append)
    assert [bool(made.unfinished) for made in here.strategy.rounds] == [True, False, False]
    assert [here.clients_of(step) for step in (1, 2, 3)] == [list(range(5)), list(range(5)), list(range(6))]


@pytest.mark.parametrize("name", one_of_each_kind_of_key())
def test_a_run_that_no_sum_is_left_for_says_why_and_what_helps(tmp_path, name):
    """Five clients and a minimum of three: without one of them no group is left whole."""
    here = Federation(tmp_path, clients=5, name=name)
    here.run(1)
    here.grid.tamper = lambda message, reply, client: None if client == 4 else reply
    here.out = tmp_path / "second"
    with pytest.raises(fedcipher.errors.StrategyError, match=r"groups of at least 3.*new identities"):
        here.run(1)


def test_a_server_that_dies_between_the_two_goes_on_from_its_histograms(tmp_path, monkeypatch):
    here = Federation(tmp_path)
    killed_with_histograms(here, monkeypatch)
    here.check(here.run(1, resume=True), range(4))
    assert here.trained == [[1]] * 4, "the same training as its histograms"
    assert here.strategy.run.model.steps == 2


def test_work_that_cannot_be_kept_is_done_again(tmp_path, monkeypatch, caplog):
    def full(store, name, content):
        raise fedcipher.errors.RunError("no space left on device")

    monkeypatch.setattr("fedcipher.federation.store.Store.keep_work", full)
    here = Federation(tmp_path)
    here.run(1)
    assert here.trained == [[1, 1]] * 4 and "will be repeated" in caplog.text
    assert here.strategy.rounds[0].unfinished is None


@pytest.mark.parametrize("damage", [b"", b"no work", None])
def test_damaged_work_is_done_again(tmp_path, monkeypatch, damage):
    real = fedcipher.federation.store.Store.work

    def damaged(store, name):
        content = real(store, name)
        return content and (content[: len(content) // 2] if damage is None else damage)

    monkeypatch.setattr("fedcipher.federation.store.Store.work", damaged)
    here = Federation(tmp_path)
    here.run(1)
    assert here.trained == [[1, 1]] * 4 and here.strategy.rounds[0].unfinished is None


def test_work_of_the_first_model_is_sent_from_no_later_one(tmp_path, monkeypatch):
    """Updates of the first model at the second position: a sum of another memory, which would set clients apart."""
    monkeypatch.setattr("fedcipher.federation.client.model.ClientModel.drop_saved_work", lambda model: None)
    here = Federation(tmp_path)
    here.run(1)
    assert list(state_dir().rglob("work.bin"))
    run = here.strategy.run.model
    said = RoundSettings(
        charter=run.charter.digest,
        round=here.strategy.run.number + 1,
        index=1,
        steps=2,
        last=run.last,
        indices=[1, 1],
        document=run.charter.encode(),
    )
    arrays = dict(record(FIRST).items())
    arrays |= {protocol.aggregate_key(n): bytes_array(run.folder.step(n)[0]) for n in (1, 2)}
    content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord({"server-round": 1})})
    content[protocol.CONFIG] = ConfigRecord(said.to_record())
    reply = here.app(Message(content, dst_node_id=1000, message_type="train"), here.grid.contexts[1000])
    assert not reply.has_error() and here.trained[0] == [1, 1], "the app has trained from the second model"


def test_clear_metrics_of_the_first_round_arrive_once(tmp_path):
    here = Federation(tmp_path)
    for context in here.grid.contexts.values():
        context.node_config["fedcipher-clear"] = "loss"
    here.run(1, clear=["loss"])
    assert sorted(c.clear["loss"] for c in here.strategy.rounds[0].clients) == [0.0, 1.0, 2.0, 3.0]
    named = [k for k, reply in here.grid.received if protocol.CLEAR in reply.content]
    assert sorted(named) == list(range(4))


def test_a_file_of_work_that_is_damaged_is_done_again(tmp_path, monkeypatch):
    here = Federation(tmp_path)
    real = RunFolder.append

    def damaging(folder, frames, index):
        real(folder, frames, index)
        for path in state_dir().rglob("work.bin"):
            path.write_bytes(b"nothing")

    monkeypatch.setattr(RunFolder, "append", damaging)
    here.run(1)
    assert here.trained == [[1, 1]] * 4 and here.strategy.rounds[0].accepted == 4


@pytest.mark.parametrize("quorum", [0.5, 0.8])
def test_a_quorum_closes_no_round_between_the_two(tmp_path, quorum):
    here = Federation(tmp_path, clients=6)
    here.check(here.run(1, quorum=quorum, grace=0.0), here.clients_of(2))
    assert here.clients_of(1) == here.clients_of(2)


def test_false_histograms_of_a_server_that_died_are_withdrawn(tmp_path, monkeypatch):
    """It was killed before it had opened them, and its next process opens them first of all."""
    here = Federation(tmp_path, clients=8)
    encryptor = party_of(here.grid.contexts[1007]).encryptor()
    honest = encryptor._seal
    encryptor._seal = lambda layout, arrays, said, bound=b"": honest(layout, arrays, said, b"a lie")
    killed_with_histograms(here, monkeypatch, opener="client-0.key")
    here.run(6, opener="client-0.key", resume=True, may_lose=4)
    assert here.strategy.rounds[-1].unfinished is None and set(here.strategy.run.search.found) <= {7}


def test_work_of_one_round_is_sent_in_no_other(tmp_path):
    """A server that lets a client train in round 1, and asks for the update of round 2."""
    here = Federation(tmp_path, lost=(0, 1))
    here.run(2, may_lose=1)
    assert here.trained[0] == [1, 2]
    assert here.strategy.run.model.folder.round_of(2) == 2


def test_histograms_are_no_update_and_an_update_is_no_histogram(tmp_path):
    """Their tags differ, whatever a server says that they are."""
    here = Federation(tmp_path)
    here.run(1)
    run, scheme = here.strategy.run.model.folder, here.strategy.setup.scheme
    key = keys.load_client(here.keys / "client-1.key")[1]
    (histograms,), (updates,) = run.step(1), run.step(2)
    chain = Chain(run.charter, scheme, run.context, first=run.first())
    with pytest.raises(fedcipher.errors.FedcipherError):
        chain.step(scheme.decryptor(key, in_memory=True), [updates], 1)
    assert chain.state.steps == 0
    chain.step(scheme.decryptor(key, in_memory=True), [histograms], 1)
    for model, first in zip(chain.model, run.first(), strict=True):
        np.testing.assert_array_equal(model, first)
    with pytest.raises(fedcipher.errors.FedcipherError):
        chain.step(scheme.decryptor(key, in_memory=True), [histograms], 1)
    assert list(zip(NAMES, [x.shape for x in chain.model], strict=True))


def test_infinity_and_a_client_that_counts_far_more_widen_no_first_range(tmp_path, monkeypatch):
    here = Federation(tmp_path, clients=5)
    honest = here.train

    def odd(msg, ctxt):
        reply = honest(msg, ctxt)
        if ctxt.node_config["partition-id"] == 4:
            arrays = reply.content["arrays"].to_numpy_ndarrays()
            arrays[0] = np.array(arrays[0])
            arrays[0][0, 0] = np.inf
            reply.content["arrays"] = record(arrays)
        return reply

    here.app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
    here.app.train()(odd)
    here.grid.app = here.app
    model = here.run(1)
    want = np.mean([u[0][0] for u in here.updates], axis=0)
    np.testing.assert_allclose(model[0].ravel()[1:], want.ravel()[1:], atol=SIZE / 50)
