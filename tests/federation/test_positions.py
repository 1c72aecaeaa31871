"""The positions that a client keeps."""

from types import SimpleNamespace

import numpy as np
import pytest
from fedcipher import errors
from fedcipher.federation.chain import ChainState
from fedcipher.federation.client.key_holder import _EngineHolder
from fedcipher.federation.client.model import ClientModel
from fedcipher.federation.store import Store


@pytest.mark.parametrize("links", [True, False])
def test_the_position_before_the_newest_stays(tmp_path, monkeypatch, links):
    """With links, and on a file system without any."""

    def refuse(*_):
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    store = Store(tmp_path, "somebody")
    with store.locked():
        store.save_state(ChainState([np.zeros(3, np.float32)], None, [], b"", bytes(32), 0))
        for step in range(1, 4):
            store.advance_to(ChainState([np.full(3, step, np.float32)], None, [], b"", bytes([step]) * 32, step))
            newest, before = store.newest_state(), store.previous_state()
            assert (newest.steps, before.steps) == (step, step - 1)
            assert (newest.model[0][0], before.model[0][0]) == (step, step - 1)
    assert not list(tmp_path.rglob("*.draft"))


def test_attack_35_a_model_is_evaluated_once_also_after_a_sum_of_histograms(tmp_path):
    """Such a sum makes another position of one model, whose evaluations count in one memory, which may be forgotten."""
    model = object.__new__(ClientModel)
    scheme = SimpleNamespace(codec=SimpleNamespace(privacy=None))
    model._store, model.charter = Store(tmp_path, "somebody"), None
    model._holder = SimpleNamespace(scheme=scheme, policy=lambda: SimpleNamespace(privacy_budgets=0))

    def evaluate(number, position, moved):
        state = ChainState([], None, [], b"", position, number, moved=moved)
        model._settings, model._chain = SimpleNamespace(round=number, index=number), SimpleNamespace(state=state)
        with model._store.locked():
            model.claim("evaluate")

    evaluate(1, b"p", b"p")
    for number, position in ((2, b"p"), (1000, b"q")):
        with pytest.raises(errors.NonceReuseError, match="evaluated the model"):
            evaluate(number, position, b"p")
    evaluate(1001, b"r", b"r")


def test_attack_35_a_charter_of_no_epoch_gives_an_engine_no_second_key(tmp_path, monkeypatch):
    """An engine takes epoch 0 for its newest key, so one position would have two keys."""
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path))
    party = _EngineHolder(SimpleNamespace(client=0, scheme=None), "here", clear=frozenset())
    assert party.key_set(SimpleNamespace(epoch=1, key_set="ab")) == "ab"
    with pytest.raises(errors.WrongEpochError, match="names no key epoch"):
        party.key_set(SimpleNamespace(epoch=0, key_set="ab"))
