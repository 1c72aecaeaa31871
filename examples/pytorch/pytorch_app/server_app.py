"""A usual ServerApp. The one line that encrypts is marked."""

from fedcipher.flower import SecureStrategy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg()
    strategy = SecureStrategy(strategy, keys=context.run_config["fedcipher-keys"])  # <- added
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=context.run_config["num-server-rounds"])
