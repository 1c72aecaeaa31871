"""A federation without a framework: the same state machines, carried by an adapter of one page."""

import multiprocessing
import re
import socket
from inspect import signature
from pathlib import Path

import fedcipher
import numpy as np
import page_code
import pytest
from fedcipher import keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.data import load
from fedcipher.errors import DependencyError
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.run_folder import open_run
from fedcipher.federation.server.setup import RunOptions, RunSetup
from scheme_lists import of_committee, schemes_that

socket_adapter = page_code.module(page_code.ADAPTER, "socket_adapter")
CLIENTS, ROUNDS, NAMES = 4, 3, ["weights", "bias"]


def pooled(images):
    """7 x 7 means of an image, in a row."""
    return images.reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(len(images), -1)


def trained(arrays, images, labels):
    """Softmax regression: 20 steps of gradient descent."""
    weights, bias = (np.array(a, np.float64) for a in arrays)
    for _ in range(20):
        scores = np.exp(images @ weights + bias)
        errors = scores / scores.sum(1, keepdims=True) - np.eye(10)[labels]
        weights -= 2.0 * images.T @ errors / len(images)
        bias -= 2.0 * errors.mean(0)
    return [weights.astype(np.float32), bias.astype(np.float32)]


def part_of(node, folder):
    data = load("mnist", folder)
    chosen = slice(node * 500, (node + 1) * 500)
    return pooled(data.train_x[chosen]), data.train_y[chosen]


def run_client(port, node, key, folder):
    images, labels = part_of(node, folder)

    def app(purpose, arrays):
        return trained(arrays, images, labels), {"num-examples": len(images)}

    socket_adapter.client(port, node, {"fedcipher-key": str(key)}, app)


def first_model():
    return [np.zeros((49, 10), np.float32), np.zeros(10, np.float32)]


@pytest.mark.parametrize("name", schemes_that())
def test_mnist_rounds_over_sockets(name, tmp_path, data_dir):
    folder, data = tmp_path / "keys", data_dir("mnist")
    try:
        made = fedcipher.scheme(name, clients=CLIENTS, **of_committee(name, members=3))
        keys.save(made.keygen(CLIENTS), made, folder)
    except DependencyError as error:
        pytest.skip(str(error))
    spawn = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients = [
            spawn.Process(target=run_client, args=(port, node, folder / f"client-{node}.key", data), daemon=True)
            for node in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        listener.settimeout(60)
        link = socket_adapter.SocketLink(listener, CLIENTS)
    run = ServerRun(RunSetup(folder, out=tmp_path / "run"))
    run.begin(NAMES, first_model(), ROUNDS)
    for index in range(1, ROUNDS + 1):
        run.run_round(index, link, link.nodes())
    run.close()
    link.close()
    for client in clients:
        client.join(30)
        assert client.exitcode == 0
    run.check_lost()
    found = open_run(tmp_path / "run", folder / "client-0.key")
    expected = first_model()
    parts = [part_of(node, data) for node in range(CLIENTS)]
    for _ in range(ROUNDS):
        expected = [np.mean(values, 0) for values in zip(*(trained(expected, *part) for part in parts), strict=True)]
    for name, values in zip(NAMES, expected, strict=True):
        assert np.linalg.norm(found[name] - values) < 0.05 * np.linalg.norm(values)
    test = load("mnist", data)
    hits = (pooled(test.test_x) @ found["weights"] + found["bias"]).argmax(1) == test.test_y
    assert hits.mean() > 0.75


def test_the_adapter_fits_on_a_page_and_federation_knows_no_framework():
    assert len(page_code.files(page_code.ADAPTER)["socket_adapter.py"].splitlines()) <= 150
    package = Path(fedcipher.__file__).parent
    for path in sorted((package / "federation").rglob("*.py")):
        imported = r"^\s*(?:from|import) (flwr|nvflare|declearn|openfl|fedcipher\.adapters)\b"
        found = re.findall(imported, path.read_text(), re.M)
        assert not found, f"{path.name} imports {found}"
    flower = sum(len(path.read_text().splitlines()) for path in (package / "adapters" / "flower").glob("*.py"))
    assert flower < 1400
    declearn = sum(len(path.read_text().splitlines()) for path in (package / "adapters" / "declearn").glob("*.py"))
    assert declearn < 800


def test_an_adapter_passes_every_option_of_a_run():
    options = list(signature(RunSetup).parameters)[1:]
    assert list(RunOptions.__annotations__) == options
    assert list(signature(SecureStrategy).parameters) == ["strategy", "keys", *options]
