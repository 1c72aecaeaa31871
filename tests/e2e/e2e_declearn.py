"""declearn's server and three clients over websockets, each a process: `make e2e-declearn`.

The model under each scheme must be that of declearn in the clear, within the precision of the run's values. The seconds
and bytes of declearn's own two ways of secure aggregation stand beside those of Fedcipher.
"""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT, TESTS

PYTHON = os.environ.get("FEDCIPHER_DECLEARN_PYTHON", "")
APP = TESTS / "e2e" / "declearn_app"
CLIENTS, ROUNDS = 3, 5
SLOW = {"joye-libert": 1}
"""Rounds of a way that takes minutes a round."""
BITS = 16
KEYGEN = {
    "bfv": ["--clients", "4", "--per-round", "3"],
    "flashe": ["--clients", "4", "--per-round", "3"],
    "oneshot": ["--clients", "3", "--set", "reveal=server", "--set", "members=3"],
}
EXPECTED = "no declearn: set FEDCIPHER_DECLEARN_PYTHON to a Python that has it, or run make e2e-declearn"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(folder, name):
    """Each party has its own home and state, as on a machine of its own."""
    paths = os.pathsep.join([str(ROOT / "python"), str(APP)])
    own = {"FEDCIPHER_HOME": str(folder / name), "FEDCIPHER_STATE_DIR": str(folder / name / "state")}
    return {**os.environ, "PYTHONPATH": paths, **own}


class Party:
    """A process of the federation, whose output goes to a file."""

    def __init__(self, folder, name, *arguments):
        (folder / name).mkdir(mode=0o700)
        self.log = folder / f"{name}.log"
        with self.log.open("w") as log:
            command = [PYTHON, *map(str, arguments)]
            where = environment(folder, name)
            self.process = subprocess.Popen(command, env=where, stdout=log, stderr=subprocess.STDOUT)

    def ended(self):
        """The exit code and what the process said."""
        return self.process.wait(600), self.log.read_text()

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def federation(folder, kind, keys, opener=(), rounds=ROUNDS):
    """Run the federation. Returns its model, and the figures that its processes print."""
    folder.mkdir()
    port, out = free_port(), folder / "model.npz"
    parties = [Party(folder, "server", APP / "server.py", port, kind, keys, rounds, out, *opener)]
    try:
        clients = [Party(folder, f"client-{k}", APP / "client.py", port, k, kind, keys) for k in range(CLIENTS)]
        parties += clients
        said = [party.ended() for party in parties]
    finally:
        for party in parties:
            party.stop()
    for code, text in said:
        assert code == 0, "\n".join(text for _, text in said)
    figures = [json.loads(text.splitlines()[-1]) for _, text in said]
    return dict(np.load(out)), figures


def own_keys(folder):
    """Identity keys for declearn's own secure aggregation."""
    folder.mkdir()
    made = (
        "import sys\n"
        "from cryptography.hazmat.primitives import serialization as s\n"
        "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey\n"
        "for k in range(3):\n"
        "    key = Ed25519PrivateKey.generate()\n"
        "    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())\n"
        "    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)\n"
        "    open(f'{sys.argv[1]}/{k}.pem', 'wb').write(private)\n"
        "    open(f'{sys.argv[1]}/{k}.pub', 'wb').write(public)\n"
    )
    subprocess.run([PYTHON, "-c", made, str(folder)], check=True)
    return folder


def fedcipher_keys(folder, scheme):
    # min_contributions is the number of clients, since declearn has no rounds without one of them.
    command = [sys.executable, "-m", "fedcipher.cli", "keygen", "--scheme", scheme, "--equal", "--bits", str(BITS)]
    subprocess.run([*command, *KEYGEN[scheme], "--out", str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def clear(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("clear") / "run", "none", "-")


def show(capsys, name, distance, figures):
    server, *clients = figures
    rounds = len(server["rounds"])
    sent, received = (sum(client[part] for client in clients) / CLIENTS / rounds for part in ("sent", "received"))
    with capsys.disabled():
        print(
            f"\n{name:12} model {distance:.1e} from the clear; a round {np.median(server['rounds']):.2f} s; a client "
            f"and round {sent:,.0f} bytes up, {received:,.0f} down; loss {server['losses'][-1]:.5f}"
        )


def distance_of(model, expected):
    """The distance from the model in the clear, over that model's norm."""
    assert sorted(model) == sorted(expected)
    norm = lambda arrays: np.sqrt(sum(float(np.sum(np.square(x, dtype=np.float64))) for x in arrays))  # noqa: E731
    return norm([model[name] - expected[name] for name in expected]) / norm(expected.values())


@pytest.mark.skipif(not PYTHON, reason=EXPECTED)
@pytest.mark.parametrize("kind", ["none", "masking", "joye-libert"])
def test_declearns_own_ways_for_comparison(kind, clear, tmp_path, capsys):
    rounds = SLOW.get(kind, ROUNDS)
    model, figures = (
        clear if kind == "none" else federation(tmp_path / "run", kind, own_keys(tmp_path / "keys"), rounds=rounds)
    )
    expected = clear if rounds == ROUNDS else federation(tmp_path / "clear", "none", "-", rounds=rounds)
    distance = distance_of(model, expected[0])
    show(capsys, kind, distance, figures)
    assert distance < 1e-6


@pytest.mark.skipif(not PYTHON, reason=EXPECTED)
@pytest.mark.parametrize("scheme", KEYGEN)
def test_the_model_is_that_of_declearn_in_the_clear(scheme, clear, tmp_path, capsys):
    keys = fedcipher_keys(tmp_path / "keys", scheme)
    opener = () if scheme == "oneshot" else ("client-3.key",)
    model, figures = federation(tmp_path / "run", "fedcipher", keys, opener)
    distance = distance_of(model, clear[0])
    show(capsys, scheme, distance, figures)
    assert distance < 1e-3
    assert abs(figures[0]["losses"][-1] - clear[1][0]["losses"][-1]) < 1e-3
