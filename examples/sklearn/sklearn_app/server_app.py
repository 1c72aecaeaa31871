"""A typical ServerApp. The lines that encrypt are marked."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearn_app.task import make_model, parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg()
    strategy = SecureStrategy(  # <- added
        strategy,
        keys=config["fedcipher-keys"],
        opener=config["fedcipher-opener"],
        train_answers=["accuracy"],
        evaluate_answers=["accuracy"],
    )
    initial = {name: Array(values) for name, values in parameters(make_model()).items()}
    result = strategy.start(grid, ArrayRecord(initial), num_rounds=config["num-server-rounds"])
    np.savez("final_model.npz", **{name: array.numpy() for name, array in result.arrays.items()})
