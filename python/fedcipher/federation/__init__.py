"""Federated runs, independent of a framework: charter, chain of models, answers, policy, and search for liars."""
