"""Descriptors: a process has some hundred, and a simulation thousands of clients and runs."""

import contextlib
import fcntl
import gc
import itertools
import os

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.federation.server.journal import Journal, read_journal
from fedcipher.keys.store import hold
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg
from scheme_lists import adds, one_key, schemes_that

resource = pytest.importorskip("resource")
CLIENTS = 110
ROOM = 90
"""Descriptors left to a test, fewer than it has clients."""


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not show a process its descriptors")
    taken = {int(number) for number in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, ROOM, None)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def saved(name, clients, folder):
    made = fedcipher.scheme(name, clients=clients, codec=Codec(bits=8, clip=1.0))
    return made, keys.save(made.keygen(clients), made, folder)


@pytest.mark.parametrize("name", schemes_that(one_key, adds))
def test_a_process_encrypts_for_more_clients_than_it_may_open_files(tmp_path, few_descriptors, name):
    _, folder = saved(name, CLIENTS, tmp_path / "keys")
    update, used = [np.zeros(4, np.float32)], []
    for number in range(CLIENTS):
        made, key = keys.open_client(keys.client_file(folder, number))
        used.append(made.encryptor(key))
        used[-1].encrypt(update, round=1)
    for encryptor in used:
        encryptor.encrypt(update, round=2)


def test_an_app_trains_more_clients_in_one_process_than_it_may_open_files(tmp_path, few_descriptors):
    _, folder = saved("flashe", CLIENTS, tmp_path / "keys")
    grid = LocalGrid(make_app([initial()] * CLIENTS, [10] * CLIENTS), CLIENTS, folder)
    strategy = SecureStrategy(FedAvg(), folder, opener="client-0.key")
    strategy.start(grid, record(initial()), num_rounds=2)
    assert [made.accepted for made in strategy.rounds] == [CLIENTS] * 2


def test_a_key_file_that_was_let_go_of_is_not_used_beside_an_engine(tmp_path):
    """A process that has many clients lets go of some keys. Before it uses one again, it asks for it again."""
    _, folder = saved("flashe", CLIENTS, tmp_path / "keys")
    opened = [keys.open_client(keys.client_file(folder, number))[1] for number in range(CLIENTS)]
    first, last = (keys.client_file(folder, number) for number in (0, CLIENTS - 1))
    with open(f"{last}.used", "rb") as marker, pytest.raises(BlockingIOError):
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(f"{first}.used", "rb") as marker:
        # As an engine that serves the key does.
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(errors.KeyInUseError, match="engine"):
            hold(first, opened[0])
    hold(first, opened[0])
    with open(f"{first}.used", "rb") as marker, pytest.raises(BlockingIOError):
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_client_of_an_app_asks_for_its_key_file_again_in_each_round(tmp_path, monkeypatch):
    _, folder = saved("flashe", 4, tmp_path / "keys")
    asked = []
    monkeypatch.setattr("fedcipher.federation.client.key_holder.hold", lambda path, key: asked.append(key.client))
    grid = LocalGrid(make_app([initial()] * 4, [10] * 4), 4, folder)
    SecureStrategy(FedAvg(), folder, opener="client-0.key").start(grid, record(initial()), num_rounds=2)
    assert {client: asked.count(client) >= 2 for client in range(4)} == dict.fromkeys(range(4), True)


@contextlib.contextmanager
def uncollected():
    """What is open only until Python collects it stays open."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["it ends", "it is refused", "it fails in a round"])
def test_a_run_leaves_no_file_open(tmp_path, how):
    _, folder = saved("flashe", 4, tmp_path / "keys")
    kept = []

    def run(number):
        grid = LocalGrid(make_app([initial()] * 4, [10] * 4), 4, folder)
        strategy = SecureStrategy(FedAvg(), folder, out=tmp_path / f"run-{number}")
        kept.append(strategy)
        if how == "it is refused":
            (tmp_path / f"run-{number}").mkdir()
            (tmp_path / f"run-{number}" / "journal.db").mkdir()
        if how == "it fails in a round":
            grid.app = None
        with contextlib.suppress(errors.FedcipherError, OSError):
            strategy.start(grid, record(initial()), num_rounds=1)

    run(0)
    with uncollected():
        before = descriptors()
        for number in range(1, 6):
            run(number)
        assert descriptors() == before


def test_a_journal_is_closed_when_it_has_been_read_or_refused(tmp_path):
    journal = Journal(tmp_path)
    with uncollected():
        before = descriptors()
        for _ in range(5):
            read_journal(tmp_path)
            with pytest.raises(errors.RunError, match="another process"):
                Journal(tmp_path)
        assert descriptors() == before
    journal.close()
