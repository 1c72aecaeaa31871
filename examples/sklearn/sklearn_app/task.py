"""Model and data, independent of encryption."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler


def make_model(seed=0):
    """A logistic regression with initial parameters, which scikit-learn would make only in its first `fit`."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, random_state=seed)
    model.classes_ = np.array([0, 1])
    set_parameters(model, {"coef": np.zeros((1, 30)), "intercept": np.zeros(1)})
    return model


def parameters(model):
    return {"coef": model.coef_, "intercept": model.intercept_}


def set_parameters(model, values):
    # Copies, because `partial_fit` writes into these arrays.
    model.coef_, model.intercept_ = np.array(values["coef"]), np.array(values["intercept"])


def load_part(part, parts, test=False):
    bunch = load_breast_cancer()
    x = StandardScaler().fit_transform(bunch.data)
    order = np.random.default_rng(0).permutation(len(x))
    cut = len(x) // 5
    own = (order[:cut] if test else order[cut:])[part::parts]
    return x[own], bunch.target[own]
