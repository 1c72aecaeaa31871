"""Fills the table of docs/explanation/dp.md (`make dp-table`): accuracy on MNIST by epsilon, and the noise's speed.

The model is softmax regression in numpy. Each update goes through the encryptor, aggregator and decryptor of `bfv`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fedcipher
import numpy as np
from fedcipher import Codec, _native
from fedcipher._machine import machine
from fedcipher.data import load, partition
from fedcipher.dp import Privacy, grid
from numpy.typing import NDArray
from readme_tables import filled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "dp.md"
ROUNDS, DELTA, CLIP, BITS = 20, 1e-5, 1.0, 12
STEPS, BATCH, RATE = 10, 20, 0.5
CASES = [
    (1000, None),
    (1000, 8.0),
    (1000, 4.0),
    (1000, 2.0),
    (1000, 1.0),
    (1000, 0.5),
    (100, 8.0),
    (12, None),
    (12, 8.0),
]
SPEED_VALUES = 1_200_000

Floats = NDArray[np.float32]


class Data:
    """MNIST, divided evenly at random among the clients."""

    def __init__(self, folder: str) -> None:
        data = load("mnist", folder)
        self.x, self.y = data.train_x.reshape(len(data.train_x), -1), data.train_y
        self.test_x, self.test_y = data.test_x.reshape(len(data.test_x), -1), data.test_y

    def accuracy(self, model: list[Floats]) -> float:
        return float(np.mean(np.argmax(self.test_x @ model[0] + model[1], axis=1) == self.test_y))

    def update(self, model: list[Floats], own: NDArray[np.int64], rng: np.random.Generator) -> list[Floats]:
        """The change of the model by some steps of gradient descent on the examples ``own``."""
        w, b = model[0].copy(), model[1].copy()
        for _ in range(STEPS):
            chosen = rng.choice(own, BATCH)
            x = self.x[chosen]
            logits = x @ w + b
            odds = np.exp(logits - logits.max(axis=1, keepdims=True))
            odds /= odds.sum(axis=1, keepdims=True)
            odds[np.arange(BATCH), self.y[chosen]] -= 1
            w -= RATE / BATCH * (x.T @ odds)
            b -= RATE / BATCH * odds.sum(axis=0)
        return [w - model[0], b - model[1]]


def train(data: Data, clients: int, privacy: Privacy | None) -> tuple[float, float, float]:
    """Train. Returns accuracy on the test set, noise divided by clip, and the share of updates that were clipped."""
    made = fedcipher.scheme("bfv", clients=clients, min_contributions=clients, codec=Codec(bits=BITS, privacy=privacy))
    issued = made.keygen(clients)
    encryptors = [made.encryptor(issued.client(k)) for k in range(clients)]
    decryptor, parts = made.decryptor(issued.client(0)), partition(data.y, clients, seed=0)
    model = [np.zeros((data.x.shape[1], 10), np.float32), np.zeros(10, np.float32)]
    rng, cut = np.random.default_rng(0), 0
    for number in range(1, ROUNDS + 1):
        aggregator = made.aggregator(issued.server(), round=number)
        for k, encryptor in enumerate(encryptors):
            update = data.update(model, parts[k], rng)
            aggregator.add(encryptor.encrypt(update, round=number))
            cut += encryptor.stats.scaled < 1
        mean = decryptor.decrypt(aggregator.finish())
        model = [m + x for m, x in zip(model, mean, strict=True)]
    elements = sum(x.size for x in model)
    noise = 0.0
    if privacy is not None:
        noise = grid(privacy, BITS, elements, made.noise_shares).noise_norm(elements, clients) / privacy.clip
    return data.accuracy(model), noise, cut / (ROUNDS * clients)


def table(data: Data) -> list[str]:
    lines = ["| clients | epsilon | noise multiplier | noise of the mean, over the clip | accuracy |"]
    lines += ["|---|---|---|---|---|"]
    for clients, epsilon in CASES:
        privacy = epsilon and Privacy.for_epsilon(epsilon, delta=DELTA, rounds=ROUNDS, clip=CLIP)
        began = time.perf_counter()
        accuracy, noise, cut = train(data, clients, privacy or None)
        said = f"{epsilon:g} | {privacy.noise_multiplier:.2f} | {noise:.2f}" if privacy else "no noise | 0 | 0"
        lines.append(f"| {clients:,} | {said} | {accuracy:.1%} |")
        print(lines[-1], f"({cut:.0%} clipped updates, {time.perf_counter() - began:.0f} s)", flush=True)
    return lines


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def speed() -> str:
    """A sentence with the time of the same noise by the core and by OpenDP, measured in turns."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    zeros = np.zeros(SPEED_VALUES, np.float32)
    layout = Codec(bits=16, clip=1.0).layout([zeros])
    deviation = 100.0
    numerator, shift = int(deviation**2) << 10, 10
    space = opendp.vector_domain(opendp.atom_domain(T=int)), opendp.l2_distance(T=float)
    theirs = opendp.m.make_gaussian(*space, scale=deviation)
    values = [0] * SPEED_VALUES
    ours: list[float] = []
    others: list[float] = []
    for _ in range(3):
        ours.append(seconds(lambda: _native.add_noise(layout, [zeros], 1.0, 1 << 40, numerator, shift)))
        others.append(seconds(lambda: theirs(values)))
    a, b = min(ours), min(others)
    return (
        f"Clipping, rounding and noise for {SPEED_VALUES:,} values took {a:.2f} s; OpenDP's discrete Gaussian of the "
        f"same deviation, called from Python, took {b:.2f} s, {b / a:.0f} times as long (least of three, in turns)."
    )


def main() -> None:
    """Print the table and write it into docs/explanation/dp.md."""
    # 1,000 ledgers are synced in every round. On a disk, the measured time would be that of the syncs.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as state:
        os.environ["FEDCIPHER_STATE_DIR"] = state
        about = machine()
        timed = f"{speed()} {about['processor']}, {about['cores']} cores, Python {about['python']}."
        print(timed, flush=True)
        if "--speed" in sys.argv:
            return
        rows = table(Data(f"{os.environ.get('DATA', '../shared/data')}/mnist"))
    content = "\n".join([*rows, "", timed])
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "dp", content), encoding="utf-8")


if __name__ == "__main__":
    main()
