"""Runs Flower's SuperLink and SuperNode securely, for `fedcipher superlink` and `fedcipher supernode`.

On their own, these programs accept runs and tasks from every process that can connect to their ports. They put the
tasks' tokens on command lines, which every user of the machine can read. Here a `Gate` filters requests to the
SuperLink, SuperExec (the process that starts apps) authenticates with a secret, tokens are in files, and all
connections use TLS.
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
_OURS = "is set by fedcipher; leave it out"
_NO_GATE = "is not protected by the gate; leave it out"
_REFUSED_BY_SUPERLINK = {
    "--insecure": "sends everything unencrypted; give --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile",
    "--simulation": "needs no SuperLink; leave it out",
    **dict.fromkeys(("--isolation", "--superexec-auth-secret-file"), _OURS),
    **dict.fromkeys(("--control-api-address", "--fleet-api-address", "--fleet-api-type"), _NO_GATE),
}
_REFUSED_BY_SUPERNODE = {
    "--insecure": "sends everything unencrypted; give --root-certificates",
    "--allow-runtime-dependency-installation": "installs and runs the packages that an app lists; install them first",
    **dict.fromkeys(("--isolation", "--superexec-auth-secret-file"), _OURS),
    **dict.fromkeys((f"--{old}ssl-{what}" for old in ("", "appio-") for what in ("certfile", "keyfile")), _OURS),
    **dict.fromkeys(("--ssl-ca-certfile", "--appio-ssl-ca-certfile"), _OURS),
}
_NEEDED_BY_SUPERLINK = ("--port", "--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
_NEEDED_BY_SUPERNODE = (
    *("--port", "--superlink", "--root-certificates"),
    *("--auth-supernode-private-key", "--trusted-entities"),
)
_MIN_TOKEN = 32
_MAX_TOKEN = 1024


def superlink(token: Path, private: Path, arguments: Sequence[str]) -> int:
    """Run `flower-superlink` with ``arguments``, behind a gate that requires the token in the file ``token``.

    ``private`` is a folder for the program's secrets. Raises `ClusterError`.
    """
    given = _checked_arguments("flower-superlink", arguments, _REFUSED_BY_SUPERLINK, _NEEDED_BY_SUPERLINK)
    if "--enable-supernode-auth" not in arguments:
        raise ClusterError(
            "flower-superlink without --enable-supernode-auth accepts every client as a SuperNode; give this option"
        )
    _prepare_environment("flwr.superlink.cli.flower_superlink")
    from fedcipher.cluster.gate import Gate

    own = _SharedSecrets(private)
    signatures = private_folder(private / "signatures")
    secret = _token(token)
    at = _reached_at(given.host)
    hosts = _LOOPBACK_NAMES if _is_loopback(given.host) else frozenset[str]()
    server = load("uvicorn")
    serve = server.run

    def behind_gate(app: Any, **more: Any) -> None:
        # No proxy is in front of the SuperLink, so headers that name another peer must be ignored.
        serve(Gate(app, secret, signatures, hosts), **{**more, "proxy_headers": False})

    server.run = behind_gate
    own.start_superexec(joined(at, int(given.port)), Path(given.ssl_ca_certfile))
    sys.argv = ["flower-superlink", *arguments, *own.options()]
    load("flwr.superlink.cli.flower_superlink").flower_superlink()
    return 0


def supernode(private: Path, arguments: Sequence[str], guard_key: str = "") -> int:
    """Run `flower-supernode` with ``arguments``, for apps that trusted entities have signed.

    ``private`` is a folder for the program's secrets. With ``guard_key``, a client's key file, a guard starts the apps,
    behind walls. Raises `ClusterError`.
    """
    given = _checked_arguments("flower-supernode", arguments, _REFUSED_BY_SUPERNODE, _NEEDED_BY_SUPERNODE)
    if not _is_loopback(given.host):
        raise ClusterError(
            f"flower-supernode --host {given.host}: no other machine connects to a SuperNode; leave it out"
        )
    _check_trusted(Path(given.trusted_entities))
    _prepare_environment("flwr.supernode.cli.flower_supernode")
    own = _SharedSecrets(private)
    server_certificate(own.folder)
    address, certificate = f"127.0.0.1:{given.port}", own.folder / "ca.crt"
    if guard_key:
        own.start_guard(address, certificate, guard_key)
    else:
        own.start_superexec(address, certificate)
    tls = {"--ssl-certfile": "link.crt", "--ssl-keyfile": "link.pem", "--ssl-ca-certfile": "ca.crt"}
    options = [word for name, file in tls.items() for word in (name, str(own.folder / file))]
    sys.argv = ["flower-supernode", *arguments, *own.options(), *options]
    load("flwr.supernode.cli.flower_supernode").flower_supernode()
    return 0


def superexec(tokens: Path, arguments: Sequence[str]) -> int:
    """Run `flower-superexec` with ``arguments``. It passes tokens to apps in files in the folder ``tokens``."""
    _prepare_environment("flwr.supercore.superexec.executor.subprocess_executor")
    executor = load("flwr.supercore.superexec.executor.subprocess_executor")
    executor.subprocess = SimpleNamespace(Popen=_TokenFiles(tokens), DEVNULL=subprocess.DEVNULL)
    sys.argv = ["flower-superexec", *arguments]
    load("flwr.supercore.cli").flower_superexec()
    return 0


def private_folder(folder: Path) -> Path:
    """Make ``folder`` if needed, restrict it to this user and return it. Raises `ClusterError`."""
    try:
        make_private_folder(folder)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
            raise ClusterError(f"{folder} is not a folder of this user: name another folder")
        folder.chmod(0o700)
    except OSError as error:
        raise ClusterError(f"{folder} cannot be made: {error}; name another folder") from error
    return folder


class _SharedSecrets:
    """The secret and tokens that a program shares with its SuperExec, in a folder that is new at each start."""

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
        """Start the SuperExec, which starts the apps."""
        command: list[str | Path] = ["superexec", "--tokens", self._tokens, "--", "--runtime-api-address", address]
        command += ["--root-certificates", root_certificates, "--superexec-auth-secret-file", self._secret]
        self._start_beside("SuperExec", [*command, "--parent-pid", str(os.getpid())])

    def start_guard(self, address: str, root_certificates: Path, key: str) -> None:
        """Start a guard, which starts the apps behind walls."""
        command: list[str | Path] = ["guard", "run", "--supernode", address, "--root-certificates", root_certificates]
        self._start_beside("guard", [*command, "--secret-file", self._secret, "--key", key])

    @staticmethod
    def _start_beside(name: str, arguments: Sequence[str | Path]) -> None:
        """Run `fedcipher` with ``arguments``. If this program or the other ends, both end."""
        command = [Path(sys.executable).parent / "fedcipher", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        ends = threading.Event()

        def end() -> None:
            ends.set()
            process.terminate()

        def follow() -> None:
            status = process.wait()
            if not ends.is_set():
                show(f"the {name}, which starts apps, has ended with status {status}", to=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

        atexit.register(end)
        threading.Thread(target=follow, daemon=True).start()


class _TokenFiles:
    """Starts processes like `subprocess.Popen`, but moves a token from the command line to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: list[tuple[subprocess.Popen[Any], Path]] = []

    def __call__(self, command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        self._remove_old_files()
        words, file = list(command), self._folder / secrets.token_hex(8)
        if "--token" in words:
            at = words.index("--token")
            write_new(file, words[at + 1].encode(), 0o600)
            words[at : at + 2] = ["--token-file", str(file)]
        process: subprocess.Popen[Any] = subprocess.Popen(words, **more)
        self._given.append((process, file))
        return process

    def _remove_old_files(self) -> None:
        """Remove the token files of processes that have ended."""
        for process, file in self._given:
            if process.poll() is not None:
                file.unlink(missing_ok=True)
        self._given = [(process, file) for process, file in self._given if process.returncode is None]


def _checked_arguments(
    program: str, arguments: Sequence[str], refused: dict[str, str], needed: Sequence[str]
) -> argparse.Namespace:
    """The host and the ``needed`` options in ``arguments``.

    Raises `ClusterError` for a missing option and for one in ``refused``.
    """
    for word in arguments:
        name = word.partition("=")[0]
        for option, why in refused.items():
            # Flower accepts abbreviated options.
            if len(name) > len("--") and option.startswith(name):
                raise ClusterError(f"{program} {option} {why}")
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
    """Set the environment of Flower's program. Raises `ClusterError` if Flower is missing or too old.

    Call this before Flower is imported, because Flower reads its variables then.
    """
    home = os.environ.get("FLWR_HOME")
    made = for_flower(Path(home) if home else user_home("FLWR_HOME") / ".flwr")
    os.environ.clear()
    os.environ.update(made)
    if missing("flwr", "uvicorn") or missing(module):
        raise ClusterError("this needs Flower 1.40 or newer: pip install --upgrade 'fedcipher[flower]'")


def _check_trusted(file: Path) -> None:
    """Refuse a file without entries: Flower treats an empty list like none and then runs any app."""
    try:
        listed = load("yaml").safe_load(read_trusted(file, MAX_NOTE))
    except (OSError, ValueError, load("yaml").YAMLError) as error:
        raise ClusterError(f"--trusted-entities {file} cannot be read: {error}; give `trusted.yaml`") from error
    if not isinstance(listed, dict) or not listed:
        raise ClusterError(f"--trusted-entities {file} has no entry, and Flower then trusts every app; add one")


def _token(file: Path) -> bytes:
    try:
        token = read_secret(file).strip()
    except (OSError, KeyFormatError) as error:
        raise ClusterError(f"{file} cannot be read: {error}; `fedcipher access` makes it") from error
    if not _MIN_TOKEN <= len(token) <= _MAX_TOKEN:
        raise ClusterError(f"{file} is not a token of {_MIN_TOKEN} to {_MAX_TOKEN} bytes; `fedcipher access` makes one")
    return token


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _reached_at(host: str) -> str:
    """The address at which this machine can connect to a program that listens on ``host``."""
    if host in ("0.0.0.0", "localhost"):
        return "127.0.0.1"
    return "::1" if host == "::" else host
