"""A Flower app that trains a variational autoencoder."""
