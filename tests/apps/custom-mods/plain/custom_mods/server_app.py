"""FedAvg that evaluates the global model on the server, each round."""

import random

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from custom_mods.task import Net, load_centralized_dataset, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    fraction_evaluate: float = float(context.run_config["fraction-evaluate"])
    num_rounds: int = int(context.run_config["num-server-rounds"])
    lr: float = float(context.run_config["learning-rate"])
    random.seed(context.run_config["seed"])

    arrays = ArrayRecord(Net().state_dict())

    strategy = FedAvg(fraction_evaluate=fraction_evaluate)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
        evaluate_fn=global_evaluate,
    )

    print("\nSaving final model to disk...")
    np.savez("final_model.npz", **{name: array.numpy() for name, array in result.arrays.items()})


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The global model on the server's own test set."""
    model = Net()
    model.load_state_dict(arrays)
    loss, accuracy = test(model, load_centralized_dataset())
    return MetricRecord({"accuracy": accuracy, "loss": loss})
