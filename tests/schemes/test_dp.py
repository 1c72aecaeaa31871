"""Differential privacy: the noise against its definition, epsilon against other computations, and what is refused."""

import json
import logging
import math
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import fedcipher
import numpy as np
import pytest
import wire_tools
from attack_harness import Federation, says_nothing
from fedcipher import Codec, _native, cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.dp import Privacy, grid
from fedcipher.federation import messages as protocol
from fedcipher.federation.answers import Answer
from fedcipher.federation.policy import Policy
from fedcipher.frame import inspect
from flower_harness import LocalGrid, initial, make_app, record, wire_record
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scheme_lists import adds, hides, one_key, schemes_that

CLIENTS = 4
PRIVACY = Privacy(clip=1.0, noise_multiplier=2.0, rounds=3, delta=1e-5)


def scheme(name="bfv", privacy=PRIVACY, bits=16, **params):
    return fedcipher.scheme(name, **{"clients": CLIENTS, **params}, codec=Codec(bits=bits, privacy=privacy))


def noise(count, numerator, shift, key=None, half=(1 << 23) - 1):
    """Noise alone, as integers: the update is zero and its range wide."""
    layout = Codec(bits=24, clip=float(half)).layout([np.zeros(count, np.float32)])
    flat, cut, norm = _native.add_noise(layout, [np.zeros(count, np.float32)], 1.0, 0, numerator, shift, key)
    assert cut == [0] and norm == 0
    integers = np.rint(flat.astype(np.float64)).astype(np.int64)
    assert np.array_equal(integers, flat)
    return integers


# --- the sampler ------------------------------------------------------------------------------------------------------


class Reference:
    """Canonne, Kamath and Steinke's algorithms 1 to 3 in fractions, over words of pycryptodome's AES-256-CTR."""

    def __init__(self, key, purpose=0, chunk=0):
        from Crypto.Cipher import AES

        nonce = purpose.to_bytes(4, "big") + chunk.to_bytes(8, "big")
        self._stream = AES.new(key, AES.MODE_CTR, nonce=nonce, initial_value=0)

    def word(self):
        return int.from_bytes(self._stream.encrypt(bytes(8)), "little")

    def uniform(self, bound):
        while True:
            product = self.word() * bound
            if product % 2**64 >= (2**64 - bound) % bound:
                return product >> 64

    def bernoulli(self, p):
        low, width = Fraction(0), Fraction(1)
        while True:
            width /= 2**64
            low += self.word() * width
            if low + width <= p:
                return True
            if low >= p:
                return False

    def exp_minus(self, gamma):
        while gamma > 1:
            if not self.exp_minus(Fraction(1)):
                return False
            gamma -= 1
        k = 1
        while self.bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    def laplace(self, t):
        while True:
            u = self.uniform(t)
            if not self.exp_minus(Fraction(u, t)):
                continue
            v = 0
            while self.exp_minus(Fraction(1)):
                v += 1
            x, negative = u + t * v, self.word() % 2
            if not (negative and x == 0):
                return -x if negative else x

    def gaussian(self, variance):
        t = math.isqrt(math.floor(variance)) + 1
        while True:
            y = self.laplace(t)
            if self.exp_minus((abs(y) - variance / t) ** 2 / (2 * variance)):
                return y


@pytest.mark.parametrize(("numerator", "shift"), [(1, 2), (1, 0), (81, 3), (5_235_429_288_279, 29), (2**43, 3)])
def test_noise_is_the_papers_algorithm_in_fractions(numerator, shift):
    key = bytes(range(32))
    reference = Reference(key)
    want = [reference.gaussian(Fraction(numerator, 2**shift)) for _ in range(300)]
    assert noise(300, numerator, shift, key).tolist() == want


def test_rounding_and_noise_are_those_of_two_streams(rng):
    """Each chunk of 2^14 values has streams of its own, for noise and for each try to round."""
    chunk, count, key = 1 << 14, (1 << 14) + 200, bytes(range(32))
    update = rng.normal(0, 1e-3, count).astype(np.float32)
    layout = Codec(bits=16, clip=1.0).layout([update])
    flat, _, _ = _native.add_noise(layout, [update], 1e9, 1 << 40, 81, 3, key)
    found = np.rint(flat.astype(np.float64) * (2**15 - 1)).astype(np.int64)
    for number in (0, 1):
        noise_of, rounding = Reference(key, 0, number), Reference(key, 1, number)
        for k in range(chunk * number, chunk * number + 200):
            exact = Fraction(float(update[k])) * (2**15 - 1)
            below = math.floor(exact)
            up = Fraction(rounding.word() >> 11, 2**53) < exact - below
            assert found[k] == below + up + noise_of.gaussian(Fraction(81, 8))


def test_noise_has_the_distribution_of_opendps():
    """Two samples, binned alike: chi-square at a tail of six deviations."""
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    count, deviation = 20_000, 6.5
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    theirs = np.asarray(opendp.m.make_gaussian(*space, scale=deviation)([0] * count))
    ours = noise(count, int(deviation**2 * 4), 2)
    edges = np.arange(-20, 22) - 0.5
    a, b = (np.histogram(np.clip(x, -20, 20), edges)[0] for x in (ours, theirs))
    freedom = np.count_nonzero(a + b) - 1
    square = np.sum((a - b) ** 2 / np.maximum(a + b, 1))
    assert square < freedom + 6 * math.sqrt(2 * freedom)


def test_noise_differs_from_update_to_update():
    assert not np.array_equal(noise(100, 2**20, 0), noise(100, 2**20, 0))


# --- epsilon ----------------------------------------------------------------------------------------------------------


def concentrated(rho, delta):
    """Least epsilon of rho-concentrated privacy, over orders on a fine grid (Canonne et al., proposition 12)."""
    alpha = 1 + np.geomspace(1e-3, 1e6, 400_000)
    return np.min(
        alpha * rho + (math.log(1 / delta) + (alpha - 1) * np.log1p(-1 / alpha) - np.log(alpha)) / (alpha - 1)
    )


@pytest.mark.parametrize("rounds", [1, 20, 1000])
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 30.0])
def test_epsilon_is_that_of_concentrated_privacy(multiplier, rounds):
    delta = 1e-6
    privacy = Privacy(clip=1.0, noise_multiplier=multiplier, rounds=rounds, delta=delta)
    rho = rounds / (2 * multiplier**2)
    found = privacy.epsilon()
    assert found == pytest.approx(concentrated(rho, delta * (1 - 2**-10)), rel=1e-3)
    # Bun and Steinke's simple bound, and the continuous Gaussian's exact curve (Balle and Wang 2018) below it.
    assert found <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) * (1 + 1e-3)
    mu = math.sqrt(2 * rho)

    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    exact = normal(mu / 2 - found / mu) - math.exp(min(found, 700)) * normal(-mu / 2 - found / mu)
    assert exact <= delta
    assert privacy.epsilon(1) <= found and privacy.epsilon(rounds) == found


def test_epsilon_beside_the_gaussian_mechanisms_own():
    """Of a Gaussian query delta(epsilon) is known exactly (Balle and Wang 2018); ours is a little more."""
    delta, low, high = 1e-5, 0.0, 50.0

    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if normal(0.5 - middle) - math.exp(middle) * normal(-0.5 - middle) < delta else (middle, high)
        )
    found = Privacy(clip=1.0, noise_multiplier=1.0, rounds=1, delta=delta).epsilon()
    assert low < found < 1.1 * low


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_calibrated_noise_gives_its_epsilon_and_no_more(epsilon):
    made = Privacy.for_epsilon(epsilon, delta=1e-5, rounds=50, clip=0.5)
    assert (made.clip, made.rounds, made.delta) == (0.5, 50, 1e-5)
    assert made.epsilon() <= epsilon * (1 + 1e-9)
    assert made.epsilon() == pytest.approx(epsilon, rel=1e-3)


# --- the grid ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
# The distance of a sum of discrete Gaussians from one counts where one share is next to nothing.
@example(multiplier=0.05, bits=8, elements=7850, shares=999, clip=1.0)
@example(multiplier=0.02, bits=12, elements=1_200_000, shares=999, clip=1.0)
@given(
    multiplier=st.floats(-4, 6).map(math.exp),
    bits=st.integers(6, 24),
    elements=st.sampled_from([1, 7, 7850, 1_200_000]),
    shares=st.sampled_from([1, 2, 11, 999]),
    clip=st.floats(1e-3, 1e3),
)
def test_every_grid_keeps_the_theorem(multiplier, bits, elements, shares, clip):
    """Kairouz, Liu and Steinke's theorem 1, with its sum, on what was chosen."""
    privacy = Privacy(clip=clip, noise_multiplier=multiplier, rounds=10, delta=1e-5)
    try:
        chosen = grid(privacy, bits, elements, shares)
    except errors.ParameterError as error:
        assert "bits are too few for a grid" in str(error)
        return
    half = 2 ** (bits - 1) - 1
    assert chosen.alpha == float(np.float32(chosen.alpha)) and chosen.step == chosen.alpha / half
    reach, root = clip / chosen.step, math.sqrt(elements)
    beta = 1e-6
    rounded = reach**2 + elements / 4 + math.sqrt(2 * math.log(1 / beta)) * (reach + root / 2)
    assert chosen.square >= math.floor(min(rounded, (reach + root) ** 2) * (1 - 1e-12))
    variance = Fraction(chosen.numerator, 2**chosen.shift)
    assert variance >= Fraction(1, 4)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * float(variance) * k / (k + 1)) for k in range(1, shares))
    one = math.sqrt(chosen.square / (shares * float(variance)))
    loss = min(math.sqrt(one**2 + 2 * tau * elements), one + tau * root)
    assert loss <= 1 / multiplier
    assert math.sqrt(chosen.square) <= 2 * reach
    # Clip, rounding and tail fit.
    assert reach + 1 + privacy.tail(elements, shares) * math.sqrt(variance) <= half
    # And no more noise than that takes, where no floor of the variance is in the way.
    if variance > 9:
        assert loss > 0.97 / multiplier


def test_the_tail_is_paid_by_its_share_of_delta():
    privacy = Privacy(clip=1.0, noise_multiplier=1.0, rounds=20, delta=1e-5)
    elements, shares = 7850, 99
    tail = privacy.tail(elements, shares)
    eta = 2 * elements * shares * privacy.rounds * math.exp(-(tail**2) / 2)
    assert privacy._delta_of_noise + (1 + math.exp(privacy.epsilon())) * eta <= 1e-5
    # Subgaussian, as the text says: drawn at a tail where something is to be seen.
    drawn = np.abs(noise(400_000, 81, 3))
    for t in (2.0, 3.0, 4.0):
        assert np.mean(drawn > t * math.sqrt(81 / 8)) < 2 * math.exp(-(t**2) / 2)


def test_too_few_bits_are_refused_with_those_that_do():
    with pytest.raises(errors.ParameterError, match=r"--bits \d+") as refusal:
        grid(PRIVACY, 4, 1_000_000, 3)
    enough = int(str(refusal.value).rpartition("--bits ")[2])
    assert grid(PRIVACY, enough, 1_000_000, 3)
    with pytest.raises(errors.ParameterError):
        grid(PRIVACY, enough - 1, 1_000_000, 3)
    with pytest.raises(errors.ParameterError, match="more clients"):
        grid(Privacy(clip=1.0, noise_multiplier=1e6, rounds=1, delta=1e-5), 12, 1_000_000, 1)


def test_one_range_for_all_tensors_and_nothing_else_decides_it(rng):
    made = scheme()
    issued = made.keygen(CLIENTS)
    frames = []
    for k, size in enumerate((1e-6, 1e6)):
        encryptor = made.encryptor(issued.client(k))
        update = [(size * rng.normal(0, 1, s)).astype(np.float32) for s in ((3, 4), (), (50,))]
        frames.append(encryptor.encrypt(update, round=1, reference=[size * np.ones_like(x) for x in update]))
    aggregator = made.aggregator(issued.server())
    for frame in frames:
        # Another range would be refused: all clients of a round must agree.
        aggregator.add(frame)


# --- the sum ----------------------------------------------------------------------------------------------------------


def opened(made, updates, round=1):
    """Integer sums less their zero, and the encryptors."""
    issued = made.keygen(len(updates))
    aggregator = made.aggregator(issued.server(), round=round)
    encryptors = [wire_tools.encryptor(made, issued, j) for j in range(len(updates))]
    for encryptor, update in zip(encryptors, updates, strict=True):
        aggregator.add(encryptor.encrypt(update, round=round))
    for member, request in (aggregator.committee.requests() if aggregator.committee else {}).items():
        aggregator.committee.answer(made.committee.member(issued.client(member)).answer(request))
    sums = made.decryptor(issued.client(0)).sums(aggregator.finish()).astype(np.int64)
    half = 2 ** (made.codec.bit_widths[0] - 1) - 1
    return sums - len(updates) * half, encryptors


@pytest.mark.parametrize("name", schemes_that(one_key))
def test_the_opened_sum_carries_the_noise_of_all_clients(name):
    """The variance of the opened sum, and of one share more than the guarantee counts on."""
    count = {"paillier": 1000, "pasta-bfv": 500}.get(name, 20_000)
    made = scheme(name, bits=12, min_contributions=CLIENTS)
    sums, encryptors = opened(made, [[np.zeros(count, np.float32)] for _ in range(CLIENTS)])
    chosen = grid(PRIVACY, 12, count, CLIENTS - 1)
    guaranteed = (PRIVACY.noise_multiplier * chosen.sensitivity * chosen.step) ** 2
    want = guaranteed * CLIENTS / (CLIENTS - 1)
    # In the model's unit: another number of shares would have other steps.
    sums = sums * grid(PRIVACY, 12, count, made.noise_shares).step
    # Six deviations of a variance of so many values.
    assert abs(np.mean(sums**2) / want - 1) < 6 * math.sqrt(2 / count) + 1e-5
    assert abs(np.mean(sums)) < 6 * math.sqrt(want / count)
    assert [e.stats.clipped for e in encryptors] == [0] * CLIENTS


def test_the_noise_of_oneshot_counts_on_honest_clients_only():
    assert (
        scheme("oneshot", clients=20, min_contributions=8, members=9, corrupt_clients=3, corrupt_members=3).noise_shares
        == 5
    )
    assert (
        scheme("oneshot", clients=20, min_contributions=8, members=9, corrupt_clients=0, corrupt_members=3).noise_shares
        == 7
    )
    assert scheme("bfv", clients=20, min_contributions=8).noise_shares == 7
    assert scheme("bfv", clients=1, min_contributions=1).noise_shares == 1


@pytest.fixture
def told(monkeypatch):
    """What each encryption gave the kernel."""
    given = []
    real = _native.add_noise

    def recorded(*arguments):
        made = real(*arguments)
        given.append(made)
        return made

    monkeypatch.setattr(_native, "add_noise", recorded)
    return given


@pytest.mark.parametrize(("corrupt", "shares"), [(0, 4), (1, 4), (2, 3), (3, 2)])
def test_without_the_noise_of_all_who_may_be_corrupt_the_smallest_group_has_enough(told, corrupt, shares):
    """A group of the fewest clients that are summed: what ``corrupt`` of them have added, they can take off again."""
    count, fewest = 5000, 5
    made = scheme(
        "oneshot",
        bits=12,
        clients=6,
        min_contributions=fewest,
        members=5,
        corrupt_clients=corrupt,
        corrupt_members=corrupt,
        preset="fast",
    )
    assert made.noise_shares == shares
    sums, _ = opened(made, [[np.zeros(count, np.float32)] for _ in range(fewest)])
    chosen = grid(PRIVACY, 12, count, shares)
    own = [np.rint(flat.astype(np.float64) / chosen.step).astype(np.int64) for flat, _, _ in told]
    # A reader knows its own, also where nobody is corrupt.
    left = sums - sum(own[: max(1, corrupt)])
    guaranteed = (PRIVACY.noise_multiplier * chosen.sensitivity) ** 2
    assert abs(np.mean(left.astype(float) ** 2) / guaranteed - 1) < 6 * math.sqrt(2 / count) + 1e-5


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_sums_are_exact_and_nothing_wraps_where_the_range_is_too_small(name, told, monkeypatch, rng):
    import dataclasses

    from fedcipher.schemes import noise as mechanism

    made = scheme(name, bits=10)
    real = mechanism.grid

    def tight(*arguments):
        chosen = real(*arguments)
        # A quarter of the range for the same steps of noise: much is beyond it.
        return dataclasses.replace(chosen, numerator=chosen.numerator, shift=chosen.shift - 7)

    monkeypatch.setattr(mechanism, "grid", tight)
    updates = [[rng.normal(0, 0.01, 500).astype(np.float32), rng.normal(0, 0.01, (3, 5)).astype(np.float32)]] * CLIENTS
    sums, encryptors = opened(made, updates)
    step = grid(PRIVACY, 10, 515, made.noise_shares).step
    sent = [np.rint(flat.astype(np.float64) / step).astype(np.int64) for flat, _, _ in told]
    assert np.array_equal(sums, sum(sent))
    cut = [counts for _, counts, _ in told]
    assert all(sum(counts) > 5 for counts in cut)
    assert [e.stats.clipped_by_tensor for e in encryptors] == cut
    assert all(np.abs(s).max() == 2**9 - 1 for s in sent)


def test_clipping_keeps_the_direction_and_the_norm():
    made = scheme("plain", Privacy(clip=0.5, noise_multiplier=0.01, rounds=3, delta=1e-5), bits=20)
    update = [np.full((10, 10), 3.0, np.float32), np.full(21, -3.0, np.float32)]
    sums, encryptors = opened(made, [update] * CLIENTS)
    chosen = grid(made.codec.privacy, 20, 121, made.noise_shares)
    mean = sums / CLIENTS * chosen.step
    deviation = chosen.noise_norm(121, CLIENTS) / 11
    assert deviation < 0.5 / 11 / 20
    np.testing.assert_allclose(mean, [0.5 / 11] * 100 + [-0.5 / 11] * 21, atol=6.5 * deviation)
    assert encryptors[0].stats.scaled == pytest.approx(0.5 / 33)
    _, encryptors = opened(made, [[np.full(121, 0.04, np.float32)]] * CLIENTS)
    assert encryptors[0].stats.scaled == 1.0


def test_the_core_is_given_what_was_chosen(monkeypatch):
    asked = []
    real = _native.add_noise
    monkeypatch.setattr(_native, "add_noise", lambda *a: (asked.append(a), real(*a))[1])
    made = scheme(bits=14)
    opened(made, [[np.ones((5, 6), np.float32), np.zeros(3, np.float32)]] * 3)
    chosen = grid(PRIVACY, 14, 33, made.noise_shares)
    for layout, arrays, *rest in asked:
        # And no key: that is the operating system's.
        assert rest == [PRIVACY.clip, chosen.square, chosen.numerator, chosen.shift]
        assert {tensor[1:3] for tensor in layout.tensors} == {(14, chosen.alpha)}
        assert [x.tolist() for x in arrays] == [[1.0] * 30, [0.0] * 3]


def test_float64_and_float16_come_back_as_they_were():
    made = scheme("plain", Privacy(clip=1.0, noise_multiplier=0.01, rounds=3, delta=1e-5), bits=20)
    issued = made.keygen(3)
    update = [
        np.full(4, 0.1, np.float64),
        np.full((2, 2), 0.2, np.float16),
        np.float32(0.3),
        np.zeros((0, 3), np.float32),
    ]
    aggregator = made.aggregator(issued.server())
    for j in range(3):
        encryptor = made.encryptor(issued.client(j))
        encryptor.precompute(update, round=1)
        aggregator.add(encryptor.encrypt(update, round=1))
    arrays = made.decryptor(issued.client(0)).decrypt(aggregator.finish())
    for x, y in zip(update, arrays, strict=True):
        assert np.shape(x) == y.shape and np.asarray(x).dtype == y.dtype
        np.testing.assert_allclose(y, x, atol=0.05)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "fix"),
    [
        ({"target": "weights"}, "target='delta'"),
        ({"top": 0.1}, "leave out top"),
        ({"clip": 1.0}, "leave out clip"),
        ({"clip": "aciq"}, "leave out clip"),
        ({"bits": [8, 12]}, "one number of bits"),
    ],
)
def test_codecs_that_do_not_go_with_privacy(codec, fix):
    with pytest.raises(errors.ParameterError, match=fix):
        Codec(privacy=PRIVACY, **codec)


@pytest.mark.parametrize("name", schemes_that(adds))
def test_weights_do_not_go_with_privacy(name):
    with pytest.raises(errors.ParameterError, match="--equal"):
        scheme(name, max_weight=2)
    made = scheme(name)
    if made.info.committee:
        return
    with pytest.raises(errors.WeightError):
        made.encryptor(made.keygen(1).client(0)).encrypt([np.zeros(3, np.float32)], round=1, weight=2)


def test_each_clients_own_coordinates_do_not_go_with_privacy():
    with pytest.raises(errors.ParameterError, match="send all coordinates"):
        scheme("flashe", per_client_top=0.1)


@pytest.mark.parametrize("values", [np.zeros(3, np.int64), np.zeros(3, np.uint8), np.zeros(3, bool)])
def test_arrays_that_are_no_floats(values):
    made = scheme()
    encryptor = made.encryptor(made.keygen(1).client(0))
    with pytest.raises(errors.LayoutError, match="cast it to float32"):
        encryptor.encrypt([np.zeros(3, np.float32), values], round=1)
    with pytest.raises(errors.LayoutError, match=r"array .steps.: .*cast it to float32"):
        made.codec.check([np.zeros(3, np.float32), values], ["weight", "steps"])
    made.codec.check([np.zeros(3, np.float32)], ["weight"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(value):
    made = scheme()
    encryptor = made.encryptor(made.keygen(1).client(0))
    with pytest.raises(errors.NotFiniteError, match=r"tensor 1 .* index 2"):
        encryptor.encrypt([np.zeros(4, np.float32), np.array([0, 0, value], np.float32)], round=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"clip": "1"},
        {"noise_multiplier": 0},
        {"noise_multiplier": math.inf},
        {"rounds": 0},
        {"rounds": 1.5},
        {"delta": 0.0},
        {"delta": 1.0},
    ],
)
def test_privacy_that_makes_no_sense(wrong):
    values = {"clip": 1.0, "noise_multiplier": 1.0, "rounds": 1, "delta": 1e-5}
    with pytest.raises(errors.ParameterError, match=next(iter(wrong))):
        Privacy(**{**values, **wrong})
    with pytest.raises(errors.ParameterError, match="epsilon"):
        Privacy.for_epsilon(math.nan, delta=1e-5, rounds=1, clip=1.0)


def test_without_dp_accounting_noise_works_and_an_epsilon_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(errors.DependencyError, match=r"pip install 'fedcipher\[dp\]'"):
        PRIVACY.epsilon()
    with pytest.raises(errors.DependencyError):
        Privacy.for_epsilon(1.0, delta=1e-5, rounds=1, clip=1.0)
    opened(scheme(), [[np.zeros(5, np.float32)]] * 3)


def test_a_codec_alone_makes_no_layout():
    with pytest.raises(errors.ParameterError, match="encryptor"):
        Codec(privacy=PRIVACY).layout([np.zeros(3, np.float32)])


# --- key files and the budget -----------------------------------------------------------------------------------------


def test_key_files_carry_privacy_and_older_ones_have_none(tmp_path):
    for privacy in (PRIVACY, None):
        made = scheme(privacy=privacy)
        folder = keys.save(made.keygen(2), made, tmp_path / str(privacy is None))
        found, _ = keys.load_client(folder / "client-0.key")
        assert found.codec == made.codec and found.codec.privacy == privacy
        head = json.loads((folder / "client-0.key").read_bytes().partition(b"\n")[0])
        # Without privacy a file is what it was before there was any.
        assert ("privacy" in head["codec"]) == (privacy is not None)


def test_who_changes_the_privacy_of_a_key_file_is_refused(tmp_path):
    made = scheme()
    folder = keys.save(made.keygen(2), made, tmp_path / "keys")
    path = folder / "client-0.key"
    head, _, key = path.read_bytes().partition(b"\n")
    for change in ({"noise_multiplier": 0.1}, {"rounds": 300}, {"clip": 9.0}, {"delta": 0.1}, None):
        content = json.loads(head)
        content["codec"]["privacy"] = change and {**content["codec"]["privacy"], **change}
        path.write_bytes(json.dumps(content).encode() + b"\n" + key)
        with pytest.raises(errors.WrongParametersError):
            found, secret = keys.load_client(path)
            found.encryptor(secret)
    for damage in ({"clip": 1.0}, {"noise": 1}, 3):
        content = json.loads(head)
        content["codec"]["privacy"] = damage
        path.write_bytes(json.dumps(content).encode() + b"\n" + key)
        with pytest.raises(errors.KeyFormatError, match="damaged"):
            keys.load_client(path)


SPEND = """
import sys, numpy as np
from fedcipher import keys
from fedcipher.errors import FedcipherError
made, key = keys.open_client(sys.argv[1])
for round in map(int, sys.argv[2:]):
    try:
        frame = made.encryptor(key).encrypt([np.zeros(5, np.float32)], round=round)
        print("gave", round)
    except FedcipherError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_no_process_and_no_restart_goes_beyond_the_budget(tmp_path, name):
    made = scheme(name)
    folder = keys.save(made.keygen(2), made, tmp_path / "keys")

    def spend(*rounds, client=0):
        command = [sys.executable, "-c", SPEND, str(folder / f"client-{client}.key"), *map(str, rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        return done.stdout.splitlines()

    assert spend(1, 2, 2) == ["gave 1", "gave 2", "NonceReuseError"]
    assert spend(3, 4, 5) == ["gave 3", "PrivacyBudgetError", "PrivacyBudgetError"]
    assert spend(9) == ["PrivacyBudgetError"]
    assert spend(7, client=1) == ["gave 7"]


def test_a_budget_whose_file_is_deleted_is_not_a_fresh_one(tmp_path):
    made = scheme()
    folder = keys.save(made.keygen(1), made, tmp_path / "keys")
    found, key = keys.open_client(folder / "client-0.key")
    found.encryptor(key).encrypt([np.zeros(5, np.float32)], round=1)
    (ledger,) = (tmp_path / "state").glob("*.nonce")
    ledger.unlink()
    with pytest.raises(errors.LedgerError):
        found.encryptor(key).encrypt([np.zeros(5, np.float32)], round=2)


def test_a_budget_refuses_before_the_client_trains():
    made = scheme()
    encryptor = made.encryptor(made.keygen(1).client(0))
    for round_number in (1, 2, 3):
        encryptor.precompute([np.zeros(5, np.float32)], round=round_number)
    with pytest.raises(errors.PrivacyBudgetError, match="3 updates"):
        encryptor.precompute([np.zeros(5, np.float32)], round=4)


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_what_became_of_a_frame_changes_nothing_of_the_budget(name):
    """A frame that is lost, one that is spoilt and so refused, and one whose sum nobody opens: each was noise spent."""
    made = scheme(name)
    issued, update = made.keygen(CLIENTS), [np.zeros(5, np.float32)]
    encryptors = [made.encryptor(issued.client(k)) for k in range(CLIENTS)]
    encryptors[0].encrypt(update, round=1)
    spoilt, sums = bytearray(encryptors[0].encrypt(update, round=2)), made.aggregator(issued.server(), round=2)
    spoilt[-20] ^= 1
    with pytest.raises(errors.FedcipherError):
        sums.add(bytes(spoilt))
    sums = made.aggregator(issued.server(), round=3)
    for encryptor in encryptors:
        sums.add(encryptor.encrypt(update, round=3))
    sums.finish()
    for again in (encryptors[0], made.encryptor(issued.client(0))):
        with pytest.raises(errors.PrivacyBudgetError, match="3 updates"):
            again.encrypt(update, round=4)
    # The others have given one.
    encryptors[1].encrypt(update, round=4)


def test_new_keys_are_a_new_budget_and_leave_the_old_one_spent(tmp_path):
    """docs/explanation/dp.md: the epsilons of both add up."""
    made, update = scheme(), [np.zeros(5, np.float32)]
    folders = [keys.save(made.keygen(2, epoch=epoch), made, tmp_path / f"keys-{epoch}") for epoch in (1, 2)]

    def spends(folder, *rounds):
        found, key = keys.open_client(folder / "client-0.key")
        for number in rounds:
            found.encryptor(key).encrypt(update, round=number)

    spends(folders[0], 1, 2, 3)
    spends(folders[1], 4, 5)
    with pytest.raises(errors.PrivacyBudgetError):
        spends(folders[0], 6)
    spends(folders[1], 6)
    for folder in folders:
        with pytest.raises(errors.PrivacyBudgetError):
            spends(folder, 7)


# --- Flower -----------------------------------------------------------------------------------------------------------

QUIET = Privacy(clip=20.0, noise_multiplier=0.01, rounds=3, delta=1e-5)


def deployed(tmp_path, privacy=QUIET, far=1.0, seen=None, bits=16, sites=False):
    made = scheme(privacy=privacy, bits=bits)
    folder = keys.save(made.keygen(CLIENTS), made, tmp_path / "keys")
    targets = [[np.full_like(a, far * (k + 1)) for a in initial()] for k in range(CLIENTS)]
    local = LocalGrid(
        make_app(targets, [10 * (k + 1) for k in range(CLIENTS)], seen=seen), CLIENTS, folder, sites=sites
    )
    inner = FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, min_evaluate_nodes=CLIENTS)
    return local, SecureStrategy(inner, folder, opener="client-0.key")


def test_rounds_with_noise_through_flower(tmp_path, caplog):
    seen = []
    local, strategy = deployed(tmp_path, far=0.1, seen=seen)
    result = strategy.start(local, record(initial()), num_rounds=3)
    assert not [c.left_out for r in strategy.rounds for c in r.clients if c.left_out]
    # Targets 0.1 to 0.4, half of the way a round; equal weights, though the clients say 10 to 40 examples.
    noise_of_a_value = 0.01 * 20 / CLIENTS * 2
    for values in result.arrays.to_numpy_ndarrays():
        assert abs(values.mean() - 0.25 * (1 - 0.5**3)) < noise_of_a_value
        assert values.size < 2 or values.std() > 1e-4, "there is noise"
    # All train from the same noisy model.
    for number in (2, 3):
        models = [arrays for round_number, _, arrays in seen if round_number == number]
        assert all(np.array_equal(models[0][0], other[0]) for other in models)
    # A second run would go beyond the budget: every client refuses, to the server without a word of why.
    with caplog.at_level(logging.WARNING, "fedcipher.federation"), pytest.raises(errors.StrategyError, match="no"):
        strategy.start(local, record(initial()), num_rounds=1)
    assert caplog.text.count("PrivacyBudgetError") == CLIENTS
    refusals = [reply.error.reason for _, reply in local.received if reply.has_error()]
    assert len(refusals) == CLIENTS and not any("rivacy" in reason for reason in refusals)


def test_a_site_spends_one_budget_over_all_of_its_keys(tmp_path, caplog, monkeypatch):
    """A server that brings new keys gets no second budget, unless the site has said so."""

    def rounds(name, number):
        local, strategy = deployed(tmp_path / name, seen=seen, sites=True)
        strategy.start(local, record(initial()), num_rounds=number)

    seen = []
    rounds("first", 2)
    rounds("second", 1)
    asked = len(seen)
    with caplog.at_level(logging.WARNING, "fedcipher.federation"), pytest.raises(errors.StrategyError, match="no"):
        rounds("third", 1)
    assert caplog.text.count("has used its 1 budgets") == CLIENTS and len(seen) == asked
    policy = tmp_path / "policy.json"
    policy.write_text('{"fedcipher_policy": 1, "privacy_budgets": 2, "runs": 0}')
    monkeypatch.setenv("FEDCIPHER_POLICY", str(policy))
    rounds("fourth", 3)
    with pytest.raises(errors.StrategyError):
        rounds("fifth", 1)


def test_nothing_that_is_sent_says_whether_an_update_was_clipped(tmp_path, caplog):
    """Short and long updates: the same metrics but for times, the same sizes, and no array with their use."""
    told = {}
    for far in (1e-3, 1e3):
        local, strategy = deployed(tmp_path / str(far), far=far)
        with caplog.at_level(logging.INFO, "fedcipher.federation"):
            strategy.start(local, record(initial()), num_rounds=1)
        metrics = [
            r.content.metric_records[protocol.METRICS] for _, r in local.received if protocol.METRICS in r.content
        ]
        told[far] = [{k: v for k, v in m.items() if not k.endswith("_seconds")} for m in metrics]
        frames = [
            inspect(protocol.frame_bytes(next(iter(r.content.array_records.values()))[protocol.UPDATE]))
            for _, r in local.received
            if r.content.array_records
        ]
        assert {frame[5] for frame in frames} == {607}
    assert told[1e-3] == told[1e3]
    assert {key for m in told[1e3] for key in m} <= {"download_bytes", "upload_bytes", "setup_bytes"}
    # The client itself is told.
    assert caplog.text.count("to keep the L2 norm of its privacy") == CLIENTS


def test_a_server_cannot_weight_by_examples(tmp_path, caplog):
    seen = []
    local, strategy = deployed(tmp_path, seen=seen)
    with pytest.raises(errors.StrategyError, match="give all clients the same weight"):
        SecureStrategy(FedAvg(), tmp_path / "keys", opener="client-0.key", examples_per_weight=10)
    # One that is not honest: its charter is refused before the app is asked, so by all clients alike.
    strategy.setup.unit = 1e9
    with caplog.at_level(logging.WARNING, "fedcipher.federation"), pytest.raises(errors.StrategyError):
        strategy.start(local, record(initial()), num_rounds=1)
    assert caplog.text.count("it weights clients by examples, and the noise") == CLIENTS
    assert seen == []


@pytest.mark.parametrize("fate", ["lost", "refused"])
def test_rounds_that_a_clients_frames_are_not_in_count_against_its_budget(tmp_path, caplog, fate):
    local, strategy = deployed(tmp_path)

    def tamper(message, reply, client):
        if client or reply.has_error():
            return reply
        if fate == "lost":
            return None
        frame = bytearray(protocol.frame_bytes(reply.content["arrays"][protocol.UPDATE]))
        frame[len(frame) // 2] ^= 1
        content = RecordDict({**reply.content, "arrays": wire_record({protocol.UPDATE: bytes(frame)})})
        return Message(content, reply_to=message)

    local.tamper = tamper
    strategy.start(local, record(initial()), num_rounds=3)
    assert [made.accepted for made in strategy.rounds] == [CLIENTS - 1] * 3
    local.tamper = None
    with caplog.at_level(logging.WARNING, "fedcipher.federation"), pytest.raises(errors.StrategyError, match="no"):
        strategy.start(local, record(initial()), num_rounds=1)
    assert caplog.text.count("PrivacyBudgetError") == CLIENTS


RANGES = {"clip": 9.0, "start": 2.0, "margin": 3.0, "bits": 12, "privacy": None}


def test_a_charter_under_privacy_brings_no_range(tmp_path, rng, caplog):
    """What noise is for follows from the key file's parameters: with another range an update would have less of it."""
    federation = Federation(tmp_path, "flashe", rng, codec=Codec(bits=16, privacy=QUIET), sites=True)
    charter = federation.make_charter()
    codec, trained = charter.scheme["codec"], []
    federation.app = make_app(federation.goals, [10] * 5, seen=trained)
    codecs = [{**codec, name: value} for name, value in RANGES.items()]
    codecs += [{**codec, "privacy": {**codec["privacy"], name: 9.0}} for name in ("clip", "noise_multiplier")]
    fewer = {**charter.scheme, "params": {**charter.scheme["params"], "min_contributions": 2}}
    for hostile in [{**charter.scheme, "codec": other} for other in codecs] + [fewer]:
        caplog.clear()
        other = replace(charter, scheme=hostile)
        assert says_nothing(federation.send(federation.content(federation.settings(charter=other)))), hostile
        assert "has other keys or another scheme than this client" in caplog.text
    # Nor does a message beside its charter.
    for extra in ({"ranges": [9.0, 9.0]}, {"clip": 9.0}, {"unit": 9.0}):
        assert says_nothing(federation.send(federation.content(federation.settings(charter=charter, **extra))))
    assert not trained
    assert not federation.send(federation.content(federation.settings(charter=charter))).has_error() and trained


@pytest.mark.parametrize(
    ("changes", "why", "lifted"),
    [
        ({"equal_weights": False}, "it weights clients by examples", {}),
        ({"answers": {"train": [Answer("loss")], "evaluate": []}}, "answers of training", {}),
        ({"answers": {"train": [], "evaluate": [Answer("loss")]}}, "an evaluation", {"privacy_evaluation": True}),
    ],
)
def test_a_site_refuses_under_privacy_what_no_noise_covers(tmp_path, rng, caplog, changes, why, lifted):
    for privacy in (QUIET, None):
        codec = Codec(bits=16, privacy=privacy)
        federation = Federation(tmp_path / str(bool(privacy)), "flashe", rng, codec=codec, sites=True)
        charter = replace(federation.make_charter(), **changes)
        caplog.clear()
        reply = federation.send(federation.content(federation.settings(charter=charter)))
        assert says_nothing(reply) if privacy else not reply.has_error()
        assert (why in caplog.text) is bool(privacy)
        if lifted:
            Policy(**lifted).judge(charter)
        elif privacy:
            with pytest.raises(errors.CharterError, match=why):
                Policy(privacy_evaluation=True).judge(charter)


def test_a_model_with_whole_numbers_is_refused_before_anybody_trains(tmp_path):
    local, strategy = deployed(tmp_path)
    model = [*initial(), np.zeros((), np.int64)]
    with pytest.raises(errors.LayoutError, match=r"array .batches.: .*leave the array out"):
        strategy.start(local, record(model, ["layer/weight", "layer/bias", "batches"]), num_rounds=1)


def test_too_few_bits_for_a_model_are_refused_before_anybody_trains(tmp_path):
    seen = []
    local, strategy = deployed(tmp_path, privacy=PRIVACY, seen=seen, bits=8)
    with pytest.raises(errors.ParameterError, match=r"use Codec\(bits="):
        strategy.start(local, record(initial()), num_rounds=1)
    assert not seen


# --- the command line -------------------------------------------------------------------------------------------------

KEYGEN = ["keygen", "--scheme", "bfv", "--clients", "5", "--dp-epsilon", "2", "--set", "min_contributions=4"]


def test_keygen_says_what_the_noise_promises(tmp_path, capsys):
    out = tmp_path / "keys"
    assert cli.main([*KEYGEN, "--equal", "--dp-rounds", "20", "--dp-clip", "0.5", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "epsilon 2 at delta 1e-05 after 20 updates" in said and "at least 3 clients beside the reader" in said
    found = keys.load_client(out / "client-4.key")[0].codec.privacy
    assert found == Privacy.for_epsilon(2.0, delta=1e-5, rounds=20, clip=0.5)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (["--equal"], "--dp-rounds"),
        (["--examples", "100", "--dp-rounds", "5"], "--equal"),
        (["--equal", "--dp-rounds", "5", "--top", "0.1"], "leave out top"),
        (["--equal", "--dp-rounds", "5", "--dp-delta", "2"], "delta"),
    ],
)
def test_keygen_refuses_by_name(tmp_path, capsys, options, fix):
    assert cli.main([*KEYGEN, *options, "--out", str(tmp_path / "keys")]) == 2
    assert fix in capsys.readouterr().err
    assert cli.main(["keygen", "--clients", "3", "--equal", "--dp-clip", "1", "--out", str(tmp_path / "keys")]) == 2
    assert "--dp-epsilon" in capsys.readouterr().err


# --- an engine --------------------------------------------------------------------------------------------------------


def test_an_engines_host_adds_the_noise_and_the_engine_keeps_the_budget(tmp_path):
    from engine_harness import deployment

    count, made = 5000, scheme("bfv", min_contributions=3)
    with deployment(made, 3, tmp_path) as d:
        hosts = [d.connect(k) for k in range(3)]
        assert all(host.scheme.codec.privacy == PRIVACY for host in hosts)
        for number in (1, 2, 3):
            aggregator = made.aggregator(d.keys().current(), round=number)
            for host in hosts:
                aggregator.add(host.encryptor().encrypt([np.zeros(count, np.float32)], round=number))
            aggregate = aggregator.finish()
        (mean,) = hosts[0].decryptor().decrypt(aggregate)
        chosen = grid(PRIVACY, 16, count, 2)
        want = chosen.variance * chosen.step**2 / 3
        assert abs(np.mean(mean.astype(float) ** 2) / want - 1) < 6 * math.sqrt(2 / count)
        with pytest.raises(errors.PrivacyBudgetError, match="3 updates"):
            hosts[0].encryptor().encrypt([np.zeros(count, np.float32)], round=4)


@pytest.mark.parametrize(("rounds", "warned"), [(2, False), (3, True)])
def test_more_rounds_than_the_clients_may_give_is_said_before_the_first(tmp_path, rng, caplog, rounds, warned):
    privacy = Privacy(clip=1.0, noise_multiplier=0.5, rounds=2, delta=1e-5)
    made = fedcipher.scheme("flashe", clients=3, codec=fedcipher.Codec(bits=16, privacy=privacy))
    folder = keys.save(made.keygen(3), made, tmp_path / "keys")
    goals = [[rng.normal(0, 0.1, a.shape).astype(np.float32) for a in initial()] for _ in range(3)]
    sampled = {"min_train_nodes": 3, "min_evaluate_nodes": 3, "min_available_nodes": 3}
    strategy = SecureStrategy(FedAvg(**sampled), folder, out=tmp_path / "run", may_lose=1)
    grid = LocalGrid(make_app(goals, [10] * 3), 3, folder)
    strategy.start(grid, record(initial()), num_rounds=rounds)
    said = [r.getMessage() for r in caplog.records if "num_rounds=" in r.getMessage()]
    assert [
        text for text in said if "num_rounds=3, but the differential privacy of these keys allows 2 updates" in text
    ] == said
    assert bool(said) == warned
    # And it is true.
    assert [r.accepted for r in strategy.rounds] == [3, 3, 0][:rounds]
    # Nobody is asked for more, and no good sum is taken back for it.
    assert [r.unfinished for r in strategy.rounds[:2]] == [None, None]
    assert not warned or "3 of 3 sampled clients have used up their privacy budget" in strategy.rounds[2].unfinished
