"""Fuzzes frames under a scheme with arithmetic in Python or in a library, which the programs of ``fuzz/`` cannot run.

`tools/fuzz.py` starts this program. It changes bytes of honest ciphertexts at random. A frame of ``add`` is one that a
client of the cohort can send: signature and tag are right, and the ciphertext is not. A frame of ``open`` is one that a
server can make. A sum that opens must be the true one, and every refusal must be a `FedcipherError`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fedcipher import Codec
from fedcipher._environment import variable
from fedcipher.errors import FedcipherError
from fedcipher.schemes import Aggregator, Encryptor, Variant, every_scheme
from fedcipher.schemes.library import LibraryScheme

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import wire_tools

UPDATE = [np.linspace(-1, 1, 5, dtype=np.float32)]
CLIENTS = 3


class Altered:
    """An arithmetic that encrypts and then applies ``change`` to the ciphertext."""

    def __init__(self, inner: Any, change: Callable[[bytes], bytes]) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sealer(self, secret: bytes) -> Callable[[Any], bytes]:
        """Return a function that encrypts values and changes the ciphertext."""
        seal = self._inner.sealer(secret)
        return lambda values: self._change(seal(values))


def changed(content: bytes, draw: random.Random) -> bytes:
    """``content`` with a few bytes changed, and sometimes with another length."""
    made = bytearray(content)
    for _ in range(draw.randrange(1, 6)):
        if made:
            # Parsers decide mostly by the first bytes, so these are changed more often.
            at = int(draw.random() ** draw.choice((1, 4, 12)) * len(made))
            made[at] = draw.choice((made[at] ^ 1 << draw.randrange(8), draw.randrange(256), 0, 255))
    how = draw.randrange(8)
    return bytes(made[: draw.randrange(len(made) + 1)] if how == 0 else made + draw.randbytes(8) if how == 1 else made)


class Round:
    """Three clients of one scheme, and their true sum."""

    def __init__(self, variant: Variant, draw: random.Random) -> None:
        self._draw, self._number = draw, 0
        self._honest, self._liar = (variant.make(clients=CLIENTS, codec=Codec(bits=8, clip=1.0)) for _ in range(2))
        assert isinstance(self._liar, LibraryScheme)
        self._liar._arithmetic = Altered(self._liar._arithmetic, lambda content: changed(content, draw))  # type: ignore[assignment]
        self._keys = self._honest.keygen(CLIENTS)
        self._encryptors = [self._honest.encryptor(self._keys.client(k)) for k in range(CLIENTS)]
        self._lying = self._liar.encryptor(self._keys.client(CLIENTS - 1))
        self._true = self._sum(self._encryptors).finish()

    def _sum(self, encryptors: list[Encryptor]) -> Aggregator:
        self._number += 1
        aggregator = self._honest.aggregator(self._keys.server())
        for encryptor in encryptors:
            aggregator.add(encryptor.encrypt(UPDATE, round=self._number))
        return aggregator

    def _opened(self, aggregate: bytes) -> list[Any] | None:
        try:
            return self._honest.decryptor(self._keys.client(0), in_memory=True).decrypt(aggregate)
        except FedcipherError:
            return None

    def _check(self, aggregate: bytes, must: bool) -> None:
        opened = self._opened(aggregate)
        if opened is None:
            assert not must, "a refused frame changed the sum"
        else:
            np.testing.assert_allclose(opened[0], UPDATE[0], atol=0.02, err_msg="not the sum of these clients")

    def add(self) -> None:
        """Add a changed frame of one client to honest ones."""
        aggregator, taken = self._sum(self._encryptors[:-1]), True
        try:
            aggregator.add(self._lying.encrypt(UPDATE, round=self._number))
        except FedcipherError:
            taken = False
        self._check(aggregator.finish(), not taken)

    def open(self) -> None:
        """Open an aggregate that the server has changed."""
        payload = changed(wire_tools.payload(self._true), self._draw)
        self._check(wire_tools.with_other_payload(self._true, payload), False)


def main() -> int:
    """Run ``fuzz_frames.py add|open VARIANT SECONDS [SEED]``. Prints the number of tries in libFuzzer's form."""
    what, name, seconds, *seed = sys.argv[1:]
    (variant,) = (variant for variant in every_scheme() if variant.name == name)
    until, tries = time.monotonic() + float(seconds), 0
    with tempfile.TemporaryDirectory() as state, variable("FEDCIPHER_STATE_DIR", state):
        tried = getattr(Round(variant, random.Random(int(seed[0]) if seed else None)), what)
        while time.monotonic() < until:
            tried()
            tries += 1
    print(f"stat::number_of_executed_units: {tries}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
