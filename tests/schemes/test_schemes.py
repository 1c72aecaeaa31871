"""Every scheme through the common interface, against a plain computation in numpy."""

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, errors
from fedcipher.frame import inspect
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheme_lists import adds, dense, hides, one_key, schemes_and_params, schemes_that

VARIANTS = schemes_and_params(one_key, adds, dense)


def reference_levels(bits, scheme):
    """As many as the field of a sum has room for, and an even number."""
    total = scheme.params()["clients"] * scheme.params()["max_weight"]
    field = 1
    while field <= total * (2**bits - 2):
        field *= 2
    return max(n for n in range(2, field, 2) if n * total < field)


def reference_integers(update, bits, alpha, scheme):
    """The codec's definition, written again in float64."""
    levels = reference_levels(bits, scheme)
    flat = np.concatenate([np.asarray(x, np.float32).ravel() for x in update]).astype(np.float64)
    alpha = float(np.float32(alpha))
    return np.rint((np.clip(flat, -alpha, alpha) + alpha) * (levels / (2 * alpha))).astype(np.uint64)


def run_round(scheme, updates, weights, round_number=1, drop=()):
    keys = scheme.keygen(max(updates) + 1)
    aggregator = scheme.aggregator(keys.server(), round=round_number)
    plan = scheme.round_plan(keys.server(), list(updates))
    for client, update in updates.items():
        frame = scheme.encryptor(keys.client(client)).encrypt(
            update, round=round_number, weight=weights[client], round_plan=plan
        )
        if client not in drop:
            aggregator.add(frame)
    return scheme.decryptor(keys.client(0)), aggregator.finish()


@pytest.mark.parametrize("name", fedcipher.scheme_names())
def test_what_one_scheme_needs_is_an_object_or_nothing(name):
    try:
        scheme = fedcipher.scheme(name, clients=5, codec=Codec(bits=12, clip=1.0))
    except errors.DependencyError as error:
        pytest.skip(str(error))
    assert (scheme.committee is not None) == scheme.info.committee
    assert (scheme.workers is not None) == scheme.info.workers
    # A key of transciphering takes seconds.
    if not scheme.info.workers:
        aggregator = scheme.aggregator(scheme.keygen(5).server())
        assert (aggregator.committee is not None) == scheme.info.committee and aggregator.parted is None


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_decrypted_mean_is_the_quantised_mean(name, params, data):
    shapes = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4))
    ids = data.draw(st.sets(st.integers(0, 15), min_size=1, max_size=6))
    weights = {j: data.draw(st.integers(1, 5)) for j in ids}
    drop = data.draw(st.sets(st.sampled_from(sorted(ids)), max_size=len(ids) - 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    updates = {j: [rng.normal(0, 0.5, s).astype(np.float32) for s in shapes] for j in ids}
    scheme = fedcipher.scheme(
        name, clients=6, max_weight=5, min_contributions=1, codec=Codec(bits=11, clip=1.25), **params
    )
    decryptor, aggregate = run_round(scheme, updates, weights, drop=drop)

    kept = [j for j in ids if j not in drop]
    want = sum(weights[j] * reference_integers(updates[j], 11, 1.25, scheme) for j in kept)
    assert np.array_equal(decryptor.sums(aggregate), want)

    opened = decryptor.open(aggregate)
    total = sum(weights[j] for j in kept)
    assert [(c.client, c.weight) for c in opened.contributions] == [(j, weights[j]) for j in sorted(kept)]
    levels = reference_levels(11, scheme)
    step = 2 * 1.25 / levels
    mean = ((np.asarray(want, np.float64) - total * levels / 2) * step / total).astype(np.float32)
    flat = np.concatenate([x.ravel() for x in opened.arrays])
    assert [x.shape for x in opened.arrays] == [tuple(s) for s in shapes]
    np.testing.assert_allclose(flat, mean, atol=1e-6)
    true = sum(weights[j] * np.concatenate([np.clip(x, -1.25, 1.25).ravel() for x in updates[j]]) for j in kept)
    np.testing.assert_allclose(flat, true / total, atol=step / 2 + 1e-5)


def test_bits_per_layer(rng):
    codec = Codec(bits=[8, 16, 8], clip=[1.0, 2.0, 0.5])
    update = [rng.normal(size=s).astype(np.float32) for s in ((30, 3), (1000,), ())]
    for name in (param.id for param in schemes_that(one_key, adds)):
        scheme = fedcipher.scheme(name, clients=2, min_contributions=1, codec=codec)
        decryptor, aggregate = run_round(scheme, {0: update, 1: update}, {0: 1, 1: 1})
        for got, x, clip, bits in zip(decryptor.decrypt(aggregate), update, codec.clip, codec.bits, strict=True):
            np.testing.assert_allclose(got, np.clip(x, -clip, clip), atol=clip / (2**bits - 2) * 1.01)


def test_dtypes_come_back(rng):
    update = [
        rng.normal(size=5).astype(np.float16),
        rng.normal(size=5),
        np.array([3, -2, 0], np.int64),
        np.array(True),
        np.array([200, 0], np.uint8),
    ]
    scheme = fedcipher.scheme("flashe", clients=1, min_contributions=1, codec=Codec(bits=24, clip=256.0))
    decryptor, aggregate = run_round(scheme, {0: update}, {0: 1})
    for got, x in zip(decryptor.decrypt(aggregate), update, strict=True):
        assert got.dtype == x.dtype and got.shape == x.shape
        np.testing.assert_allclose(got.astype(float), x.astype(float), atol=1e-3)
    with pytest.raises(errors.LayoutError, match="complex128"):
        scheme.codec.layout([np.zeros(2, complex)])


@pytest.mark.parametrize(
    ("name", "clients", "least_levels", "most_bits"),
    [("flashe", 100, 10, 10.3), ("bfv", 100, 10, 11.0), ("flashe", 10, 6, 6.3), ("bfv", 10, 6, 6.8)],
)
def test_a_whole_frame_has_few_bits_a_value(rng, name, clients, least_levels, most_bits):
    """Three bits, 1.2 M values: what a client uploads, its header and signature included."""
    scheme = fedcipher.scheme(name, clients=clients, codec=Codec(bits=3, clip=1.0))
    update = [rng.uniform(-1, 1, 1_200_000).astype(np.float32)]
    frame = scheme.encryptor(scheme.keygen(clients).client(0)).encrypt(update, round=1)
    assert scheme.levels.of(3) >= least_levels
    assert 8 * len(frame) / update[0].size <= most_bits


@pytest.mark.parametrize("masking", ["single", "double", "adaptive"])
@pytest.mark.parametrize("bits", [3, 4])
def test_flashe_has_lanes_of_any_width_and_arrays_of_any_length(rng, masking, bits):
    """From 3 bits a lane on: a lane may end within a byte, and the last byte may have room for more."""
    for clients in range(1, 10):
        scheme = fedcipher.scheme(
            "flashe", clients=clients, min_contributions=1, masking=masking, codec=Codec(bits=bits, clip=1.0)
        )
        for size in (1, 2, 3, 5, 8, 1021):
            updates = {k: [rng.uniform(-1, 1, size).astype(np.float32)] for k in range(clients)}
            decryptor, aggregate = run_round(scheme, updates, dict.fromkeys(updates, 1), round_number=size)
            want = sum(reference_integers(update, bits, 1.0, scheme) for update in updates.values())
            assert np.array_equal(decryptor.sums(aggregate), want), (clients, size)


def test_flashe_ciphertext_is_the_papers_formula_by_pycryptodome(rng):
    """An independent AES: two CTR key streams, added and subtracted lane by lane."""
    from Crypto.Cipher import AES

    scheme = fedcipher.scheme("flashe", clients=16, min_contributions=1, codec=Codec(bits=12, clip=1.0))  # w = 16
    key = scheme.keygen(16).client(5)
    update = [rng.uniform(-1, 1, 10_000).astype(np.float32)]
    frame = scheme.encryptor(key).encrypt(update, round=9)
    secret = key.to_bytes()[-8 - 48 : -8 - 32]

    def stream(client):
        nonce = (9).to_bytes(8, "big") + client.to_bytes(4, "big")
        return np.frombuffer(AES.new(secret, AES.MODE_CTR, nonce=nonce, initial_value=0).encrypt(bytes(20_000)), "<u2")

    ints = reference_integers(update, 12, 1.0, scheme).astype(np.uint16)
    want = ints + stream(5) - stream(6)
    # Behind the lanes: 16 bytes of tag, 64 of signature, 8 of checksum.
    assert frame[-88 - 20_000 : -88] == want.astype("<u2").tobytes()


def test_sparse_flashe_of_each_clients_choice_sends_less_and_loses_nothing(rng):
    codec = Codec(bits=12, clip=1.0, target="delta")
    scheme = fedcipher.scheme("flashe", clients=3, min_contributions=1, per_client_top=0.05, codec=codec)
    dense = fedcipher.scheme("flashe", clients=3, min_contributions=1, codec=codec)
    keys = scheme.keygen(3)
    updates = [[rng.normal(0, 0.02, 2000).astype(np.float32)] for _ in range(3)]
    encryptors = [scheme.encryptor(keys.client(j)) for j in range(3)]
    total = np.zeros(2000)
    rounds = 60
    for round_number in range(1, rounds + 1):
        aggregator = scheme.aggregator(keys.server(), round=round_number)
        for encryptor, update in zip(encryptors, updates, strict=True):
            frame = encryptor.encrypt(update, round=round_number)
            aggregator.add(frame)
        opened = scheme.decryptor(keys.client(1)).open(aggregator.finish())
        assert opened.counts is not None and opened.counts.sum() == 3 * 100
        # A mean is over those who sent a coordinate: all of what was sent is that many times it.
        total += opened.arrays[0] * opened.counts / 3
    whole = dense.encryptor(dense.keygen(3).client(0)).encrypt(updates[0], round=1)
    # A tag a coordinate costs more than its value.
    assert len(frame) < 0.4 * len(whole)
    mean = np.mean([u[0] for u in updates], axis=0)
    # What was not sent waits in the residuals, whose size does not grow with the rounds.
    np.testing.assert_allclose(total / rounds, mean, atol=0.03)


def test_nonce_reuse_is_refused_across_encryptors():
    scheme = fedcipher.scheme("flashe", clients=2, min_contributions=1, codec=Codec(clip=1.0))
    key = scheme.keygen(2).client(0)
    update = [np.zeros(3, np.float32)]
    scheme.encryptor(key).encrypt(update, round=3)
    with pytest.raises(errors.NonceReuseError, match="rotate the key"):
        scheme.encryptor(key).encrypt(update, round=3)


def test_nan_names_its_place():
    scheme = fedcipher.scheme("bfv", clients=2, min_contributions=1, codec=Codec(bits=8, clip=1.0))
    encryptor = scheme.encryptor(scheme.keygen(2).client(0))
    for number, bad in enumerate((np.nan, np.inf), 1):
        with pytest.raises(errors.NotFiniteError, match=r"tensor 1 .* index 2"):
            encryptor.encrypt([np.zeros(2, np.float32), np.array([0, 0, bad], np.float32)], round=number)
    with pytest.raises(errors.NotFiniteError):
        encryptor.encrypt([np.array([np.inf])], round=3)
    # Finite in float64, beyond float32: clipped, not refused.
    encryptor.encrypt([np.array([1e300, -1e300])], round=4)
    assert encryptor.stats.clipped == 2


def test_bound_error_says_what_fits():
    with pytest.raises(errors.BoundError, match="bits=") as caught:
        fedcipher.scheme("bfv", clients=10, max_weight=2**32, preset="fast", codec=Codec(bits=20, clip=1.0))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", schemes_that())
def test_no_scheme_is_made_whose_values_never_fit(name):
    """Or its keys would be made, handed out, and refuse every update."""
    # PASTA's noise refuses large totals by itself.
    clients, max_weight, bits = (5, 1, 16) if name == "pasta-bfv" else (2**20, 2**32, 24)
    with pytest.raises(errors.BoundError, match="the modulus has"):
        fedcipher.scheme(name, clients=clients, max_weight=max_weight, codec=Codec(bits=bits))


def test_unknown_names():
    with pytest.raises(errors.ParameterError, match="plain, flashe, bfv, oneshot, pasta-bfv"):
        fedcipher.scheme("rot13", clients=2)
    with pytest.raises(errors.ParameterError, match="bogus"):
        fedcipher.scheme("plain", clients=2, bogus=1)
    with pytest.raises(errors.ParameterError, match="preset"):
        fedcipher.scheme("bfv", clients=2, preset="huge")


def test_secrets_stay_out_of_reprs():
    for name in (param.id for param in schemes_that(hides, one_key, adds)):
        keys = fedcipher.scheme(name, clients=2).keygen(2)
        for text in (repr(keys), repr(keys.client(0)), str(keys.client(0))):
            assert len(text) < 120
            assert "client" in text or "ServerKey" in text
        with pytest.raises(errors.UnknownClientError):
            keys.client(9)


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds))
def test_wire_bytes_are_not_plaintext(name):
    codec = Codec(bits=12, clip=1.0)
    scheme, plain = (fedcipher.scheme(n, clients=2, min_contributions=1, codec=codec) for n in (name, "plain"))
    update = [np.zeros(5000, np.float32)]
    secret = scheme.encryptor(scheme.keygen(2).client(0)).encrypt(update, round=1)
    clear = plain.encryptor(plain.keygen(2).client(0)).encrypt(update, round=1)
    marker = clear[-500:-100]
    assert marker not in secret
    counts = np.bincount(np.frombuffer(secret[-6000:-8], np.uint8), minlength=256)
    assert counts.max() < 60, "bytes of a constant update are spread as random ones are"


def test_garbage_frames(rng):
    for name, params in (param.values for param in VARIANTS):
        scheme = fedcipher.scheme(name, clients=2, min_contributions=1, codec=Codec(bits=8, clip=1.0), **params)
        keys = scheme.keygen(2)
        good = scheme.encryptor(keys.client(0)).encrypt([np.ones(7, np.float32)], round=1)
        aggregator = scheme.aggregator(keys.server())
        for bad in (b"", b"FEDC", good[:-3], good + b"x", rng.bytes(500), keys.server().to_bytes()):
            with pytest.raises(errors.FrameError):
                aggregator.add(bad)
        aggregator.add(good)
        with pytest.raises(errors.DuplicateClientError):
            aggregator.add(good)
        aggregate = aggregator.finish()
        with pytest.raises(errors.WrongRoundError):
            scheme.decryptor(keys.client(1)).decrypt(aggregate, round=2)
        with pytest.raises(errors.WrongEpochError):
            scheme.decryptor(scheme.keygen(2).client(1)).decrypt(aggregate)


@pytest.mark.parametrize("name", schemes_that(one_key, adds))
def test_a_sum_counts_in_one_memory(name):
    scheme = fedcipher.scheme(name, clients=2, min_contributions=1, codec=Codec(bits=8, clip=1.0))
    keys, update = scheme.keygen(2), [np.ones(7, np.float32)]
    made = [
        scheme.encryptor(keys.client(0)).encrypt(update, round=1, memory=b"here"),
        scheme.encryptor(keys.client(1)).encrypt(update, round=1),
    ]
    tags = [inspect(frame).memory for frame in made]
    assert len(tags[0]) == 16
    assert any(tags[0])
    assert not any(tags[1])
    aggregator = scheme.aggregator(keys.server())
    aggregator.add(made[0])
    with pytest.raises(errors.ModelMismatchError, match="another memory"):
        aggregator.add(made[1])
    aggregate = aggregator.finish()
    assert inspect(aggregate).memory == tags[0]
    for other in (b"", b"there"):
        with pytest.raises(errors.ModelMismatchError, match="another memory"):
            scheme.decryptor(keys.client(1)).open(aggregate, memory=other)
    assert scheme.decryptor(keys.client(1)).sums(aggregate, memory=b"here").tolist() == [254] * 7


@pytest.mark.parametrize("name", schemes_that())
def test_a_share_of_the_clients_is_a_count_once_the_scheme_is_made(name):
    """Rounded up; a count stays a count, also of 1."""

    def least(clients, chosen):
        made = fedcipher.scheme(name, clients=clients, min_contributions=chosen, codec=Codec(bits=8))
        found = made.params()["min_contributions"]
        assert type(found) is int and found == made.min_contributions
        assert fedcipher.schemes.from_spec(made.spec()).min_contributions == found
        return found

    assert [least(10, share) for share in (0.3, 0.31, 0.99, 0.5)] == [3, 4, 10, 5]
    # As floats 0.14 times 50 is above 7.
    assert 0.14 * 50 > 7 and least(50, 0.14) == 7 and least(10, 7) == 7
    for share in (0.0, 1.0, -0.5, 1.5, float("nan"), float("inf")):
        with pytest.raises(errors.ParameterError, match="count from 1 on nor a share of the clients between 0 and 1"):
            least(10, share)
    with pytest.raises(errors.ParameterError, match=r"0.05 of 20 clients is 1 client.*the count 1 if that is meant"):
        least(20, 0.05)


def test_the_usual_least_of_oneshot_grows_with_the_clients_and_with_those_that_may_lie():
    def least(clients, **params):
        return fedcipher.scheme(
            "oneshot", clients=clients, preset="fast", codec=Codec(bits=6), **params
        ).min_contributions

    assert [least(clients) for clients in (3, 4, 30, 31, 100, 101, 200)] == [3, 3, 3, 4, 10, 11, 20]
    assert [least(100, corrupt_clients=many) for many in (0, 8, 9, 20)] == [10, 10, 11, 22]
    assert least(2, corrupt_clients=0) == 2 and least(100, min_contributions=3) == 3
    with pytest.raises(errors.ParameterError, match=r"2 with corrupt_clients=1.*take 3 with clients=3"):
        least(2)
    # Other schemes have a key that all clients share: a larger sum hides nobody better from it.
    assert fedcipher.scheme("bfv", clients=100).min_contributions == 3


@pytest.mark.parametrize("code", [13, 200, 255])
def test_an_element_type_that_nobody_knows_is_a_refusal(code):
    """A cohort's clients may all send it; it is opaque to the core."""
    scheme = fedcipher.scheme("plain", clients=2, min_contributions=1, codec=Codec(bits=11, clip=1.25))
    issued = scheme.keygen(2)
    encryptor, aggregator = scheme.encryptor(issued.client(0)), scheme.aggregator(issued.server())
    layout = fedcipher._native.Layout([(code, 11, 1.25, [3])])
    frame, *_ = encryptor._native.encrypt(layout, [np.ones(3, np.float32)], 1, 1, b"", b"", b"", b"", False)
    aggregator.add(frame)
    with pytest.raises(errors.LayoutError, match=f"element type {code}"):
        scheme.decryptor(issued.client(1)).decrypt(aggregator.finish())
