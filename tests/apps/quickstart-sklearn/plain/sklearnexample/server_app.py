"""FedAvg over a scikit-learn model."""

import joblib
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnexample.task import create_log_reg_and_instantiate_parameters, get_model_params, set_model_params

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]
    model = create_log_reg_and_instantiate_parameters(context.run_config["seed"])
    arrays = ArrayRecord(get_model_params(model))

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=num_rounds,
    )

    print("\nSaving final model to disk...")
    ndarrays = result.arrays.to_numpy_ndarrays()
    set_model_params(model, ndarrays)
    joblib.dump(model, "logreg_model.pkl")
