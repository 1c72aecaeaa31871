"""Attack 5: sparse updates attributed to clients. What a client (with the cohort's key) learns from a broadcast."""

import struct
from collections import Counter

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import Codec, errors
from fedcipher.schemes.sparse import CommonSet
from scheme_lists import adds, dense, one_key, schemes_and_params

ALL = schemes_and_params(one_key, adds, dense)
DELTA = Codec(bits=12, clip=1.0, target="delta")
PART = Codec(bits=12, clip=1.0, target="delta", top=0.1)


def payload_at(frame):
    clients, layout = struct.unpack_from("<II", frame, 112)
    return 128 + 12 * clients + layout, clients


def position_sets(frame):
    """Each client's positions in a broadcast of `per_client_top`: Rice-coded gaps behind the masking's byte."""
    at, clients = payload_at(frame)
    at += 1
    sets = []
    for _ in range(clients):
        count, k, size = struct.unpack_from("<IBI", frame, at)
        bits = np.unpackbits(np.frombuffer(frame, np.uint8, size, at + 9), bitorder="little").tolist()
        at += 9 + size
        bit, nearest, found = 0, 0, []
        for _ in range(count):
            high = 0
            while bits[bit]:
                high, bit = high + 1, bit + 1
            low = sum(b << i for i, b in enumerate(bits[bit + 1 : bit + 1 + k]))
            bit += 1 + k
            found.append(nearest + (high << k | low))
            nearest = found[-1] + 1
        sets.append(found)
    return sets


def broadcast(scheme, keys, updates, round=1, **options):
    aggregator = scheme.aggregator(keys.server(), round=round)
    frames = [
        scheme.encryptor(keys.client(j)).encrypt(update, round=round, **options) for j, update in enumerate(updates)
    ]
    for frame in frames:
        aggregator.add(frame)
    return aggregator.finish(), frames


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_attack_5_per_client_sets_attribute_no_value_to_fewer_than_the_minimum(rng, shared):
    common = rng.normal(0, 0.1, 4000)
    own = [[(shared * common + (1 - shared) * rng.normal(0, 0.1, 4000)).astype(np.float32)] for _ in range(5)]
    fewest = {}
    for minimum in (1, 3):
        scheme = fedcipher.scheme("flashe", clients=5, per_client_top=0.1, min_contributions=minimum, codec=DELTA)
        frame, _ = broadcast(scheme, scheme.keygen(5), own)
        senders = Counter(position for found in position_sets(frame) for position in found)
        fewest[minimum] = min(senders.values())
        assert sum(n < minimum for n in senders.values()) == 0
    # The same measurement finds single senders where the minimum is given up.
    assert fewest == {1: 1, 3: 3}


@pytest.mark.parametrize(("name", "params"), ALL)
def test_attack_5_common_sets_leave_nothing_to_attribute(rng, tmp_path, monkeypatch, name, params):
    """A frame is that of a dense update of the chosen values: no positions, nothing that depends on whose it is."""
    updates = [[rng.normal(0, 0.3, (50, 60)).astype(np.float32), rng.normal(0, 1, 17)] for _ in range(3)]
    part = fedcipher.scheme(name, clients=3, codec=PART, **params)
    keys = part.keygen(3)
    aggregate, frames = broadcast(part, keys, updates)
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "other"))
    dense = fedcipher.scheme(name, clients=3, codec=DELTA, **params)
    chosen = CommonSet(updates[0], None, 1, 0.1)
    flat = [np.concatenate([x.ravel().astype(np.float32) for x in update]) for update in updates]
    values = [[a.astype(x.dtype) for a, x in zip(chosen.gather(f), updates[0], strict=True)] for f in flat]
    whole, others = broadcast(dense, keys, values)
    for one, other in zip([aggregate, *frames], [whole, *others], strict=True):
        assert len(one) == len(other) and payload_at(one) == payload_at(other)
        if name != "bfv":  # whose noise is fresh
            # All before the tag.
            assert one[: payload_at(one)[0]] == other[: payload_at(other)[0]]
            assert wire_tools.body(one)[:-16] == wire_tools.body(other)[:-16]
    assert [len(f) for f in frames] == [len(frames[0])] * 3


def test_clients_that_choose_other_coordinates_make_no_sum_that_opens(rng):
    like = [np.zeros(2000, np.float32)]
    reference = [rng.normal(0, 0.1, 2000).astype(np.float32)]
    scheme = fedcipher.scheme("flashe", clients=3, codec=PART)
    keys = scheme.keygen(3)
    aggregator = scheme.aggregator(keys.server())
    for j, known in enumerate((None, reference, None)):
        aggregator.add(scheme.encryptor(keys.client(j)).encrypt(like, round=1, reference=known))
    aggregate = aggregator.finish()
    with pytest.raises(errors.ForgedAggregateError):
        scheme.decryptor(keys.client(0)).open(aggregate, like=like)
    with pytest.raises(errors.ForgedAggregateError):
        scheme.decryptor(keys.client(1)).sums(aggregate, reference=reference)


def test_an_aggregate_of_other_coordinates_does_not_open(rng):
    like, later = [np.zeros(2000, np.float32)], [rng.normal(0, 0.1, 2000).astype(np.float32)]
    scheme = fedcipher.scheme("bfv", clients=2, codec=PART)
    keys = scheme.keygen(2)
    aggregate, _ = broadcast(scheme, keys, [like, like], reference=later)
    decryptor = scheme.decryptor(keys.client(0))
    with pytest.raises(errors.ParameterError, match="like="):
        decryptor.open(aggregate)
    for wrong in ({"like": like}, {"reference": [np.zeros((2, 1000), np.float32)]}):
        with pytest.raises(errors.ForgedAggregateError):
            decryptor.open(aggregate, **wrong)
    with pytest.raises(errors.LayoutError, match="shapes"):
        decryptor.open(aggregate, reference=later, like=[np.zeros(3)])
    assert np.array_equal(decryptor.open(aggregate, reference=later).arrays[0], like[0])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("name", "params"), ALL)
def test_common_sets_send_exactly_what_feedback_takes_off(rng, name, params, rounding):
    codec = Codec(bits=(8, 12, 24, 12), clip=0.5, target="delta", top=0.05, rounding=rounding)
    scheme = fedcipher.scheme(name, clients=2, max_weight=3, codec=codec, **params)
    keys = scheme.keygen(2)
    shapes, kinds = [(40, 50), (30,), (3, 300), ()], [np.float32, np.float64, np.float32, np.float32]
    encryptors, total = [scheme.encryptor(keys.client(j)) for j in range(2)], np.zeros(2931)
    sent, reference = np.zeros(2931), None
    for number in range(1, 5):
        updates = [[rng.normal(0, 0.3, s).astype(t) for s, t in zip(shapes, kinds, strict=True)] for _ in range(2)]
        aggregator = scheme.aggregator(keys.server())
        for j, encryptor in enumerate(encryptors):
            encryptor.precompute(updates[j], round=number, reference=reference)
            aggregator.add(encryptor.encrypt(updates[j], round=number, weight=j + 1, reference=reference))
            total += (j + 1) * np.concatenate([np.ravel(x).astype(np.float32) for x in updates[j]])
            assert encryptor.stats.elements == 100 + 30 + 45 + 1
        opened = scheme.decryptor(keys.client(1)).open(
            aggregator.finish(), round=number, reference=reference, like=updates[0]
        )
        assert [(x.shape, x.dtype) for x in opened.arrays] == [
            (s, np.dtype(t)) for s, t in zip(shapes, kinds, strict=True)
        ]
        reference = opened.arrays
        flat = np.concatenate([np.ravel(x) for x in reference])
        assert opened.counts is None and 90 < np.count_nonzero(flat) <= 176
        sent += 3 * flat
    # What arrived and what waits is everything there was.
    waits = sum((j + 1) * np.frombuffer(e.export_state(), "<f4").astype(np.float64) for j, e in enumerate(encryptors))
    np.testing.assert_allclose(sent + waits, total, atol=1e-5)


def test_error_feedback_follows_the_client_and_damage_is_refused(rng):
    scheme = fedcipher.scheme("plain", clients=1, min_contributions=1, codec=PART)
    key = scheme.keygen(1).client(0)
    update = [rng.normal(0, 0.3, 3000).astype(np.float32)]
    first = scheme.encryptor(key)
    assert first.export_state() == b""
    first.encrypt(update, round=1)
    state = first.export_state()
    assert len(state) == 4 * 3000
    second = scheme.encryptor(key)
    for bad in (state[:-1], np.full(3000, np.nan, np.float32).tobytes()):
        with pytest.raises(errors.FrameError, match="error-feedback"):
            second.import_state(bad)
    with pytest.raises(errors.LayoutError, match="make another encryptor"):
        first.encrypt([np.zeros(2999, np.float32)], round=2)
    for bad in (np.nan, -np.inf):
        with pytest.raises(errors.NotFiniteError, match=r"tensor 0 .* index 7"):
            first.encrypt([np.where(np.arange(3000) == 7, bad, 0).astype(np.float32)], round=3)
    assert first.export_state() == state
    second.import_state(state)
    assert second.export_state() == state
    # Beyond float32: kept as large as it can be, and clipped when its turn comes.
    for number in (4, 5):
        first.encrypt([np.full(3000, 1e308)], round=number)
    assert np.isfinite(np.frombuffer(first.export_state(), "<f4")).all()


def test_the_choice_is_the_codecs():
    with pytest.raises(errors.ParameterError, match=r"Codec\(top=0.1.*per_client_top=0.1"):
        fedcipher.scheme("flashe", clients=3, top=0.1, codec=DELTA)
    with pytest.raises(errors.ParameterError, match="give one of them"):
        fedcipher.scheme("flashe", clients=3, per_client_top=0.1, codec=PART)
    for top in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(errors.ParameterError, match=f"top={top} is (not a fraction|not a finite number)"):
            Codec(top=top, target="delta")
    for top in (0.0, -1.0, 1.5, float("nan"), float("inf")):
        with pytest.raises(errors.ParameterError, match="per_client_top"):
            fedcipher.scheme("flashe", clients=3, per_client_top=top, codec=DELTA)
    with pytest.raises(errors.ParameterError, match="delta"):
        Codec(top=0.1, target="weights")
    with pytest.raises(errors.ParameterError, match="delta"):
        fedcipher.scheme("flashe", clients=3, per_client_top=0.1, codec=Codec(target="weights"))
