"""FedAvg, protected or in the clear, that prints what each reply consists of."""

import numpy as np
from fedcipher.adapters.flower import SecureStrategy
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Shown:
    """A grid whose replies are printed: their records, and the texts of errors."""

    def __init__(self, grid):
        self._grid = grid

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def pull_messages(self, *given, **named):
        """Flower's, with a line for each reply."""
        for reply in self._grid.pull_messages(*given, **named):
            if reply.has_error():
                print(f"REPLY error {reply.error.code} {reply.error.reason}", flush=True)
            else:
                names = {name: sorted(map(str, record.keys())) for name, record in reply.content.items()}
                print(f"REPLY {names}", flush=True)
            yield reply


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and save the model where the server may see it."""
    config = context.run_config
    arrays = ArrayRecord([np.zeros(config["size"], np.float32), np.zeros((3, 5), np.float64)])
    strategy = FedAvg(
        fraction_train=config["fraction-train"], min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3
    )
    if config["protect"]:
        strategy = SecureStrategy(
            strategy,
            keys=config["fedcipher-keys"],
            out=config["fedcipher-out"] or None,
            opener=config["fedcipher-opener"] or None,
            train_answers=["loss"],
            evaluate_answers=["mean"],
            consent_timeout=config["consent-timeout"],
            deadline=config["deadline"],
            may_lose=config["may-lose"],
        )
    result = strategy.start(
        grid=Shown(grid) if config["protect"] else grid, initial_arrays=arrays, num_rounds=config["num-server-rounds"]
    )
    if config["fedcipher-opener"] or not config["protect"]:
        np.savez("final_model", *result.arrays.to_numpy_ndarrays())
