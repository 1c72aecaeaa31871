"""The scheme pasta-bfv through the Python interface and through Flower."""

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import Codec, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg
from pasta_reference import VARIANTS, key_stream


def make(**params):
    scheme = fedcipher.scheme("pasta-bfv", codec=Codec(bits=12, clip=1.0), **params)
    return scheme, scheme.keygen(3)


def test_weighted_mean_progress_and_one_time_key(rng):
    scheme, issued = make(clients=3, max_weight=4)
    updates = [[rng.normal(0, 0.4, (70, 30)).astype(np.float32), rng.normal(size=3)] for _ in range(3)]
    encryptors = [scheme.encryptor(issued.client(j)) for j in range(3)]
    for round_number in (1, 2):
        plan = scheme.round_plan(issued.server(), [0, 1, 2])
        aggregator = scheme.aggregator(issued.server(), round=round_number)
        for encryptor, update, weight in zip(encryptors, updates, (4, 1, 2), strict=True):
            aggregator.add(encryptor.encrypt(update, round=round_number, weight=weight, round_plan=plan))
        assert (encryptors[0].stats.setup_bytes > 0) == (round_number == 1)
        steps = []
        aggregate = aggregator.finish(lambda done, total, seen=steps: seen.append((done, total)))
        assert steps[0] == (0, 3) and steps[-1] == (3, 3)
        got = scheme.decryptor(issued.client(2)).decrypt(aggregate)
        for k, x in enumerate(got):
            want = np.average([np.clip(u[k], -1, 1) for u in updates], axis=0, weights=(4, 1, 2))
            np.testing.assert_allclose(x, want, atol=1 / 4094 * 1.01)


def test_an_exception_in_progress_cancels_and_nothing_is_lost():
    scheme, issued = make(clients=1, min_contributions=1)
    aggregator = scheme.aggregator(issued.server())
    aggregator.add(scheme.encryptor(issued.client(0)).encrypt([np.full(5, 0.5, np.float32)], round=1))

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aggregator.finish(stop)
    np.testing.assert_allclose(scheme.decryptor(issued.client(0)).decrypt(aggregator.finish())[0], 0.5, atol=1e-3)


def test_sums_beyond_the_prime_are_refused_and_the_fix_named():
    with pytest.raises(errors.BoundError, match="bits=11"):
        make(clients=30)
    with pytest.raises(errors.ParameterError, match="PASTA-5"):
        fedcipher.scheme("pasta-bfv", clients=2, variant=5)
    with pytest.raises(errors.ParameterError, match="not one of"):
        fedcipher.scheme("pasta-bfv", clients=2, prime_bits=20)


def test_rounds_through_flower(tmp_path, rng):
    codec = Codec(bits=13, clip=2.0, target="delta")
    scheme = fedcipher.scheme("pasta-bfv", clients=2, codec=codec)
    folder = keys.save(scheme.keygen(2), scheme, tmp_path / "keys")
    goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(2)]
    steps = []
    strategy = SecureStrategy(
        FedAvg(), folder, out=tmp_path / "run", on_progress=lambda done, total: steps.append((done, total))
    )
    grid = LocalGrid(make_app(goals, [10, 10]), 2, folder)
    strategy.start(grid, record(initial()), num_rounds=3)
    decryptor = scheme.decryptor(keys.load_client(folder / "client-0.key")[1])
    want = (1 - 0.5**3) * np.mean([g[0] for g in goals], axis=0)
    np.testing.assert_allclose(strategy.open_model(decryptor)[0], want, atol=3 * 2 / 2**13)
    setup = [[c.phases["setup_bytes"] for c in r.clients] for r in strategy.rounds]
    assert all(s > 500_000 for s in setup[0]) and not any(setup[1] + setup[2])
    # Of updates and of evaluations.
    assert steps.count((2, 2)) == 2 * 3


@pytest.mark.parametrize(("variant", "bits"), [(4, 17), (3, 17), pytest.param(4, 33, marks=pytest.mark.long)])
def test_the_wire_carries_pasta_as_the_paper_writes_it(variant, bits):
    """Every word of a frame, from a second implementation of the cipher."""
    scheme = fedcipher.scheme(
        "pasta-bfv", clients=1, min_contributions=1, variant=variant, prime_bits=bits, codec=Codec(bits=8, clip=1.0)
    )
    key = scheme.keygen(1).client(0)
    encryptor = scheme.encryptor(key)
    frame = encryptor.encrypt([np.linspace(-1, 1, 150, dtype=np.float32)], round=12345)
    t = VARIANTS[variant][0]
    p = {17: 65537, 33: 8088322049}[bits]
    # A client key's payload, behind the cohort's secret and the seed of its signatures, begins with the PASTA key.
    secret = np.frombuffer(wire_tools.payload(key.to_bytes()), "<u8", count=2 * t, offset=32 + 32).tolist()
    padded = -(-150 // t) * t
    payload = wire_tools.body(frame)[-16 - -(-padded * bits // 8) : -16]
    packed = int.from_bytes(payload, "little")
    words = [packed >> (k * bits) & ((1 << bits) - 1) for k in range(padded)]
    values = np.rint((np.linspace(-1, 1, 150, dtype=np.float32).astype(np.float64) + 1) * 127).astype(int).tolist()
    values += [0] * (padded - 150)
    for block in range(padded // t):
        stream = key_stream(variant, p, secret, 12345, block)
        for j, mask in enumerate(stream):
            assert words[block * t + j] == (values[block * t + j] + mask) % p
