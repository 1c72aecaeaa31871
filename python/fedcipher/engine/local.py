"""Runs an authority and an engine as child processes, for a run on one machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedcipher._files import create_private, make_private_folder, write_whole
from fedcipher._optional import require_feature
from fedcipher.errors import EngineError
from fedcipher.foreign_files import MAX_LOG, read_file
from fedcipher.foreign_text import MAX_LINE, quoted
from fedcipher.schemes import Scheme

__all__ = [
    "LocalEngines",
    "Service",
    "await_address",
    "device_names",
    "find_program",
    "lock_arguments",
    "new_authority",
    "rotate",
    "run_program",
    "start_engines",
    "started",
]

_START_SECONDS = 60.0
_STOP_SECONDS = 40.0


def find_program(name: str) -> str:
    """The path of ``fedcipher-engine`` or ``fedcipher-authority``, from pip's script folders or from the PATH.

    Raises `EngineError` if the program is not installed.
    """
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    for folder in (Path(sys.executable).parent, sysconfig.get_path("scripts"), user):
        if (program := Path(folder, name)).exists():
            return str(program)
    if found := shutil.which(name):
        return found
    if sys.platform != "linux":
        raise EngineError(f"{name} runs on Linux only: run it on a Linux machine, and connect to it from here")
    raise EngineError(f"{name} is not installed: install a wheel for Linux or, in a checkout, run `make engine`")


def run_program(name: str, *arguments: str | Path) -> str:
    """Run a command of a program to its end and return what it printed. Raises `EngineError` if it failed."""
    command = [find_program(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(quoted(done.stderr.strip(), MAX_LINE) or f"{name} ended with status {done.returncode}")
    return done.stdout


@dataclass
class Service:
    """A running service: its process, its address and its log."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL if the service does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@contextmanager
def started(name: str, *arguments: str | Path, log: Path) -> Generator[Service]:
    """Start a service and wait until it listens. Raises `EngineError` with the last line of its log."""
    command = [find_program(name), *map(str, arguments)]
    with create_private(log, append=True) as output:
        begin = log.stat().st_size
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    service = Service(process, "", log)
    try:
        service.address = await_address(service, begin)
        yield service
    finally:
        service.stop()


class Device(Protocol):
    """A device that does an engine's arithmetic; see `fedcipher.engine.accelerator`."""

    def arguments(self) -> list[str | Path]:
        """The options of ``fedcipher engine serve`` for this device."""
        ...


def await_address(service: Service, begin: int = 0) -> str:
    """Wait until the log of ``service``, after byte ``begin``, names the address on which it listens."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        # Checked before the log is read, so that the log is complete if the process has ended.
        ended = service.process.poll() is not None
        text = read_file(service.log, MAX_LOG)[begin:].decode(errors="replace")
        if address := _address_after(text, "listening on "):
            return address
        if ended:
            said = [line for line in text.splitlines() if line.strip()]
            raise EngineError(
                quoted(said[-1], MAX_LINE) if said else f"the service ended with status {service.process.returncode}"
            )
        if time.monotonic() > deadline:
            raise EngineError(f"the service does not listen after {_START_SECONDS:.0f} s; its log: {service.log}")
        time.sleep(0.02)


def _address_after(text: str, before: str) -> str:
    """The address that follows the text ``before`` in a log; empty if there is none."""
    for line in text.splitlines():
        _, found, address = line.partition(before)
        if found:
            return address.strip()
    return ""


@dataclass
class LocalEngines:
    """The engine and the authority of a run, with the authority's state and the server's credentials."""

    engine: Service
    authority: Service
    state: Path
    server_credentials: Path

    @property
    def target(self) -> str:
        """The address on which the engine listens."""
        return self.engine.address

    @property
    def metrics(self) -> str:
        """``host:port`` of the engine's metrics page; empty if it has none."""
        return _address_after(read_file(self.engine.log, MAX_LOG).decode(errors="replace"), "metrics at ")

    def rotate(self) -> int:
        """Make the keys of the next epoch and return its number."""
        return rotate(self.state.parent)


def lock_arguments() -> Sequence[str]:
    """Options of both programs: without root the limit of locked memory is low, so their memory may swap."""
    return [] if os.geteuid() == 0 else ["--allow-swap"]


def device_names(clients: int) -> list[str]:
    """The device names of ``clients`` clients: ``client-K`` for partition K."""
    return [f"client-{k}" for k in range(clients)]


def new_authority(scheme: Scheme, clients: int, folder: Path) -> None:
    """Make an authority's state in the new ``folder`` and enrol an aggregator and the `device_names`.

    Each party's credentials are in a folder with its name. Without a committee this also makes the first key epoch.
    With a committee the engines make the identities for its roster when they start, so call `rotate` after that.
    Raises `EngineError`.
    """
    require_feature("an engine", "engine-client")
    make_private_folder(folder)
    spec = folder / "spec.json"
    write_whole(spec, json.dumps(scheme.spec()).encode())
    authority = ("fedcipher-authority", "--state", folder / "authority")
    run_program(*authority, "init", "--spec", spec)
    for device in device_names(clients):
        run_program(*authority, "enrol", device, "--out", folder / device)
    run_program(*authority, "enrol", "aggregator", "--role", "server", "--out", folder / "aggregator")
    if not scheme.info.committee:
        rotate(folder)


def rotate(folder: Path) -> int:
    """Make the next key epoch of the authority in ``folder`` and return its number. Raises `EngineError`."""
    state = folder / "authority"
    return int(run_program("fedcipher-authority", "--state", state, "rotate", *lock_arguments()).split()[-1])


@contextmanager
def start_engines(
    scheme: Scheme, clients: int, folder: Path, *, rotate_every: int = 0, on: Device | None = None
) -> Generator[LocalEngines]:
    """Start an authority, and one engine with the devices ``client-0`` to ``client-<n-1>``; files are in ``folder``.

    ``rotate_every``: seconds between key epochs; 0 makes no further ones. ``on``: the accelerator of the engine.
    """
    new_authority(scheme, clients, folder)
    state = folder / "authority"
    with ExitStack() as stack:
        serving = stack.enter_context(
            started(
                *("fedcipher-authority", "--state", state),
                *("serve", "--listen", "127.0.0.1:0", "--rotate-every", str(rotate_every), "--exit-with-parent"),
                *lock_arguments(),
                log=folder / "authority.log",
            )
        )
        arguments: list[str | Path] = ["serve", "--listen", f"unix:{folder / 'engine.sock'}"]
        arguments += ["--state", folder / "engine", "--authority", serving.address, "--refresh", "1"]
        arguments += ["--exit-with-parent", *lock_arguments(), *(on.arguments() if on else [])]
        for device in device_names(clients):
            arguments += ["--credentials", folder / device]
        engine = stack.enter_context(started("fedcipher-engine", *arguments, log=folder / "engine.log"))
        local = LocalEngines(engine, serving, state, folder / "aggregator")
        if scheme.info.committee:
            local.rotate()
        yield local
