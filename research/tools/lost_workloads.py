"""The trainings of `research/tools/results_lost.py`: Flower's quickstart-pytorch, and the LoRA example with a schedule.

All batches follow from seed, round and client, so two runs differ in their models alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Model", "Workload", "workloads"]

ROOT = Path(__file__).resolve().parents[2]
Model = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Workload:
    """One training of a federation, without encryption."""

    name: str
    clients: int
    rounds: int
    first: Callable[[int], Model]
    """The first model of a seed."""
    train: Callable[[Model, int, int, int], tuple[Model, int]]
    """Trains a model by seed, round and client. Returns the trained model and the number of examples."""
    max_examples: int
    """The most examples of a client, which is the largest weight."""
    without: frozenset[str] = frozenset()
    """Schemes that take too long for so many values."""


# --- Flower's quickstart-pytorch -------------------------------------------------------------

BATCH = 32
RATES = ((0.1, 0.9), (0.1, 0.0), (0.0005, 0.9), (1e-5, 0.9))
"""Learning rates and momenta. With the app's own, 0.1 and 0.9, training is chaotic: a start that is off by 1e-6 changes
the way of the model by a tenth. So even the order in which FedAvg adds models matters. Without momentum the change is a
hundredth, and the figures measure the coding."""
SLOW = frozenset(["pasta-bfv", "paillier"])
"""Schemes that take minutes for one run of 62,006 values."""
BATCHES = (4, 8, 12)
"""The batches of clients, in turns, so that updates have different weights. A client makes one pass in a round."""


def _net_name(rate: float, momentum: float) -> str:
    return f"CNN, {rate:g}" + ("" if momentum else ", no momentum")


def _net() -> Any:
    """The small CNN of PyTorch's tutorial: 62,006 values."""
    from torch import nn

    pool = nn.MaxPool2d(2, 2)
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), pool, nn.Conv2d(6, 16, 5), nn.ReLU(), pool, nn.Flatten()]
    return nn.Sequential(
        *convolutions, nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    )


def _net_first(seed: int) -> Model:
    import torch

    torch.manual_seed(seed)
    return {name: values.numpy().copy() for name, values in _net().state_dict().items()}


@cache
def _images(data: Path) -> tuple[Any, Any]:
    """CIFAR-10 in the app's form: channels first, values from -1 to 1."""
    import torch
    from fedcipher.data import load

    held = load("cifar10", str(data / "cifar10"))
    x = torch.from_numpy(np.ascontiguousarray(held.train_x.transpose(0, 3, 1, 2)))
    return (x - 0.5) / 0.5, torch.from_numpy(held.train_y.astype(np.int64))


def _net_trained(
    model: Model, seed: int, number: int, client: int, *, rate: float, momentum: float, data: Path, clients: int
) -> tuple[Model, int]:
    """Train for one pass over the client's part, with the loop of the app."""
    import torch

    x, y = _images(data)
    count = BATCH * BATCHES[client % len(BATCHES)]
    part = np.random.default_rng(seed).permutation(len(y))[client::clients][:count]
    order = np.random.default_rng([seed, number, client]).permutation(part)
    net = _net()
    net.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in model.items()})
    optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    for at in torch.from_numpy(order).split(BATCH):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x[at]), y[at]).backward()
        optimiser.step()
    return {name: values.numpy() for name, values in net.state_dict().items()}, count


# --- examples/lora ---------------------------------------------------------------------------

PEAK, STEPS, SEQUENCES = 0.003, (3, 6, 9), 8
"""The example's own rate, which falls to zero by a cosine over the rounds; the clients' steps, in turns; sequences."""


def _lora_first(seed: int) -> Model:
    from lora_app.model import make_adapters

    return make_adapters(seed)


@cache
def _base() -> Model:
    """The example's base model, which is trained once and stored in the folder runs."""
    from lora_app import pretrain

    path = ROOT / "runs" / "lost-base.npz"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        pretrain.main(["--out", str(path)])
    with np.load(path) as file:
        return dict(file)


def _lora_trained(
    model: Model, seed: int, number: int, client: int, *, rounds: int, data: Path, clients: int
) -> tuple[Model, int]:
    from lora_app.data import load_part
    from lora_app.model import train

    text = load_part(str(data / "shakespeare" / "input.txt"), client, clients)
    rate = PEAK * (1 + math.cos(math.pi * (number - 1) / rounds)) / 2
    steps = STEPS[client % len(STEPS)]
    batches = (1000 * seed + number) * 1000 + client
    made, _ = train(model, _base(), text, steps=steps, rate=rate, seed=batches, batch=SEQUENCES)
    return made, SEQUENCES * steps


def workloads(data: Path) -> list[Workload]:
    """All workloads, with the data sets in folders of ``data``."""
    sys.path.insert(0, str(ROOT / "examples" / "lora"))
    clients, rounds = 10, 8
    made: list[Workload] = []
    for rate, momentum in RATES:
        train = partial(_net_trained, rate=rate, momentum=momentum, data=data, clients=clients)
        made.append(Workload(_net_name(rate, momentum), clients, rounds, _net_first, train, BATCH * max(BATCHES), SLOW))
    rounds = 6
    train = partial(_lora_trained, rounds=rounds, data=data, clients=clients)
    return [*made, Workload("LoRA, cosine", clients, rounds, _lora_first, train, SEQUENCES * max(STEPS))]
