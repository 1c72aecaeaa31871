"""Each folder of examples/ trains on bundled data in this process, encrypted, and saves a model that works."""

import importlib
import re

import example_apps
import numpy as np
import pytest
from fedcipher import cli
from fedcipher.adapters.flower import open_run
from fedcipher.watch.metrics import Metrics
from places import DATA, ROOT

EXAMPLES = ROOT / "examples"
CLIENTS = 4


def trained(name, tmp_path, monkeypatch, *needs, **config):
    """Run an example with the keys that its README makes, and its own settings; the grid that saw all its messages."""
    for package in needs:
        pytest.importorskip(
            package, reason=f"{package} is not installed; examples/{name}/README.md says what is needed"
        )
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    (line,) = re.findall(r"^fedcipher (keygen .*)$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE)
    assert cli.main(line.split()) == 0
    grid = example_apps.run(EXAMPLES / name, tmp_path / "out", monkeypatch, CLIENTS, **config)
    refused = [reply.error.reason for _, reply in grid.received if reply.has_error()]
    assert not refused
    return grid


def evaluations(grid, metric, key=None):
    """The clients' mean of each round's global model, in order: as its server saw it, or for the holder of a key."""
    (strategy,) = grid.strategies
    rounds = strategy.rounds if key is None else Metrics(strategy.run.model.folder.folder, key).past().rounds
    return [made.metrics["evaluate"][metric] for made in rounds]


def nothing_but_first_arrays_in_the_clear(grid, names):
    """After the first model only frames travel."""
    for _, content in grid.sent:
        for record in content.array_records.values():
            assert set(record) <= set(names) or all(key.startswith("fedcipher.") for key in record)
    for _, reply in grid.received:
        assert all(list(record) == ["fedcipher.update"] for record in reply.content.array_records.values())


@pytest.mark.parametrize(
    ("name", "needs", "least"),
    [("sklearn", ["sklearn"], 0.9), ("jax", ["jax", "optax"], 0.8), ("tensorflow", ["tensorflow"], 0.8)],
)
def test_an_example_learns(name, needs, least, tmp_path, monkeypatch):
    grid = trained(name, tmp_path, monkeypatch, *needs)
    with np.load("final_model.npz") as saved:
        nothing_but_first_arrays_in_the_clear(grid, saved.files)
        assert all(np.isfinite(values).all() for values in saved.values())
    shown = evaluations(grid, "accuracy")
    assert shown[-1] > least and all(made.metrics["train"] for made in grid.strategies[0].rounds)


def test_the_pytorch_example_learns(tmp_path, monkeypatch):
    grid = trained("pytorch", tmp_path, monkeypatch, "torch")
    keys = tmp_path / "home" / "keys" / "fedcipher-pytorch"
    model = open_run(next((tmp_path / "home" / "runs").iterdir()), keys / "client-1.key")
    nothing_but_first_arrays_in_the_clear(grid, list(model))
    assert not any(made.metrics for made in grid.strategies[0].rounds)
    assert evaluations(grid, "accuracy", keys / "client-2.key")[-1] > 0.8


def test_lora_adapters_learn_a_text_and_nothing_else_travels(tmp_path, monkeypatch):
    pytest.importorskip("jax")
    with monkeypatch.context() as here:
        here.syspath_prepend(str(EXAMPLES / "lora"))
        pretrain = importlib.import_module("lora_app.pretrain")
        pretrain.main(["--out", str(tmp_path / "base.npz"), "--steps", "60"])
    # Without the file each client has a part of what every Python brings and the base has not seen.
    text = DATA / "shakespeare" / "input.txt"
    config = {
        "base": str(tmp_path / "base.npz"),
        "text": str(text) if text.exists() else "",
        "num-server-rounds": 2,
        "local-steps": 20,
    }
    grid = trained("lora", tmp_path, monkeypatch, "jax", "optax", **config)
    with np.load("adapters.npz") as adapters, np.load(tmp_path / "base.npz") as base:
        names = adapters.files
        assert all(name.endswith((".down", ".up")) for name in names) and not set(names) & set(base.files)
        assert sum(x.size for x in adapters.values()) < 0.05 * sum(x.size for x in base.values())
    nothing_but_first_arrays_in_the_clear(grid, names)
    evaluated = evaluations(grid, "loss")
    assert len(evaluated) == 2
    assert evaluated[-1] < evaluated[0]


def test_peft_adapters_travel_alone(tmp_path, monkeypatch):
    grid = trained("peft", tmp_path, monkeypatch, "torch", "transformers", "peft", **{"num-server-rounds": 2})
    with np.load("adapters.npz") as adapters:
        names = adapters.files
        assert names and all("lora_" in name for name in names)
    nothing_but_first_arrays_in_the_clear(grid, names)
    evaluated = evaluations(grid, "loss")
    assert evaluated[-1] < evaluated[0]


def test_every_example_has_what_flwr_run_needs():
    for app in sorted(path for path in EXAMPLES.iterdir() if (path / "pyproject.toml").exists()):
        assert (app / "README.md").exists(), app
        assert "fedcipher keygen" in (app / "README.md").read_text(), app


def test_no_example_has_flower_look_for_packages_in_an_index():
    """It does so before every run, and Fedcipher is in none."""
    projects = sorted(EXAMPLES.glob("*/pyproject.toml"))
    assert len(projects) >= 7
    for project in projects:
        assert "\ndependencies = []\n" in project.read_text(), project
    page = (EXAMPLES.parent / "docs" / "how-to" / "porting.md").read_text()
    (name,) = re.findall(r'^fedcipher-keys = "(.*)"$', page, re.MULTILINE)
    assert f"--name {name}\n" in page
