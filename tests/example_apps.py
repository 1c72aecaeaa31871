"""Apps in folders: run in this process; and of tests/apps their patched copies and when two models are equal."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import joblib
import numpy as np
import pytest
import tomli
from fedcipher import Codec, cli
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.federation.ranges import exponent_of, power_of
from fedcipher.schemes import DEFAULT_SCHEME
from flower_harness import LocalGrid
from flwr.app import Context, RecordDict
from places import TESTS

APPS = TESTS / "apps"
CLIENTS = 3
BITS = 16
# From the second round on, of updates whose largest value is below one.
STEP = 2 * 1.0 / (2**BITS - 2)
# One client more than train: its key is the opener.
COHORT = ["--clients", str(CLIENTS + 1), "--per-round", str(CLIENTS)]
READER = f"client-{CLIENTS}.key"

SAVED = {
    "quickstart-numpy": "final_model.npz",
    "quickstart-sklearn": "logreg_model.pkl",
    "quickstart-jax": "final_model.npz",
    "custom-mods": "final_model.npz",
    "quickstart-pytorch": "final_model.pt",
    "advanced-pytorch": "final_model.pt",
    "fl-tabular": "final_model.pt",
    "pytorch-federated-variational-autoencoder": "final_model.pt",
    "federated-analytics": "aggregated_stats.json",
    "quickstart-pandas": "histograms.json",
    "xgboost-quickstart": "final_model.json",
}
MODELS = [name for name, saved in SAVED.items() if not saved.endswith(".json")]
STATISTICS = ["federated-analytics", "quickstart-pandas"]
# quickstart-numpy adds numbers of up to 1, whatever the round before did: the range is known, so it is given.
# The updates of quickstart-pytorch grow threefold in each of the first rounds, beyond ranges that follow them.
# custom-mods trains on 200, 400 and 600 examples, advanced-pytorch on 575, 495 and 367.
KEYGEN = {
    "quickstart-numpy": ["--equal", "--clip", "1"],
    "quickstart-pytorch": ["--equal", "--clip", "0.5"],
    "custom-mods": ["--examples", "600"],
    "advanced-pytorch": ["--examples", "575"],
}
NEEDS = {
    **{name: "torch" for name, saved in SAVED.items() if saved.endswith(".pt")},
    "quickstart-pandas": "pandas",
    "xgboost-quickstart": "xgboost",
}
"""Modules that only `make e2e-apps` installs."""


def skip_without_modules(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed (make e2e-apps installs it)")


def encrypted(name, folder, *, mod=True):
    """A copy of the app with the documented lines changed; without ``mod`` those of the server alone, for guards."""
    app = Path(folder) / f"{name}-{'encrypted' if mod else 'guarded'}"
    shutil.copytree(APPS / name / "plain", app, ignore=shutil.ignore_patterns("__pycache__"))
    patch = (APPS / name / "fedcipher.patch").read_text()
    left_out = [] if mod else ["--exclude=*/client_app.py"]
    subprocess.run(["git", "apply", "-p1", *left_out, "-"], input=patch, text=True, check=True, cwd=app)
    return app


def keys_for(name, folder, scheme=DEFAULT_SCHEME):
    keys = Path(folder) / f"keys-{name}"
    committee = ["--set", f"members={CLIENTS}"] if scheme == "oneshot" else []
    arguments = ["--scheme", scheme, *committee, "--bits", str(BITS), *COHORT, *KEYGEN.get(name, ["--equal"])]
    assert cli.main(["keygen", *arguments, "--out", str(keys)]) == 0
    return keys


def settings(name, keys, folder):
    """The run config of the encrypted app, with absolute paths."""
    made = {"fedcipher-keys": str(keys)}
    if name == "quickstart-numpy":
        return {**made, "fedcipher-out": str(Path(folder) / "model.run")}
    return {**made, "fedcipher-opener": str(keys / READER)}


def arrays_of(path):
    """The model in a file that an app has saved."""
    if path.suffix == ".pt":
        import torch

        return {name: values.numpy() for name, values in torch.load(path).items()}
    if path.suffix == ".pkl":
        model = joblib.load(path)
        return {"coef_": model.coef_, "intercept_": model.intercept_}
    with np.load(path) as file:
        # Arrays without names are arr_0 to numpy.savez, and 0 to Flower and `fedcipher open`.
        return {name.removeprefix("arr_"): values for name, values in file.items()}


def coarsest_step(model):
    """Of the first round, in which ranges are wide because nobody knows how far an array moves."""
    ranges = Codec(bits=BITS).first_ranges([np.zeros_like(values) for values in model.values()])
    return 2 * power_of(exponent_of(max(ranges))) / (2**BITS - 2)


def assert_equal_models(got, want, rounds, first=None):
    """The largest difference of two models, within what rounding makes of them.

    Each round's mean is off by a step and a half at most, and training at most doubles what it begins with.

    Where clients count their examples, an update is rounded at random, by a step at most; the sum of weights is half
    of what it would be if all had the largest, so that three clients are off by a step and a half. Training grows that:
    one scale of custom-mods by 1.6 in ten runs. ``first`` is the first round's step, where the keys give a range.
    """
    # In which order an app's arrays travel is not part of its model.
    assert set(got) == set(want) and want
    most = 4 * ((coarsest_step(want) if first is None else first) + rounds * STEP)
    for name, theirs in want.items():
        mine = got[name]
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, name
        np.testing.assert_allclose(mine, theirs, atol=most, rtol=0, err_msg=name)
    return max(float(np.abs(got[name] - theirs).max()) for name, theirs in want.items())


def assert_equal_statistics(got, want):
    """Sums are exact but for each client's rounding to its resolution."""
    assert got.keys() == want.keys() and want
    for feature, stats in want.items():
        assert got[feature].keys() == stats.keys()
        np.testing.assert_allclose(list(got[feature].values()), list(stats.values()), rtol=1e-9, err_msg=feature)


def added_lines(name):
    """Lines of code that the patch adds or changes; its settings in pyproject.toml are not code."""
    patch = (APPS / name / "fedcipher.patch").read_text()
    files = re.split(r"^--- a/", patch, flags=re.MULTILINE)[1:]
    return [
        line[1:].strip()
        for file in files
        if not file.startswith("pyproject")
        for line in file.splitlines()
        if re.match(r"\+(?!\+\+)\s*\S", line)
    ]


def statistics_of(path):
    return json.loads(path.read_text())


@contextmanager
def imported(app):
    """The ClientApp and the ServerApp of a folder; afterwards another copy of it can be imported."""
    config = tomli.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    before = set(sys.modules)
    sys.path.insert(0, str(app))
    try:
        importlib.invalidate_caches()
        parts = [config["components"][part].partition(":") for part in ("clientapp", "serverapp")]
        yield *(getattr(importlib.import_module(module), name) for module, _, name in parts), config["config"]
    finally:
        sys.path.remove(str(app))
        package = config["components"]["clientapp"].partition(".")[0]
        for module in set(sys.modules) - before:
            if module.partition(".")[0] == package:
                del sys.modules[module]


def run(app, folder, monkeypatch, clients=CLIENTS, **config):
    """What `flwr run` does with an app, in this process and with ``folder`` as the working directory.

    The grid it ran on; ``strategies`` are those that were started.
    """
    folder.mkdir()
    monkeypatch.chdir(folder)
    started, start = [], SecureStrategy.start

    def noted(strategy, *arguments, **options):
        started.append(strategy)
        return start(strategy, *arguments, **options)

    monkeypatch.setattr(SecureStrategy, "start", noted)
    with imported(app) as (client_app, server_app, defaults):
        run_config = {**flat(defaults), **config}
        grid = LocalGrid(client_app, clients, run_config.get("fedcipher-keys", ""))
        grid.run_config.update(run_config)
        grid.strategies = started
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config)
        server_app(grid=grid, context=context)
    return grid


def flat(config, prefix=""):
    """As Flower flattens an app's configuration."""
    made = {}
    for key, value in config.items():
        made.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return made
