"""Campaigns that take out one guard at a time: a guard that was moved must not leave its campaign unseen."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["mutants", "mutants_engine", "mutants_flower"])
def test_every_mutant_still_applies(monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tools")])
    campaign = importlib.import_module(name)
    found = {m.what: (ROOT / m.file).read_text(encoding="utf-8").count(m.old) for m in campaign.MUTANTS}
    assert {what: count for what, count in found.items() if count != 1} == {}
    tests = [ROOT / test for test in getattr(campaign, "TESTS", ()) if test.startswith("tests/")]
    assert all(path.exists() for path in tests), tests
