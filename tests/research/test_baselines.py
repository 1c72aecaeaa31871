"""The schemes to compare with (Paillier, SEAL's BFV and CKKS, TFHE), through the common interface."""

import contextlib
import errno
import gc
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
from collections import Counter

import fedcipher
import numpy as np
import pytest
from baseline_lists import baseline_variants, baselines, needs
from fedcipher import Codec, _native, cli, errors, keys
from fedcipher.frame import inspect
from fedcipher_research.baselines import seal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_schemes import reference_integers

ONE_EACH = baselines()
# A key's rounds only go up, also over the examples of a property.
_rounds = itertools.count(1)


@pytest.fixture(scope="module", params=baseline_variants())
def made(request):
    scheme = request.param.make(clients=6, max_weight=5, min_contributions=1, codec=Codec(bits=11, clip=1.25))
    return scheme, scheme.keygen(16)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_sums_are_exact(made, data):
    scheme, issued = made
    shapes = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=3))
    ids = data.draw(st.sets(st.integers(0, 15), min_size=1, max_size=5))
    weights = {j: data.draw(st.integers(1, 5)) for j in ids}
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    updates = {j: [rng.normal(0, 0.8, s).astype(np.float32) for s in shapes] for j in ids}
    number = next(_rounds)
    aggregator = scheme.aggregator(issued.server(), round=number)
    for j, update in updates.items():
        aggregator.add(scheme.encryptor(issued.client(j)).encrypt(update, round=number, weight=weights[j]))
    decryptor = scheme.decryptor(issued.client(0))
    aggregate = aggregator.finish()
    want = sum(weights[j] * reference_integers(updates[j], 11, 1.25, scheme) for j in ids)
    assert np.array_equal(decryptor.sums(aggregate), want)
    opened = decryptor.open(aggregate, round=number)
    total = sum(weights.values())
    assert [(c.client, c.weight) for c in opened.contributions] == sorted(weights.items())
    step = 2 * 1.25 / (2**11 - 2)
    for k, mean in enumerate(opened.arrays):
        true = sum(weights[j] * np.clip(updates[j][k], -1.25, 1.25) for j in ids) / total
        np.testing.assert_allclose(mean, true, atol=step / 2 + 1e-5)


def test_every_value_at_the_bound(made):
    """All clients, the largest weight and value: no field may run over into the next."""
    scheme, issued = made
    slow = scheme.name == "tfhe" or scheme.params().get("packing") == "none"
    count = 40 if slow else 500
    update = [np.where(np.arange(count) % 3 == 0, -9.0, 9.0).astype(np.float32)]
    aggregator = scheme.aggregator(issued.server())
    for j in range(6):
        aggregator.add(scheme.encryptor(issued.client(j)).encrypt(update, round=1, weight=5))
    sums = scheme.decryptor(issued.client(1)).sums(aggregator.finish())
    assert np.array_equal(sums, 30 * reference_integers(update, 11, 1.25, scheme))


def test_bad_frames_leave_the_sum_as_it_was(made):
    scheme, issued = made
    rng = np.random.default_rng(1)
    update = [rng.normal(0, 0.5, 5).astype(np.float32)]
    good = scheme.encryptor(issued.client(0)).encrypt(update, round=1)
    aggregator = scheme.aggregator(issued.server(), round=1)
    aggregator.add(good)
    with pytest.raises(errors.DuplicateClientError):
        aggregator.add(good)
    with pytest.raises(errors.WrongRoundError):
        aggregator.add(scheme.encryptor(issued.client(1)).encrypt(update, round=2))
    with pytest.raises(errors.LayoutError):
        aggregator.add(scheme.encryptor(issued.client(3)).encrypt([*update, *update], round=1))
    with pytest.raises(errors.WeightError):
        scheme.encryptor(issued.client(1)).encrypt(update, round=3, weight=6)
    with pytest.raises(errors.FrameError):
        aggregator.add(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    with pytest.raises(errors.NonceReuseError):
        scheme.encryptor(issued.client(0)).encrypt(update, round=1)
    foreign = scheme.keygen(16)
    with pytest.raises(errors.WrongEpochError):
        aggregator.add(scheme.encryptor(foreign.client(1)).encrypt(update, round=1))
    with pytest.raises(errors.EmptyCohortError):
        scheme.aggregator(issued.server()).finish()
    sums = scheme.decryptor(issued.client(2)).sums(aggregator.finish())
    assert np.array_equal(sums, reference_integers(update, 11, 1.25, scheme))
    late = scheme.encryptor(issued.client(4)).encrypt(update, round=1)
    with pytest.raises(errors.WrongRoundError, match="handed out"):
        aggregator.add(late)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_payload_brings_a_process_down(made, data):
    """Payloads reach the library behind a valid checksum: a client can make any."""
    scheme, issued = made
    library, arithmetic = scheme._library, scheme._arithmetic
    good = arithmetic.sealer(library.secret(issued.client(0)))(np.arange(5, dtype=np.uint64))
    kind = data.draw(st.sampled_from(["random", "cut", "flipped"]))
    if kind == "random":
        payload = data.draw(st.binary(max_size=3000))
    elif kind == "cut":
        payload = good[: int(data.draw(st.floats(0, 0.999)) * len(good))]
    else:
        payload = bytearray(good)
        for share in data.draw(st.lists(st.floats(0, 0.999), min_size=1, max_size=5)):
            payload[int(share**4 * len(good))] ^= 0x55
        payload = bytes(payload)
    adder = arithmetic.adder(library.public(issued.server()))
    try:
        adder.add(payload, 5)
        adder.add(good, 5)
        arithmetic.opener(library.secret(issued.client(0)))(adder.finish(), 5)
    except (errors.FrameError, errors.DecryptError):
        pass
    else:
        # Flipped bits inside a ciphertext make another ciphertext: what it decrypts to is checked by the caller.
        assert kind == "flipped"


@pytest.mark.parametrize("degree", [0, 1024, 5000, 65536, -4096])
def test_a_degree_that_seal_has_not_is_refused(degree):
    with pytest.raises(errors.ParameterError, match=f"degree {degree} "):
        fedcipher.scheme("bfv-lib", clients=3, degree=degree)


def test_keys_of_one_degree_are_none_of_another():
    small, large = (fedcipher.scheme("bfv-lib", clients=3, **params) for params in ({}, {"degree": 16384}))
    with pytest.raises(errors.WrongParametersError):
        large.encryptor(small.keygen(3).client(0))


SEAL = baselines(needs("tenseal"))


def three(name):
    """A scheme, its keys and the frames of three clients."""
    scheme = fedcipher.scheme(name, clients=4, min_contributions=1, codec=Codec(bits=11, clip=1.25))
    issued = scheme.keygen(4)
    updates = [[np.full(5, j / 4, np.float32)] for j in range(3)]
    frames = [scheme.encryptor(issued.client(j)).encrypt(updates[j], round=1) for j in range(3)]
    return scheme, issued, frames, sum(reference_integers(update, 11, 1.25, scheme) for update in updates)


@pytest.mark.parametrize("name", SEAL)
def test_a_library_that_crashes_ends_only_its_own_process(name, monkeypatch):
    """Some damaged ciphertexts crash SEAL, here every one that says so. This process goes on, and no sum is lost."""
    scheme, issued, frames, want = three(name)
    sandbox = scheme._arithmetic
    aggregator, other = scheme.aggregator(issued.server()), scheme.aggregator(issued.server())
    aggregator.add(frames[0])
    other.add(frames[1])
    assert sandbox.pid not in (None, os.getpid()) and sandbox.started == 1
    exchange, fatal = sandbox._exchange, b"damaged"

    def dies(what, number, payload, elements):
        if payload == fatal:
            os.kill(sandbox.pid, signal.SIGSEGV)
        return exchange(what, number, payload, elements)

    monkeypatch.setattr(sandbox, "_exchange", dies)
    adder = sandbox.adder(scheme._library.public(issued.server()))
    with pytest.raises(errors.FrameError, match=r"crashes on this ciphertext \(SIGSEGV\); it is refused"):
        adder.add(fatal, 5)
    # Both sums go on in the process that came after it, with what was in them.
    for frame in frames[1:]:
        aggregator.add(frame)
    os.kill(sandbox.pid, signal.SIGKILL)
    other.add(frames[2])
    sums = scheme.decryptor(issued.client(0)).sums(aggregator.finish())
    assert np.array_equal(sums, want) and sandbox.started >= 3
    assert len(other.finish()) > 0


class Full:
    """A file whose disk is full once, after part of what is written."""

    def __init__(self, file):
        self._file, self._left = file, 1

    def write(self, payload):
        if self._left:
            self._left = 0
            self._file.write(payload[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(payload)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("name", SEAL)
def test_an_update_that_cannot_be_kept_is_in_no_sum(name):
    scheme, issued, frames, want = three(name)
    aggregator = scheme.aggregator(issued.server())
    aggregator.add(frames[0])
    aggregator._adder._kept = Full(aggregator._adder._kept)
    with pytest.raises(errors.RunError, match=r"cannot be stored: .*no space left"):
        aggregator.add(frames[1])
    for frame in frames[1:]:
        aggregator.add(frame)
    # What is added up again is what was.
    os.kill(scheme._arithmetic.pid, signal.SIGKILL)
    assert np.array_equal(scheme.decryptor(issued.client(0)).sums(aggregator.finish()), want)


def test_a_librarys_process_goes_with_its_scheme():
    scheme, issued, *_ = three("bfv-lib")
    aggregator = scheme.aggregator(issued.server())
    process = scheme._arithmetic.pid
    assert os.path.exists(f"/proc/{process}")
    del scheme, aggregator
    gc.collect()
    assert not os.path.exists(f"/proc/{process}")


def test_a_library_that_does_not_answer_is_given_up(monkeypatch):
    scheme, issued, frames, _ = three("bfv-lib")
    aggregator = scheme.aggregator(issued.server())
    aggregator.add(frames[0])
    process = scheme._arithmetic.pid
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr("fedcipher_research.baselines.sandbox._TIMEOUT", 1.0)
    # A second process cannot start, because the test is about the first one, which is silent.
    monkeypatch.setattr("fedcipher_research.baselines.sandbox._PROGRAM", "")
    with pytest.raises(errors.FedcipherError):
        aggregator.add(frames[1])
    assert not os.path.exists(f"/proc/{process}")


def test_the_first_ciphertext_of_a_sum_decides_nothing_for_the_others():
    """SEAL takes ciphertexts of any degree, level and scale; whoever is first must not keep the others out."""
    import tenseal

    for name in (param.id for param in SEAL):
        scheme, issued, frames, want = three(name)
        inner, public = scheme._arithmetic._inner, scheme._library.public(issued.server())
        context = tenseal.context_from(scheme._library.secret(issued.client(0)))
        context.auto_relin = context.auto_rescale = context.auto_mod_switch = False
        vector = inner.vector(context, np.arange(5, dtype=np.uint64))
        # Of three polynomials, in CKKS of another scale too.
        odd = (vector * vector).serialize()
        adder = scheme._arithmetic.adder(public)
        with pytest.raises(errors.FrameError, match="has another form"):
            adder.add(len(odd).to_bytes(4, "little") + odd, 5)
        aggregator = scheme.aggregator(issued.server())
        for frame in frames:
            aggregator.add(frame)
        assert np.array_equal(scheme.decryptor(issued.client(0)).sums(aggregator.finish()), want)


@pytest.mark.long
@pytest.mark.parametrize("name", ONE_EACH)
def test_twenty_thousand_damaged_payloads(name):
    """None of them ends this process, is waited for, or leaves another error than a refusal."""
    scheme, issued, *_ = three(name)
    library, arithmetic = scheme._library, scheme._arithmetic
    good = arithmetic.sealer(library.secret(issued.client(0)))(np.arange(5, dtype=np.uint64))
    open_ = arithmetic.opener(library.secret(issued.client(0)))
    public, draw, outcomes = library.public(issued.server()), random.Random(7), Counter()
    for k in range(20_000):
        payload = bytearray(good)
        # Most of what a parser decides by is at the beginning.
        for _ in range(draw.randrange(1, 6)):
            at = int(draw.random() ** draw.choice((1, 4, 12)) * len(payload))
            payload[at] = draw.choice((payload[at] ^ 1 << draw.randrange(8), draw.randrange(256), 0, 255))
        if k % 7 == 0:
            payload = payload[: draw.randrange(len(payload))]
        try:
            adder = arithmetic.adder(public)
            adder.add(bytes(payload), 5)
            adder.add(good, 5)
            open_(adder.finish(), 5)
            outcomes["another ciphertext"] += 1
        except (errors.FrameError, errors.DecryptError) as error:
            outcomes["the library died" if "survive" in str(error) else type(error).__name__] += 1
    print(scheme.name, dict(outcomes))
    assert sum(outcomes.values()) == 20_000 and outcomes["FrameError"] > 1000


@pytest.mark.parametrize("name", ONE_EACH)
def test_key_files_and_headers(name, tmp_path):
    scheme = fedcipher.scheme(name, clients=3, min_contributions=1, codec=Codec(bits=8, clip=1.0))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    loaded, client = keys.load_client(folder / "client-1.key")
    assert loaded.spec() == scheme.spec() and "secret" not in repr(client)
    frame = loaded.encryptor(client).encrypt([np.ones(3, np.float32)], round=9)
    assert inspect(frame).scheme == name
    again, server = keys.load_server(folder)
    aggregator = again.aggregator(server)
    aggregator.add(frame)
    np.testing.assert_allclose(loaded.decryptor(client).decrypt(aggregator.finish())[0], 1.0, atol=1e-6)
    with pytest.raises(errors.ParameterError, match="no kernel"):
        _native.Scheme(json.dumps(scheme.spec()))


@pytest.mark.parametrize(
    ("name", "package", "fix"),
    [
        ("paillier", "phe", "in a checkout of Fedcipher: pip install -e research"),
        ("ckks", "tenseal", "in a checkout of Fedcipher: pip install -e research"),
        # In no index: nobody is told to ask one for it.
        ("tfhe", "fedcipher_tfhe", "in a checkout of Fedcipher: make tfhe"),
    ],
)
def test_what_is_missing_is_named(name, package, fix, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(errors.DependencyError, match=re.escape(fix)):
        fedcipher.scheme(name, clients=2)
    assert cli.main(["schemes"]) == 0
    listed = capsys.readouterr().out
    assert f"not installed: {fix}" in listed.partition(f"\n{name}\n")[2]


@pytest.mark.parametrize("decrypted", [1e300, 2.0**63, 2.0**53, -1.0, 0.4, float("nan"), float("inf")])
def test_what_ckks_cannot_have_summed_is_refused(decrypted):
    arithmetic = seal._Ckks()
    with pytest.raises(errors.DecryptError):
        arithmetic.numbers([3.0, decrypted])
    assert arithmetic.numbers([3.1, 2.0**52]).tolist() == [3, 2**52]


def test_paillier_against_the_textbook():
    """python-paillier's ciphertexts against the definition: c = (1 + n)^m r^n mod n^2."""
    scheme = fedcipher.scheme("paillier", clients=2, codec=Codec(bits=8, clip=1.0), packing="none")
    secret, public = scheme._arithmetic.keygen()
    n = int(json.loads(public)["n"], 16)
    p, q = (int(json.loads(secret)[k], 16) for k in "pq")
    payload = scheme._arithmetic.sealer(secret)(np.array([7, 200], np.uint64))
    lam = (p - 1) * (q - 1)
    for k, m in enumerate((7, 200)):
        c = int.from_bytes(payload[k * 512 : (k + 1) * 512], "little")
        assert (pow(c, lam, n * n) - 1) // n * pow(lam, -1, n) % n == m


def test_a_server_of_many_descriptors_adds_too():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"a process may have {hard} descriptors here")
    scheme = fedcipher.scheme("bfv-lib", clients=3, codec=Codec(bits=8, clip=1.0))
    issued, update = scheme.keygen(3), [np.full(5, 0.5, np.float32)]
    frames = [scheme.encryptor(issued.client(k)).encrypt(update, round=1) for k in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while stack.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        aggregator = scheme.aggregator(issued.server())
        for frame in frames:
            aggregator.add(frame)
        means = scheme.decryptor(issued.client(0)).decrypt(aggregator.finish())
    np.testing.assert_allclose(means[0], update[0], atol=0.01)
