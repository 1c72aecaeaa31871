"""The images of `make containers`, started as docs/how-to/deploy.md says."""

import os
import re
import subprocess
import time
import uuid
from contextlib import contextmanager

import fedcipher
import numpy as np
import pytest
from engine_harness import flashe, updates
from fedcipher import errors
from fedcipher.engine import Authority, connect
from fedcipher.engine.local import new_authority

RUNTIME = os.environ.get("FEDCIPHER_CONTAINERS", "")
USER = 65532
# What the runtime is to be told on this machine beside what the page says.
OWN = os.environ.get("FEDCIPHER_CONTAINER_OPTIONS", "").split()
pytestmark = pytest.mark.skipif(not RUNTIME, reason="`make test-containers`, where there is podman or docker")


def said(*arguments):
    done = subprocess.run([*RUNTIME.split(), *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def container(image, volumes, *arguments):
    """Read-only, without capabilities, on the host's network; ``volumes``: a place by folder."""
    name = f"fedcipher-test-{uuid.uuid4().hex[:8]}"
    mounted = [f"--volume={folder}:{place}" for folder, place in volumes.items()]
    run = ["run", "--detach", "--name", name, "--read-only", "--cap-drop", "all", "--network", "host", *OWN, *mounted]
    status, text = said(*run, image, *arguments)
    try:
        assert status == 0, text
        yield name
    finally:
        said("rm", "--force", name)


def address_of(name):
    for _ in range(200):
        text = said("logs", name)[1]
        found = re.search(r"listening on (\S+)", text)
        if found:
            return found[1].split("\x1b")[0]
        time.sleep(0.1)
    return pytest.fail(text)


def owned(*folders):
    """By the images' user, as a volume is."""
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)


def test_a_round_through_an_authority_and_an_engine_in_containers(open_path):
    made, folder = flashe(), open_path / "parties"
    new_authority(made, 1, folder)
    state, sockets = open_path / "engine", open_path / "sockets"
    owned(folder, state, sockets)
    locks = ("--allow-swap",)
    authority = ("--state", "/state/authority", "serve", "--listen", "127.0.0.1:0", *locks)
    with container("fedcipher-authority", {folder: "/state"}, *authority) as name:
        at = address_of(name)
        volumes = {state: "/state", sockets: "/run/fedcipher", folder / "client-0": "/credentials:ro"}
        serve = ("serve", "--listen", "unix:/run/fedcipher/engine.sock", "--state", "/state", "--authority", at)
        with container("fedcipher-engine", volumes, *serve, "--credentials", "/credentials", *locks) as engine_name:
            address_of(engine_name)
            engine = connect(f"unix:{sockets}/engine.sock")
            server = Authority(at, folder / "aggregator").current()
            aggregator = made.aggregator(server, round=1)
            (update,) = updates(1)
            aggregator.add(engine.encryptor(1).encrypt(update, round=1))
            mean = engine.decryptor().decrypt(aggregator.finish(), round=1)
            assert np.abs(mean[0] - np.clip(update[0], -1, 1)).max() < 1e-3
        # Its nonces are in the volume: another container of it does not encrypt the round a second time.
        with container("fedcipher-engine", volumes, *serve, "--credentials", "/credentials", *locks) as engine_name:
            address_of(engine_name)
            with pytest.raises(errors.NonceReuseError):
                connect(f"unix:{sockets}/engine.sock").encryptor(1).encrypt(update, round=1)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("flower-superlink --help", "superlink"),
        ("flower-supernode --help", "supernode"),
        ("fedcipher engine --version", f"fedcipher-engine {fedcipher.__version__}"),
        ("fedcipher authority --version", f"fedcipher-authority {fedcipher.__version__}"),
    ],
)
def test_the_flower_image_has_the_programs_and_fedcipher(command, expected):
    run = ("run", "--rm", "--read-only", "--cap-drop", "all", "--tmpfs", "/tmp", *OWN, "fedcipher-flower")
    status, text = said(*run, *command.split())
    assert status == 0, text
    assert expected in text
