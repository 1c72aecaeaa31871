"""A server's work on more than one process or machine, with Ray.

Transciphering (`pasta-bfv`) takes seconds a client and ciphertext, and no ciphertext of an aggregate depends on
another: each is a task. The tasks see what the server sees, ciphertexts and evaluation keys, so a cluster is as trusted
as the server is. Ray asks nobody who he is: whoever reaches its ports runs programs there, so they belong to a network
of the server's own. `tests/test_scale.py` compares the aggregates bit by bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from fedcipher import _native
from fedcipher._arguments import as_text, seconds, whole_number
from fedcipher._optional import load, require
from fedcipher.errors import WorkersError
from fedcipher.schemes import Aggregator, Scheme, from_spec

__all__ = ["RayWorkers"]

_LOOK_SECONDS = 1.0


class RayWorkers:
    """Finishes aggregates on a Ray cluster: `SecureStrategy(..., workers=RayWorkers("auto"))`.

    ``address`` is Ray's: ``"auto"`` for the cluster of this machine, ``"ray://HOST:10001"`` for another's, None for one
    of this process's own. Each task takes ``cpus`` processors. A worker that dies is replaced by Ray three times; a
    round that takes longer than ``timeout`` seconds fails with `WorkersError`, and can be finished again.
    """

    def __init__(self, address: str | None = None, *, cpus: int = 1, timeout: float = 3600.0) -> None:
        self._address = None if address is None else as_text(address, "address")
        self._cpus, self._timeout = whole_number(cpus, "cpus", 1), seconds(timeout, "timeout")
        require("a server's work on Ray", "demo", "ray")

    def finish(
        self,
        scheme: Scheme,
        key: _native.ServerKey,
        aggregator: Aggregator,
        progress: Callable[[int, int], None] | None = None,
    ) -> bytes:
        """The aggregate's frame, the same as `Aggregator.finish` makes; a scheme without such work makes it here.

        ``progress(done, total)`` counts ciphertexts. Raises as `Aggregator.finish`, and `WorkersError`.
        """
        parted = aggregator.parted
        if parted is None:
            return aggregator.finish(progress)
        parts = parted.parts()
        ray = load("ray")
        try:
            if not ray.is_initialized():
                ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
            results = self._results(ray, scheme, key, parts.common, parts.pieces, progress)
        except ray.exceptions.RayError as error:
            raise WorkersError(f"Ray did not do the round's work: {error}; it can be finished again") from error
        except ConnectionError as error:
            raise WorkersError(f"no Ray cluster at {self._address!r}: {error}") from error
        return parted.finish_from(results)

    def _results(
        self,
        ray: Any,
        scheme: Scheme,
        key: _native.ServerKey,
        common: bytes,
        pieces: list[bytes],
        progress: Callable[[int, int], None] | None,
    ) -> list[bytes]:
        # Tasks have their processors and no more: Rayon would take the machine's for each.
        environment = {"env_vars": {"RAYON_NUM_THREADS": str(self._cpus)}}
        task = ray.remote(num_cpus=self._cpus, runtime_env=environment)(_work)
        shared = [ray.put(part) for part in (json.dumps(scheme.spec()), key.to_bytes(), common)]
        made = [task.remote(*shared, piece) for piece in pieces]
        left, end = made, time.monotonic() + self._timeout
        try:
            while left:
                if progress is not None:
                    progress(len(made) - len(left), len(made))
                if time.monotonic() > end:
                    done = len(made) - len(left)
                    raise WorkersError(f"{done} of {len(made)} parts were done in {self._timeout:.0f} s")
                _, left = ray.wait(left, num_returns=1, timeout=_LOOK_SECONDS)
            return ray.get(made)
        finally:
            for reference in left:
                ray.cancel(reference)


def _work(spec: str, key: bytes, common: bytes, piece: bytes) -> bytes:
    workers = _scheme(spec).workers
    assert workers is not None
    return workers.run_work_item(_key(key), common, piece)


# A worker keeps both: parsing the server's key takes longer than some pieces.
@lru_cache(maxsize=1)
def _scheme(spec: str) -> Scheme:
    return from_spec(json.loads(spec))


@lru_cache(maxsize=1)
def _key(key: bytes) -> _native.ServerKey:
    return _native.ServerKey.from_bytes(key)
