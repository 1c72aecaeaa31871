"""Sums that clients report and statistics that follow from them, over scikit-learn's diabetes patients."""

from collections.abc import Iterable, Mapping

import numpy as np
from sklearn.datasets import load_diabetes


def query_database(partition_id: int, num_partitions: int, selected_features: list[str]) -> dict[str, np.ndarray]:
    """This client's patients; each measurement has at most four decimal places."""
    bunch = load_diabetes(scaled=False)
    columns = {name: bunch.data[:, k] for k, name in enumerate(bunch.feature_names)}
    return {name: columns[name][partition_id::num_partitions] for name in selected_features}


def aggregate_features(
    results: Iterable[Mapping[str, float]], selected_features: list[str], feature_aggregation: list[str]
) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of each feature from all clients' sums."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.items():
            totals[name] = totals.get(name, 0) + value
    if not totals:
        raise ValueError("no client has answered")
    stats: dict[str, dict[str, float]] = {}
    for feature in selected_features:
        count, mean = totals[f"{feature}_count"], totals[f"{feature}_sum"] / totals[f"{feature}_count"]
        stats[feature] = {}
        if "mean" in feature_aggregation:
            stats[feature]["mean"] = mean
        if "std" in feature_aggregation:
            variance = (totals[f"{feature}_sum_sqd"] - count * mean**2) / (count - 1)
            stats[feature]["std"] = float(np.sqrt(max(variance, 0.0)))
    return stats
