"""Models of the demo and the benchmarks, in JAX on the CPU."""

from fedcipher.errors import DependencyError

try:
    import flax  # noqa: F401
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise DependencyError("the built-in models need JAX, Flax and Optax; install fedcipher[demo]") from error

from fedcipher.models.learner import Evaluation, Learner
from fedcipher.models.zoo import MODELS, default_model

__all__ = ["MODELS", "Evaluation", "Learner", "default_model"]
