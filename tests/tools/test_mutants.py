"""Campaigns that take out one guard at a time: a guard that was moved must not leave its campaign unseen."""

import importlib
import sys

import pytest
from places import ROOT


@pytest.mark.parametrize("name", ["mutants", "mutants_engine", "mutants_flower", "mutants_guard", "mutants_jail"])
def test_every_mutant_still_applies(monkeypatch, name):
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tools")])
    campaign = importlib.import_module(name)
    found = {m.what: (ROOT / m.file).read_text(encoding="utf-8").count(m.old) for m in campaign.MUTANTS}
    assert {what: count for what, count in found.items() if count != 1} == {}
