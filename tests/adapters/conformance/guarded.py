"""The guard: its own loop over a SuperNode's tasks, and an app that has the guard's socket and nothing else."""

import queue
import threading
from contextlib import nullcontext

from conformance.flower import Mod, federations, flowers


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
        from fedcipher.guard.worker import Guard
        from guard_harness import RULES, AppThread, token_in

        super().restart(client)
        if client in self._nodes:
            self._nodes[client].end()
        folder = self.cohort.folder.parent / f"guard-{client}"
        node = self._nodes[client] = _SuperNode(client)
        own = {"fedcipher-key": str(self.cohort.key(client))}
        guard = Guard(node, own, folder, RULES, lambda words, *_: AppThread(self._apps[client], token_in(words)))
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
        from flwr.app import Context, RecordDict
        from flwr.proto.fab_pb2 import Fab
        from guard_harness import PACKAGE, task_of

        context = Context(1, 1000 + client, {"partition-id": client}, RecordDict(), {})
        self.head, self._input = message, task_of(message, context, Fab(hash_str=PACKAGE, content=b"package"))
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
