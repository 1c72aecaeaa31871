"""What a range cuts from an update goes with the next one."""

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.codec import Codec
from fedcipher.federation.client.clip_feedback import ClipFeedback
from fedcipher.federation.store import Store
from fedcipher.schemes.base import state_dir
from flower_harness import LocalGrid, record
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, hides, one_key, schemes_that

FIRST = [np.zeros((4, 5), np.float32), np.zeros(3, np.float32)]
CLIENTS = 4


class Federation:
    """Clients that move every value by ``sizes[round - 1]``; ``away`` are rounds without the last client's update."""

    def __init__(self, folder, sizes, *, away=(), examples=(10,) * CLIENTS, name="flashe", bits=16):
        self.sizes, self.away, self.examples = sizes, away, examples
        app = ClientApp(mods=[fedcipher.adapters.flower.client_mod])
        app.train()(self.train)
        scheme = fedcipher.scheme(name, clients=CLIENTS, codec=Codec(bits=bits))
        unit = {} if len(set(examples)) == 1 else {"examples_per_weight": 60_000}
        self.keys = keys.save(scheme.keygen(CLIENTS), scheme, folder / "keys", **unit)
        self.grid = LocalGrid(app, CLIENTS, self.keys, self.lose)
        self.out = folder / "run"

    def train(self, msg, ctxt):
        size = self.sizes[msg.content["config"]["server-round"] - 1]
        arrays = [(a + np.float32(size)).astype(np.float32) for a in msg.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": self.examples[ctxt.node_config["partition-id"]]})
        return Message(RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=msg)

    def lose(self, message, reply, client):
        number = message.content["config"]["server-round"] if "config" in message.content else 0
        return None if client == CLIENTS - 1 and number in self.away else reply

    def run(self):
        everybody = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
        self.strategy = SecureStrategy(FedAvg(**everybody), self.keys, out=self.out, opener="client-0.key")
        result = self.strategy.start(self.grid, record(FIRST), num_rounds=len(self.sizes))
        return result.arrays.to_numpy_ndarrays()


def cut_files():
    return list(state_dir().rglob("cut-*.bin"))


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_what_grows_beyond_its_range_arrives_a_round_later(tmp_path, name):
    sizes = [0.01, 0.05, 0.01, 0.01]
    here = Federation(tmp_path, sizes, name=name)
    model = here.run()
    assert here.strategy.rounds[1].clipped_share == 1.0
    np.testing.assert_allclose(model[0], sum(sizes), rtol=2e-3)
    assert not cut_files()


def test_what_a_client_is_left_out_with_does_not_wait(tmp_path):
    """Its round's sum is without it: the next update is made of a model that does not know it."""
    sizes = [0.01, 0.05, 0.01, 0.01]
    here = Federation(tmp_path, sizes, away=[2])
    model = here.run()
    # The three others' rest comes in round 3, where the last client has none, nor had it a part in round 2.
    np.testing.assert_allclose(model[0], sum(sizes) - (0.05 - here_range(0.01)) / CLIENTS, rtol=2e-3)
    assert not cut_files()


def test_what_went_with_an_update_that_is_in_no_sum_goes_with_the_next(tmp_path):
    sizes = [0.01, 0.05, 0.01, 0.01, 0.01]
    here = Federation(tmp_path, sizes, away=[3])
    model = here.run()
    # The three others' rest makes up round 3's mean alone; a fourth's comes in round 4, as a quarter of that mean.
    np.testing.assert_allclose(model[0], sum(sizes) + (0.05 - here_range(0.01)) / CLIENTS, rtol=2e-3)
    assert not cut_files()


def test_a_round_that_is_asked_for_again_takes_the_same_along(tmp_path):
    waiting, like = ClipFeedback(Store(tmp_path, "somebody")), [np.zeros(3, np.float32)]
    (tmp_path / "identities" / "somebody").mkdir(parents=True)
    waiting.keep([np.array([1.0, 2.0, 3.0], np.float32)], [4.0], 5)
    waiting.stepped(5, included=True)
    for _ in range(2):
        (taken,) = waiting.taken(6, like)
        assert taken.tolist() == [1, 2, 3]
        waiting.keep([np.array([0.0, 0.0, 7.0], np.float32)], [8.0], 6)
    # A killed server's other groups: this client is not in them.
    waiting.stepped(6, included=False)
    assert waiting.taken(7, like)[0].tolist() == [1, 2, 3]
    waiting.keep([None], [4.0], 7)
    waiting.stepped(7, included=True)
    assert waiting.taken(8, like) == [] and not list(tmp_path.rglob("cut-*.bin"))


def test_what_is_older_than_four_rounds_is_forgotten(tmp_path):
    """The last client computes nothing in rounds 3 to 7: its rest of round 2 would come in the eighth."""
    sizes = [0.01, 0.05, *[0.01] * 6]
    here = Federation(tmp_path, sizes)
    app = here.grid.app

    def sometimes(message, context):
        if message.metadata.dst_node_id == 1000 + CLIENTS - 1 and 3 <= message.content["config"]["server-round"] <= 7:
            raise OSError("not here")
        return app(message, context)

    here.grid.app = sometimes
    model = here.run()
    # The three others' rest is in round 3's mean of three; a fourth in round 8 would be a quarter of it more.
    np.testing.assert_allclose(model[0], sum(sizes), rtol=0.01)
    assert not cut_files()


def here_range(size):
    """The range that follows updates of one size: two quarter octaves above the least that holds it."""
    return 2.0 ** ((np.ceil(4 * np.log2(size)) + 2) / 4)


def test_no_more_than_eight_ranges_wait(tmp_path):
    sizes = [0.01, 5.0, 0.01, 0.01]
    here = Federation(tmp_path, sizes)
    model = here.run()
    assert 9 * here_range(0.01) <= float(np.mean(model[0])) <= 9 * here_range(0.01) + 0.04
    assert not cut_files()


def test_a_large_client_after_eight_rounds_without_one_is_cut_and_sent_later(tmp_path):
    sizes = [0.01] * 14
    here = Federation(tmp_path, sizes, away=range(1, 11), examples=(60, 60, 60, 60_000))
    model = here.run()
    np.testing.assert_allclose(model[0], sum(sizes), rtol=0.02)


@pytest.mark.parametrize("damage", [lambda held: b"", lambda held: b"no arrays", lambda held: held[:-1] + b"?"])
def test_damaged_rests_are_left_out(tmp_path, monkeypatch, caplog, damage):
    kept = Store.keep_cut

    def damaged(store, slot, arrays):
        kept(store, slot, arrays)
        for path in cut_files():
            path.write_bytes(damage(path.read_bytes()))

    monkeypatch.setattr(Store, "keep_cut", damaged)
    here = Federation(tmp_path, [0.01, 0.05, 0.01])
    here.run()
    assert all(r.unfinished is None and r.accepted == CLIENTS for r in here.strategy.rounds)
    assert "is damaged and is left out" in caplog.text


def test_updates_at_the_end_of_float32_make_no_refusal(tmp_path):
    here = Federation(tmp_path, [1e-30, 3e38, 3e38, -3e38])
    here.run()
    assert all(r.unfinished is None and r.accepted == CLIENTS for r in here.strategy.rounds)
