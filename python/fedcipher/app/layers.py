"""Bits of a value for each layer of a model, as `--bits conv1=8,fc=12,10` says them."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fedcipher._options import whole
from fedcipher.errors import ParameterError

__all__ = ["LayerBits", "bits_option", "tensor_names"]

_BITS = whole(4, 24)
# What people call a layer, and what Flax does; its numbers begin at 0.
_KINDS = {"conv": "Conv", "fc": "Dense", "dense": "Dense", "bn": "BatchNorm", "embed": "Embed", "gru": "GRUCell"}


@dataclass(frozen=True)
class LayerBits:
    """Layers by name and their bits, and the bits of all others, where they are given."""

    layers: tuple[tuple[str, int], ...]
    rest: int | None = None

    def of(self, names: Sequence[str], rest: int) -> list[int]:
        """Bits of each tensor, ``rest`` where neither its layer nor the others' bits are given.

        A numbered layer (``conv1``) goes before its kind (``conv``). Raises `ParameterError` for a layer that the
        model lacks.
        """
        found = [self.rest or rest] * len(names)
        for layer, bits in sorted(self.layers, key=lambda given: given[0][-1:].isdigit()):
            own = [k for k, name in enumerate(names) if _belongs(name, layer)]
            if not own:
                raise ParameterError(f"--bits {layer}={bits}: the model's layers are {', '.join(_layers(names))}")
            for k in own:
                found[k] = bits
        return found


def bits_option(text: str) -> int | LayerBits:
    """An argparse type: a number of bits, or ``LAYER=BITS`` with commas and a number for the rest."""
    if "=" not in text:
        return _BITS(text)
    layers: list[tuple[str, int]] = []
    rest: int | None = None
    for part in text.split(","):
        name, equals, bits = part.partition("=")
        if not equals and rest is None:
            rest = _BITS(name)
        elif equals and name.isidentifier() and name not in dict(layers):
            layers.append((name, _BITS(bits)))
        else:
            raise argparse.ArgumentTypeError(f"{part!r} in {text!r} is no LAYER=BITS, as conv1=8, or is there twice")
    return LayerBits(tuple(layers), rest)


def _belongs(tensor: str, layer: str) -> bool:
    parts = tensor.split("/")
    if layer in parts:
        return True
    named = re.fullmatch(r"([a-z]+)(\d*)", layer)
    if named is None or named[1] not in _KINDS:
        return False
    kind = _KINDS[named[1]]
    if named[2]:
        return f"{kind}_{int(named[2]) - 1}" in parts
    return any(re.fullmatch(rf"{kind}_\d+", part) for part in parts)


def _layers(names: Sequence[str]) -> list[str]:
    """As one would name them."""
    short = {kind: name for name, kind in reversed(_KINDS.items())}
    found: dict[str, None] = {}
    for part in (part for name in names for part in name.split("/")):
        kind, _, number = part.rpartition("_")
        if kind in short and number.isdigit():
            found[f"{short[kind]}{int(number) + 1}"] = None
    return list(found)


_NAMES = """
import json, sys
from fedcipher.data import load
from fedcipher.models import Learner
dataset, folder, model = json.loads(sys.argv[1])
data = load(dataset, folder or None)
print(json.dumps(Learner(model, data.classes, data.train_x[0]).names))
"""


def tensor_names(dataset: str, data_dir: str, model: str) -> list[str]:
    """Of a model's tensors, in the order of an update.

    By a process of its own: JAX's threads must not be here when Ray forks (`fedcipher.app.simulate`).
    """
    asked = json.dumps([dataset, data_dir, model])
    done = subprocess.run([sys.executable, "-c", _NAMES, asked], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or ["no word of why"]
        raise ParameterError(f"the layers of {model} on {dataset} cannot be found out: {lines[-1]}")
    return list(json.loads(done.stdout.splitlines()[-1]))
