"""Models of the demo and the benchmarks, in JAX on the CPU."""

from fedcipher._optional import require

require("a built-in model", "demo", "jax", "flax", "optax")

from fedcipher.models.learner import OPTIMISERS, Evaluation, Learner
from fedcipher.models.zoo import MODELS, default_model

__all__ = ["MODELS", "OPTIMISERS", "Evaluation", "Learner", "default_model"]
