"""The model: one array of one value."""

import numpy as np


def get_dummy_model():
    return [np.ones((1, 1))]
