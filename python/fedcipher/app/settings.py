"""What a training run is made of: one value object for `fedcipher train` and `flwr run`."""

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

# (epochs, batch, one in how many clients trains a round): a client of the digits holds 120 examples,
# two batches of the usual size.
_TRAINING = {"digits": (5, 16, 1)}
_USUAL = (1, 64, 3)
_TEXT, _TEXT_MODELS = "shakespeare", ("gru", "gru-0.66m")


@dataclass(frozen=True)
class Settings:
    """A run's settings; the names, with dashes, are the keys of Flower's run config. 0: the usual value."""

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
    """Of the last round, down to which it follows a cosine; 0: it stays."""
    optimiser: str = "nadam"
    test_share: float = 0.0
    """Of each client's own examples, to evaluate on in the place of the data set's; 0: its part of those."""
    validation_share: float = 0.0
    """Of what a client trains on, kept to stop its training early; 0: none."""
    patience: int = 1
    """Passes without a better validation loss after which a client stops."""
    dirichlet: float = 0.0
    seed: int = 0
    examples_per_weight: float = 0.0
    out: str = "fedcipher-run"
    resume: bool = False
    """Go on with the run in ``out`` where there is one."""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.model:
            object.__setattr__(self, "model", default_model(self.dataset))
        epochs, batch, one_in = _TRAINING.get(self.dataset, _USUAL)
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
        # One reads sequences of symbols, the others images.
        if (self.model in _TEXT_MODELS) != (self.dataset == _TEXT):
            raise ParameterError(
                f"model {self.model} does not go with {self.dataset}: {' and '.join(_TEXT_MODELS)} are for {_TEXT}, "
                "the others are for images"
            )

    def _check_training(self) -> None:
        if self.learning_rate <= 0:
            raise ParameterError(f"learning_rate={self.learning_rate} is not a positive number")
        if self.learning_rate_end < 0:
            raise ParameterError(f"learning_rate_end={self.learning_rate_end} is neither 0 nor a positive number")
        if self.optimiser not in OPTIMISERS:
            raise ParameterError(f"optimiser {self.optimiser!r} is not one of {', '.join(OPTIMISERS)}")
        for name in ("test_share", "validation_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"{name}={getattr(self, name)} is no share of a client's examples, 0 to below 1")
        if self.patience < 1:
            raise ParameterError(f"patience={self.patience} must be at least 1")

    def rate(self, number: int) -> float:
        """The learning rate of a round, from 1."""
        if not self.learning_rate_end or self.rounds == 1:
            return self.learning_rate
        done = min(1.0, (number - 1) / (self.rounds - 1))
        span = self.learning_rate - self.learning_rate_end
        return self.learning_rate_end + span * (1 + math.cos(math.pi * done)) / 2

    def _check_types(self) -> None:
        """A run config is written by hand."""
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if field.name == "keys":
                kind = str
            fine = isinstance(value, (int, float) if kind is float else kind)
            if not fine or (isinstance(value, bool) and kind is not bool):
                raise ParameterError(f"{field.name.replace('_', '-')}={value!r} is not of type {kind.__name__}")
            if kind is float and not is_finite(value):
                raise ParameterError(f"{field.name}={quoted(repr(value), MAX_NAME)} is no finite number")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Settings from a Flower run config; ``fedcipher-keys`` names the key folder, or the authority."""
        if "fedcipher-keys" not in config:
            raise ParameterError("the run config lacks fedcipher-keys, the folder made by `fedcipher keygen`")
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        values: dict[str, Any] = {known[key]: value for key, value in config.items() if key in known}
        values["keys"] = str(config["fedcipher-keys"])
        return cls(**values)
