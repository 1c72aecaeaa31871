"""A training host that is not honest, against its real engine: keys, single uploads and false sums stay closed."""

import re
import time

import fedcipher
import numpy as np
import pytest
import wire_tools
from engine_harness import deployment, error_class, field, raw_call, socket_channel, until, updates
from fedcipher import errors
from fedcipher.codec import Codec
from scheme_lists import adds, hides, in_core, one_key, schemes_that

CLIENTS = 4
KEYGEN = 180
"""Seconds that the keys of pasta-bfv take on a machine with other work."""


@pytest.fixture
def federation(tmp_path):
    """Four engine clients, their frames of rounds 1 and 2, and the aggregate of round 1."""

    def start(name, **params):
        made = fedcipher.scheme(name, clients=CLIENTS, codec=Codec(bits=12, clip=1.0), **params)
        return deployment(made, CLIENTS, tmp_path)

    return start


def round_of(run, number, size=3000):
    inputs = updates(CLIENTS, size)
    frames = [run.connect(k).encryptor().encrypt(inputs[k], round=number, model=b"m") for k in range(CLIENTS)]
    return inputs, frames


def aggregate(run, frames):
    aggregator = run.connect(0).scheme.aggregator(run.keys().current())
    for frame in frames:
        aggregator.add(frame)
    return aggregator.finish()


def fields(message):
    """A protobuf message's fields: (number, bytes or int)."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            size = varint()
            out.append((key >> 3, message[at : at + size]))
            at += size
        else:
            out.append((key >> 3, varint()))
    return out


def decrypt_by_hand(target, frame, device="client-0"):
    """What an engine sends to a host that reads the wire: (values before the end, key, class of the error)."""
    chunks = [frame[k : k + 100_000] for k in range(0, len(frame), 100_000)]
    values, key = b"", None
    with socket_channel(target) as channel:
        requests = [field(1, field(1, device)), *(field(2, chunk) for chunk in chunks)]
        call = raw_call(channel, "Engine", "Decrypt")(iter(requests), timeout=60)
        try:
            for message in call:
                for number, content in fields(message):
                    values += content if number == 2 else b""
                    if number == 3:
                        key = dict(fields(content))[2]
        except Exception:
            return values, key, error_class(call)
    return values, key, None


def test_attack_02_a_host_gets_no_key_out_of_its_engine(federation):
    """c0 = c1 = delta in the form Send came back as the cohort's ternary secret."""
    with federation("bfv") as run:
        _, frames = round_of(run, 1)
        honest = aggregate(run, frames)
        engine = run.connect(1)
        described = engine.scheme.describe()
        log_q, n, down = (int(described[name]) for name in ("log q", "N", "wire bits down"))
        count, width = map(int, re.match(r"(\d+) x (\d+)", described["fields of 12 bits"]).groups())
        delta = 1 << (log_q - 1 - count * width)
        used = -(-sum(x.size for x in updates(1)[0]) // count)

        def packed(values, bits=log_q):
            total = sum(v << (k * bits) for k, v in enumerate(values))
            return total.to_bytes(-(-len(values) * bits // 8), "little")

        start = wire_tools.payload_start(honest)
        # As it was: a form, c0 and c1; and in the one form there is now, of seeds.
        old = bytes([1]) + packed([delta] * used) + packed([delta] + [0] * (n - 1)) + bytes(16)
        seeds = honest[start : start + 32 * CLIENTS] + packed([delta] * used, down) + bytes(16)
        for payload, refusal in ((old, errors.FrameError), (seeds, errors.ForgedAggregateError)):
            head = bytearray(honest[:start])
            head[wire_tools.PAYLOAD : wire_tools.PAYLOAD + 8] = len(payload).to_bytes(8, "little")
            with pytest.raises(refusal):
                engine.decryptor().open(wire_tools.sealed(bytes(head) + payload))
        # Another engine's client still opens what is honest.
        assert [c.client for c in run.connect(2).decryptor().open(honest).contributions] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", schemes_that(hides, one_key, in_core))
def test_attack_04_a_host_opens_no_single_upload(federation, name):
    with federation(name) as run:
        _, frames = round_of(run, 1, 200)
        honest = aggregate(run, frames)
        engine = run.connect(3)
        upload = wire_tools.with_kind(frames[2], wire_tools.AGGREGATE)
        with pytest.raises(errors.TooFewContributionsError):
            engine.decryptor().open(upload)
        # The upload's body under the aggregate's head, in the length that an aggregate has.
        start, body = wire_tools.payload_start(honest), wire_tools.body(frames[2])
        size = len(honest) - 8 - start
        grafted = wire_tools.with_payload(honest, body[-size:].rjust(size, honest[start : start + 1]))
        with pytest.raises((errors.ForgedAggregateError, errors.FrameError)):
            engine.decryptor().open(grafted)


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds, in_core))
def test_an_engine_shows_nothing_of_an_aggregate_before_its_tag_has_been_checked(federation, name):
    with federation(name) as run:
        inputs, frames = round_of(run, 1)
        honest = aggregate(run, frames)
        mean = np.mean([np.concatenate([x.ravel() for x in u]) for u in inputs], axis=0)
        target = run.local.target
        values, key, refused = decrypt_by_hand(target, honest)
        # Every value has left, and without the key at the end they are noise.
        assert refused is None and len(key) == 32 and len(values) == 4 * mean.size
        seen = np.frombuffer(values, np.float32)
        with np.errstate(all="ignore"):
            assert not np.mean(np.abs(seen - mean) < 0.01) > 0.05
        # A forgery: one bit, the checksum made right. It differs in nothing but the last word.
        start = wire_tools.payload_start(honest)
        forged = wire_tools.with_flip(wire_tools.with_round(honest, 5), start + 200, 1)
        values, key, refused = decrypt_by_hand(target, forged, "client-1")
        assert (len(values), key, refused) == (4 * mean.size, None, "ForgedAggregateError")


def test_a_round_is_opened_once_by_an_engine(federation, tmp_path):
    with federation("flashe") as run:
        _, frames = round_of(run, 1)
        all_of_it, fewer = aggregate(run, frames), aggregate(run, frames[:3])
        engine = run.connect(2)
        mean = engine.decryptor().decrypt(all_of_it)
        with pytest.raises(errors.ReplayError):
            engine.decryptor().open(fewer)
        again = engine.decryptor().decrypt(all_of_it)
        assert all(np.array_equal(a, b) for a, b in zip(mean, again, strict=True))
        # A try that fails has spent its round too: no oracle by many tries.
        for k, expected in enumerate((errors.ForgedAggregateError, errors.ReplayError)):
            start = wire_tools.payload_start(all_of_it)
            forged = wire_tools.with_flip(wire_tools.with_round(all_of_it, 2), start + 50 + k, 1)
            with pytest.raises(expected):
                engine.decryptor().open(forged)


# --- attack 19: a forgery closes keys, and nobody gave new ones --------------------------------


def forged(aggregate):
    """Another tag."""
    return wire_tools.with_flip(aggregate, len(aggregate) - 9, 1)


def closes(run, client, aggregate):
    """The engine of ``client`` opens nothing more."""
    decryptor = run.connect(client).decryptor()
    with pytest.raises(errors.ForgedAggregateError):
        decryptor.open(forged(aggregate))
    with pytest.raises(errors.KeyClosedError):
        decryptor.open(aggregate)


def test_attack_19_closed_keys_are_replaced_when_more_devices_say_so_than_may_lie(federation):
    """One wrong tag closed the key of every client for ever."""
    epochs = lambda run: run.authority("status").count("epoch ")  # noqa: E731
    noted = lambda run, epoch: run.authority("status", "--audit").count(f": closed epoch {epoch}\n")  # noqa: E731
    with federation("pasta-bfv", min_contributions=2) as run:
        inputs, frames = round_of(run, 1, 50)
        honest = aggregate(run, frames)
        closes(run, 0, honest)
        assert until(lambda: noted(run, 1) == 1), "its engine has told the authority"
        time.sleep(3)
        assert (epochs(run), noted(run, 1)) == (1, 1), "at one client's word nothing rotates"
        closes(run, 1, honest)
        assert until(lambda: epochs(run) == 2, KEYGEN), "at two there are new keys"
        audit = run.authority("status", "--audit")
        assert audit.index("client-1: closed epoch 1") < audit.index("rotate epoch 2")
        assert until(lambda: all(2 in run.connect(k).epochs for k in range(CLIENTS)), KEYGEN)
        keys = run.keys()
        inputs, frames = round_of(run, 2, 50)
        mean = run.connect(0).decryptor().decrypt(aggregate(run, frames))
        assert np.abs(mean[0] - np.mean([u[0].clip(-1, 1) for u in inputs], axis=0)).max() < 1e-2
        keys.finish_epoch(2)
        # Within the hour these stay closed, whoever says so.
        _, frames = round_of(run, 3, 50)
        for k in range(CLIENTS):
            closes(run, k, aggregate(run, frames))
        assert until(lambda: noted(run, 2) == CLIENTS)
        time.sleep(3)
        assert epochs(run) == 2
