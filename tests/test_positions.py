"""The positions that a client keeps."""

import numpy as np
import pytest
from fedcipher.federation.chain import Standing
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
        store.keep(Standing([np.zeros(3, np.float32)], None, [], b"", bytes(32), 0))
        for step in range(1, 4):
            store.follow(Standing([np.full(3, step, np.float32)], None, [], b"", bytes([step]) * 32, step))
            newest, before = store.standing(), store.earlier()
            assert (newest.steps, before.steps) == (step, step - 1)
            assert (newest.model[0][0], before.model[0][0]) == (step, step - 1)
    assert not list(tmp_path.rglob("*.draft"))
