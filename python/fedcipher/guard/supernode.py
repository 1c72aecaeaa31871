"""The guard's calls to the site's SuperNode: it takes tasks, and gives back replies.

The modules below `flwr.supercore` are private to Flower, so all imports from there are in this file and in `app_api`.
The guard works with Flower 1.35 and later. Earlier versions have no Runtime API over HTTP.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message

from fedcipher._files import write_whole
from fedcipher.errors import CharterError, GuardError
from fedcipher.foreign_files import read_file
from fedcipher.foreign_text import quoting_log
from fedcipher.guard.consent import AppOfRun

try:
    from flwr.app.message import remove_content_from_message
    from flwr.common.config import get_fused_config_from_fab, get_project_dir
    from flwr.common.serde import (
        context_from_proto,
        fab_from_proto,
        message_from_proto,
        message_to_proto,
        run_from_proto,
    )
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        AcquireTaskResponse,
        PullAppMessagesRequest,
        PullAppMessagesResponse,
        PullTaskInputRequest,
        PullTaskInputResponse,
        PushAppMessagesRequest,
        PushTaskOutputRequest,
    )
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents,
        pull_objects,
        push_objects,
    )
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
except ImportError as error:
    import flwr

    raise GuardError(
        f"the guard works with Flower 1.35 and later, and this is Flower {flwr.__version__} ({error}): install a later "
        "one, or take client_mod"
    ) from error

__all__ = ["Claim", "SuperNode", "Task", "TaskInput"]

_log = quoting_log("fedcipher.guard")
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_CLIENT_APP, _NO_APP = "flwr-clientapp", "fedcipher-guard-probe"
_START_SECONDS, _RETRY_SECONDS = 60.0, 0.5
_MAX_HEAD = 64 << 20


@dataclass(frozen=True)
class Claim:
    """A claimed task: its number, and the token with which the guard works on it."""

    task: int
    token: str


@dataclass(frozen=True)
class TaskInput:
    """The input of a task: Flower's context, the app and its package, the message, and all settings of the run."""

    context: Context
    message: Message
    app: AppOfRun
    received: PullTaskInputResponse
    folder: str
    """The name of the folder in which Flower installs this app."""


class SuperNode:
    """The Runtime API of the SuperNode at ``address``.

    The SuperNode runs with ``--isolation process``, and ``--superexec-auth-secret-file`` gives it the ``secret``. Only
    the guard knows this secret, so no other process can take tasks.
    """

    def __init__(self, address: str, secret: bytes, certificates: bytes | None = None) -> None:
        self._address, self._certificates = address, certificates
        self.name = hashlib.sha256(b"fedcipher supernode\0" + secret).hexdigest()[:16]
        """A name that other SuperNodes, with other secrets, do not have."""
        self._client = self._connect(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE]))

    def _connect(self, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=self._certificates is None,
            root_certificates=self._certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), *interceptors],
        )

    def acquire(self) -> Claim | None:
        """Take a task of a client app; None if there is none. Raises `GuardError` if the SuperNode refuses the secret.

        Raises `httpx.TransportError` if the SuperNode cannot be reached.
        """
        found = self._acquire(_CLIENT_APP)
        if not found.HasField("task") or not found.token:
            return None
        return Claim(found.task.task_id, found.token)

    def _acquire(self, kind: str) -> AcquireTaskResponse:
        try:
            return self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        except httpx.HTTPStatusError as error:
            raise GuardError(
                f"the SuperNode at {self._address} refuses the guard ({error.response.status_code}): start it with "
                "--isolation process, and with --superexec-auth-secret-file and the guard's --secret-file"
            ) from error

    def task(self, claim: Claim, folder: Path) -> Task:
        """The claimed task; its head is kept in ``folder``, for a guard that is killed and started again."""
        return Task(self._connect(RuntimeTokenHttpInterceptor(claim.token)), folder)

    def wait_until_up(self) -> None:
        """Wait until the SuperNode can be reached. Raises `GuardError` after a minute, or if it refuses the secret."""
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                # No task has this type, so none is taken.
                self._acquire(_NO_APP)
                return
            except httpx.TransportError as error:
                if time.monotonic() >= until:
                    raise GuardError(
                        f"the SuperNode at {self._address} cannot be reached ({error}): start it, and give its --host "
                        "and --port"
                    ) from error
            time.sleep(_RETRY_SECONDS)

    def is_open_to_all(self) -> bool:
        """Whether the SuperNode gives tasks without the secret. Any process of this machine could then take them."""
        client = self._connect()
        try:
            client.AcquireTask(AcquireTaskRequest(supported_task_types=[_NO_APP]))
        except httpx.HTTPStatusError as error:
            return error.response.status_code not in (401, 403)
        finally:
            client.close()
        return True

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Task:
    """One claimed task, from its message to its end."""

    def __init__(self, client: RuntimeHttpClient, folder: Path) -> None:
        self._client, self._folder = client, folder
        self._input = PullTaskInputResponse()
        self._head = PullAppMessagesResponse()

    @contextmanager
    def kept_alive(self) -> Generator[None]:
        """Tell the SuperNode every half minute that the guard works on this task."""
        sender = HeartbeatSender(make_task_heartbeat_fn_http(self._client))
        sender.start()
        try:
            yield
        finally:
            if sender.is_running:
                sender.stop()

    def pull(self) -> TaskInput | None:
        """The task's input and message; None if an earlier guard was killed before it had both.

        Both are asked for in the same breath. A SuperNode waits without limit for the reply to a task whose message
        was never pulled. Raises `GuardError` if the SuperNode waits in this way. Raises `CharterError` if the app's
        package is not the one that the run names.
        """
        input_file, head_file = self._folder / "input", self._folder / "head"
        if head_file.exists():
            self._input.ParseFromString(read_file(input_file, _MAX_HEAD))
            self._head.ParseFromString(read_file(head_file, _MAX_HEAD))
        else:
            try:
                self._input = self._client.PullTaskInput(PullTaskInputRequest())
            except httpx.HTTPStatusError as error:
                # The SuperNode gives the input of a task once. An earlier guard got it, and could not keep it.
                _log.warning("the input of a task is lost (%s); its message is refused", error.response.status_code)
            self._head = self._first_pull()
            write_whole(input_file, self._input.SerializeToString())
            write_whole(head_file, self._head.SerializeToString())
        return self._opened() if self._input.HasField("fab") and self.has_message else None

    def _first_pull(self) -> PullAppMessagesResponse:
        try:
            return self._client.PullMessages(PullAppMessagesRequest())
        except httpx.HTTPStatusError as error:
            raise GuardError(
                "the SuperNode has given up a task whose message was never pulled, because the guard was gone too "
                "long. It now waits without limit: restart the SuperNode, then the guard"
            ) from error

    @property
    def has_message(self) -> bool:
        """Whether the guard has the head of the task's message, so that it can reply."""
        return len(self._head.messages_list) == len(self._head.message_object_trees) == 1

    @property
    def head(self) -> Message:
        """The message without its content, to reply to."""
        message = message_from_proto(self._head.messages_list[0])
        message.metadata.__dict__["_message_id"] = self._head.message_object_trees[0].object_id
        return message

    def _opened(self) -> TaskInput:
        context, run, fab = (
            context_from_proto(self._input.context),
            run_from_proto(self._input.run),
            fab_from_proto(self._input.fab),
        )
        package = hashlib.sha256(fab.content).hexdigest()
        if package != run.fab_hash:
            raise CharterError("the app's package is not the one that the run names")
        settings: Mapping[str, Any] = get_fused_config_from_fab(fab.content, run)
        context.run_config = dict(settings)
        folder = get_project_dir(run.fab_id, run.fab_version, run.fab_hash).name
        app = AppOfRun(package, f"{run.fab_id} {run.fab_version}", settings, dict(run.override_config))
        return TaskInput(context, self._message(self._head.message_object_trees[0]), app, self._input, folder)

    def _message(self, tree: ObjectTree) -> Message:
        """The message, from its parts. They stay at the SuperNode until `finish`, for a guard that is started again."""
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, self._run)
        names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        message = inflate_object_from_contents(tree.object_id, pull_objects(names, pull))
        if not isinstance(message, Message):
            raise GuardError("the SuperNode's task has no message")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    @property
    def _run(self) -> int:
        return int(self._head.messages_list[0].metadata.run_id)

    @property
    def _node(self) -> Node:
        return Node(node_id=self._head.messages_list[0].metadata.dst_node_id)

    def push(self, reply: Message) -> None:
        """Give the SuperNode the ``reply``."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pushed = self._client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
            )
        )
        push = make_push_object_fn_protobuf(
            self._client.PushObject, self._node, run_id=self._run, session_id=pushed.session_id
        )
        push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(pushed.objects_to_push))

    def finish(self) -> None:
        """End the task after its reply. The SuperNode drops the message's parts, and gets no state of the app."""
        tree = self._head.message_object_trees[0]
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, self._run)(
            tree.object_id
        )
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status="completed", details=""))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
