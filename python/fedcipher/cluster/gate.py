"""Filters the requests to a SuperLink's HTTP application, and refuses everything that is not listed here.

A SuperLink serves three interfaces on one port. The control API starts runs and requires the token. The fleet API
serves SuperNodes, whose signatures Flower checks. The runtime API serves the SuperLink's own apps: it accepts
connections from this machine only, and Flower checks the secret and the tasks' tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flwr.proto.fab_pb2 import GetFabResponse

from fedcipher._files import write_whole
from fedcipher.cluster.access import SIGNATURES_PATH
from fedcipher.foreign_files import parse_json, read_json

__all__ = ["Gate"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_CONTROL, _FLEET, _RUNTIME = "/v1/control/", "/v1/fleet/", "/v1/runtime/"
_GET_FAB = "/v1/fleet/get-fab"
_HOST = re.compile(rb"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
"""Allowed Host headers. Other characters could make a URL's path differ from the path that is checked."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"fpk_[A-Za-z0-9_-]{1,64}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{86}")
_MAX_BYTES = 16384
"""The largest body with signatures."""
_MAX_SECONDS = 2**40
# Every refusal has the same text. Flower's commands show it.
_REFUSAL = json.dumps({"detail": "Refused: no valid token, or no such address."}).encode()


class Gate:
    """An ASGI application that filters the requests to ``application``.

    ``token`` gives access to the control API. ``signatures`` is the folder for signatures of app bundles. ``hosts``
    are the names that are allowed in Host headers; an empty set allows every name.
    """

    def __init__(
        self, application: Application, token: bytes, signatures: Path, hosts: frozenset[str] = frozenset()
    ) -> None:
        self._application, self._signatures, self._hosts = application, signatures, hosts
        self._credentials = b"Bearer " + token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] != "http" or not self._admits(scope):
            await _refuse(scope, send)
        elif scope["path"] == SIGNATURES_PATH:
            await self._keep(scope, receive, send)
        elif scope["path"] == _GET_FAB:
            await self._application(scope, receive, _Signing(send, self._signatures))
        else:
            await self._application(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if not self._is_for_here(_only(scope, b"host")):
            return False
        if path.startswith(_CONTROL):
            return hmac.compare_digest(_only(scope, b"authorization"), self._credentials)
        if path.startswith(_RUNTIME):
            return _is_loopback(scope.get("client"))
        return path.startswith(_FLEET)

    def _is_for_here(self, host: bytes) -> bool:
        found = _HOST.fullmatch(host)
        return found is not None and (not self._hosts or found[1].decode() in self._hosts)

    async def _keep(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the signatures that the coordinator sends. SuperNodes check them; the SuperLink does not."""
        said = _parsed(await _body(receive))
        if scope["method"] != "POST" or said is None:
            await _refuse(scope, send)
            return
        digest, signatures = said
        write_whole(self._signatures / f"{digest}.json", json.dumps(signatures).encode())
        await _answer(send, 200, b"{}")


class _Signing:
    """Adds the stored signatures to the app bundle in an answer."""

    def __init__(self, send: Send, signatures: Path) -> None:
        self._send, self._signatures = send, signatures
        self._start: Scope | None = None
        self._body = bytearray()

    async def __call__(self, message: Scope) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)
        else:
            await self._send(message)

    async def _finish(self, start: Scope) -> None:
        answer = GetFabResponse.FromString(bytes(self._body))
        found = self._signatures / f"{hashlib.sha256(answer.fab.content).hexdigest()}.json"
        if not answer.fab.verifications and found.exists():
            answer.fab.verifications["valid_license"] = "Valid"
            for key_id, signature in read_json(found, _MAX_BYTES).items():
                answer.fab.verifications[key_id] = json.dumps(signature)
        body = answer.SerializeToString()
        kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        start["headers"] = [*kept, (b"content-length", str(len(body)).encode())]
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _only(scope: Scope, name: bytes) -> bytes:
    """A header's value; empty unless there is exactly one."""
    found: list[bytes] = [value for key, value in scope["headers"] if key.lower() == name]
    return found[0] if len(found) == 1 else b""


def _is_loopback(client: tuple[str, int] | None) -> bool:
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


async def _body(receive: Receive) -> bytes:
    """The request's body; empty if it has more than `_MAX_BYTES`."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > _MAX_BYTES:
            return b""
        if not message.get("more_body", False):
            return bytes(body)


def _parsed(body: bytes) -> tuple[str, dict[str, dict[str, Any]]] | None:
    """The bundle's digest and its signatures; None for a body that `fedcipher.cluster.access` does not send."""
    try:
        said = parse_json(body)
        digest, signatures = str(said["bundle"]), dict(said["signatures"])
        made: dict[str, dict[str, Any]] = {}
        for key_id, one in signatures.items():
            text, when = one["signature"], one["signed_at"]
            if not (_KEY_ID.fullmatch(key_id) and _SIGNATURE.fullmatch(text) and type(when) is int):
                return None
            if not 0 <= when < _MAX_SECONDS:
                return None
            made[key_id] = {"signature": text, "signed_at": when}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (digest, made) if _DIGEST.fullmatch(digest) else None


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "http":
        await _answer(send, 403, _REFUSAL)
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
