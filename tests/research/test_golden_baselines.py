"""Golden files of the baselines open for ever too, where they are registered."""

import pytest
import test_golden
from test_golden import golden, remembering

__all__ = ["golden", "remembering"]


@pytest.fixture(autouse=True)
def _only_baselines(monkeypatch):
    known = test_golden.variants

    def variants(golden):
        found = [folder for folder in known(golden) if folder.name in test_golden.BASELINES]
        assert [folder.name for folder in found] == sorted(test_golden.BASELINES)
        return found

    monkeypatch.setattr(test_golden, "variants", variants)


def test_keys_and_aggregates_open(golden, monkeypatch, tmp_path):
    test_golden.test_keys_and_aggregates_open(golden, monkeypatch, tmp_path)


def test_updates_are_still_added(golden, monkeypatch, tmp_path, remembering):
    test_golden.test_updates_are_still_added_and_answered(golden, monkeypatch, tmp_path, remembering)


def test_memories_still_refuse(golden, remembering):
    test_golden.test_memories_still_refuse(golden, remembering)
