"""Logistic regression on images of digits, which scikit-learn brings along."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

UNIQUE_LABELS = list(range(10))
PIXELS = 64


def get_model_params(model: LogisticRegression) -> list[np.ndarray]:
    return [model.coef_, model.intercept_] if model.fit_intercept else [model.coef_]


def set_model_params(model: LogisticRegression, params: list[np.ndarray]) -> LogisticRegression:
    model.coef_ = params[0]
    if model.fit_intercept:
        model.intercept_ = params[1]
    return model


def create_log_reg_and_instantiate_parameters(seed: int) -> LogisticRegression:
    """A model with parameters, which scikit-learn otherwise makes in its first `fit`."""
    model = LogisticRegression(
        max_iter=1,  # local epoch
        warm_start=True,  # `fit` goes on from the parameters it is given
        solver="saga",
        random_state=seed,
    )
    model.classes_ = np.array(UNIQUE_LABELS)
    model.coef_ = np.zeros((len(UNIQUE_LABELS), PIXELS))
    model.intercept_ = np.zeros(len(UNIQUE_LABELS))
    return model


def load_data(partition_id: int, num_partitions: int):
    """This client's part, 80 % to train on and 20 % to test."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))[partition_id::num_partitions]
    X, y = bunch.data[order] / 16, bunch.target[order]
    cut = int(0.8 * len(X))
    return X[:cut], y[:cut], X[cut:], y[cut:]
