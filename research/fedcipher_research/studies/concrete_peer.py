"""Measures Concrete in an interpreter of its own: ``python -I concrete_peer.py COUNT ADDITIONS LEVELS``; prints JSON.

Concrete needs a NumPy that does not fit Fedcipher's other baselines, so this file imports nothing of Fedcipher.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from typing import Any


def measured(count: int, additions: int, levels: int) -> dict[str, float]:
    """Seconds of ``count`` encryptions, ``additions`` sums and ``count`` decryptions, and bytes of a ciphertext."""
    fhe: Any = importlib.import_module("concrete.fhe")

    def add(x: Any, y: Any) -> Any:
        return x + y

    top = levels - 1
    pairs = [(random.randrange(levels), random.randrange(levels)) for _ in range(100)]
    began = time.perf_counter()
    circuit = fhe.Compiler(add, {"x": "encrypted", "y": "encrypted"}).compile([*pairs, (top, top)])
    circuit.keygen()
    times = {"keys": time.perf_counter() - began}
    values = [random.randrange(levels) for _ in range(count)]
    began = time.perf_counter()
    sent = [circuit.encrypt(value, None)[0] for value in values]
    times["encryption"] = time.perf_counter() - began
    others = [circuit.encrypt(None, value)[1] for value in values]
    began = time.perf_counter()
    sums = [circuit.run(x, y) for x, y in zip(sent[:additions], others, strict=False)]
    times["operation"] = time.perf_counter() - began
    sums += [circuit.run(x, y) for x, y in zip(sent[additions:], others[additions:], strict=True)]
    began = time.perf_counter()
    opened = [circuit.decrypt(total) for total in sums]
    times["decryption"] = time.perf_counter() - began
    if opened != [2 * value for value in values]:
        sys.exit("the decrypted values are not the sums")
    return {**times, "up": len(sent[0].serialize()), "down": len(sums[0].serialize())}


if __name__ == "__main__":
    print(json.dumps(measured(*map(int, sys.argv[1:4]))))
