"""FedAvg over a classifier of tables."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fltabular.task import Classifier

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]

    torch.manual_seed(0)
    arrays = ArrayRecord(Classifier().state_dict())

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
    )

    print("\nSaving final model to disk...")
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
