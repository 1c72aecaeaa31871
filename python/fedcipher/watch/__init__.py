"""Loggers for `SecureStrategy`'s ``on_round``, and ``fedcipher dashboard`` (`fedcipher.watch.app`)."""

from fedcipher.watch.loggers import JsonLines, MLflow, TensorBoard, WandB, figures, follow

__all__ = ["JsonLines", "MLflow", "TensorBoard", "WandB", "figures", "follow"]
