"""Shared fixtures: a private state folder and home, the real data sets, random updates."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from places import DATA, IMPORTED, ROOT

sys.path += [folder for folder in IMPORTED if folder not in sys.path]
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
# The tests' keys end with their state, also where the tests run in a container.
os.environ.setdefault("FEDCIPHER_ALLOW_EPHEMERAL_STATE", "1")
# What one test's process has compiled, all others load, those of the next run too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".venv" / "jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# A shell's background and nohup have these ignored, which programs inherit: those of the tests would be as deaf. What a
# handler stands for they do not inherit.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def pytest_configure(config):
    config.addinivalue_line("markers", "long: half a minute or more, for `make test-long` only")


def pytest_collection_modifyitems(items):
    """Files with the longest tests first: with a worker a file (`make test`) they would be waited for at the end."""
    longest = [
        *("test_train.py", "test_deployment.py", "test_attacks_baselines.py", "test_baselines.py", "test_flower.py"),
        *("test_flower_optimiser.py", "test_flower_resume.py", "test_engine_attacks.py", "test_attacks_cluster.py"),
        *("test_hybrid.py", "test_engine.py", "test_ledger.py", "test_attacks_engine.py", "test_flower_models.py"),
    ]
    for item in items:
        if item.get_closest_marker("long") and "FEDCIPHER_LONG" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="long; `make test-long`"))
    items.sort(key=lambda item: longest.index(item.path.name) if item.path.name in longest else len(longest))


@pytest.fixture
def open_path(tmp_path):
    """A test's folder that other users get to, whatever pytest has put it into."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            return tmp_path
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)
    return tmp_path


@pytest.fixture(scope="module")
def browser():
    """Chromium, for campaigns that look at pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def executed(monkeypatch):
    """Programs that would have taken this process's place, with their words. The process stays, as do its signals."""
    told, before = [], signal.getsignal(signal.SIGXFSZ)

    def execv(path, words):
        told.append((path, words))
        sys.exit(0)

    monkeypatch.setattr(os, "execv", execv)
    yield told
    signal.signal(signal.SIGXFSZ, before)


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    # A policy of this machine's user is not the tests'.
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDCIPHER_POLICY", raising=False)


@pytest.fixture
def data_dir():
    def folder(name):
        path = DATA / name
        if not path.is_dir():
            pytest.skip(f"{path} is absent; set FEDCIPHER_DATA to the folder of data sets")
        return str(path)

    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(7)
