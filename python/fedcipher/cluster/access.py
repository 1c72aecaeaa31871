"""Credentials to start runs on a SuperLink, and keys that sign the apps that SuperNodes run.

They are files in a folder that only its owner can read. ``control.token`` is copied to the SuperLink and
``trusted.yaml`` to every SuperNode. ``publisher.key`` signs apps, and ``flwr`` is the login of the ``flwr`` command;
these two stay in the folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcipher._optional import load
from fedcipher._signals import Terminated
from fedcipher.cluster.environment import for_flower
from fedcipher.errors import ClusterError, KeyFormatError
from fedcipher.foreign_files import MAX_NOTE, read_json, read_text
from fedcipher.keys.store import read_secret, write_new

__all__ = ["CONTROL_TOKEN", "FLOWER_HOME", "NAME", "SIGNATURES_PATH", "TRUSTED", "new_access", "run_app", "sign"]

NAME = "cluster"
"""The SuperLink's name in ``flwr run APP NAME``."""
CONTROL_TOKEN = "control.token"
TRUSTED = "trusted.yaml"
FLOWER_HOME = "flwr"
SIGNATURES_PATH = "/v1/control/fedcipher-signatures"
"""The path at which a SuperLink behind `Gate` receives an app's signatures."""
_PUBLISHER = "publisher.key"
_WHERE = "superlink.json"
_SECONDS = 60.0


def new_access(folder: Path, address: str, root_certificates: Path) -> None:
    """Make the new ``folder`` for the SuperLink at ``address``. Raises `OSError`; `FileExistsError` if it exists."""
    folder.mkdir(mode=0o700)
    token = secrets.token_urlsafe(32)
    write_new(folder / CONTROL_TOKEN, token.encode(), 0o600)
    publisher = Ed25519PrivateKey.generate()
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    secret = publisher.private_bytes(encoding, form, serialization.NoEncryption())
    write_new(folder / _PUBLISHER, secret, 0o600)
    # Every JSON text is YAML.
    write_new(folder / TRUSTED, json.dumps({_key_id(publisher): _public(publisher)}).encode() + b"\n", 0o644)
    where = {"address": address, "root-certificates": str(root_certificates)}
    write_new(folder / _WHERE, json.dumps(where).encode(), 0o600)
    _log_in(folder / FLOWER_HOME, token, address, root_certificates)


def _log_in(home: Path, token: str, address: str, root_certificates: Path) -> None:
    """Write Flower's configuration and credentials, like ``flwr login`` does."""
    home.mkdir(mode=0o700)
    # Every JSON string is a TOML string.
    quoted = [json.dumps(text, ensure_ascii=False) for text in (address, str(root_certificates))]
    config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = {quoted[0]}\n'
    write_new(home / "config.toml", f"{config}root-certificates = {quoted[1]}\n".encode(), 0o600)
    flower = load("flwr.cli.constant")
    store = load("flwr.supercore.credential_store.file_credential_store").FileCredentialStore(home / "credentials.yaml")
    store.set(flower.AUTHN_TYPE_STORE_KEY % address, b"oidc")
    store.set(flower.ACCESS_TOKEN_STORE_KEY % address, token.encode())
    # Flower sends the access token only if there is a refresh token. Nothing uses this one.
    store.set(flower.REFRESH_TOKEN_STORE_KEY % address, b"none")


def sign(folder: Path, bundle: bytes) -> dict[str, dict[str, Any]]:
    """The publisher's signature of an app bundle (FAB), in the form that Flower's SuperNodes check.

    Returns a dict from the key's id to ``signature`` (base64) and ``signed_at`` (Unix seconds). Raises `ClusterError`.
    """
    try:
        publisher = serialization.load_ssh_private_key(read_secret(folder / _PUBLISHER), None)
    except (OSError, ValueError, KeyFormatError) as error:
        raise ClusterError(f"{folder / _PUBLISHER} is not a publisher's key: {error}; make a new folder") from error
    if not isinstance(publisher, Ed25519PrivateKey):
        raise ClusterError(f"{folder / _PUBLISHER} is not an Ed25519 key; make a new folder")
    now = int(time.time())
    signature = publisher.sign(now.to_bytes(8, "big") + hashlib.sha256(bundle).digest())
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return {_key_id(publisher): {"signature": text, "signed_at": now}}


def run_app(folder: Path, app: str, arguments: Sequence[str]) -> int:
    """Sign the app in the folder ``app``, start it with `flwr run` and return the exit status.

    The signature covers the bytes that are sent, even if the app's folder changes meanwhile. Call this once per
    process, because Flower reads its home folder only once. Raises `ClusterError`.
    """
    where = _where(folder)
    os.environ.update(for_flower(folder / FLOWER_HOME))
    command, flower = load("flwr.cli.run.run"), load("flwr.cli.app")
    build = command.build_fab_from_disk
    signed: list[str] = []

    def built(path: Path) -> bytes:
        bundle: bytes = build(path)
        digest = hashlib.sha256(bundle).hexdigest()
        _send(folder, where, digest, sign(folder, bundle))
        signed.append(digest)
        return bundle

    command.build_fab_from_disk = built
    try:
        flower.app(["run", app, NAME, *arguments])
        status = 0
    except Terminated:
        raise
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        command.build_fab_from_disk = build
    # With --format json Flower's exit status is always 0.
    return status if signed else status or 1


def _where(folder: Path) -> dict[str, str]:
    try:
        said = read_json(folder / _WHERE, MAX_NOTE)
        return {name: str(said[name]) for name in ("address", "root-certificates")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{folder} was not made by `fedcipher access` or `fedcipher cluster up`: {error}") from error


def _send(folder: Path, where: dict[str, str], digest: str, signatures: dict[str, dict[str, Any]]) -> None:
    """Send the signatures to the SuperLink, which gives them to the SuperNodes with the bundle."""
    address = where["address"]
    try:
        certificates = read_text(where["root-certificates"], MAX_NOTE, follow=True)
        trusted = ssl.create_default_context(cadata=certificates)
        headers = {"authorization": f"Bearer {read_secret(folder / CONTROL_TOKEN).decode()}"}
        content = json.dumps({"bundle": digest, "signatures": signatures}).encode()
        asked = urllib.request.Request(f"https://{address}{SIGNATURES_PATH}", content, headers)
        with urllib.request.urlopen(asked, timeout=_SECONDS, context=trusted):
            return
    except urllib.error.HTTPError as error:
        raise ClusterError(
            f"the SuperLink at {address} refuses the app's signature (HTTP {error.code}): it was not started by "
            f"`fedcipher superlink`, or has another token than {folder / CONTROL_TOKEN}"
        ) from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"the SuperLink at {address} cannot be reached: {error}; is it running?") from error


def _public(publisher: Ed25519PrivateKey) -> str:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return publisher.public_key().public_bytes(encoding, form).decode()


def _key_id(publisher: Ed25519PrivateKey) -> str:
    return f"fpk_{hashlib.sha256(_public(publisher).encode()).hexdigest()[:32]}"
