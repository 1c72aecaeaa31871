"""Models of the demo and the benchmarks, in JAX on the CPU."""

from fedcipher._optional import require

require("a built-in model", "demo", "jax", "flax", "optax")

from fedcipher.models.learner import Evaluation, Learner
from fedcipher.models.zoo import MODELS, default_model

__all__ = ["MODELS", "Evaluation", "Learner", "default_model"]
