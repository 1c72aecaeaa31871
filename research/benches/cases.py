"""The measured cases; each runs in its own process and prints one line of JSON."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedcipher
import numpy as np
from fedcipher import _native, schemes
from measure import Times, dumps, median_seconds, openssl_rate

LENET5 = [(5, 5, 1, 6), (6,), (5, 5, 6, 16), (16,), (400, 120), (120,), (120, 84), (84,), (84, 10), (10,)]
LINK_BYTES = 100e6 / 8


def gaussian(shapes: list[tuple[int, ...]], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]


def flashe_rate() -> dict[str, Any]:
    """Raw kernel, double masking, one thread: seconds of 2^20 values; AES-CTR here, of OpenSSL and of PyCryptodome."""
    from Crypto.Cipher import AES

    values = np.random.default_rng(0).integers(0, 65536, 1 << 20, dtype=np.uint32)
    # Seconds for a gigabyte.
    aes = Times([1e9 / _native.bench_aes(1024, False) for _ in range(5)])
    out: dict[str, Any] = {"aes": aes, "openssl": openssl_rate("aes-128-ctr"), "values": len(values)}
    for width in (20, 16):
        for tagged in (True, False):
            seconds = [_native.bench_flashe(values, width, 50, tagged) for _ in range(9)]
            out[f"w{width}{'_tagged' if tagged else ''}"] = Times(seconds)

    small = values.astype(np.uint16)
    key = bytes(range(16))

    count = np.arange(len(small), dtype=">u4").view(np.uint8).reshape(-1, 4)

    def peer() -> np.ndarray:
        # The paper's formula, F_k(i || j || d) for every d, vectorised: one ECB call over an array of blocks.
        def masks(client: int) -> np.ndarray:
            blocks = np.empty((len(small), 16), np.uint8)
            blocks[:, :12] = np.frombuffer((7).to_bytes(8, "big") + client.to_bytes(4, "big"), np.uint8)
            blocks[:, 12:] = count
            out = AES.new(key, AES.MODE_ECB).encrypt(blocks.tobytes())
            return np.frombuffer(out, np.uint16)[::8]

        return small + masks(3) - masks(4)

    def peer_ctr() -> np.ndarray:
        # With our eight masks a block: two CTR key streams, lane-wise mod 2^16.
        def stream(client: int) -> np.ndarray:
            nonce = (7).to_bytes(8, "big") + client.to_bytes(4, "big")
            cipher = AES.new(key, AES.MODE_CTR, nonce=nonce, initial_value=0)
            return np.frombuffer(cipher.encrypt(bytes(2 * len(small))), np.uint16)

        return small + stream(3) - stream(4)

    out["peer"] = median_seconds(peer, repeats=5)
    out["peer_ctr"] = median_seconds(peer_ctr, repeats=5)
    return out


def flashe_api() -> list[dict[str, float]]:
    """An update of ten clients' 16-bit values (w = 20) through the Python API: encryption, by number of values."""
    scheme = fedcipher.scheme("flashe", clients=10, codec=fedcipher.Codec(bits=16, clip=1.0))
    encryptor = scheme.encryptor(scheme.keygen(10).client(0))
    rounds = itertools.count(1)
    rows: list[dict[str, float]] = []
    for values in (10_000, 61_706, 1_200_000, 12_000_000, 100_000_000):
        update = np.random.default_rng(values).uniform(-1, 1, values).astype(np.float32)
        sizes: list[int] = []
        seconds = median_seconds(
            lambda u=update, s=sizes: s.append(len(encryptor.encrypt([u], round=next(rounds)))),
            repeats=7 if values > 10**7 else 51,
        )
        rows.append({"values": values, "seconds": seconds, "bytes": sizes[-1]})
    return rows


def flashe_add() -> dict[str, float]:
    """A server's addition of one update of 1.2 M values (w = 20); numpy's of as many bytes, SecAgg+'s of the values."""
    from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition

    values = 1_200_000
    scheme = fedcipher.scheme("flashe", clients=10, codec=fedcipher.Codec(bits=16, clip=1.0))
    keys = scheme.keygen(10)
    update = np.random.default_rng(0).uniform(-1, 1, values).astype(np.float32)
    frames = [scheme.encryptor(keys.client(j)).encrypt([update], round=1) for j in range(10)]
    ours: list[float] = []
    for _ in range(15):
        aggregator = scheme.aggregator(keys.server())
        aggregator.add(frames[0])
        for frame in frames[1:]:
            began = time.perf_counter()
            aggregator.add(frame)
            ours.append(time.perf_counter() - began)
    total, more = (np.zeros(len(frames[0]) // 8, np.uint64) for _ in range(2))
    # A server adds frames that it has not read before: numpy too, in turn.
    turns = itertools.cycle([np.frombuffer(frame, np.uint64, len(total)) for frame in frames])
    masked = [np.zeros(values, np.int64)]
    # Refused by its checksum, after all of it has been read and before any of it is added.
    damaged = bytearray(frames[1])
    damaged[-8] ^= 1
    refused = bytes(damaged)

    def check() -> None:
        with contextlib.suppress(fedcipher.errors.FrameError):
            aggregator.add(refused)

    return {
        "bytes": len(frames[0]),
        "check": median_seconds(check, repeats=51),
        "ours": Times(ours),
        "numpy": median_seconds(lambda: np.add(total, more, out=total), repeats=51),
        "numpy_turns": median_seconds(lambda: np.add(total, next(turns), out=total), repeats=51),
        "secagg": median_seconds(lambda: parameters_addition(masked, masked), repeats=21),
    }


def flower_glue() -> dict[str, float]:
    """A frame of 1.2 M values (w = 20, 3 MB) into a Flower record and out of one, and as Flower does with an array."""
    from fedcipher.federation.messages import frame_bytes, wire_record
    from flwr.app import Array

    frame = np.random.default_rng(0).bytes(3_000_162)
    (array,) = wire_record({"update": frame}).values()
    plain = np.frombuffer(frame, np.uint8)
    flowers = Array(plain)
    return {
        "bytes": len(frame),
        "into": median_seconds(lambda: wire_record({"update": frame}), repeats=101),
        "out": median_seconds(lambda: frame_bytes(array), repeats=101),
        "flower_into": median_seconds(lambda: Array(plain), repeats=101),
        "flower_out": median_seconds(flowers.numpy, repeats=101),
    }


def flashe_round() -> dict[str, float]:
    """Encrypt, aggregate, decrypt 1.2 M parameters of 10 clients against one local epoch of that CNN."""
    from fedcipher.data import load
    from fedcipher.models import Learner

    folder = os.environ.get("FEDCIPHER_DATA", "../shared/data") + "/mnist"
    data = load("mnist", folder)
    examples = len(data.train_x) // 10
    learner = Learner("cnn-1.2m", 10, data.train_x[0])
    model, _ = learner.fit(learner.initial(), data.train_x[:640], data.train_y[:640], epochs=1, seed=0)
    began = time.perf_counter()
    trained, _ = learner.fit(model, data.train_x[:examples], data.train_y[:examples], epochs=1, seed=1)
    epoch = time.perf_counter() - began

    scheme = fedcipher.scheme("flashe", clients=10, codec=fedcipher.Codec(bits=16))
    keys = scheme.keygen(10)
    encryptors = [scheme.encryptor(keys.client(j)) for j in range(10)]
    decryptor = scheme.decryptor(keys.client(0))
    encrypt, aggregate, decrypt = [], [], []
    for round_number in range(1, 8):
        frames = []
        for encryptor in encryptors:
            began = time.perf_counter()
            frames.append(encryptor.encrypt(trained, round=round_number, reference=model))
            encrypt.append(time.perf_counter() - began)
        began = time.perf_counter()
        aggregator = scheme.aggregator(keys.server())
        for frame in frames:
            aggregator.add(frame)
        total = aggregator.finish()
        aggregate.append(time.perf_counter() - began)
        began = time.perf_counter()
        decryptor.decrypt(total)
        decrypt.append(time.perf_counter() - began)
    spent = {"encrypt": Times(encrypt), "aggregate": Times(aggregate), "decrypt": Times(decrypt)}
    return {"epoch": epoch, **spent, "examples": examples}


def bfv_lenet() -> dict[str, Any]:
    """LeNet-5, 12 bits, 10 clients, one core: online encryption and decryption; TenSEAL CKKS beside it."""
    import tenseal

    update = gaussian(LENET5)
    out: dict[str, Any] = {"weights": sum(x.size for x in update)}
    for preset in ("compact", "fast", "fedbit-paper"):
        scheme = fedcipher.scheme("bfv", clients=10, preset=preset, codec=fedcipher.Codec(bits=12, clip=0.5))
        keys = scheme.keygen(10)
        encryptor, decryptor = scheme.encryptor(keys.client(0)), scheme.decryptor(keys.client(0))
        rounds = itertools.count(1)
        current = [0]

        def ready(e=encryptor, numbers=rounds, now=current) -> None:
            now[0] = next(numbers)
            e.precompute(update, round=now[0])

        online = median_seconds(
            lambda e=encryptor, now=current: e.encrypt(update, round=now[0]), setup=ready, repeats=51
        )
        offline = median_seconds(ready, repeats=51)
        frames = [scheme.encryptor(keys.client(j)).encrypt(update, round=10**6) for j in range(10)]

        def aggregate(made=scheme, cohort=keys, sent=frames) -> bytes:
            aggregator = made.aggregator(cohort.server())
            for frame in sent:
                aggregator.add(frame)
            return aggregator.finish()

        total = aggregate()
        out[preset] = {
            "online": online,
            "offline": offline,
            "aggregate": median_seconds(aggregate, repeats=15),
            "decrypt": median_seconds(lambda d=decryptor, t=total: d.decrypt(t), repeats=21),
        }
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS,
        poly_modulus_degree=8192,
        coeff_mod_bit_sizes=[60, 40, 40, 60],
        n_threads=1,
    )
    context.global_scale = 2**40
    flat = np.concatenate([x.ravel() for x in update]).tolist()
    out["tenseal"] = median_seconds(lambda: tenseal.ckks_vector(context, flat), repeats=5)
    vector = tenseal.ckks_vector(context, flat)
    out["tenseal_bytes"] = len(vector.serialize())
    out["tenseal_decrypt"] = median_seconds(vector.decrypt, repeats=5)
    return out


def _seal(degree: int, sizes: list[int], plain_modulus: Any) -> Any:
    """SEAL's context for BFV with primes of so many bits."""
    from tenseal import sealapi

    parms = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    parms.set_poly_modulus_degree(degree)
    parms.set_coeff_modulus(sealapi.CoeffModulus.Create(degree, sizes))
    parms.set_plain_modulus(plain_modulus)
    return sealapi.SEALContext(parms, True, sealapi.SEC_LEVEL_TYPE.TC128)


def seal_lenet() -> list[dict[str, Any]]:
    """LeNet-5 by SEAL itself, symmetric, N = 4096, one core: with FedBit's packing in each slot, and without."""
    from tenseal import sealapi

    rows: list[dict[str, Any]] = []
    weights = sum(int(np.prod(shape)) for shape in LENET5)
    # Twelve bits and the head-room of ten clients' sum are 16 bits; SEAL keeps the last prime for itself.
    for sizes, fields, plain_bits in (([36, 36, 37], 3, 49), ([54, 55], 1, 20)):
        context = _seal(4096, sizes, sealapi.PlainModulus.Batching(4096, plain_bits))
        encryptor = sealapi.Encryptor(context, sealapi.KeyGenerator(context).secret_key())
        encoder, plain = sealapi.BatchEncoder(context), sealapi.Plaintext()
        most, count = 1 << min(16 * fields, plain_bits - 1), -(-weights // fields)
        slots = np.random.default_rng(0).integers(0, most, count).tolist()
        pieces = [slots[k : k + 4096] for k in range(0, len(slots), 4096)]

        def encrypt(pieces: list[list[int]] = pieces, e: Any = encryptor, b: Any = encoder, p: Any = plain) -> None:
            for piece in pieces:
                b.encode(piece, p)
                e.encrypt_symmetric(p)

        rows.append({"primes": sizes, "fields": fields, "seconds": median_seconds(encrypt, repeats=21)})
    return rows


def bfv_sizes() -> list[dict[str, Any]]:
    """Bytes up and down of LeNet-5 at 12 bits against the packed plaintext, by cohort size."""
    rows = []
    update = gaussian(LENET5)
    count = sum(x.size for x in update)
    for preset in ("compact", "fast", "fedbit-paper"):
        for clients in (10, 30, 100):
            scheme = fedcipher.scheme("bfv", clients=clients, preset=preset, codec=fedcipher.Codec(bits=12, clip=0.5))
            keys = scheme.keygen(clients)
            aggregator = scheme.aggregator(keys.server())
            for j in range(clients):
                frame = scheme.encryptor(keys.client(j)).encrypt(update, round=1)
                aggregator.add(frame)
            down = aggregator.finish()
            field = (clients * (2**12 - 2)).bit_length()
            packed = count * field / 8
            rows.append(
                {
                    "preset": preset,
                    "clients": clients,
                    "field": field,
                    "packed": packed,
                    "up": len(frame),
                    "down": len(down),
                    "raw": count * 12 / 8,
                }
            )
    return rows


def bfv_derive() -> list[dict[str, float]]:
    """Time that a client takes to derive c1 from the cohort's seeds, by cohort size."""
    rows = []
    rate = openssl_rate("aes-256-ctr")
    update = gaussian([(24576,)])
    for clients in (10, 100, 300, 1000):
        scheme = fedcipher.scheme("bfv", clients=clients, codec=fedcipher.Codec(bits=8, clip=0.5))
        keys = scheme.keygen(clients)
        aggregator = scheme.aggregator(keys.server())
        for j in range(clients):
            aggregator.add(scheme.encryptor(keys.client(j)).encrypt(update, round=1))
        total = aggregator.finish()
        decryptor = scheme.decryptor(keys.client(0))
        seconds = median_seconds(lambda d=decryptor, t=total: d.decrypt(t), repeats=5)
        fields = int(scheme.describe()["fields of 8 bits"].split()[0])
        rows.append(
            {
                "clients": clients,
                "seconds": seconds,
                "total": seconds + len(total) / LINK_BYTES,
                # Two primes of eight bytes a coefficient, for each ciphertext of each client.
                "seeds": clients * -(-24576 // (fields * 4096)) * 4096 * 2 * 8 / rate,
            }
        )
    return rows


def bfv_large() -> dict[str, float]:
    """11 M parameters: online rate in packed plaintext, and peak memory of the encryption."""
    update = gaussian([(11_000_000,)])
    codec = fedcipher.Codec(bits=12, clip=0.5)
    scheme = fedcipher.scheme("bfv", clients=10, codec=codec)
    keys = scheme.keygen(10)
    encryptor = scheme.encryptor(keys.client(0))
    encryptor.encrypt([update[0][:50_000]], round=1)
    before = _reset_peak()
    encryptor.precompute(update, round=2)
    began = time.perf_counter()
    frame = encryptor.encrypt(update, round=2)
    first = time.perf_counter() - began
    peak = _status("VmHWM") - before
    times = [first]
    for number in range(3, 16):
        del frame
        encryptor.precompute(update, round=number)
        began = time.perf_counter()
        frame = encryptor.encrypt(update, round=number)
        times.append(time.perf_counter() - began)
    packed = 11e6 * 16 / 8
    seconds = Times(times)
    cores = encryptor.stats.encode_seconds
    return {
        "seconds": seconds,
        "packed": packed,
        "quantise_core_seconds": cores,
        "peak_bytes": peak,
        "frame_bytes": len(frame),
    }


# Bits of each prime of BFV under PASTA with 17-bit p.
_PASTA_PRIME = 51


def _hhe(clients: int, **params: Any) -> tuple[Any, Any]:
    codec = fedcipher.Codec(bits=12, clip=0.5)
    scheme = fedcipher.scheme("pasta-bfv", clients=clients, min_contributions=1, codec=codec, **params)
    return scheme, _MadeElsewhere(scheme, clients)


class _MadeElsewhere:
    """Make keys in another process, as an authority does.

    Its tables then count neither as the server's memory nor as a client's.
    """

    def __init__(self, scheme: Any, clients: int) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, __file__, "hhe_keys", json.dumps(scheme.spec()), str(clients), scratch]
            subprocess.run(command, check=True, capture_output=True)
            self._server = (Path(scratch) / "server").read_bytes()
            self._clients = [(Path(scratch) / str(j)).read_bytes() for j in range(clients)]

    def server(self) -> Any:
        return _native.ServerKey.from_bytes(self._server)

    def client(self, j: int) -> Any:
        return _native.ClientKey.from_bytes(self._clients[j])


def hhe_keys(spec: str, clients: str, folder: str) -> None:
    """A key set, written to files."""
    keys = schemes.from_spec(json.loads(spec)).keygen(int(clients))
    (Path(folder) / "server").write_bytes(keys.server().to_bytes())
    for j in range(int(clients)):
        (Path(folder) / str(j)).write_bytes(keys.client(j).to_bytes())


def _hhe_server(scheme: Any, keys: Any, clients: int, values: int, round_number: int) -> float:
    """Seconds of the server's work for one round, keys parsed and known beforehand."""
    update = gaussian([(values,)])
    aggregator = scheme.aggregator(keys.server(), round=round_number)
    for j in range(clients):
        aggregator.add(scheme.encryptor(keys.client(j)).encrypt(update, round=round_number))
    began = time.perf_counter()
    aggregator.finish()
    return time.perf_counter() - began


def hhe_block() -> dict[str, float]:
    """One block of 32 words, as for a chunk at a time: one thread, same circuit and library."""
    scheme, keys = _hhe(1)
    return {"seconds": Times([_hhe_server(scheme, keys, 1, 32, r) for r in range(1, 4)])}


def hhe_rounds() -> dict[str, float]:
    """Rounds of one, two and four clients with 8,000 parameters, and a full ciphertext of 8,192."""
    scheme, keys = _hhe(4)
    rounds = iter(range(1, 100))
    out = {"server_key": float(len(keys.server().to_bytes()))}
    _hhe_server(scheme, keys, 1, 8000, next(rounds))
    before = _reset_peak()
    out["1"] = Times([_hhe_server(scheme, keys, 1, 8000, next(rounds)) for _ in range(5)])
    out["peak"] = float(max(_status("VmHWM"), before))
    for clients in (2, 4):
        out[str(clients)] = Times([_hhe_server(scheme, keys, clients, 8000, next(rounds)) for _ in range(3)])
    out["full"] = Times([_hhe_server(scheme, keys, 1, 8192, next(rounds)) for _ in range(5)])
    return out


def hhe_start() -> dict[str, float]:
    """Memory that a client adds, up to its first frame, to a process that has imported everything."""
    update, key = gaussian([(8000,)]), _hhe(1)[1].client(0)
    before = _reset_peak()
    began = time.perf_counter()
    codec = fedcipher.Codec(bits=12, clip=0.5)
    scheme = fedcipher.scheme("pasta-bfv", clients=1, min_contributions=1, codec=codec)
    scheme.encryptor(key).encrypt(update, round=1)
    return {"seconds": time.perf_counter() - began, "bytes": float(_status("VmHWM") - before)}


def hhe_client() -> dict[str, float]:
    """A client's side: encryption, decryption, bytes."""
    scheme, keys = _hhe(1)
    update = gaussian([(8000,)])
    encryptor, decryptor = scheme.encryptor(keys.client(0)), scheme.decryptor(keys.client(0))
    aggregator = scheme.aggregator(keys.server())
    aggregator.add(encryptor.encrypt(update, round=1))
    total = aggregator.finish()
    setup = encryptor.stats.setup_bytes
    plan = scheme.round_plan(keys.server(), [0])
    rounds = iter(range(2, 1000))
    seconds = median_seconds(lambda: encryptor.encrypt(update, round=next(rounds), round_plan=plan), repeats=15)
    frame = encryptor.encrypt(update, round=next(rounds), round_plan=plan)
    return {
        "encrypt": seconds,
        "decrypt": median_seconds(lambda: decryptor.decrypt(total), repeats=9),
        "upload": len(frame) / 8000,
        "setup": setup,
        "download": len(total),
        "switch": int(scheme.describe()["log q"]) / _PASTA_PRIME,
    }


def hhe_variants() -> list[dict[str, Any]]:
    """Every variant and prime."""
    rows = []
    for variant in (4, 3):
        for bits in (17, 33):
            scheme, keys = _hhe(1, variant=variant, prime_bits=bits)
            seconds = Times([_hhe_server(scheme, keys, 1, 8000, r) for r in (1, 2, 3)])
            spare = scheme.describe()["noise bits to spare"]
            rows.append({"name": f"PASTA-{variant}, {bits}-bit p", "seconds": seconds, "spare": spare})
    return rows


def seal_operations() -> dict[str, float]:
    """SEAL's rotation, row swap and multiplication at the same N, primes and p."""
    from tenseal import sealapi

    context = _seal(16384, [_PASTA_PRIME] * 8, 65537)
    keygen = sealapi.KeyGenerator(context)
    public, relin, galois = sealapi.PublicKey(), sealapi.RelinKeys(), sealapi.GaloisKeys()
    keygen.create_public_key(public)
    keygen.create_relin_keys(relin)
    keygen.create_galois_keys(galois)
    evaluator, encoder = sealapi.Evaluator(context), sealapi.BatchEncoder(context)
    plain, x, out = sealapi.Plaintext(), sealapi.Ciphertext(), sealapi.Ciphertext()
    encoder.encode(list(range(16384)), plain)
    sealapi.Encryptor(context, public).encrypt(plain, x)

    def multiply() -> None:
        evaluator.multiply(x, x, out)
        evaluator.relinearize_inplace(out, relin)

    return {
        "encode": median_seconds(lambda: encoder.encode(list(range(16384)), plain), repeats=5),
        "rotate": median_seconds(lambda: evaluator.rotate_rows(x, 256, galois, out), repeats=5),
        "row-swap": median_seconds(lambda: evaluator.rotate_columns(x, galois, out), repeats=5),
        "multiply-relinearise": median_seconds(multiply, repeats=5),
    }


def _status(field: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _reset_peak() -> int:
    """Forget the peak so far; the present resident size."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


CASES: dict[str, Callable[..., Any]] = {
    case.__name__: case
    for case in (
        *(flashe_rate, flashe_api, flashe_add, flower_glue, flashe_round),
        *(bfv_lenet, seal_lenet, bfv_sizes, bfv_derive, bfv_large),
        *(hhe_keys, hhe_block, hhe_rounds, hhe_start, hhe_client, hhe_variants, seal_operations),
    )
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FEDCIPHER_STATE_DIR"] = scratch
        print(dumps(CASES[sys.argv[1]](*sys.argv[2:])))
