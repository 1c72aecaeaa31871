"""An authority and an engine as child processes, for a run on one machine."""

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
    """``fedcipher-engine`` or ``fedcipher-authority``: where pip puts a wheel's programs, or on the path.

    Raises `EngineError`.
    """
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    for folder in (Path(sys.executable).parent, sysconfig.get_path("scripts"), user):
        if (program := Path(folder, name)).exists():
            return str(program)
    if found := shutil.which(name):
        return found
    if sys.platform != "linux":
        raise EngineError(f"{name} runs on Linux only: run it on a Linux machine, and connect to it from here")
    raise EngineError(f"{name} is not installed: a wheel for Linux brings it; in a checkout, run `make engine`")


def run_program(name: str, *arguments: str | Path) -> str:
    """Run a command of a program to its end; what it printed. Raises `EngineError`."""
    command = [find_program(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(quoted(done.stderr.strip(), MAX_LINE) or f"{name} ended with status {done.returncode}")
    return done.stdout


@dataclass
class Service:
    """A running service: its process, where it listens, its log."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for what does not drain."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@contextmanager
def started(name: str, *arguments: str | Path, log: Path) -> Generator[Service]:
    """Start a service and wait until it says where it listens. Raises `EngineError` with what it said."""
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
    """What an engine works on: `fedcipher.engine.accelerator`."""

    def arguments(self) -> list[str | Path]:
        """Of ``fedcipher engine serve``."""
        ...


def await_address(service: Service, begin: int = 0) -> str:
    """Where ``service`` listens, from what its log says after byte ``begin``."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        # Asked first, so that the log below has the last words of a process that has ended.
        ended = service.process.poll() is not None
        text = read_file(service.log, MAX_LOG)[begin:].decode(errors="replace")
        if address := _said(text, "listening on "):
            return address
        if ended:
            said = [line for line in text.splitlines() if line.strip()]
            raise EngineError(
                quoted(said[-1], MAX_LINE) if said else f"it ended with status {service.process.returncode}"
            )
        if time.monotonic() > deadline:
            raise EngineError(f"it does not listen after {_START_SECONDS:.0f} s; its log: {service.log}")
        time.sleep(0.02)


def _said(text: str, before: str) -> str:
    """The address that a log has behind these words; empty where it has none."""
    for line in text.splitlines():
        _, found, address = line.partition(before)
        if found:
            return address.strip()
    return ""


@dataclass
class LocalEngines:
    """What a run needs to know of its engine and authority."""

    engine: Service
    authority: Service
    state: Path
    server_credentials: Path

    @property
    def target(self) -> str:
        """Where the engine listens."""
        return self.engine.address

    @property
    def metrics(self) -> str:
        """``host:port`` of the engine's metrics page; empty where it has none."""
        return _said(read_file(self.engine.log, MAX_LOG).decode(errors="replace"), "metrics at ")

    def rotate(self) -> int:
        """The next key epoch."""
        return rotate(self.state.parent)


def lock_arguments() -> Sequence[str]:
    """A user's limit of locked memory is finite; a local run goes on without."""
    return [] if os.geteuid() == 0 else ["--allow-swap"]


def device_names(clients: int) -> list[str]:
    """Of ``clients`` clients: what a client looks for that knows only its partition."""
    return [f"client-{k}" for k in range(clients)]


def new_authority(scheme: Scheme, clients: int, folder: Path) -> None:
    """An authority's state in the new ``folder``, with an aggregator and the `device_names`.

    Each party's credentials are a folder of its name. Without a committee there is a first key epoch; a committee's
    roster is made of identities, which engines make and show at their start: `rotate` after that. Raises
    `EngineError`.
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
    """The next key epoch of the authority in ``folder``. Raises `EngineError`."""
    state = folder / "authority"
    return int(run_program("fedcipher-authority", "--state", state, "rotate", *lock_arguments()).split()[-1])


@contextmanager
def start_engines(
    scheme: Scheme, clients: int, folder: Path, *, rotate_every: int = 0, on: Device | None = None
) -> Generator[LocalEngines]:
    """One engine with the devices ``client-0`` to ``client-<n-1>``, and their authority, over ``folder``.

    ``on``: the accelerator that the engine works on.
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
