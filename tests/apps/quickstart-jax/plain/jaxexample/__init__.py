"""A Flower app on JAX."""
