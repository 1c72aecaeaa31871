"""Flower's own mods around and behind `client_mod`: the table of docs/how-to/porting.md."""

import fedcipher
import numpy as np
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy, client_mod
from flower_harness import LocalGrid, initial, make_app, record
from flwr.app import ConfigRecord
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import FedAvg

CLIENTS = 3
NORM = 0.5


def trained(tmp_path, mods, config=None):
    """The global model after a round whose targets lie far away, as a client opens it; and the updates that went in."""
    scheme = fedcipher.scheme("flashe", clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=4.0))
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    goals = [[np.full_like(a, k + 1) for a in initial()] for k in range(CLIENTS)]
    grid = LocalGrid(make_app(goals, [1] * CLIENTS, mods=mods), CLIENTS, folder)
    strategy = SecureStrategy(
        FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS), folder, opener=folder / "client-0.key"
    )
    result = strategy.start(grid, record(initial()), num_rounds=1, train_config=ConfigRecord(config or {}))
    assert not [c.left_out for c in strategy.rounds[0].clients if c.left_out]
    return result.arrays.to_numpy_ndarrays()


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod], ids=["message_size_mod", "arrays_size_mod"])
@pytest.mark.parametrize("first", [True, False])
def test_mods_that_measure_work_on_both_sides(tmp_path, mod, first):
    mods = [mod, client_mod] if first else [client_mod, mod]
    for values in trained(tmp_path, mods):
        np.testing.assert_allclose(values, 1.0, atol=1e-3)


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(NORM, NORM, 1e9, 0.5)])
def test_mods_that_change_updates_do_so_behind_the_encryption(tmp_path, mod):
    model = trained(tmp_path, [client_mod, mod], {"clipping_norm": NORM})
    flat = np.concatenate([values.ravel() for values in model])
    # All updates point the same way, each cut to the norm: so is their mean.
    assert np.linalg.norm(flat) == pytest.approx(NORM, rel=1e-2)
