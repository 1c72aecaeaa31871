"""A typical ServerApp. The one call that encrypts is marked."""

from fedcipher.adapters.flower import SecureStrategy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg()
    # Added. The folder gets the encrypted model, for `fedcipher open`, and the encrypted sums of the clients' answers.
    strategy = SecureStrategy(
        strategy,
        keys=context.run_config["fedcipher-keys"],
        out="fedcipher-run",
        train_answers=["loss"],
        evaluate_answers=["accuracy"],
    )
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=context.run_config["num-server-rounds"])
