"""Distributes examples over clients: evenly, or skewed by label with a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcipher.errors import ParameterError

__all__ = ["partition"]


def partition(
    labels: NDArray[np.int32], clients: int, *, alpha: float | None = None, seed: int = 0
) -> list[NDArray[np.int64]]:
    """Return the indices of each client's examples. The lists are disjoint and cover all examples.

    ``alpha=None`` distributes examples evenly. Otherwise Dirichlet(alpha) splits each class (Hsu et al. 2019); a small
    alpha gives skewed clients. Every client gets at least one example. Raises `ParameterError`.
    """
    if not 1 <= clients <= len(labels):
        raise ParameterError(
            f"{len(labels)} examples cannot be divided among {clients} clients; give 1 to {len(labels)} clients"
        )
    rng = np.random.default_rng(seed)
    if alpha is None or labels.ndim > 1:
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
    if not alpha > 0:
        raise ParameterError(f"alpha={alpha} is not positive; give a number above 0, or None")
    parts_of: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)).astype(int)
        for client, part in enumerate(np.split(members, cuts)):
            parts_of[client].extend(part.tolist())
    for client in range(clients):
        if not parts_of[client]:
            richest = max(range(clients), key=lambda c: len(parts_of[c]))
            parts_of[client].append(parts_of[richest].pop())
    return [np.sort(np.asarray(part, np.int64)) for part in parts_of]
