"""Guards in this process: the guard's own API on a socket, Flower's own calls of an app, and the app in a thread.

There are no walls here and no SuperNode: `tests/e2e/e2e_guard.py` has both.
"""

import io
import socket
import threading
from pathlib import Path

from fedcipher.guard.consent import AppOfRun
from fedcipher.guard.policy import AppRules
from fedcipher.guard.supernode import TaskInput
from fedcipher.guard.worker import Guard
from flwr.app import Error, Message, RecordDict
from flwr.common.serde import context_to_proto, user_config_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run
from flwr.proto.runtime_pb2 import PullTaskInputResponse
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

PACKAGE = "f" * 64
RULES = AppRules(apps=(PACKAGE,), run_settings=("*",), people_agree=False, answer_every=0.0, app_seconds=600.0)


class AppThread:
    """Works as `flwr-clientapp` does: one message, one reply, the state; an exception is an error reply."""

    def __init__(self, app, token):
        self.app, self.token, self.output = app, token, io.BytesIO()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._port = self.listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        client = RuntimeHttpClient.from_server_address(
            f"127.0.0.1:{self._port}",
            True,
            None,
            [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(self.token)],
        )
        try:
            self._answer(client)
        except SystemExit:
            # The process ends without a reply.
            return
        finally:
            client.close()

    def _answer(self, client):
        message, context, _, _ = pull_task_input(client)
        details, status = "", "completed"
        try:
            reply = self.app(message, context)
        except Exception as error:
            details, status = f"{type(error)}:<'{error}'>", "failed"
            reply = Message(Error(code=2, reason=details), reply_to=message)
        if isinstance(reply, Message):
            push_message(client, reply, context)
        push_task_output(client, context, status, details)

    def poll(self):
        return None if self._thread.is_alive() else 0

    def kill(self):
        self._thread.join(10)

    def close(self):
        self.listener.close()


class GuardedApp:
    """In an app's place in a `LocalGrid`: each node has a guard of its own, with the node's key, around ``app``."""

    def __init__(self, app, keys, folder, starters=None, fab=None):
        """``starters``: by client, how its guard starts apps, where that is not in a thread. ``fab``: the app's FAB."""
        self.app, self.keys, self.folder, self.guards = app, Path(keys), Path(folder), {}
        self.starters, self.fab = starters or {}, fab or Fab(hash_str=PACKAGE, content=b"fab")

    def __call__(self, message, context):
        client = context.node_config["partition-id"]
        if client not in self.guards:
            own = {"fedcipher-key": str(self.keys / f"client-{client}.key"), "fedcipher-clear": ""}
            starter = self.starters.get(client, self._start)
            self.guards[client] = Guard(None, own, self.folder / f"guard-{client}", RULES, starter)
        return self.guards[client]._reply_to(task_of(message, context, self.fab))

    def _start(self, arguments, environment, folder):
        return AppThread(self.app, token_in(arguments))


def token_in(arguments):
    """The token in the file that the command line of an app names."""
    return Path(arguments[arguments.index("--token-file") + 1]).read_text()


def task_of(message, context, fab):
    """What a SuperNode hands a guard for ``message``."""
    settings = {name: value for name, value in context.run_config.items() if not name.startswith("fedcipher")}
    received = PullTaskInputResponse(
        context=context_to_proto(context),
        run=Run(run_id=context.run_id, fab_id="fedcipher/guarded-app", fab_version="1.0.0", fab_hash=fab.hash_str),
        fab=fab,
        task_id=1,
    )
    received.context.state.Clear()
    received.context.run_config.clear()
    for name, value in user_config_to_proto(settings).items():
        received.context.run_config[name].CopyFrom(value)
    context.state = RecordDict()
    return TaskInput(context, message, AppOfRun(PACKAGE, "a/b 1.0", settings, {}), received, "a.b.1.0.ffffffff")
