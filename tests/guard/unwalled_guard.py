"""A guard whose apps run without walls, where a test is about what the guard says and not about what an app reaches.

``unwalled_guard.py SUPERNODE SECRET KEY FOLDER RULES``
"""

import logging
import socket
import subprocess
import sys
from pathlib import Path

from fedcipher.guard.policy import load_rules
from fedcipher.guard.supernode import SuperNode
from fedcipher.guard.worker import Guard


class Unwalled:
    """A plain process, with a listener on the machine's own loopback."""

    def __init__(self, arguments, environment, folder):
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = str(self.listener.getsockname()[1])
        self._process = subprocess.Popen(
            [word.replace("{port}", port) for word in arguments],
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.output = self._process.stdout
        self.poll = self._process.poll

    def kill(self):
        self._process.kill()
        self._process.wait()


def main(supernode, secret, key, folder, rules):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    node = SuperNode(supernode, Path(secret).read_bytes())
    Guard(node, {"fedcipher-key": key}, Path(folder), load_rules(Path(rules)), Unwalled).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
