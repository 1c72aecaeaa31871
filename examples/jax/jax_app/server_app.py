"""A typical ServerApp. The lines that encrypt are marked."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from jax_app.task import accuracy, load_part, make_parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg()
    strategy = SecureStrategy(  # <- added
        strategy,
        keys=config["fedcipher-keys"],
        opener=config["fedcipher-opener"],
        train_answers=["loss"],
        evaluate_answers=["accuracy"],
    )
    initial = {name: Array(values) for name, values in make_parameters().items()}
    result = strategy.start(grid, ArrayRecord(initial), num_rounds=config["num-server-rounds"], evaluate_fn=evaluate)
    np.savez("final_model.npz", **{name: array.numpy() for name, array in result.arrays.items()})


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on all test data. The server can do so because the opener lets it see the mean."""
    x, y = load_part(0, 1, test=True)
    return MetricRecord({"accuracy": accuracy({name: array.numpy() for name, array in arrays.items()}, x, y)})
