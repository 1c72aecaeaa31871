"""A TensorFlow Flower app with the two lines that encrypt it."""
