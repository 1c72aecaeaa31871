# pyright: basic
"""Measures the share of a common coordinate set that should be taken where the last aggregate is largest.

The program trains without encryption on MNIST or digits, with error feedback and the clip ranges of `Codec(top=...)`.
It prints a line for each share, with the accuracy after the last round for each seed. With `--mode client`, each client
chooses its own coordinates (FLASHE algorithm 1), for comparison.

    python tools/sparse_share.py --data-dir ../shared/data/mnist --top 0.1 --shares 0,0.25,0.5,0.75 --seeds 0,1
"""

from __future__ import annotations

import argparse
import random

import numpy as np
from fedcipher.app.settings import Settings
from fedcipher.codec import Array
from fedcipher.data import load, partition
from fedcipher.models import Learner

WHOLE_BELOW = 256


def count_of(size: int, top: float) -> int:
    return size if size < WHOLE_BELOW else int(np.ceil(top * size))


def common(
    sizes: list[int], reference: list[Array] | None, rng: np.random.Generator, top: float, share: float
) -> list[Array]:
    """A mask for each tensor, like in `crates/fedcipher-core/src/sparse.rs` with another share."""
    masks = []
    for k, size in enumerate(sizes):
        count, mask = count_of(size, top), np.zeros(size, bool)
        if reference is not None:
            order = np.argsort(-np.abs(reference[k].ravel()), kind="stable")[: int(share * count)]
            mask[order[reference[k].ravel()[order] != 0]] = True
        rest = np.flatnonzero(~mask)
        mask[rng.permutation(rest)[: count - int(mask.sum())]] = True
        masks.append(mask)
    return masks


def cycle(sizes: list[int], number: int, seed: int, top: float) -> list[Array]:
    """Masks that take every coordinate once in 1 / top rounds, in a random order."""
    masks = []
    for size in sizes:
        count, mask = count_of(size, top), np.zeros(size, bool)
        order = np.random.default_rng(seed).permutation(size)
        mask[order[(np.arange(count) + (number - 1) * count) % max(1, size)]] = True
        masks.append(mask)
    return masks


def own(values: list[Array], top: float) -> list[Array]:
    masks = []
    for x in values:
        mask = np.zeros(x.size, bool)
        mask[np.argsort(-np.abs(x), kind="stable")[: count_of(x.size, top)]] = True
        masks.append(mask)
    return masks


def train(settings: Settings, top: float, share: float | str | None, decay: float) -> float:
    data = load(settings.dataset, settings.data_dir or None)
    learner = Learner(settings.model, data.classes, data.train_x[0], batch=settings.batch)
    parts = partition(data.train_y, settings.clients, seed=settings.seed)
    sampler, rng = random.Random(settings.seed), np.random.default_rng(settings.seed)
    model = learner.initial(settings.seed)
    kept = [[np.zeros(x.size, np.float32) for x in model] for _ in range(settings.clients)]
    reference = None
    for number in range(1, settings.rounds + 1):
        sizes = [x.size for x in model]
        shared = None
        if share == "cycle":
            shared = cycle(sizes, number, settings.seed, top)
        elif isinstance(share, float):
            shared = common(sizes, reference, rng, top, share)
        sums = [np.zeros(x.size) for x in model]
        senders = [np.zeros(x.size) for x in model]
        for client in sampler.sample(range(settings.clients), settings.per_round):
            mine = parts[client]
            seed = hash((settings.seed, number, client)) & 0xFFFF_FFFF
            trained, _ = learner.fit(model, data.train_x[mine], data.train_y[mine], epochs=settings.epochs, seed=seed)
            values = [(t - m).ravel() + decay * r for t, m, r in zip(trained, model, kept[client], strict=True)]
            masks = shared if shared is not None else own(values, top)
            for k, (x, mask) in enumerate(zip(values, masks, strict=True)):
                alpha = 1.0 if reference is None else max(0.25, 2 * float(np.abs(reference[k]).max()))
                sent = np.where(mask, np.clip(x, -alpha, alpha), 0).astype(np.float32)
                kept[client][k] = x - sent
                sums[k] += sent
                senders[k] += mask
        reference = [(s / np.maximum(n, 1)).reshape(x.shape) for s, n, x in zip(sums, senders, model, strict=True)]
        model = [(x + d).astype(x.dtype) for x, d in zip(model, reference, strict=True)]
    confusion = learner.evaluate(model, data.test_x, data.test_y).confusion
    return float(np.diag(confusion).sum() / confusion.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--top", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--shares", default="0,0.25,0.5,0.75")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--decay", type=float, default=1.0, help="factor of the error feedback in each round")
    parser.add_argument("--mode", default="common", choices=["common", "cycle", "client"])
    options = parser.parse_args()
    others: dict[str, list[str | None]] = {"client": [None], "cycle": ["cycle"]}
    shares = others.get(options.mode) or [float(s) for s in options.shares.split(",")]
    for share in shares:
        reached = []
        for seed in map(int, options.seeds.split(",")):
            dataset = "mnist" if options.data_dir else "digits"
            settings = Settings(keys="", dataset=dataset, data_dir=options.data_dir, rounds=options.rounds, seed=seed)
            reached.append(train(settings, options.top, share, options.decay))
        name = "each client's own" if share is None else f"share {share}"
        print(f"{name}: " + ", ".join(f"{a:.2%}" for a in reached) + f"; mean {np.mean(reached):.2%}", flush=True)


if __name__ == "__main__":
    main()
