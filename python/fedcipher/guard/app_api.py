"""The Runtime API towards one app process: eight calls, one message, one reply.

The app is not to be trusted. It gets its own token, its message with a plaintext model, and its own earlier state. Of
what it sends, the guard takes one reply and one state, both of limited size. Everything else is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Message, Metadata, RecordDict

from fedcipher.errors import FrameError, GuardError
from fedcipher.foreign_text import quoting_log
from fedcipher.guard.supernode import TaskInput

try:
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.common.serde import message_to_proto, user_config_to_proto
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,
        ConfirmMessageReceivedResponse,
        Context,
        ObjectTree,
        PullObjectRequest,
        PullObjectResponse,
        PushObjectRequest,
        PushObjectResponse,
    )
    from flwr.proto.runtime_pb2 import (
        PullAppMessagesRequest,
        PullAppMessagesResponse,
        PullTaskInputRequest,
        PullTaskInputResponse,
        PushAppMessagesRequest,
        PushAppMessagesResponse,
        PushTaskOutputRequest,
        PushTaskOutputResponse,
        SendTaskHeartbeatRequest,
        SendTaskHeartbeatResponse,
    )
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.inflatable.inflatable_object import (
        InflatableObject,
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
except ImportError as error:
    raise GuardError(f"the guard works with Flower 1.35 and later, but its modules are missing: {error}") from error

__all__ = ["AppApi", "Limits", "inner_message"]

_log = quoting_log("fedcipher.guard")
_PREFIX = "/v1/runtime/"
_OWN_SETTINGS = "fedcipher"
"""Beginning of the node's settings that name keys and engines. Apps do not get these settings."""
_MAX_CALL = 8 << 20
"""Bytes of one call. Flower sends arrays in parts of 5 MiB."""
_MAX_DEPTH = 8
_FORBIDDEN, _MISSING, _CONFLICT, _TOO_LARGE = 403, 404, 409, 413

_Scope = Mapping[str, Any]
_Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class _Refused(Exception):
    """A call that is refused, with its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """Limits of what an app sends: bytes and parts of its reply, and bytes of its state."""

    reply: int
    parts: int = 1 << 16
    state: int = 64 << 20


@dataclass
class _Reply:
    """The app's reply, whose parts arrive one by one."""

    tree: ObjectTree
    expected: set[str]
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    size: int = 0


def inner_message(outer: Message, content: RecordDict) -> Message:
    """The message for the app: ``content``, under an identity of its own.

    A message's id is the digest of its content. If the app got the outer message itself, the reply would name an id
    that the SuperNode does not know.
    """
    about = outer.metadata
    metadata = Metadata(
        run_id=about.run_id,
        message_id="",
        src_node_id=about.src_node_id,
        dst_node_id=about.dst_node_id,
        reply_to_message_id="",
        group_id=about.group_id,
        created_at=about.created_at,
        ttl=about.ttl,
        message_type=about.message_type,
    )
    made = make_message(metadata, content)
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


class AppApi:
    """An ASGI application for one message of one app. ``state`` are the bytes of the app's earlier state.

    `done` is set when the app has sent its reply and its end, or a call that no honest app makes.
    """

    def __init__(self, task: TaskInput, message: Message, state: bytes, limits: Limits) -> None:
        self.token = secrets.token_hex(32)
        self.done = threading.Event()
        self.state: bytes | None = None
        """The app's state after its message; None if the app sent none."""
        self._limits = limits
        self._input = _input_for_app(task, state)
        self._head = message_to_proto(remove_content_from_message(message))
        with no_object_id_recompute():
            self._tree = get_object_tree(message)
            self._objects: dict[str, InflatableObject] = get_all_nested_objects(message)
        self._reply: _Reply | None = None
        self._calls: dict[str, Callable[[bytes], Any]] = {
            "send-task-heartbeat": self._heartbeat,
            "pull-task-input": self._pull_input,
            "pull-messages": self._pull_messages,
            "pull-object": self._pull_object,
            "confirm-message-received": self._confirm,
            "push-messages": self._push_messages,
            "push-object": self._push_object,
            "push-task-output": self._finish,
        }

    def reply(self) -> Message | None:
        """The app's reply; None if it is missing or incomplete. Raises `FrameError` if the parts are not a message.

        The parts are freed one by one while the message is made of them.
        """
        reply, self._reply = self._reply, None
        if reply is None or reply.expected - set(reply.parts):
            return None
        try:
            made = inflate_object_from_contents(reply.tree.object_id, reply.parts)
        except Exception as error:
            raise FrameError(f"the app's reply cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(made, Message):
            raise FrameError(f"the app's reply is {type(made).__name__}, not a Message")
        return made

    # --- HTTP --------------------------------------------------------------------------------

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return
        try:
            status, body = 200, await self._answer(scope, receive)
        except _Refused as refused:
            _log.warning("a call of the app is refused (%s): %s", refused.status, refused)
            status, body = refused.status, b""
        except Exception as error:
            _log.warning("a call of the app cannot be read: %s: %s", type(error).__name__, error)
            status, body = 400, b""
        headers = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        if status != 200:
            # The rest of a refused call is not read.
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: _Scope, receive: _Receive) -> bytes:
        headers = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
        given = headers.get(TASK_TOKEN_HEADER.encode(), b"")
        if not hmac.compare_digest(given, self.token.encode()):
            raise _Refused(_FORBIDDEN, "it does not have the app's token")
        path = str(scope["path"])
        call = self._calls.get(path.removeprefix(_PREFIX)) if path.startswith(_PREFIX) else None
        if call is None or scope["method"] != "POST":
            raise _Refused(_MISSING, f"apps have no call {path!r}")
        return cast(bytes, call(await _body(receive)).SerializeToString())

    # --- the eight calls ---------------------------------------------------------------------

    def _heartbeat(self, body: bytes) -> SendTaskHeartbeatResponse:
        SendTaskHeartbeatRequest.FromString(body)
        # Not passed on: the guard itself tells the SuperNode that it is alive.
        return SendTaskHeartbeatResponse(success=True)

    def _pull_input(self, body: bytes) -> PullTaskInputResponse:
        PullTaskInputRequest.FromString(body)
        return self._input

    def _pull_messages(self, body: bytes) -> PullAppMessagesResponse:
        PullAppMessagesRequest.FromString(body)
        return PullAppMessagesResponse(messages_list=[self._head], message_object_trees=[self._tree])

    def _pull_object(self, body: bytes) -> PullObjectResponse:
        asked = PullObjectRequest.FromString(body)
        found = self._objects.get(asked.object_id)
        if found is None:
            return PullObjectResponse(object_found=False, object_available=False)
        return PullObjectResponse(object_found=True, object_available=True, object_content=found.deflate())

    def _confirm(self, body: bytes) -> ConfirmMessageReceivedResponse:
        asked = ConfirmMessageReceivedRequest.FromString(body)
        if asked.message_object_id == self._tree.object_id:
            # The model is not needed twice: this frees the guard's copy.
            self._objects.clear()
        return ConfirmMessageReceivedResponse()

    def _push_messages(self, body: bytes) -> PushAppMessagesResponse:
        given = PushAppMessagesRequest.FromString(body)
        if self._reply is not None:
            raise _Refused(_CONFLICT, "the app has sent a reply before")
        if len(given.messages_list) != 1 or len(given.message_object_trees) != 1:
            raise _Refused(_CONFLICT, "an app sends one reply")
        tree = given.message_object_trees[0]
        names = _names_in(tree, self._limits.parts)
        self._reply = _Reply(tree, names)
        return PushAppMessagesResponse(
            message_ids=[tree.object_id], objects_to_push=sorted(names), session_id=self.token[:16]
        )

    def _push_object(self, body: bytes) -> PushObjectResponse:
        given, reply = PushObjectRequest.FromString(body), self._reply
        if reply is None or given.object_id not in reply.expected:
            raise _Refused(_MISSING, "the app sends a part that its reply does not have")
        if given.object_id in reply.parts:
            return PushObjectResponse(stored=True)
        reply.size += len(given.object_content)
        if reply.size > self._limits.reply:
            reply.parts.clear()
            raise _Refused(_TOO_LARGE, f"the app's reply has more than {self._limits.reply} bytes")
        if hashlib.sha256(given.object_content).hexdigest() != given.object_id:
            raise _Refused(_CONFLICT, "a part of the app's reply has another digest than its name")
        reply.parts[given.object_id] = given.object_content
        return PushObjectResponse(stored=True)

    def _finish(self, body: bytes) -> PushTaskOutputResponse:
        given = PushTaskOutputRequest.FromString(body)
        if given.HasField("context"):
            state = given.context.state.SerializeToString()
            if len(state) <= self._limits.state:
                self.state = state
            else:
                _log.warning("the app's state has %s bytes, more than allowed, and is not kept", len(state))
        if given.details:
            # It may quote data: for this site's log only.
            _log.warning("the app says: %s", given.details)
        self.done.set()
        return PushTaskOutputResponse()


def _input_for_app(task: TaskInput, state: bytes) -> PullTaskInputResponse:
    """The task's input with the guard's copy of the app's state, and without the node's settings for Fedcipher."""
    made = PullTaskInputResponse()
    made.CopyFrom(task.received)
    context: Context = made.context
    for name in [name for name in context.node_config if name.startswith(_OWN_SETTINGS)]:
        del context.node_config[name]
    context.ClearField("run_config")
    for name, value in user_config_to_proto(task.context.run_config).items():
        context.run_config[name].CopyFrom(value)
    context.ClearField("state")
    context.state.ParseFromString(state)
    return made


def _names_in(tree: ObjectTree, most: int) -> set[str]:
    """The names of all parts in ``tree``, which comes from the app."""
    names: set[str] = set()
    pending = [(tree, 0)]
    while pending:
        part, depth = pending.pop()
        if depth > _MAX_DEPTH or len(names) > most:
            raise _Refused(_TOO_LARGE, "the app's reply has too many parts")
        names.add(part.object_id)
        pending.extend((child, depth + 1) for child in part.children)
    return names


async def _body(receive: _Receive) -> bytes:
    held = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Refused(_CONFLICT, "the app has closed the connection")
        held += event.get("body", b"")
        if len(held) > _MAX_CALL:
            raise _Refused(_TOO_LARGE, f"a call of the app has more than {_MAX_CALL} bytes")
        if not event.get("more_body"):
            return bytes(held)
