"""What a training run is made of: one value object for `fedcipher train` and `flwr run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedcipher.errors import ParameterError
from fedcipher.models import default_model

__all__ = ["Settings"]

# (epochs, batch, one in how many clients trains a round): a client of the digits holds 120 examples,
# two batches of the usual size.
_TRAINING = {"digits": (5, 16, 1)}
_USUAL = (1, 64, 3)


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
    dirichlet: float = 0.0
    seed: int = 0
    examples_per_weight: float = 0.0
    out: str = "fedcipher-run"
    resume: bool = False
    """Go on with the run in ``out`` where there is one."""

    def __post_init__(self) -> None:
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

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Settings from a Flower run config; ``fedcipher-keys`` names the key folder, or the authority."""
        if "fedcipher-keys" not in config:
            raise ParameterError("the run config lacks fedcipher-keys, the folder made by `fedcipher keygen`")
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        values: dict[str, Any] = {known[key]: value for key, value in config.items() if key in known}
        values["keys"] = str(config["fedcipher-keys"])
        return cls(**values)
