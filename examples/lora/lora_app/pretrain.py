"""Train the base model on Python's documentation: ``python -m lora_app.pretrain --out base.npz``."""

import argparse

import numpy as np

from lora_app.data import common_text
from lora_app.model import make_base, train


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="base.npz")
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args(arguments)
    base, loss = train(make_base(), None, common_text()[:-100_000], steps=options.steps, rate=2e-3, seed=0)
    np.savez(options.out, **base)
    print(f"{options.out}: {sum(x.size for x in base.values()):,} parameters, mean loss {loss:.3f}")


if __name__ == "__main__":
    main()
