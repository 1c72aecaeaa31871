"""FedXgbBagging: the global model is the union of all clients' trees."""

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, Context
from flwr.common.config import unflatten_dict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging

from xgboost_quickstart.task import replace_keys

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds = context.run_config["num-server-rounds"]
    params = replace_keys(unflatten_dict(context.run_config))["params"]
    # The first booster is made on the clients.
    arrays = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])

    strategy = FedXgbBagging(
        fraction_train=context.run_config["fraction-train"],
        fraction_evaluate=context.run_config["fraction-evaluate"],
    )

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
    )

    bst = xgb.Booster(params=params)
    bst.load_model(bytearray(result.arrays["0"].numpy().tobytes()))
    print("\nSaving final model to disk...")
    bst.save_model("final_model.json")
