"""An engine at the other end of a slow link: what moves has not stalled."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from engine_harness import deployment, flashe
from fedcipher import errors
from fedcipher.engine import connect
from fedcipher.engine.local import lock_arguments, started

STALL = 2
"""Seconds that the engine allows a host to say nothing."""
RATE = 128 << 10
"""Bytes a second, each way: a message of half a megabyte takes twice the stall."""
PART = 4096


class SlowLink:
    """A port of this machine whose connections go on to ``address``, at `RATE`; it can be cut."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.to, self.open = (host, int(port)), threading.Event()
        self.open.set()
        self.listener = socket.socket()
        # Otherwise the kernel takes all at once, and the link is slow for nobody.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, far = self.listener.accept()[0], socket.socket()
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
                far.connect(self.to)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError), source, sink:
            while part := source.recv(PART):
                self.open.wait()
                sink.sendall(part)
                time.sleep(len(part) / RATE)


@pytest.fixture
def slow(tmp_path):
    """An engine over TLS, and the device's host, who reaches it over a slow link."""
    with deployment(flashe(2), 1, tmp_path) as run:
        nic, trainer = run.enrol("nic"), run.host("trainer", "nic")
        run.local.rotate()
        command = ("fedcipher-engine", "serve", "--listen", "127.0.0.1:0", "--state", tmp_path / "nic-state")
        command += ("--authority", run.local.authority.address, "--credentials", nic, "--host", "trainer")
        command += ("--stall", str(STALL), "--exit-with-parent", *lock_arguments())
        with started(*command, log=tmp_path / "nic.log") as served:
            link = SlowLink(served.address)
            yield run, link, trainer
            link.listener.close()


@pytest.mark.parametrize("values", [1000, 200_000, 300_000])
def test_an_update_over_a_slow_link_is_encrypted_and_its_sum_decrypted(slow, values):
    run, link, trainer = slow
    engine = connect(link.address, device="nic", credentials=trainer)
    update = [np.linspace(-1, 1, values, dtype=np.float32)]
    frame = engine.encryptor().encrypt(update, round=1)
    aggregator = run.scheme.aggregator(run.keys().current())
    aggregator.add(frame)
    (mean,) = engine.decryptor().decrypt(aggregator.finish(), round=1)
    np.testing.assert_allclose(mean, update[0], atol=2**-14)


def test_a_link_on_which_nothing_moves_has_stalled(slow):
    _, link, trainer = slow
    engine = connect(link.address, device="nic", credentials=trainer, patience=1.0)
    threading.Timer(0.5, link.open.clear).start()
    with pytest.raises((errors.StalledError, errors.EngineUnavailableError)):
        engine.encryptor().encrypt([np.zeros(1 << 20, np.float32)], round=1)
    link.open.set()
