"""Bits or a clip range for each layer of a model, from options such as `--bits conv1=8,fc=12,10`."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from fedcipher._options import whole
from fedcipher.codec import MAX_BITS, MIN_BITS
from fedcipher.errors import ParameterError

__all__ = ["LayerBits", "LayerClips", "bits_option", "clip_option", "one_bits_option", "tensor_names"]

_V = TypeVar("_V", int, float)

_BITS = whole(MIN_BITS, MAX_BITS)
# Usual names of layers, and Flax's names. Flax counts from 0, the usual names from 1.
_KINDS = {"conv": "Conv", "fc": "Dense", "dense": "Dense", "bn": "BatchNorm", "embed": "Embed", "gru": "GRUCell"}


@dataclass(frozen=True)
class _ByLayer(Generic[_V]):
    """A number for each named layer, and optionally one for all other layers."""

    layers: tuple[tuple[str, _V], ...]
    rest: _V | None = None

    def _of(self, names: Sequence[str], option: str) -> list[_V | None]:
        """The number of each tensor; None for a tensor without one.

        The number of a numbered layer (``conv1``) overrides the number of its kind (``conv``). Raises
        `ParameterError` for a layer that the model lacks.
        """
        found: list[_V | None] = [self.rest] * len(names)
        for layer, value in sorted(self.layers, key=lambda given: given[0][-1:].isdigit()):
            own = [k for k, name in enumerate(names) if _belongs(name, layer)]
            if not own:
                raise ParameterError(f"{option} {layer}={value:g}: the model's layers are {', '.join(_layers(names))}")
            for k in own:
                found[k] = value
        return found


class LayerBits(_ByLayer[int]):
    """Bits per value, by layer."""

    def of(self, names: Sequence[str], rest: int) -> list[int]:
        """Bits of each tensor; ``rest`` where neither its layer nor a number for all others is given.

        Raises `ParameterError` for a layer that the model lacks.
        """
        return [rest if bits is None else bits for bits in self._of(names, "--bits")]


class LayerClips(_ByLayer[float]):
    """Ranges that values are clipped to, by layer."""

    def of(self, names: Sequence[str]) -> list[float]:
        """The clip range of each tensor.

        Raises `ParameterError` for a layer that the model lacks, and for a tensor without a range: ranges have no
        default.
        """
        found = self._of(names, "--clip")
        left = [name for name, clip in zip(names, found, strict=True) if clip is None]
        if left:
            raise ParameterError(
                f"--clip gives no range for {', '.join(_layers(left) or left)}: name these layers, or end with a range "
                "for all others, such as conv1=2,5"
            )
        return [clip for clip in found if clip is not None]


def one_bits_option(text: str) -> int | Literal["auto"]:
    """Parse a number of bits or ``auto``, as an argparse type."""
    return "auto" if text == "auto" else _BITS(text)


def bits_option(text: str) -> int | Literal["auto"] | LayerBits:
    """Parse like `one_bits_option`, or a comma list of ``LAYER=BITS`` with a number for all others."""
    return LayerBits(*_parsed(text, _BITS, "BITS such as conv1=8")) if "=" in text else one_bits_option(text)


def clip_option(text: str) -> str | LayerClips:
    """Return ``auto``, ``aciq`` or a number unchanged; parse a comma list of ``LAYER=RANGE`` like `bits_option`."""
    return LayerClips(*_parsed(text, _clip, "RANGE such as conv1=2.5")) if "=" in text else text


def _clip(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _parsed(text: str, value: Callable[[str], _V], named: str) -> tuple[tuple[tuple[str, _V], ...], _V | None]:
    layers: list[tuple[str, _V]] = []
    rest: _V | None = None
    for part in text.split(","):
        name, equals, given = part.partition("=")
        if not equals and rest is None:
            rest = value(name)
        elif equals and name.isidentifier() and name not in dict(layers):
            layers.append((name, value(given)))
        else:
            raise argparse.ArgumentTypeError(f"{part!r} in {text!r} is not LAYER={named}, or occurs twice")
    return tuple(layers), rest


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
    """The usual names of the layers of these tensors."""
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
    """The names of a model's tensors, in the order of an update. Raises `ParameterError`.

    A subprocess loads the model, because JAX's threads must not run in this process when Ray forks
    (`fedcipher.app.simulate`).
    """
    asked = json.dumps([dataset, data_dir, model])
    done = subprocess.run([sys.executable, "-c", _NAMES, asked], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or ["no error was printed"]
        raise ParameterError(f"the layers of {model} on {dataset} cannot be listed: {lines[-1]}")
    return list(json.loads(done.stdout.splitlines()[-1]))
