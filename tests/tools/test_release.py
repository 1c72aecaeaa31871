"""A wheel leaves nothing out that serves; the version and the licences are where a release needs them."""

import re
import sys
from pathlib import Path

import fedcipher
import pytest
from fedcipher import _native, errors
from fedcipher.engine import Authority, connect
from fedcipher.guard.jail import JailSpec, start
from places import ROOT

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the guard's walls are Linux's")


@pytest.fixture
def bare(monkeypatch):
    """As `make demo` builds it: nothing beyond the core."""
    monkeypatch.setattr(_native, "features", [])


@pytest.mark.parametrize(
    ("feature", "use"),
    [
        ("hhe", lambda: fedcipher.scheme("pasta-bfv", clients=3)),
        ("engine-client", lambda: connect("unix:/nowhere")),
        ("engine-client", lambda: Authority("localhost:1", "nowhere")),
        pytest.param("guard", lambda: start(JailSpec((), Path("nowhere")), ["/app"], {}, 8000), marks=LINUX),
    ],
)
def test_what_the_demo_leaves_out_is_named(feature, use, bare):
    with pytest.raises(
        errors.DependencyError, match=f"needs {feature}, which `make demo` leaves out; run `make build`$"
    ):
        use()


def test_a_wheel_has_every_feature_that_serves():
    declared = re.search(r"\[features\](.*?)\n\[", (ROOT / "crates/fedcipher-python/Cargo.toml").read_text(), re.DOTALL)
    names = set(re.findall(r"^([\w-]+) =", declared[1], re.MULTILINE)) - {"default", "whole", "ntt-fhe-math"}
    default = re.search(r"^default = \[(.*)\]$", declared[1], re.MULTILINE)[1]
    assert set(re.findall(r'"([\w-]+)"', default)) == names
    # The guard's walls are Linux's.
    elsewhere = set() if sys.platform == "linux" else {"guard"}
    assert set(_native.features) == names - {"ntt-tfhe"} - elsewhere


def test_the_version_is_the_workspaces_and_the_changelog_has_it():
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert fedcipher.__version__ == version
    assert f"\n## {version}, " in (ROOT / "CHANGELOG.md").read_text()
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_extras_name_only_packages_that_exist_elsewhere():
    """An extra whose package is in no index is an invitation to whoever registers the name."""
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    own = {name.partition("-")[0] for name in re.findall(r'"([\w-]+)', text)} & {"fedcipher"}
    assert not own


def test_both_licences_are_there():
    assert "Permission is hereby granted" in (ROOT / "LICENSE-MIT").read_text()
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE-APACHE").read_text()
