"""A Flower app on PyTorch with a strategy and client state of its own."""
