"""Writes the job of client.py: `python job.py FOLDER`, in the clear, or `python job.py FOLDER KEYS RUN` encrypted."""

import json
import sys
from pathlib import Path

CLIENT = str(Path(__file__).with_name("client.py"))
SITES, ROUNDS = 3, 3
MODEL = [[0.0] * 5] * 20


def main(folder: str, keys: str = "", out: str = "", more: str = "{}") -> None:
    if keys:
        from fedcipher.adapters.nvflare.recipe import SecureFedAvgRecipe

        options = {"num_rounds": ROUNDS, "min_clients": SITES, **json.loads(more)}
        recipe = SecureFedAvgRecipe(name="hello", keys=keys, train_script=CLIENT, model=MODEL, out=out, **options)
    else:
        from nvflare.app_common.np.recipes import NumpyFedAvgRecipe

        recipe = NumpyFedAvgRecipe(name="hello", train_script=CLIENT, model=MODEL, min_clients=SITES, num_rounds=ROUNDS)
    recipe.export(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
