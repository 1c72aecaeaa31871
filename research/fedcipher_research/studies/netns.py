"""Clients and a server in network namespaces of this machine, with links shaped by `tc tbf`.

Each client has a link of its own to the server's namespace. The pacer of `fedcipher.bench.link` adds the latency,
because a kernel may lack netem.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from fedcipher.bench.link import Link
from fedcipher.errors import BenchError

__all__ = ["Exchange", "Wan", "wan"]

_BURST, _QUEUE = "64kb", "400ms"
_PORT = 7700


@dataclass(frozen=True)
class Exchange:
    """Bytes that each client sends and receives, all at once. No ``clients`` means all clients."""

    up: int
    down: int
    clients: tuple[int, ...] = ()


@dataclass
class Wan:
    """A running network; `exchange` uses it."""

    server: subprocess.Popen[str]
    peers: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def exchange(self, request: Exchange) -> dict[str, Any]:
        """Seconds until the server has each client's bytes (``up``), and until each client has its own (``down``)."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(asdict(request)) + "\n")
        self.server.stdin.flush()
        line = self.server.stdout.readline()
        if not line:
            raise BenchError("the server in the network namespace ended early; out of memory?")
        said = json.loads(line)
        if "error" in said:
            raise BenchError(f"a client in its network namespace was lost: {said['error']}")
        return said


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} is not installed: it comes with iproute2") from error
    except subprocess.CalledProcessError as error:
        raise BenchError(
            f"`{' '.join(command)}` failed: {error.stderr.strip()}; network namespaces need root and a kernel with "
            "veth and tbf"
        ) from error


@contextmanager
def wan(links: Sequence[Link]) -> Generator[Wan]:
    """Start a server, and a client for each link. A link without bandwidth is not shaped. Raises `BenchError`."""
    mark = f"fc{os.getpid()}"
    with ExitStack() as stack:

        def space(name: str) -> str:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            return name

        server = space(f"{mark}s")
        for k, link in enumerate(links):
            client = space(f"{mark}c{k}")
            ours, theirs = f"s{k}", f"c{k}"
            veth = ("name", ours, "type", "veth", "peer", "name", theirs, "netns", client)
            _run("ip", "-n", server, "link", "add", *veth)
            for where, name, host in ((server, ours, 1), (client, theirs, 2)):
                _run("ip", "-n", where, "addr", "add", f"10.77.{k}.{host}/30", "dev", name)
                _run("ip", "-n", where, "link", "set", name, "up")
                if link.bandwidth:
                    shape = ("rate", f"{link.bandwidth:.0f}bit", "burst", _BURST, "latency", _QUEUE)
                    _run("tc", "-n", where, "qdisc", "add", "dev", name, "root", "tbf", *shape)
        made = Wan(_start(stack, server, "serve", str(len(links)), str(_PORT)))
        assert made.server.stdout is not None
        if made.server.stdout.readline().strip() != "listening":
            raise BenchError("the server in its network namespace did not start")
        for k, link in enumerate(links):
            where = f"10.77.{k}.1:{_PORT}"
            made.peers.append(_start(stack, f"{mark}c{k}", "join", where, str(k), json.dumps(asdict(link))))
        if made.server.stdout.readline().strip() != "joined":
            raise BenchError("some client did not reach the server through its network namespace")
        yield made


def _start(stack: ExitStack, space: str, *arguments: str) -> subprocess.Popen[str]:
    command = ("ip", "netns", "exec", space, sys.executable, "-m", "fedcipher_research.studies.peer", *arguments)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    # A process that reads or writes a pipe ends when the pipe is closed.
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
