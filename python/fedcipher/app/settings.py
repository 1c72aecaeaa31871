"""The settings of a training run, for both `fedcipher train` and `flwr run`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedcipher._arguments import is_finite
from fedcipher.data import DATASETS
from fedcipher.errors import ParameterError
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.models import MODELS, OPTIMISERS, default_model

__all__ = ["Settings"]

# (epochs, batch, n: one in n clients trains in a round). A client of the digits holds 120 examples, two batches of
# the default size.
_TRAINING = {"digits": (5, 16, 1)}
_DEFAULT_TRAINING = (1, 64, 3)
_TEXT, _TEXT_MODELS = "shakespeare", ("gru", "gru-0.66m")


@dataclass(frozen=True)
class Settings:
    """A run's settings. The names, with dashes, are the keys of Flower's run config. 0 means the default value."""

    keys: str
    dataset: str = "digits"
    data_dir: str = ""
    model: str = ""
    clients: int = 12
    per_round: int = 0
    rounds: int = 10
    epochs: int = 0
    batch: int = 0
    learning_rate: float = 1e-3
    learning_rate_end: float = 0.0
    """The learning rate of the last round; rates between the first and last follow a cosine. 0: constant rate."""
    optimiser: str = "nadam"
    test_share: float = 0.0
    """The share of each client's examples to evaluate on, 0 to below 1.

    0: clients evaluate on their parts of the data set's test examples.
    """
    validation_share: float = 0.0
    """The share of a client's training examples that decide when training stops early; 0: no early stopping."""
    patience: int = 1
    """A client stops after so many passes without a better validation loss."""
    dirichlet: float = 0.0
    seed: int = 0
    examples_per_weight: float = 0.0
    out: str = "fedcipher-run"
    resume: bool = False
    """Resume the run in ``out`` if there is one."""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.model:
            object.__setattr__(self, "model", default_model(self.dataset))
        epochs, batch, one_in = _TRAINING.get(self.dataset, _DEFAULT_TRAINING)
        object.__setattr__(self, "epochs", self.epochs or epochs)
        object.__setattr__(self, "batch", self.batch or batch)
        if not self.per_round:
            object.__setattr__(self, "per_round", max(1, self.clients // one_in))
        if not 1 <= self.per_round <= self.clients:
            raise ParameterError(f"{self.per_round} clients per round is outside 1..{self.clients}")
        if self.rounds < 1 or self.epochs < 1 or self.batch < 1:
            raise ParameterError("rounds, epochs and batch must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ParameterError(f"seed={self.seed} is outside 0..{2**32 - 1}")
        self._check_training()
        if self.dirichlet < 0:
            raise ParameterError(f"dirichlet={self.dirichlet} is neither 0 nor a positive number")
        if self.dataset not in DATASETS:
            raise ParameterError(f"dataset {self.dataset!r} is not one of {', '.join(DATASETS)}")
        if self.model not in MODELS:
            raise ParameterError(f"model {self.model!r} is not one of {', '.join(MODELS)}")
        # Text models read sequences of symbols, the others images.
        if (self.model in _TEXT_MODELS) != (self.dataset == _TEXT):
            raise ParameterError(
                f"model {self.model} cannot train on {self.dataset}: {' and '.join(_TEXT_MODELS)} are for {_TEXT}, "
                "the other models are for images"
            )

    def _check_training(self) -> None:
        if self.learning_rate <= 0:
            raise ParameterError(f"learning_rate={self.learning_rate} is not a positive number")
        if self.learning_rate_end < 0:
            raise ParameterError(f"learning_rate_end={self.learning_rate_end} is neither 0 nor a positive number")
        if self.optimiser not in OPTIMISERS:
            raise ParameterError(f"optimiser {self.optimiser!r} is not one of {', '.join(OPTIMISERS)}")
        for name in ("test_share", "validation_share"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise ParameterError(f"{name}={share} is not a share of a client's examples, 0 to below 1")
        if self.patience < 1:
            raise ParameterError(f"patience={self.patience} must be at least 1")

    def rate(self, number: int) -> float:
        """The learning rate of round ``number``; rounds count from 1."""
        if not self.learning_rate_end or self.rounds == 1:
            return self.learning_rate
        done = min(1.0, (number - 1) / (self.rounds - 1))
        span = self.learning_rate - self.learning_rate_end
        return self.learning_rate_end + span * (1 + math.cos(math.pi * done)) / 2

    def _check_types(self) -> None:
        """Check the type of each setting, because users write run configs by hand. Raises `ParameterError`."""
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if field.name == "keys":
                kind = str
            fine = isinstance(value, (int, float) if kind is float else kind)
            if not fine or (isinstance(value, bool) and kind is not bool):
                raise ParameterError(f"{field.name.replace('_', '-')}={value!r} is not of type {kind.__name__}")
            if kind is float and not is_finite(value):
                raise ParameterError(f"{field.name}={quoted(repr(value), MAX_NAME)} is not a finite number")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Make settings from a Flower run config, in which ``fedcipher-keys`` names the key folder or the authority.

        Raises `ParameterError`.
        """
        if "fedcipher-keys" not in config:
            raise ParameterError("the run config lacks fedcipher-keys, the folder made by `fedcipher keygen`")
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        values: dict[str, Any] = {known[key]: value for key, value in config.items() if key in known}
        values["keys"] = str(config["fedcipher-keys"])
        return cls(**values)
