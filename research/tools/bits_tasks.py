"""The trainings of docs/explanation/bits.md: tasks of several kinds.

Each task runs in this process with the Flower mod and strategy. Two runs with one seed have the same clients, examples
and first model, and differ in their bits only.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

# One thread for each client, like `fedcipher train` sets it.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
# A step of a small model takes less time than waking another thread.
os.environ.setdefault("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")

import fedcipher
import flax.linen as nn
import numpy as np
from fedcipher.adapters.flower import RoundRecord, SecureStrategy, client_mod
from fedcipher.app.client_app import make_client_app
from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.keys import client_file, save
from fedcipher.models import MODELS, Learner
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "lora")]
from flower_harness import LocalGrid
from lora_app.data import common_text, load_part
from lora_app.model import batches, logits, make_adapters, make_base, train

Arrays = dict[str, np.ndarray]
REFERENCE = 24
"""The bits of the reference, which stands for float32."""
_BASE_STEPS, _LORA_STEPS, _LORA_RATE, _HELD_OUT = 600, 10, 3e-3, 512


class Mlp(nn.Module):
    """A model with 25,450 parameters for MNIST. A hundred clients train it in seconds."""

    classes: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
        return nn.Dense(self.classes)(x)


MODELS["mlp"] = Mlp


class Federation(NamedTuple):
    """The parts of a run: the clients' app, the first model, and accuracy and loss of a model on held-out data."""

    app: ClientApp
    first: Arrays
    score: Callable[[Arrays], tuple[float, float]]


@dataclass(frozen=True)
class Task:
    """A task that is trained with each of ``bits`` under the same seeds."""

    name: str
    shown: str
    clients: int
    rounds: int
    make: Callable[[Task, int, Path], Federation]
    settings: tuple[tuple[str, Any], ...] = ()
    bits: tuple[int, ...] = (3, 6, REFERENCE)
    sampled: int = 0
    """The number of clients in a round; 0 means all."""

    @property
    def per_round(self) -> int:
        return self.sampled or self.clients


def built_in(task: Task, seed: int, data: Path) -> Federation:
    """A federation with a model and a data set of `fedcipher train`."""
    given: dict[str, Any] = dict(task.settings)
    shape = {"clients": task.clients, "per_round": task.per_round, "rounds": task.rounds, "seed": seed}
    settings = Settings(keys="", data_dir=str(data / given["dataset"]), **given, **shape)
    held = load(settings.dataset, settings.data_dir)
    learner = Learner(settings.model, held.classes, held.train_x[0])

    def score(model: Arrays) -> tuple[float, float]:
        found = learner.evaluate([model[name] for name in learner.names], held.test_x, held.test_y)
        return float(np.trace(found.confusion) / found.confusion.sum()), found.loss

    return Federation(make_client_app(settings), dict(zip(learner.names, learner.initial(seed), strict=True)), score)


@cache
def base() -> Arrays:
    """The frozen transformer of examples/lora, trained with fewer steps."""
    return train(make_base(), None, common_text()[:-100_000], steps=_BASE_STEPS, rate=2e-3, seed=0)[0]


def lora(task: Task, seed: int, data: Path) -> Federation:
    """A federation that trains adapters of that transformer on Shakespeare."""
    text, fixed = data / "shakespeare" / "input.txt", base()
    app = ClientApp(mods=[client_mod])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        client, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        own, adapters = load_part(text, client, task.clients), message.content.array_records["arrays"].items()
        drawn = hash((seed, number, client)) & 0xFFFF_FFFF
        how = {"steps": _LORA_STEPS, "rate": _LORA_RATE, "seed": drawn}
        trained, loss = train({name: array.numpy() for name, array in adapters}, fixed, own, **how)
        metrics = MetricRecord({"num-examples": 1, "loss": loss})
        return Message(RecordDict({"arrays": record(trained), "metrics": metrics}), reply_to=message)

    pieces = batches(load_part(text, 0, 1, test=True), np.random.default_rng(0), _HELD_OUT)
    return Federation(app, make_adapters(seed), lambda adapters: next_bytes(fixed, adapters, pieces))


def next_bytes(fixed: Arrays, adapters: Arrays, pieces: np.ndarray) -> tuple[float, float]:
    """The share of bytes that the model predicts, and its loss in nats for each byte."""
    hits, losses = [], []
    for part in np.split(pieces, len(pieces) // 64):
        found = np.asarray(logits(fixed, adapters, part[:, :-1]), np.float64)
        wanted = part[:, 1:, None]
        hits.append(np.mean(found.argmax(-1) == wanted[..., 0]))
        losses.append(np.mean(np.log(np.exp(found).sum(-1)) - np.take_along_axis(found, wanted, -1)[..., 0]))
    return float(np.mean(hits)), float(np.mean(losses))


def record(arrays: Arrays) -> ArrayRecord:
    """The arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


@contextmanager
def run_folder() -> Any:
    """An empty folder for a run. The clients' state is kept in it too."""
    with tempfile.TemporaryDirectory() as made, mock.patch.dict(os.environ, FEDCIPHER_STATE_DIR=f"{made}/state"):
        yield Path(made)


def run(task: Task, bits: int, seed: int, data: Path) -> dict[str, Any]:
    """Run one training. Returns accuracy and loss by round, and the upload of a client in a round."""
    made = fedcipher.scheme("flashe", clients=task.per_round, codec=fedcipher.Codec(bits=bits, clip="auto"))
    federation, rounds = task.make(task, seed, data), list[RoundRecord]()

    def evaluated(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy, loss = federation.score({name: array.numpy() for name, array in arrays.items()})
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    # Flower draws the clients of a round from this generator.
    random.seed(seed)
    with run_folder() as folder:
        save(made.keygen(task.clients), made, folder / "keys")
        strategy = SecureStrategy(
            FedAvg(
                fraction_train=task.per_round / task.clients,
                fraction_evaluate=0.0,
                min_train_nodes=task.per_round,
                min_available_nodes=task.clients,
            ),
            folder / "keys",
            opener=client_file(folder / "keys", 0),
            train_answers=["loss"],
            on_round=rounds.append,
        )
        grid = LocalGrid(federation.app, task.clients, folder / "keys")
        strategy.start(grid, record(federation.first), num_rounds=task.rounds, evaluate_fn=evaluated)
    which = {"task": task.name, "clients": task.per_round, "bits": bits, "levels": made.levels.of(bits), "seed": seed}
    return {**which, **measured(rounds)}


def measured(rounds: list[RoundRecord]) -> dict[str, Any]:
    """The results of a run. Fails if a client was left out of a round."""
    found = [each.metrics["server"] for each in rounds]
    sent = [client.phases["upload_bytes"] for each in rounds for client in each.clients if client.left_out is None]
    if any(each.unfinished or any(client.left_out for client in each.clients) for each in rounds):
        raise SystemExit(f"a client was left out: {rounds}")
    return {
        "accuracy": [each["accuracy"] for each in found],
        "loss": [each["loss"] for each in found],
        "up": float(np.mean(sent)),
        "values": rounds[-1].elements,
    }


_CIFAR = (("dataset", "cifar10"), ("model", "lenet5"), ("learning_rate", 2e-3))
_MNIST = (("dataset", "mnist"), ("model", "mlp"), ("learning_rate", 3e-3))
_TEXT = (("dataset", "shakespeare"), ("model", "gru"), ("learning_rate", 3e-3))
TASKS = (
    Task("mnist", "MNIST, CNN", 12, 10, built_in, (("dataset", "mnist"),), (2, 3, 4, 6, 12, REFERENCE), 4),
    Task("cifar10", "CIFAR-10 subset, LeNet-5", 10, 9, built_in, _CIFAR),
    Task("mnist-100", "MNIST, MLP", 100, 15, built_in, _MNIST),
    Task("shakespeare", "Shakespeare, GRU", 10, 8, built_in, _TEXT),
    Task("lora", "Shakespeare, LoRA of a transformer", 10, 8, lora),
)
