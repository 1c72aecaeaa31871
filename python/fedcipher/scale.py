"""Distributes a server's aggregation over several processes or machines, with Ray.

Transciphering (`pasta-bfv`) takes seconds per client and ciphertext. The ciphertexts of an aggregate are independent,
so each is a task. Tasks see what the server sees: ciphertexts and evaluation keys. Trust the cluster as you trust the
server. Ray does not authenticate callers: any program that reaches its ports can run code there. Use a network of the
server's own.
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

    Ray replaces a worker that dies, up to three times.

    Parameters
    ----------
    address
        The address of a Ray cluster: ``"auto"`` for this machine's, ``"ray://HOST:10001"`` for another machine's, None
        to start one for this process.
    cpus
        Processors for each task.
    timeout
        Seconds for a round. A round that takes longer raises `WorkersError`; `finish` can then be called again.
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
        """Return the frame of `Aggregator.finish`, computed on Ray if the scheme's work can be divided.

        ``progress(done, total)`` counts ciphertexts. Raises `WorkersError` and the errors of `Aggregator.finish`.
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
            raise WorkersError(f"Ray failed on the round's work: {error}; call finish again") from error
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
        # Without a limit, Rayon would start a thread in each task for each processor of the machine.
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
                    raise WorkersError(
                        f"{done} of {len(made)} parts were done in {self._timeout:.0f} s; call finish again, or give "
                        "RayWorkers a longer timeout or more machines"
                    )
                _, left = ray.wait(left, num_returns=1, timeout=_LOOK_SECONDS)
            return ray.get(made)
        finally:
            for reference in left:
                ray.cancel(reference)


def _work(spec: str, key: bytes, common: bytes, piece: bytes) -> bytes:
    workers = _scheme(spec).workers
    assert workers is not None
    return workers.run_work_item(_key(key), common, piece)


# A worker caches scheme and key: parsing the server's key takes longer than some pieces.
@lru_cache(maxsize=1)
def _scheme(spec: str) -> Scheme:
    return from_spec(json.loads(spec))


@lru_cache(maxsize=1)
def _key(key: bytes) -> _native.ServerKey:
    return _native.ServerKey.from_bytes(key)
