"""Scikit-learn's breast cancer data as XGBoost wants it."""

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer


def load_data(partition_id: int, num_clients: int):
    """This client's part, 80 % to train on and 20 % to test."""
    bunch = load_breast_cancer()
    own = np.random.default_rng(0).permutation(len(bunch.target))[partition_id::num_clients]
    x, y = bunch.data[own].astype(np.float32), bunch.target[own].astype(np.float32)
    cut = int(0.8 * len(own))
    return xgb.DMatrix(x[:cut], label=y[:cut]), xgb.DMatrix(x[cut:], label=y[cut:]), cut, len(own) - cut


def replace_keys(input_dict, match="-", target="_"):
    """The same mapping with ``match`` replaced in its keys, at each depth."""
    return {
        key.replace(match, target): replace_keys(value, match, target) if isinstance(value, dict) else value
        for key, value in input_dict.items()
    }
