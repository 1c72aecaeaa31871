"""Flower's SecAgg+ as it is installed: its own functions for a client's four stages and for the server's unmasking."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import Parameters, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

__all__ = ["MODULUS", "Cohort", "dropped", "dropped_out"]

# The package has a function of the module's name.
mod: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

# The workflow's defaults.
_CLIPPING, _QUANTISATION, _MAX_WEIGHT = 8.0, 4194304, 1000.0
MODULUS = 4294967296
_EXAMPLES = 10


def _sent(values: dict[str, Any]) -> int:
    """Bytes of a reply's payload."""

    def size(value: Any) -> int:
        return sum(size(v) for v in value) if isinstance(value, list) else len(value) if isinstance(value, bytes) else 8

    return sum(size(value) for value in values.values())


@dataclass
class Cohort:
    """Clients in a ring, each with ``neighbours`` around it.

    The threshold is a third: at half of them, rounds of a thousand clients of which three tenths are away at random
    are given up, since every client must find as many of its neighbours alive.
    """

    clients: int
    neighbours: int
    states: dict[int, Any] = field(default_factory=dict)
    around: dict[int, list[int]] = field(default_factory=dict)
    keys: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)

    @property
    def shares(self) -> int:
        return self.neighbours + 1

    @property
    def threshold(self) -> int:
        return self.shares // 3

    def _timed(self, client: int, work: Any, *arguments: Any) -> dict[str, Any]:
        began = time.perf_counter()
        made = work(self.states[client], *arguments)
        self.seconds[client] = self.seconds.get(client, 0.0) + time.perf_counter() - began
        self.bytes[client] = self.bytes.get(client, 0) + _sent(made)
        return made

    def share(self) -> None:
        """Stages 0 and 1: keys, and the shares of what masks."""
        config: Any = {
            Key.SAMPLE_NUMBER: self.clients,
            Key.SHARE_NUMBER: self.shares,
            Key.THRESHOLD: self.threshold,
            Key.CLIPPING_RANGE: _CLIPPING,
            Key.TARGET_RANGE: _QUANTISATION,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: _MAX_WEIGHT,
        }
        half = self.neighbours // 2
        for client in range(self.clients):
            self.states[client] = mod.SecAggPlusState(nid=client)
            made = self._timed(client, mod._setup, ConfigRecord(config))
            self.keys[client] = (made[Key.PUBLIC_KEY_1], made[Key.PUBLIC_KEY_2])
            self.around[client] = [(client + step) % self.clients for step in range(-half, half + 1)]
        self.mail: dict[int, list[tuple[int, bytes]]] = {client: [] for client in range(self.clients)}
        for client in range(self.clients):
            known: Any = {str(other): list(self.keys[other]) for other in self.around[client]}
            made = self._timed(client, mod._share_keys, ConfigRecord(known))
            for to, sealed in zip(made[Key.DESTINATION_LIST], made[Key.CIPHERTEXT_LIST], strict=True):
                self.mail[to].append((client, sealed))

    def mask(self, client: int, update: list[np.ndarray]) -> list[Any]:
        """Stage 2: the masked update."""
        mail: Any = {
            Key.CIPHERTEXT_LIST: [sealed for _, sealed in self.mail[client]],
            Key.SOURCE_LIST: [source for source, _ in self.mail[client]],
        }
        parameters: Parameters = ndarrays_to_parameters(update)
        made = self._timed(client, mod._collect_masked_vectors, ConfigRecord(mail), _EXAMPLES, parameters)
        return made[Key.MASKED_PARAMETERS]

    def reveal(self, client: int, dead: set[int]) -> dict[int, bytes]:
        """Stage 3: shares of the survivors' seeds and of the dead's keys."""
        asked: Any = {
            Key.ACTIVE_NODE_ID_LIST: [other for other in self.around[client] if other not in dead],
            Key.DEAD_NODE_ID_LIST: [other for other in self.around[client] if other in dead],
        }
        made = self._timed(client, mod._unmask, ConfigRecord(asked))
        return dict(zip(made[Key.NODE_ID_LIST], made[Key.SHARE_LIST], strict=True))

    @property
    def most(self) -> int:
        """Largest number that an update is quantised to."""
        return _QUANTISATION

    def values_of(self, quantised: np.ndarray) -> np.ndarray:
        """The update behind what is left of an upload without its masks."""
        share = round(_EXAMPLES / _MAX_WEIGHT * _QUANTISATION) / _QUANTISATION
        return (quantised * (2 * _CLIPPING / _QUANTISATION) - _CLIPPING) / share

    def unmask(self, masked: list[np.ndarray], revealed: list[dict[int, bytes]], dead: set[int]) -> float:
        """Seconds of the server after the last share, with the steps of `SecAggPlusWorkflow.unmask_stage`."""
        shapes = [array.shape for array in masked]
        began = time.perf_counter()
        collected: dict[int, list[bytes]] = {}
        for shares in revealed:
            for owner, share in shares.items():
                collected.setdefault(owner, []).append(share)
        for owner, shares in collected.items():
            secret = combine_shares(shares)
            if owner not in dead:
                masked = parameters_subtraction(masked, pseudo_rand_gen(secret, MODULUS, shapes))
                continue
            for other in self.around[owner]:
                if other == owner:
                    continue
                public = bytes_to_public_key(self.keys[other][0])
                mask = pseudo_rand_gen(generate_shared_key(bytes_to_private_key(secret), public), MODULUS, shapes)
                masked = (parameters_addition if owner > other else parameters_subtraction)(masked, mask)
        parameters_mod(masked, MODULUS)
        return time.perf_counter() - began


def dropped_out(cohort: Cohort, client: int, sent: list[bytes]) -> list[np.ndarray]:
    """The private mask: the rest of the upload of ``client`` once the others know that the client has dropped out."""
    masked = [bytes_to_ndarray(array) for array in sent]
    others = [other for other in cohort.around[client] if other != client]
    shares = [cohort.reveal(other, {client})[client] for other in others]
    key = bytes_to_private_key(combine_shares(shares))
    for other in others:
        shared = generate_shared_key(key, bytes_to_public_key(cohort.keys[other][0]))
        mask = pseudo_rand_gen(shared, MODULUS, [array.shape for array in masked])
        masked = (parameters_subtraction if client > other else parameters_addition)(masked, mask)
    return parameters_mod(masked, MODULUS)


def dropped(clients: int, share: float, seed: int) -> set[int]:
    """The clients that drop out."""
    return set(random.Random(seed).sample(range(clients), round(clients * share)))
