"""Federated-learning frameworks that carry a federation's messages, one package each."""
