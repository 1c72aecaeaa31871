"""A strategy of the app's own over a PyTorch model, whose best version is kept."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from pytorch_example.strategy import CustomFedAvg
from pytorch_example.task import Net, load_centralized_dataset, test

app = ServerApp()


class Best:
    """Evaluates the global model on the server's own test set, and saves the best one."""

    def __init__(self, path: Path):
        self.path, self.accuracy = path, -1.0

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, load_centralized_dataset(), torch.device("cpu"))
        if accuracy > self.accuracy:
            self.accuracy = accuracy
            torch.save(model.state_dict(), self.path)
        return MetricRecord({"accuracy": accuracy, "loss": loss})


@app.main()
def main(grid: Grid, context: Context) -> None:
    num_rounds: int = context.run_config["num-server-rounds"]
    lr: float = context.run_config["learning-rate"]

    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())

    strategy = CustomFedAvg(
        Path("results.jsonl"),
        fraction_train=context.run_config["fraction-train"],
        fraction_evaluate=context.run_config["fraction-evaluate"],
    )

    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=num_rounds,
        evaluate_fn=Best(Path("best_model.pt")),
    )

    print("\nSaving final model to disk...")
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
