"""A persistor for NVFlare's own encryption without PyTorch: it gives the first model, and stores no ciphertext."""

import numpy as np
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor


class FirstModel(ModelPersistor):
    def __init__(self, rows=20, columns=5):
        super().__init__()
        self.rows, self.columns = rows, columns

    def load_model(self, fl_ctx):
        return make_model_learnable({"numpy_key": np.zeros((self.rows, self.columns), np.float32)}, {})

    def save_model(self, model, fl_ctx):
        self.log_info(fl_ctx, "the model is encrypted and is not stored")
