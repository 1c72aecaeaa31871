"""A Flower app on PyTorch."""
