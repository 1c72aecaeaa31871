"""Who holds which examples: IID, or label-skewed by a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import ParameterError

__all__ = ["partition"]


def partition(
    labels: NDArray[np.int32], clients: int, *, alpha: float | None = None, seed: int = 0
) -> list[NDArray[np.int64]]:
    """Indices of each client's examples, disjoint and covering all.

    ``alpha=None`` deals them out evenly; otherwise each class is split by Dirichlet(alpha) (Hsu et al.
    2019): small alpha, skewed clients. Every client gets at least one example.
    """
    if not 1 <= clients <= len(labels):
        raise ParameterError(f"{len(labels)} examples cannot be dealt to {clients} clients")
    rng = np.random.default_rng(seed)
    if alpha is None or labels.ndim > 1:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
    if not alpha > 0:
        raise ParameterError(f"alpha={alpha} is not positive")
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)).astype(int)
        for client, part in enumerate(np.split(members, cuts)):
            held[client].extend(part.tolist())
    for client in range(clients):
        if not held[client]:
            richest = max(range(clients), key=lambda c: len(held[c]))
            held[client].append(held[richest].pop())
    return [np.sort(np.asarray(part, np.int64)) for part in held]
