"""A SuperLink with TLS and SuperNodes that it knows by their keys, each a process of its own, in one folder.

What a deployment on several machines has (docs/deploy.md), on one: nothing here is another transport or another engine
than Flower's own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcipher import keys
from fedcipher._files import create_private
from fedcipher.cluster.certificates import key_pair, server_certificate
from fedcipher.cluster.offload import Offload
from fedcipher.cluster.supervisor import INDEX, REGISTERED, is_running
from fedcipher.errors import ClusterError
from fedcipher.foreign_files import MAX_INDEX, parse_json, read_json
from fedcipher.keys import roster
from fedcipher.schemes import Scheme

__all__ = ["NAME", "down", "status", "up"]

NAME = "cluster"
"""What `flwr run APP NAME` calls it."""
_START_SECONDS = 120.0
_END_SECONDS = 30.0


def up(
    folder: Path,
    scheme: Scheme,
    clients: int,
    *,
    members: int = 0,
    engine: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> str:
    """Make keys and certificates in the new ``folder``, start everything, and return when all nodes are there.

    With ``members`` the scheme has no shared key: each party has an identity, and the first so many hold shares. With
    ``engine`` keys are in engines, one a node, from an authority. Returns what an app's ``fedcipher-keys`` is. Raises
    `ClusterError` where the folder has a cluster, or something does not start.
    """
    if is_running(folder):
        raise ClusterError(f"a cluster runs in {folder}: `fedcipher cluster down` ends it")
    if (folder / INDEX).exists():
        raise ClusterError(f"{folder} has the keys and logs of an earlier cluster: remove it, or name another folder")
    if folder.exists() and any(folder.iterdir()):
        raise ClusterError(f"{folder} has other things in it: name a new folder")
    offload = Offload(folder / "engines", scheme, clients, _free_port()) if engine else None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        on_progress("keys and certificates")
        port, public = _prepare(folder, scheme, clients, members, offload)
    except BaseException:
        # Nothing runs yet, and a second try finds the folder as this one did.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    supervisor: subprocess.Popen[bytes] | None = None
    try:
        supervisor = _supervisor(folder)
        _start(folder, port, public, offload, on_progress)
    except BaseException:
        # It may not hold yet what `down` knows it by.
        until = time.monotonic() + _END_SECONDS
        while supervisor and supervisor.poll() is None and not is_running(folder) and time.monotonic() < until:
            time.sleep(0.05)
        down(folder)
        raise
    return offload.keys if offload else str(folder / "keys")


def _prepare(
    folder: Path, scheme: Scheme, clients: int, members: int, offload: Offload | None
) -> tuple[int, list[Path]]:
    """All files; the SuperLink's port, and the nodes' public keys."""
    for part in ("tls", "nodes", "logs", "flwr", "state"):
        (folder / part).mkdir(mode=0o700)
    server_certificate(folder / "tls")
    if offload:
        offload.make()
        own = [f'fedcipher-engine="{target}"' for target in offload.targets()]
    else:
        own = [f'fedcipher-key="{path}"' for path in _party_keys(folder, scheme, clients, members)]
    port = _free_port()
    tls = folder / "tls"
    link = ["flower-superlink", "--ssl-certfile", tls / "link.crt", "--ssl-keyfile", tls / "link.pem"]
    link += ["--ssl-ca-certfile", tls / "ca.crt", "--enable-supernode-auth", "--database", folder / "link.db"]
    programs = [_program("superlink", [*link, "--port", port])]
    programs += [_program(name, command) for name, command in (offload.programs() if offload else [])]
    public: list[Path] = []
    for number, whose in enumerate(own):
        secret, shown = key_pair(folder / "nodes", f"node-{number}")
        public.append(shown)
        config = f"partition-id={number} num-partitions={clients} {whose}"
        node = ["flower-supernode", "--superlink", f"127.0.0.1:{port}", "--root-certificates", tls / "ca.crt"]
        node += ["--auth-supernode-private-key", secret, "--port", _free_port(), "--node-config", config]
        programs.append(_program(f"node-{number}", node))
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{tls / "ca.crt"}"\n'
    )
    said = {"scheme": scheme.spec(), "clients": clients, "port": port, "programs": programs}
    (folder / INDEX).write_text(json.dumps(said, indent=1))
    return port, public


def _party_keys(folder: Path, scheme: Scheme, clients: int, members: int) -> list[Path]:
    """The server's key and each client's; the clients' files."""
    if not members:
        keys.save(scheme.keygen(clients), scheme, folder / "keys")
        return [keys.client_file(folder / "keys", number) for number in range(clients)]
    # Sorted by name, as a roster numbers its parties.
    parties = [f"party-{number:04d}" for number in range(clients)]
    own, made = folder / "identities", [keys.client_file(folder / "keys", number) for number in range(clients)]
    cards = [roster.new_identity(party, own)[1] for party in parties]
    (folder / "keys").mkdir(mode=0o700)
    server = folder / "keys" / "server.key"
    roster.make(cards, scheme, server, members=parties[:members])
    for party, path in zip(parties, made, strict=True):
        roster.join(own / f"{party}.identity", server, path)
    return made


def _supervisor(folder: Path) -> subprocess.Popen[bytes]:
    with create_private(folder / "logs" / "supervisor.log", append=True) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedcipher.cluster.supervisor", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _start(
    folder: Path, port: int, public: list[Path], offload: Offload | None, on_progress: Callable[[str], None]
) -> None:
    until = time.monotonic() + _START_SECONDS
    on_progress("SuperLink")
    while not _answers(port):
        _wait(folder, until, "the SuperLink does not answer")
    for number, path in enumerate(public):
        on_progress(f"registering node {number} of {len(public)}")
        while not _flwr(folder, "supernode", "register", str(path), NAME)[0]:
            _wait(folder, until, f"node {number} cannot be registered")
    (folder / REGISTERED).touch()
    if offload:
        on_progress("engines")
        offload.wait(lambda what: _wait(folder, until, what))
    on_progress("SuperNodes")
    while (here := status(folder)["online"]) < len(public):
        _wait(folder, until, f"{here} of {len(public)} SuperNodes are there")


def _wait(folder: Path, until: float, what: str) -> None:
    # A supervisor takes a moment to lock its file.
    started = time.monotonic() > until - _START_SECONDS + 5
    if time.monotonic() > until or (started and not is_running(folder)):
        raise ClusterError(f"{what}; {folder / 'logs'} has what the programs said")
    time.sleep(0.3)


def status(folder: Path) -> dict[str, Any]:
    """``running``, ``port``, ``clients`` and how many SuperNodes are ``online``. Raises `ClusterError`."""
    try:
        said: dict[str, Any] = read_json(folder / INDEX, MAX_INDEX)
        found = {"running": bool(is_running(folder)), "port": said["port"], "clients": said["clients"], "online": 0}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{folder} has no cluster: `fedcipher cluster up` makes one") from error
    if found["running"]:
        done, text = _flwr(folder, "supernode", "list", NAME, "--format", "json")
        try:
            nodes: list[dict[str, Any]] = parse_json(text)["nodes"] if done else []
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"`flwr supernode list` says what is not understood: {text[:200]!r}") from error
        found["online"] = sum(str(node.get("status", "")).lower() == "online" for node in nodes)
    return found


def down(folder: Path) -> bool:
    """End all processes; whether there were any. The folder stays, with its logs. Raises `ClusterError`."""
    process = is_running(folder)
    if not process:
        return False
    os.kill(process, signal.SIGTERM)
    until = time.monotonic() + _END_SECONDS
    while is_running(folder):
        if time.monotonic() > until:
            raise ClusterError(
                f"the cluster's process {process} does not end; see {folder / 'logs' / 'supervisor.log'}"
            )
        time.sleep(0.1)
    return True


def _program(name: str, command: list[Any]) -> dict[str, Any]:
    # Flower's are beside Python; a path stays what it is.
    return {"name": name, "command": [str(Path(sys.executable).parent / command[0]), *map(str, command[1:])]}


def _flwr(folder: Path, *arguments: str) -> tuple[bool, str]:
    """Whether a command of ``flwr`` has worked, and what it printed."""
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [str(Path(sys.executable).parent / "flwr"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False, ""
    return done.returncode == 0, done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
