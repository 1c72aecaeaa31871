"""A scikit-learn Flower app with the two lines that encrypt it."""
