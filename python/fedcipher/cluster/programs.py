"""Flower's SuperLink and SuperNode as `fedcipher superlink` and `fedcipher supernode` run them: with every door closed.

Started by themselves they take runs and tasks from whoever reaches their ports, and put the tasks' tokens on command
lines, where every user of the machine reads them. Here a `Gate` stands before the SuperLink, the process that starts
apps (SuperExec) has a secret with it, tokens are in files, and everything is TLS.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ipaddress
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedcipher._addresses import joined
from fedcipher._files import make_private_folder, user_home
from fedcipher._optional import load, missing
from fedcipher.cluster.certificates import server_certificate
from fedcipher.cluster.environment import for_flower
from fedcipher.errors import ClusterError, KeyFormatError
from fedcipher.foreign_files import MAX_NOTE, read_trusted
from fedcipher.foreign_text import show
from fedcipher.keys.store import read_secret, write_new

__all__ = ["private_folder", "superexec", "superlink", "supernode"]

_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_OURS = "which fedcipher gives itself; leave it out"
_NOT_THE_LINKS = {
    "--insecure": "which sends everything in the clear; give --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile",
    "--simulation": "which needs no SuperLink",
    **dict.fromkeys(("--isolation", "--superexec-auth-secret-file"), _OURS),
    **dict.fromkeys(("--control-api-address", "--fleet-api-address", "--fleet-api-type"), "which has no gate"),
}
_NOT_A_NODES = {
    "--insecure": "which sends everything in the clear; give --root-certificates",
    "--allow-runtime-dependency-installation": "which runs what an app's list of packages brings; install them before",
    **dict.fromkeys(("--isolation", "--superexec-auth-secret-file"), _OURS),
    **dict.fromkeys((f"--{old}ssl-{what}" for old in ("", "appio-") for what in ("certfile", "keyfile")), _OURS),
    **dict.fromkeys(("--ssl-ca-certfile", "--appio-ssl-ca-certfile"), _OURS),
}
_LINKS = ("--port", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
_NODES = ("--port", "--superlink", "--root-certificates", "--auth-supernode-private-key", "--trusted-entities")
_LEAST_TOKEN = 32
_MOST_TOKEN = 1024


def superlink(token: Path, private: Path, arguments: Sequence[str]) -> int:
    """Run `flower-superlink` with ``arguments``, behind a gate that opens to ``token``. Raises `ClusterError`."""
    given = _given("flower-superlink", arguments, _NOT_THE_LINKS, _LINKS)
    if "--enable-supernode-auth" not in arguments:
        raise ClusterError("flower-superlink without --enable-supernode-auth takes anybody for a SuperNode; give it")
    _prepare_environment("flwr.superlink.cli.flower_superlink")
    from fedcipher.cluster.gate import Gate

    own = _Own(private)
    signatures = private_folder(private / "signatures")
    secret = _token(token)
    at = _reached_at(given.host)
    hosts = _LOOPBACK_NAMES if _is_loopback(given.host) else frozenset[str]()
    server = load("uvicorn")
    serve = server.run

    def behind_gate(app: Any, **more: Any) -> None:
        # The header that names another peer is for proxies: there is none before it.
        serve(Gate(app, secret, signatures, hosts), **{**more, "proxy_headers": False})

    server.run = behind_gate
    own.start_superexec(joined(at, int(given.port)), Path(given.ssl_ca_certfile))
    sys.argv = ["flower-superlink", *arguments, *own.options()]
    load("flwr.superlink.cli.flower_superlink").flower_superlink()
    return 0


def supernode(private: Path, arguments: Sequence[str]) -> int:
    """Run `flower-supernode` with ``arguments``, for apps that trusted entities have signed. Raises `ClusterError`."""
    given = _given("flower-supernode", arguments, _NOT_A_NODES, _NODES)
    if not _is_loopback(given.host):
        raise ClusterError(f"flower-supernode --host {given.host}: nobody connects to a SuperNode; leave it out")
    _check_trusted(Path(given.trusted_entities))
    _prepare_environment("flwr.supernode.cli.flower_supernode")
    own = _Own(private)
    server_certificate(own.folder)
    own.start_superexec(f"127.0.0.1:{given.port}", own.folder / "ca.crt")
    tls = {"--ssl-certfile": "link.crt", "--ssl-keyfile": "link.pem", "--ssl-ca-certfile": "ca.crt"}
    options = [word for name, file in tls.items() for word in (name, str(own.folder / file))]
    sys.argv = ["flower-supernode", *arguments, *own.options(), *options]
    load("flwr.supernode.cli.flower_supernode").flower_supernode()
    return 0


def superexec(tokens: Path, arguments: Sequence[str]) -> int:
    """Run `flower-superexec` with ``arguments``; the tokens of what it starts are in files in ``tokens``."""
    _prepare_environment("flwr.supercore.superexec.executor.subprocess_executor")
    executor = load("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=_TokenFiles(tokens), DEVNULL=subprocess.DEVNULL)
    sys.argv = ["flower-superexec", *arguments]
    load("flwr.supercore.cli").flower_superexec()
    return 0


def private_folder(folder: Path) -> Path:
    """``folder``, which is made, or made this user's alone. Raises `ClusterError`."""
    try:
        make_private_folder(folder)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
            raise ClusterError(f"{folder} is not a folder of this user's: name another")
        folder.chmod(0o700)
    except OSError as error:
        raise ClusterError(f"{folder} cannot be made: {error}; name another folder") from error
    return folder


class _Own:
    """What one start of a program shares with its SuperExec, in a folder that is made anew."""

    def __init__(self, private: Path) -> None:
        private_folder(private)
        self.folder = private.absolute() / "now"
        shutil.rmtree(self.folder, ignore_errors=True)
        private_folder(self.folder)
        self._secret, self._tokens = self.folder / "superexec.secret", self.folder / "tokens"
        write_new(self._secret, secrets.token_bytes(32), 0o600)
        private_folder(self._tokens)

    def options(self) -> list[str]:
        return ["--isolation", "process", "--superexec-auth-secret-file", str(self._secret)]

    def start_superexec(self, address: str, root_certificates: Path) -> None:
        """What starts the apps; where one of the two ends, so does the other."""
        command: list[str | Path] = [Path(sys.executable).parent / "fedcipher", "superexec", "--tokens", self._tokens]
        command += ["--", "--runtime-api-address", address, "--root-certificates", root_certificates]
        command += ["--superexec-auth-secret-file", self._secret, "--parent-pid", str(os.getpid())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        ends = threading.Event()

        def end() -> None:
            ends.set()
            process.terminate()

        def follow() -> None:
            status = process.wait()
            if not ends.is_set():
                show(f"what starts apps has ended with status {status}", to=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

        atexit.register(end)
        threading.Thread(target=follow, daemon=True).start()


class _TokenFiles:
    """Starts a process as `subprocess.Popen` does; a token on its command line becomes the name of a file with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: list[tuple[subprocess.Popen[Any], Path]] = []

    def __call__(self, command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        self._drop()
        words, file = list(command), self._folder / secrets.token_hex(8)
        if "--token" in words:
            at = words.index("--token")
            write_new(file, words[at + 1].encode(), 0o600)
            words[at : at + 2] = ["--token-file", str(file)]
        process: subprocess.Popen[Any] = subprocess.Popen(words, **more)
        self._given.append((process, file))
        return process

    def _drop(self) -> None:
        """The files of processes that have ended."""
        for process, file in self._given:
            if process.poll() is not None:
                file.unlink(missing_ok=True)
        self._given = [(process, file) for process, file in self._given if process.returncode is None]


def _given(
    program: str, arguments: Sequence[str], refused: dict[str, str], needed: Sequence[str]
) -> argparse.Namespace:
    """Of the arguments what is looked at here. Raises `ClusterError`."""
    for word in arguments:
        name = word.partition("=")[0]
        for option, why in refused.items():
            # Flower takes an option's beginning for the option.
            if len(name) > len("--") and option.startswith(name):
                raise ClusterError(f"{program} {option}: {why}")
    parser = argparse.ArgumentParser(program, add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    for option in needed:
        parser.add_argument(option)
    given, _ = parser.parse_known_args(list(arguments))
    absent = [option for option in needed if getattr(given, option.removeprefix("--").replace("-", "_")) is None]
    if absent:
        raise ClusterError(f"{program} needs {', '.join(absent)} here, after --")
    return given


def _prepare_environment(module: str) -> None:
    """Before anything of Flower is imported, which reads its variables then. Raises `ClusterError`."""
    home = os.environ.get("FLWR_HOME")
    made = for_flower(Path(home) if home else user_home("FLWR_HOME") / ".flwr")
    os.environ.clear()
    os.environ.update(made)
    if missing("flwr", "uvicorn") or missing(module):
        raise ClusterError("this needs Flower 1.40 or newer: pip install --upgrade 'fedcipher[flower]'")


def _check_trusted(file: Path) -> None:
    """Flower takes an empty list for none, and then runs any app."""
    try:
        listed = load("yaml").safe_load(read_trusted(file, MAX_NOTE))
    except (OSError, ValueError, load("yaml").YAMLError) as error:
        raise ClusterError(f"--trusted-entities {file} cannot be read: {error}; give `trusted.yaml`") from error
    if not isinstance(listed, dict) or not listed:
        raise ClusterError(f"--trusted-entities {file} lists nobody, and Flower then trusts everybody; name one")


def _token(file: Path) -> bytes:
    try:
        token = read_secret(file).strip()
    except (OSError, KeyFormatError) as error:
        raise ClusterError(f"{file} cannot be read: {error}; `fedcipher access` makes it") from error
    if not _LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
        raise ClusterError(f"{file} is no token of {_LEAST_TOKEN} to {_MOST_TOKEN} bytes; `fedcipher access` makes one")
    return token


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _reached_at(host: str) -> str:
    """Where the machine itself reaches what listens on ``host``."""
    if host in ("0.0.0.0", "localhost"):
        return "127.0.0.1"
    return "::1" if host == "::" else host
