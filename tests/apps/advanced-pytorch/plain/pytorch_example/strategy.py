"""FedAvg with a schedule of the learning rate, that saves what each round has given."""

import json
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

HALVED_FROM = 2
"""The round from which the learning rate is half of what it was."""


class CustomFedAvg(FedAvg):
    """FedAvg whose rounds write a line of metrics to ``results``."""

    def __init__(self, results: Path, **options):
        super().__init__(**options)
        self.results = results

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's, with the round's learning rate."""
        if server_round == HALVED_FROM:
            config["lr"] = config["lr"] / 2
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """FedAvg's, and a line of it."""
        metrics = super().aggregate_evaluate(server_round, replies)
        with self.results.open("a") as file:
            file.write(json.dumps({"round": server_round, **(metrics or {})}) + "\n")
        return metrics
