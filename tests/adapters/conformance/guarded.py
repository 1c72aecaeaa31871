"""The guard: its own loop over a SuperNode's tasks, and an app that has the guard's socket and nothing else."""

import hashlib
import io
import queue
import socket
import threading
from contextlib import nullcontext
from pathlib import Path

from conformance.flower import Mod, federations, flowers

PACKAGE = hashlib.sha256(b"package").hexdigest()


class Guarded(Mod):
    """A ClientApp without the mod, behind a guard."""

    name = "flower-guard"
    server_of = "flower-mod"

    def __init__(self, *arguments):
        self._nodes = {}
        super().__init__(*arguments)

    def client_app(self, client):
        return self.plain_app(client)

    def restart(self, client):
        from fedcipher.guard.policy import AppRules
        from fedcipher.guard.worker import Guard

        super().restart(client)
        if client in self._nodes:
            self._nodes[client].end()
        folder = self.cohort.folder.parent / f"guard-{client}"
        rules = AppRules(apps=(PACKAGE,), run_settings=("*",), people_agree=False, answer_every=0.0)
        node = self._nodes[client] = _SuperNode(client)
        own = {"fedcipher-key": str(self.cohort.key(client))}
        guard = Guard(node, own, folder, rules, lambda *given: _App(self._apps[client], *given))
        node.guard(guard)

    def tell(self, client, message):
        return federations(self._nodes[client].ask(flowers(message, 1000 + client)), message.type)

    def close(self):
        for node in self._nodes.values():
            node.end()


class _SuperNode:
    """A SuperNode that has one task at a time: what `fedcipher.guard.supernode.SuperNode` is to a guard."""

    name = "a-supernode"

    def __init__(self, client):
        self._client, self._tasks = client, queue.Queue()

    def guard(self, guard):
        self._guard = guard
        self._thread = threading.Thread(target=guard.run, daemon=True)
        self._thread.start()

    def end(self):
        self._guard.stop()
        self._thread.join(30)

    def ask(self, message):
        task = _Task(message, self._client)
        self._tasks.put(task)
        assert task.replied.wait(60), "the guard has not answered"
        return task.reply

    def acquire(self):
        from fedcipher.guard.supernode import Claim

        try:
            self._taken = self._tasks.get(timeout=0.1)
        except queue.Empty:
            return None
        return Claim(1, "token")

    def task(self, claim, folder):
        return self._taken


class _Task:
    """What `fedcipher.guard.supernode.Task` is to a guard."""

    has_message = True

    def __init__(self, message, client):
        from fedcipher.guard.consent import AppOfRun
        from fedcipher.guard.supernode import TaskInput
        from flwr.app import Context, RecordDict
        from flwr.common.serde import context_to_proto
        from flwr.proto.fab_pb2 import Fab
        from flwr.proto.run_pb2 import Run
        from flwr.proto.runtime_pb2 import PullTaskInputResponse

        context = Context(1, 1000 + client, {"partition-id": client}, RecordDict(), {})
        received = PullTaskInputResponse(
            context=context_to_proto(context),
            run=Run(run_id=1, fab_id="us/app", fab_version="1.0", fab_hash=PACKAGE),
            fab=Fab(hash_str=PACKAGE, content=b"package"),
            task_id=1,
        )
        app = AppOfRun(PACKAGE, "us/app 1.0", {}, {})
        self.head, self._input = message, TaskInput(context, message, app, received, "us.app.1.0")
        self.reply, self.replied = None, threading.Event()

    def kept_alive(self):
        return nullcontext()

    def pull(self):
        return self._input

    def push(self, reply):
        self.reply = reply

    def finish(self):
        self.replied.set()

    def close(self):
        # A guard that fails has not answered.
        self.replied.set()


class _App:
    """An app's process, in a thread: Flower's own calls, over the guard's socket."""

    def __init__(self, app, arguments, environment, folder):
        self._app = app
        self._token = Path(arguments[arguments.index("--token-file") + 1]).read_text()
        self.listener, self.output = socket.create_server(("127.0.0.1", 0)), io.BytesIO()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

        calls = [
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(self._token),
        ]
        address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        client = RuntimeHttpClient.from_server_address(address, True, None, calls)
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, self._app(message, context), context)
            push_task_output(client, context, "completed", "")
        except Exception:
            # As a process whose app has raised: it ends without a reply.
            return
        finally:
            client.close()

    def poll(self):
        return None if self._thread.is_alive() else 0

    def kill(self):
        self._thread.join(30)

    def close(self):
        self.listener.close()
        self.output.close()
