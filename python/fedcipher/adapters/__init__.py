"""Adapters that send a federation's messages through a federated-learning framework, one package per framework."""
