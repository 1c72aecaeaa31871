"""Checks that a GPU codes updates like the processor, to the bit, and times both. Needs PyTorch with CUDA.

Run ``python tools/check_gpu.py`` on a machine with a GPU. The program prints the card and the number of threads, and
fails if a value differs.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import fedcipher
import numpy as np
import torch
from fedcipher.federation.coding import Coding
from fedcipher.tensors import with_numpy

SEED, DRAWS = bytes(range(16)), bytes(range(16, 32))


def seconds(work: Callable[[], Any], times: int) -> float:
    """The least seconds of ``times`` calls, on an idle GPU."""
    took: list[float] = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return min(took)


def coding(levels: int, *, rotated: bool = True) -> Coding:
    """A coding of two arrays, whose values are cut as often as in training."""
    return Coding((1e-3, 1e-2), (3.0, 3.0), (6.0 / levels,) * 2, (int(rotated),) * 2, False)


def compare(values: int) -> None:
    """Code the same updates on both, and compare values, cut values and counts."""
    rng = np.random.default_rng(values)
    sizes = (values - values // 3, values // 3)
    update = [(rng.standard_t(4, n) * s).astype(np.float32) for n, s in zip(sizes, (7e-4, 7e-3), strict=True)]
    there = [torch.from_numpy(x).cuda() for x in update]
    for levels, rotated in ((2, True), (14, True), (4094, True), (14, False)):
        made = coding(levels, rotated=rotated)
        here, gpu = made.encode(update, SEED, DRAWS), made.encode(there, SEED, DRAWS)
        for one, other in zip((*here.values, *here.rest), (*gpu.values, *gpu.rest), strict=True):
            assert (one is None) == (other is None), "only one of the two has cut values"
            assert one is None or one.tobytes() == other.tobytes(), f"{values} values, {levels} levels: they differ"
        assert here.clipped == gpu.clipped
        np.testing.assert_allclose(here.kept, gpu.kept, rtol=1e-9)
    print(f"{values} values: the same to the bit at 2, 14 and 4094 levels, and unrotated")


def timed(values: int, times: int) -> None:
    """Print the times of coding, transfer to the processor, encryption, addition and decryption."""
    update = torch.randn(values, device="cuda") * 1e-3
    made = Coding((1e-3,), (3.0,), (6.0 / 62,), (1,), False)
    host = update.cpu().numpy()
    rows = {
        "coded on the processor": seconds(lambda: made.encode([host], SEED, DRAWS), times),
        "coded on the GPU, and fetched": seconds(lambda: made.encode([update], SEED, DRAWS), times),
        "fetched by .cpu()": seconds(lambda: update.cpu().numpy(), times),
        "fetched pinned": seconds(lambda: with_numpy([update]), times),
        "decoded": seconds(lambda: made.decode([host], SEED, [1.0]), times),
    }
    for name, bits in (("flashe", 6), ("flashe", 16), ("bfv", 6)):
        if name == "flashe" or values <= 100_000_000:
            rows |= sealed(name, bits, host, times)
    for what, took in rows.items():
        print(f"{values:>11} values, {what}: {1e3 * took:.2f} ms, {4 * values / took / 1e9:.2f} GB/s")


def sealed(name: str, bits: int, update: Any, times: int) -> dict[str, float]:
    """Seconds to encrypt one update, and to decrypt the sum of two."""
    scheme = fedcipher.scheme(name, clients=2, codec=fedcipher.Codec(bits=bits, clip=0.01))
    keys = scheme.keygen(2)
    encryptors = [scheme.encryptor(keys.client(k)) for k in range(2)]
    aggregator = scheme.aggregator(keys.server(), round=1)
    for encryptor in encryptors:
        aggregator.add(encryptor.encrypt([update], round=1))
    total, decryptor = aggregator.finish(), scheme.decryptor(keys.client(0), in_memory=True)
    rounds = iter(range(2, 1000))
    return {
        f"{name}, {bits} bits, encrypted": seconds(lambda: encryptors[0].encrypt([update], round=next(rounds)), times),
        f"{name}, {bits} bits, opened": seconds(lambda: decryptor.decrypt(total), times),
    }


def main() -> None:
    """Compare the codings, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=float, nargs="*", default=[1.2e6, 1e8])
    options = parser.parse_args()
    threads = os.environ.get("RAYON_NUM_THREADS", os.cpu_count())
    print(f"{torch.cuda.get_device_name()}, {threads} threads, PyTorch {torch.__version__}, numpy {np.__version__}")
    for values in (1, 5, 4096, 70_001, 3_000_000):
        compare(values)
    for values in options.values:
        timed(int(values), 10 if values < 1e7 else 3)


if __name__ == "__main__":
    main()
