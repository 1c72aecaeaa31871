"""Runs a SuperLink and SuperNodes as separate processes, with keys that authenticate them, in one folder.

The cluster has the same parts as a deployment on several machines (docs/how-to/deploy.md) and uses Flower's own
transport. Other users of the machine can connect to the ports, but are refused there (`fedcipher.cluster.programs`).
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
from fedcipher.cluster.access import CONTROL_TOKEN, NAME, TRUSTED, new_access, run_app
from fedcipher.cluster.access import FLOWER_HOME as ACCESS_HOME
from fedcipher.cluster.certificates import key_pair, server_certificate
from fedcipher.cluster.environment import for_flower
from fedcipher.cluster.offload import Offload
from fedcipher.cluster.programs import private_folder
from fedcipher.cluster.supervisor import INDEX, REGISTERED, is_running
from fedcipher.errors import ClusterError
from fedcipher.foreign_files import MAX_INDEX, parse_json, read_json
from fedcipher.keys import roster
from fedcipher.schemes import Scheme

__all__ = ["FLOWER_HOME", "down", "run", "status", "up"]

_ACCESS = Path("access")
FLOWER_HOME = _ACCESS / ACCESS_HOME
"""The folder, inside the cluster's folder, with the login of the `flwr` command."""
_START_SECONDS = 120.0
_NODE_SECONDS = 10.0
"""Added to `_START_SECONDS` for each node."""
_LOCK_SECONDS = 5.0
_MAX_OUTPUT = 300
_KNOWN = "public key already in use"
"""Flower's text for a node that is already registered. The answer to its registration may have been lost."""
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
    """Make keys and certificates in the new ``folder``, start all programs, and wait until all nodes are online.

    ``members``: for a scheme without a shared key. Each party gets an identity, and the first ``members`` parties form
    the committee. ``engine``: an authority makes the keys, and each node has an engine that holds them.

    Returns the value of ``fedcipher-keys`` for an app. If the same cluster already runs, only returns this value.
    Raises `ClusterError` if the folder has another cluster or other content, or if a start fails.
    """
    asked = {"scheme": scheme.spec(), "clients": clients, "members": members, "engine": engine}
    if is_running(folder):
        return _running(folder, asked)
    if (folder / INDEX).exists():
        raise ClusterError(f"{folder} has the keys and logs of an earlier cluster: remove it, or name another folder")
    if folder.exists() and any(folder.iterdir()):
        raise ClusterError(f"{folder} is not empty: name a new folder")
    offload = Offload(folder / "engines", scheme, clients, _free_port()) if engine else None
    app_keys = offload.keys if offload else str(folder / "keys")
    try:
        private_folder(folder)
        on_progress("keys and certificates")
        port, public = _prepare(folder, scheme, clients, members, offload, {**asked, "keys": app_keys})
    except BaseException:
        # Nothing runs yet. Remove the folder, so that a second try can begin again.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    supervisor: subprocess.Popen[bytes] | None = None
    try:
        supervisor = _supervisor(folder)
        _start(folder, port, public, offload, on_progress)
    except BaseException:
        # `down` finds the supervisor by its lock, so wait until the supervisor holds it.
        until = time.monotonic() + _END_SECONDS
        while supervisor and supervisor.poll() is None and not is_running(folder) and time.monotonic() < until:
            time.sleep(0.05)
        down(folder)
        raise
    return app_keys


def _running(folder: Path, asked: dict[str, Any]) -> str:
    """The keys of the running cluster, if it has the parameters in ``asked``."""
    index = _index(folder)
    # The types of JSON, like in the index.
    wanted = json.loads(json.dumps(asked))
    others = [name for name, value in wanted.items() if index.get(name) != value]
    if others:
        raise ClusterError(
            f"a cluster runs in {folder}, with another {' and another '.join(others)}: end that cluster with "
            "`fedcipher cluster down`, or name another folder"
        )
    if not (folder / REGISTERED).exists():
        raise ClusterError(f"the cluster in {folder} is starting: wait, or end it with `fedcipher cluster down`")
    return str(index["keys"])


def run(folder: Path, app: str, arguments: list[str]) -> int:
    """Sign ``app``, start it on the cluster with `flwr run` and return the exit status. Raises `ClusterError`."""
    if not is_running(folder):
        raise ClusterError(f"no cluster runs in {folder}: `fedcipher cluster up` starts one")
    return run_app(folder / _ACCESS, app, arguments)


def _index(folder: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = read_json(folder / INDEX, MAX_INDEX)
        return {**said, "port": int(said["port"]), "clients": int(said["clients"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{folder} has no cluster: `fedcipher cluster up` makes one") from error


def _prepare(
    folder: Path, scheme: Scheme, clients: int, members: int, offload: Offload | None, asked: dict[str, Any]
) -> tuple[int, list[Path]]:
    """Write all files. Returns the SuperLink's port and the nodes' public keys."""
    for part in ("tls", "nodes", "logs", "apps", "state", "private"):
        (folder / part).mkdir(mode=0o700)
    server_certificate(folder / "tls")
    if offload:
        offload.make()
        own = [f'fedcipher-engine="{target}"' for target in offload.targets()]
    else:
        own = [f'fedcipher-key="{path}"' for path in _party_keys(folder, scheme, clients, members)]
    port = _free_port()
    new_access(folder / _ACCESS, f"127.0.0.1:{port}", folder / "tls" / "ca.crt")
    programs = [_superlink(folder, port)]
    programs += [_program(name, command) for name, command in (offload.programs() if offload else [])]
    public: list[Path] = []
    for number, key_setting in enumerate(own):
        secret, shown = key_pair(folder / "nodes", f"node-{number}")
        public.append(shown)
        config = f"partition-id={number} num-partitions={clients} {key_setting}"
        programs.append(_supernode(folder, port, f"node-{number}", secret, config))
    (folder / INDEX).write_text(json.dumps({**asked, "port": port, "programs": programs}, indent=1))
    return port, public


def _superlink(folder: Path, port: int) -> dict[str, Any]:
    tls = folder / "tls"
    ours = ["--control-token", folder / _ACCESS / CONTROL_TOKEN, "--private", folder / "private" / "superlink"]
    flowers = ["--ssl-certfile", tls / "link.crt", "--ssl-keyfile", tls / "link.pem"]
    flowers += ["--ssl-ca-certfile", tls / "ca.crt", "--enable-supernode-auth", "--database", folder / "link.db"]
    return _program(
        "superlink", ["fedcipher", "superlink", *ours, "--", *flowers, "--host", "127.0.0.1", "--port", port]
    )


def _supernode(folder: Path, port: int, name: str, secret: Path, config: str) -> dict[str, Any]:
    flowers = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", folder / "tls" / "ca.crt"]
    flowers += ["--auth-supernode-private-key", secret, "--trusted-entities", folder / _ACCESS / TRUSTED]
    flowers += ["--host", "127.0.0.1", "--port", _free_port(), "--node-config", config]
    return _program(name, ["fedcipher", "supernode", "--private", folder / "private" / name, "--", *flowers])


def _party_keys(folder: Path, scheme: Scheme, clients: int, members: int) -> list[Path]:
    """Make the server's key and the clients' keys. Returns the clients' key files."""
    if not members:
        keys.save(scheme.keygen(clients), scheme, folder / "keys")
        return [keys.client_file(folder / "keys", number) for number in range(clients)]
    # A roster numbers its parties in the order of their names.
    parties = [f"party-{number:04d}" for number in range(clients)]
    own, made = folder / "identities", [keys.client_file(folder / "keys", number) for number in range(clients)]
    cards = [roster.new_identity(party, own)[1] for party in parties]
    (folder / "keys").mkdir(mode=0o700)
    server = folder / "keys" / "server.key"
    _, listed = roster.make(cards, scheme, server, members=parties[:members])
    for party, path in zip(parties, made, strict=True):
        accept = roster.expected(listed.fingerprint)
        # Trusted, because this process made the roster and all identities.
        roster.join(own / f"{party}.identity", server, path, accept=accept, trusts_maker=True)
    return made


def _supervisor(folder: Path) -> subprocess.Popen[bytes]:
    with create_private(folder / "logs" / "supervisor.log", append=True) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fedcipher.cluster.supervisor", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Python imports modules from its working folder, which another user may control.
            cwd=folder,
            start_new_session=True,
        )


def _start(
    folder: Path, port: int, public: list[Path], offload: Offload | None, on_progress: Callable[[str], None]
) -> None:
    began = time.monotonic()
    until = began + _START_SECONDS + _NODE_SECONDS * len(public)

    def wait(what: str) -> None:
        # A new supervisor needs a moment to lock its file.
        _wait(folder, what, may_be_gone=time.monotonic() < began + _LOCK_SECONDS, is_late=time.monotonic() > until)

    on_progress("SuperLink")
    while not _answers(port):
        wait("the SuperLink does not answer")
    for number, path in enumerate(public):
        on_progress(f"registering node {number} of {len(public)}")
        _register(folder, path, lambda said, number=number: wait(f"node {number} cannot be registered{said}"))
    (folder / REGISTERED).touch()
    if offload:
        on_progress("engines")
        offload.wait(wait)
    on_progress("SuperNodes")
    while (here := status(folder)["online"]) < len(public):
        wait(f"{here} of {len(public)} SuperNodes are online")


def _register(folder: Path, public: Path, wait: Callable[[str], None]) -> None:
    """Register a node at the SuperLink. An earlier try may have succeeded although its answer was lost."""
    while True:
        done, said = _flwr(folder, "supernode", "register", str(public), NAME)
        if done or _KNOWN in " ".join(said.lower().split()):
            return
        wait(f" ({' '.join(said.split())[-_MAX_OUTPUT:]})" if said.strip() else "")


def _wait(folder: Path, what: str, *, may_be_gone: bool, is_late: bool) -> None:
    gone = not may_be_gone and not is_running(folder)
    if gone or is_late:
        raise ClusterError(f"{what}; see the programs' logs in {folder / 'logs'}")
    time.sleep(0.2)


def status(folder: Path) -> dict[str, Any]:
    """A dict with ``running``, ``port``, ``clients`` and the number of SuperNodes ``online``. Raises `ClusterError`."""
    said = _index(folder)
    found = {"running": bool(is_running(folder)), "port": said["port"], "clients": said["clients"], "online": 0}
    if found["running"]:
        done, text = _flwr(folder, "supernode", "list", NAME, "--format", "json")
        try:
            nodes: list[dict[str, Any]] = parse_json(text)["nodes"] if done else []
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"`flwr supernode list` gave an unknown answer: {text[:200]!r}") from error
        found["online"] = sum(str(node.get("status", "")).lower() == "online" for node in nodes)
    return found


def down(folder: Path) -> bool:
    """End all processes and return whether there were any. The folder and its logs stay. Raises `ClusterError`."""
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
    # A program's name becomes its path beside Python; an absolute path is not changed.
    return {"name": name, "command": [str(Path(sys.executable).parent / command[0]), *map(str, command[1:])]}


def _flwr(folder: Path, *arguments: str) -> tuple[bool, str]:
    """Run a ``flwr`` command. Returns whether it succeeded, and its output, with errors if it failed."""
    environment = {**for_flower(folder / FLOWER_HOME), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [str(Path(sys.executable).parent / "flwr"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False, ""
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
