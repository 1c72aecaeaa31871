"""`Codec(bits="auto")`: a run chooses among three widths by the noise of its opened sums."""

import dataclasses

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import _native, errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.codec import AUTO_BITS, Codec, value_bits
from fedcipher.dp import Privacy
from fedcipher.federation import messages as protocol
from fedcipher.federation.bit_widths import BitWidths, Noise
from fedcipher.federation.client.key_holder import _holders
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.asking import Asking
from flower_harness import LocalGrid, record, reference_of
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scheme_lists import of_committee, one_width, schemes_that, widths

FEW, MIDDLE, MANY = AUTO_BITS
FIRST = [np.zeros((40, 30), np.float32), np.zeros(90, np.float32)]


def differing(rng, index):
    """Clients pull in directions that have little in common: few bits do."""
    return [0.99 * x / np.sqrt(np.mean(x * x)) for x in (0.5 + rng.normal(0, 1, x.shape) for x in FIRST)]


def shrinking(rng, index):
    """All clients agree, and move a hundredth of what they have moved the round before: the ranges are too wide."""
    common = np.random.default_rng(index)
    return [0.01 ** min(index, 9) * common.normal(0, 1, x.shape) for x in FIRST]


class Run:
    """A run of clients whose updates ``made`` makes; the bits that messages ask for, round by round."""

    def __init__(self, folder, made, *, name="flashe", clients=11, rounds=6, codec=None, **given):
        _holders.clear()
        self.made, self.rng = made, np.random.default_rng(5)
        self.app = ClientApp(mods=[client_mod])
        self.app.train()(self.train)
        more = of_committee(name, members=3, corrupt_clients=0, corrupt_members=0)
        codec = codec or Codec(bits="auto")
        self.scheme = fedcipher.scheme(name, clients=clients, min_contributions=3, codec=codec, **more)
        self.keys = keys.save(self.scheme.keygen(clients), self.scheme, folder / "keys")
        self.grid, self.out, self.sums = LocalGrid(self.app, clients, self.keys), folder / "run", {}
        everybody = {"min_train_nodes": clients, "min_available_nodes": clients, "fraction_evaluate": 0.0}
        self.strategy = SecureStrategy(FedAvg(**everybody), self.keys, out=self.out, **given)
        self.strategy.start(self.grid, record(FIRST), num_rounds=rounds)

    def train(self, msg, ctxt):
        index = msg.content["config"]["server-round"]
        update = [x.astype(np.float32) for x in self.made(self.rng, index)]
        self.sums.setdefault(index, []).append(update)
        arrays = [a + u for a, u in zip(msg.content["arrays"].to_numpy_ndarrays(), update, strict=True)]
        return Message(
            RecordDict({"arrays": record(arrays), "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg
        )

    @property
    def asked(self):
        """By round, the bits of the last message."""
        sent = [content for _, content in self.grid.sent if protocol.CONFIG in content]
        said = [RoundSettings.parse(content[protocol.CONFIG]) for content in sent]
        return [bits for _, bits in sorted({s.index: s.bits for s in said}.items())]

    @property
    def sent(self):
        """The bits that the values of the steps' sums have."""
        folder = self.strategy.run.model.folder
        frames = [frame for step in range(1, folder.count + 1) for frame in folder.step(step)]
        return [bits for frame in frames for bits in value_bits(_native.layout_of(frame))]

    def check(self):
        """What a client opens afterwards is the sum of the means."""
        opened = list(open_run(self.out, self.keys / "client-1.key").values())
        for i, got in enumerate(opened):
            want = sum(np.mean([u[i] for u in updates], axis=0) for updates in self.sums.values())
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            assert error < 0.2, error


@pytest.mark.parametrize("name", schemes_that(widths))
def test_a_frame_has_the_bytes_of_its_own_bits(name):
    """Room for eight bits costs nothing where a round has three."""
    more = of_committee(name, members=3, corrupt_clients=0, corrupt_members=0)
    x = [np.ones((300, 70), np.float32), np.ones(7, np.float32)]
    auto = fedcipher.scheme(name, clients=10, codec=Codec(bits="auto"), **more)
    sealed = wire_tools.encryptor(auto, auto.keygen(10), 1)
    for number, bits in enumerate(AUTO_BITS, 1):
        one = fedcipher.scheme(name, clients=10, codec=Codec(bits=bits), **more)
        alone = wire_tools.encryptor(one, one.keygen(10), 1).encrypt(x, round=1)
        frame = sealed.encrypt(x, round=number, bits=bits)
        assert len(frame) == len(alone) and value_bits(_native.layout_of(frame)) == [bits]
        assert auto.levels.of(bits) == one.levels.of(bits)
    assert value_bits(_native.layout_of(sealed.encrypt(x, round=9))) == [MIDDLE], "nobody has chosen"


def test_bits_that_are_no_choice_are_refused():
    auto = Codec(bits="auto")
    assert auto.bit_widths == list(AUTO_BITS) and Codec(**auto.to_dict()) == auto
    with pytest.raises(errors.ParameterError, match="is not one of"):
        auto.at(4)
    with pytest.raises(errors.ParameterError, match="the bits of this codec are fixed"):
        Codec(bits=4).at(4)
    for given in ({"clip": 1.0}, {"clip": "aciq"}, {"target": "weights"}, {"top": 0.1}):
        with pytest.raises(errors.ParameterError, match="number of bits"):
            Codec(bits="auto", **given)
    for bits in (6, (8, 5, 3), (3, 3, 8)):
        with pytest.raises(errors.ParameterError, match="in rising order"):
            Codec(bits=bits, adaptive=True)
    with pytest.raises(errors.ParameterError, match="one grid"):
        Codec(bits="auto", privacy=Privacy(clip=1.0, noise_multiplier=1.0, rounds=3, delta=1e-5))


@pytest.mark.parametrize("name", schemes_that(one_width))
def test_schemes_whose_values_have_one_width_say_so(name):
    with pytest.raises(errors.FedcipherError, match=r'bits="auto" needs lanes'):
        fedcipher.scheme(name, clients=3, codec=Codec(bits="auto"))


def test_parts_of_updates_have_one_width():
    with pytest.raises(errors.ParameterError, match="needs lanes"):
        fedcipher.scheme("flashe", clients=3, codec=Codec(bits="auto"), per_client_top=0.1)


ADVICES = [
    ((0.30, None, 1.0, 0.5), 1),
    ((0.30, None, 1.0, 0.7), 0),
    ((0.24, None, 1.0, 0.1), 0),
    ((0.01, 0.06, 1.0, 0.5), -1),
    ((0.01, 0.07, 1.0, 0.5), 0),
    ((0.01, 0.06, 1.0, 0.4), 0),
    ((0.01, None, 1.0, 0.5), 0),
    ((0.10, None, 0.0, 0.0), 1),
    ((0.00, 0.0, 0.0, 0.0), 0),
]


@pytest.mark.parametrize(("lengths", "advice"), ADVICES)
def test_more_bits_where_noise_drowns_the_mean_and_the_spread_fewer_where_neither(lengths, advice):
    assert Noise(*lengths).advice == advice


def test_three_of_four_rounds_change_the_bits_by_one():
    widths = BitWidths(Codec(bits="auto"))
    heard = [widths.take_advice(advice) for advice in (1, 0, 1, 0, 1, 1)]
    assert heard == [False] * 5 + [True] and widths.bits == MANY
    assert not any(widths.take_advice(1) for _ in range(9)), "there are no more"
    assert [widths.bits for _ in range(8) if widths.take_advice(-1) or True] == [MANY, MANY, *[MIDDLE] * 3, *[FEW] * 3]
    assert not BitWidths(Codec(bits=6)).take_advice(1) and BitWidths(Codec(bits=6)).bits == 0


def test_a_server_that_opens_sums_takes_fewer_bits_where_clients_differ(tmp_path):
    run = Run(tmp_path, differing, opener="client-0.key")
    assert run.asked == [MIDDLE] * 3 + [FEW] * 3 and run.sent == run.asked
    run.check()


def test_and_more_where_noise_is_all(tmp_path):
    run = Run(tmp_path, shrinking, clients=4, opener="client-0.key")
    assert run.asked[0] == MIDDLE and run.asked[-1] == MANY and run.sent == run.asked
    run.check()


def test_readers_of_a_committee_tell_a_server_without_a_key(tmp_path):
    run = Run(tmp_path, differing, name="oneshot", rounds=5)
    assert run.asked == [MIDDLE] * 3 + [FEW] * 2 and run.sent == run.asked
    run.check()


def test_without_an_opener_or_readers_the_bits_stay(tmp_path):
    """Frames whose sizes follow from opened sums would tell a server what it cannot open."""
    run = Run(tmp_path, differing)
    assert set(run.asked) == {MIDDLE} and set(run.sent) == {MIDDLE}
    run.check()


def test_a_resumed_run_goes_on_with_its_bits(tmp_path):
    run = Run(tmp_path, differing, opener="client-0.key", rounds=4)
    assert run.asked[-1] == FEW
    everybody = {"min_train_nodes": 11, "min_available_nodes": 11, "fraction_evaluate": 0.0}
    again = SecureStrategy(FedAvg(**everybody), run.keys, out=run.out, opener="client-0.key", resume=True)
    again.start(run.grid, record(FIRST), num_rounds=6)
    assert run.asked == [MIDDLE] * 3 + [FEW] * 3
    run.check()


@pytest.mark.parametrize(("codec", "bits"), [("auto", 0), ("auto", 4), ("auto", 24), (6, 3), (6, 6)])
def test_a_client_takes_no_bits_that_the_charter_does_not_leave(tmp_path, codec, bits):
    """Judged before data is touched, with the one text of all refusals."""
    run = Run(tmp_path, differing, clients=3, rounds=1, codec=Codec(bits=codec))
    before = len(run.sums[1])
    node, content = run.grid.sent[-1]
    settings = RoundSettings.parse(content[protocol.CONFIG])
    changed = dataclasses.replace(settings, round=settings.round + 1, bits=bits)
    content[protocol.CONFIG] = ConfigRecord(changed.to_record())
    message = Message(content, dst_node_id=1000 + node, message_type="train")
    reply = run.app(message, run.grid.contexts[1000 + node])
    assert reply.has_error() and reference_of(reply) is not None and len(run.sums[1]) == before


def test_a_client_of_other_bits_is_in_no_sum(tmp_path, monkeypatch):
    """A server that asks one client for other bits gets a frame that adds to no other."""
    asked = Asking.settings

    def apart(self, *given):
        record = asked(self, *given)
        self.told = getattr(self, "told", 0) + 1
        # Of four messages with histograms, then four with updates.
        record["bits"] = MANY if self.told == 8 else record["bits"]
        return record

    monkeypatch.setattr(Asking, "settings", apart)
    with pytest.raises(errors.StrategyError, match="another model or layout than most"):
        Run(tmp_path, differing, clients=4, rounds=1)
