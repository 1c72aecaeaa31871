"""A Flower app on NumPy."""
