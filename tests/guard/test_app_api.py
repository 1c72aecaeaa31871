"""What an app process can do with its API: its own message, one reply, and nothing else."""

import hashlib
import socket

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr.supercore.runtime", reason="Flower 1.35 or later is not installed")

from fedcipher.errors import FrameError
from fedcipher.guard.app_api import AppApi, Limits, inner_message
from fedcipher.guard.consent import AppOfRun
from fedcipher.guard.supernode import TaskInput
from fedcipher.guard.worker import _Served
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import context_from_proto, context_to_proto, user_config_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import (
    PullAppMessagesResponse,
    PullTaskInputResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    SendTaskHeartbeatResponse,
)
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.routers.runtime.router import router
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

RUN, NODE = 4711, 99
CALLS = {
    "send-task-heartbeat",
    "pull-task-input",
    "pull-messages",
    "pull-object",
    "confirm-message-received",
    "push-messages",
    "push-object",
    "push-task-output",
}


def outer():
    metadata = Metadata(RUN, "the-outer-id", 1, NODE, "", "3", 1.0, 3600.0, "train")
    return make_message(metadata, RecordDict())


def task():
    received = PullTaskInputResponse(
        context=context_to_proto(
            Context(
                run_id=RUN,
                node_id=NODE,
                node_config={"partition-id": 2, "fedcipher-key": "/etc/secret.key", "fedcipher-engine": "unix:/e"},
                state=RecordDict({"the node's": ConfigRecord({"a": 1})}),
                run_config={"lr": 7.0, "of the node": 1},
            )
        ),
        run=Run(run_id=RUN, fab_id="a/b", fab_version="1.0", fab_hash="f" * 64),
        fab=Fab(hash_str="f" * 64, content=b"fab"),
        task_id=5,
    )
    settings = {"lr": 0.1}
    context = context_from_proto(received.context)
    context.run_config = dict(settings)
    return TaskInput(context, outer(), AppOfRun("f" * 64, "a/b 1.0", settings, {}), received, "a.b.1.0.ffffffff")


class Running:
    """An API on a real socket, with the app's own client of Flower."""

    def __init__(self, limits=None, state=b"", size=1000):
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(size, dtype=np.float32))})})
        self.given = inner_message(outer(), content)
        self.api = AppApi(task(), self.given, state, limits or Limits(reply=1 << 24))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._served = _Served(self.api, self._listener)

    def __enter__(self):
        self._served.__enter__()
        return self

    def __exit__(self, *_):
        self._served.__exit__()
        self._listener.close()

    def client(self, token=None):
        return RuntimeHttpClient.from_server_address(
            self.address,
            True,
            None,
            [
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                RuntimeTokenHttpInterceptor(token or self.api.token),
            ],
        )

    def post(self, call, body=b"", token=None):
        return httpx.post(
            f"http://{self.address}/v1/runtime/{call}",
            content=body,
            headers={TASK_TOKEN_HEADER: token or self.api.token},
            timeout=20,
        )


def answered(message, arrays=None, **metrics):
    content = RecordDict({"arrays": arrays or message.content["arrays"], "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def push_tree(running, tree):
    metadata = outer().metadata
    request = PushAppMessagesRequest(message_object_trees=[tree])
    request.messages_list.add().metadata.run_id = metadata.run_id
    return running.post("push-messages", request.SerializeToString())


def test_flowers_own_app_process_gets_its_message_and_gives_its_reply():
    with Running() as running:
        client = running.client()
        message, context, run, fab = pull_task_input(client)
        assert (run.run_id, fab.content, message.metadata.message_type) == (RUN, b"fab", "train")
        assert np.array_equal(message.content["arrays"]["w"].numpy(), np.arange(1000, dtype=np.float32))
        push_message(client, answered(message, loss=0.5), context)
        context.state["mine"] = ConfigRecord({"counter": 1})
        push_task_output(client, context, "completed", "")
        assert running.api.done.wait(5)
    reply = running.api.reply()
    assert reply.content["metrics"]["loss"] == 0.5
    assert np.array_equal(reply.content["arrays"]["w"].numpy(), np.arange(1000, dtype=np.float32))
    with Running(state=running.api.state) as again:
        assert pull_task_input(again.client())[1].state["mine"]["counter"] == 1


def test_an_app_gets_neither_the_nodes_settings_nor_the_nodes_state():
    with Running() as running:
        _, context, _, _ = pull_task_input(running.client())
    assert dict(context.node_config) == {"partition-id": 2}
    assert dict(context.run_config) == {"lr": 0.1} and not context.state


def test_an_app_has_eight_calls():
    """All paths that Flower's own SuperNode serves to an app's process are tried, and some of a web server's."""
    assert len(router.routes) > len(CALLS)
    others = {route.path.removeprefix("/v1/runtime/") for route in router.routes} - CALLS
    with Running() as running:
        assert set(running.api._calls) == CALLS
        for call in sorted(others):
            assert running.post(call).status_code == 404, call
        for path in ("docs", "openapi.json", "v1/runtime/responses", "v1/runtime/../../docs", ""):
            found = httpx.get(f"http://{running.address}/{path}", headers={TASK_TOKEN_HEADER: running.api.token})
            assert found.status_code == 404 and not found.content
        for call in CALLS:
            url = f"http://{running.address}/v1/runtime/{call}"
            assert httpx.get(url).status_code == 403
            assert httpx.get(url, headers={TASK_TOKEN_HEADER: running.api.token}).status_code == 404


@pytest.mark.parametrize("call", sorted(CALLS))
def test_no_call_works_without_the_apps_own_token(call):
    with Running() as running:
        for token in ("", "x", b"\xc3\xa9", running.api.token[:-1], running.api.token.upper() + "A"):
            assert running.post(call, token=token or "none").status_code == 403
        assert not running.api.done.is_set()


def test_a_second_reply_is_refused():
    with Running() as running:
        client = running.client()
        message, context, _, _ = pull_task_input(client)
        push_message(client, answered(message, loss=0.5), context)
        with pytest.raises(httpx.HTTPStatusError, match="409"):
            push_message(client, answered(message, loss=0.75), context)
    assert running.api.reply().content["metrics"]["loss"] == 0.5


def test_two_replies_at_once_are_refused():
    with Running() as running:
        tree = ObjectTree(object_id="0" * 64)
        request = PushAppMessagesRequest(message_object_trees=[tree, tree])
        request.messages_list.add()
        request.messages_list.add()
        assert running.post("push-messages", request.SerializeToString()).status_code == 409
        assert running.post("push-messages", PushAppMessagesRequest().SerializeToString()).status_code == 409
    assert running.api.reply() is None


def test_a_reply_that_is_too_large_is_refused_and_freed():
    with Running(limits=Limits(reply=3 << 20)) as running:
        parts = [bytes([k]) * (1 << 20) for k in range(5)]
        names = [hashlib.sha256(part).hexdigest() for part in parts]
        tree = ObjectTree(object_id=names[0], children=[ObjectTree(object_id=name) for name in names[1:]])
        assert push_tree(running, tree).status_code == 200
        codes = [
            running.post(
                "push-object", PushObjectRequest(object_id=n, object_content=p).SerializeToString()
            ).status_code
            for n, p in zip(names, parts, strict=True)
        ]
        assert codes == [200, 200, 200, 413, 413] and not running.api._reply.parts
    assert running.api.reply() is None


def test_a_call_that_is_too_large_is_refused_before_its_end():
    sent = []

    def long():
        for _ in range(200):
            sent.append(1)
            yield bytes(1 << 20)

    with Running() as running:
        try:
            found = httpx.post(
                f"http://{running.address}/v1/runtime/push-object",
                content=long(),
                headers={TASK_TOKEN_HEADER: running.api.token},
                timeout=20,
            )
            assert found.status_code == 413
        except httpx.TransportError:
            # The connection was closed while the call was being sent.
            assert len(sent) < 200
        assert len(sent) < 200


def chain(depth):
    tree = ObjectTree(object_id="0" * 64)
    for k in range(depth):
        tree = ObjectTree(object_id=f"{k:064}", children=[tree])
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        chain(50),
        ObjectTree(object_id="0" * 64, children=[ObjectTree(object_id=f"{k:064}") for k in range(5000)]),
    ],
    ids=["deep", "wide"],
)
def test_a_tree_of_too_many_parts_is_refused(tree):
    with Running(limits=Limits(reply=1 << 20, parts=1000)) as running:
        assert push_tree(running, tree).status_code == 413
    assert running.api.reply() is None


def test_a_part_must_be_announced_and_have_its_digest():
    with Running() as running:
        part = PushObjectRequest(object_id="0" * 64, object_content=b"x")
        assert running.post("push-object", part.SerializeToString()).status_code == 404
        assert push_tree(running, ObjectTree(object_id="0" * 64)).status_code == 200
        assert running.post("push-object", part.SerializeToString()).status_code == 409
        part.object_id = "1" * 64
        assert running.post("push-object", part.SerializeToString()).status_code == 404
    assert running.api.reply() is None


@pytest.mark.parametrize("content", [b"", b"x", b"Message  5\0", b"ConfigRecord  0\0", b"Nothing  0\0"])
def test_parts_that_are_no_message_are_an_error_and_no_crash(content):
    name = hashlib.sha256(content).hexdigest()
    with Running() as running:
        assert push_tree(running, ObjectTree(object_id=name)).status_code == 200
        part = PushObjectRequest(object_id=name, object_content=content)
        assert running.post("push-object", part.SerializeToString()).status_code == 200
    with pytest.raises(FrameError):
        running.api.reply()


def test_a_reply_with_missing_parts_is_no_reply():
    with Running() as running:
        assert push_tree(running, ObjectTree(object_id="0" * 64)).status_code == 200
        assert running.post("push-task-output", PushTaskOutputRequest().SerializeToString()).status_code == 200
        assert running.api.done.is_set()
    assert running.api.reply() is None


def test_a_state_that_is_too_large_is_not_kept():
    context = Context(RUN, NODE, {}, RecordDict({"big": ConfigRecord({"b": bytes(1 << 20)})}), {})
    with Running(limits=Limits(reply=1 << 20, state=1 << 16)) as running:
        push_task_output(running.client(), context, "completed", "")
        assert running.api.done.wait(5)
    assert running.api.state is None


def test_garbage_is_refused_and_the_api_goes_on():
    with Running() as running:
        for call in sorted(CALLS):
            assert running.post(call, b"\xff" * 50).status_code in (200, 400)
        body = running.post("send-task-heartbeat").content
        assert SendTaskHeartbeatResponse.FromString(body).success
        assert PullAppMessagesResponse.FromString(running.post("pull-messages").content).messages_list


def test_the_inner_message_has_an_id_of_its_own():
    """Flower makes a message's id of its content: a reply to the inner id cannot be taken for one to the outer."""
    made = inner_message(outer(), RecordDict({"c": ConfigRecord({"a": 1})}))
    assert made.metadata.message_id != "the-outer-id" and made.metadata.run_id == RUN
    assert dict(user_config_to_proto({"lr": 0.1})).keys() == {"lr"}
    assert PushAppMessagesResponse().session_id == ""
