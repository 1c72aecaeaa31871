"""A usual ServerApp, and the one line that encrypts."""

from fedcipher.flower import SecureStrategy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg()
    # Added; the model ends encrypted in this folder, for `fedcipher open`.
    strategy = SecureStrategy(strategy, keys=context.run_config["fedcipher-keys"], out="fedcipher-run")
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=context.run_config["num-server-rounds"])
