"""FedAvg that goes on with the run in its folder."""

import os
from pathlib import Path

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from resume_app.client_app import SHAPE

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, or those that are left of them."""
    config = context.run_config
    out = Path(str(config["fedcipher-out"]))
    # Whom to kill.
    out.with_suffix(".pid").write_text(str(os.getpid()))
    clients = config["clients"]
    inner = FedAvg(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0)
    strategy = SecureStrategy(inner, config["fedcipher-keys"], out=out, resume=True, deadline=30)
    first = ArrayRecord({"walk": Array(np.zeros(SHAPE, np.float32))})
    strategy.start(grid, first, num_rounds=config["rounds"])
