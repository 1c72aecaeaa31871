"""The ready Flower app: `flwr run` starts it, `fedcipher train` runs it in simulation."""
