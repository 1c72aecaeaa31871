"""NVFlare's adapter without NVFlare: a site's messages, and the server's link over tasks."""

import hashlib
import threading

from fedcipher.adapters.nvflare.link import JobLink
from fedcipher.adapters.nvflare.site import MESSAGE, Site
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.messages import COMMITTEE, REPORT, Message
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import RunSetup

from conformance import CLIENTS, Adapter

SITES = [f"site-{client}" for client in range(CLIENTS)]


class Tasks(Adapter):
    """A site's messages and the server's link over tasks: all of the adapter that knows no framework."""

    name = "nvflare-tasks"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._sites = {}
        # Reentrant, because a test tells a site something while the server's task is on its way.
        self._locks = [threading.RLock() for _ in SITES]
        self._lost, self._given = set(), {}
        for client in range(CLIENTS):
            self.restart(client)

    def restart(self, client):
        settings = {"fedcipher-key": str(self.cohort.key(client))}
        self._sites[client] = Site(settings, hashlib.sha256(b"app").digest())

    def tell(self, client, message):
        return self.tell_bytes(client, message.to_bytes(), self._task_of(message))

    def tell_bytes(self, client, raw, task="train"):
        found = self.execute(client, task, raw)
        return Message.parse(self.execute(client, MESSAGE, None) if found is None else found)

    @staticmethod
    def _task_of(message):
        if {REPORT, COMMITTEE} & set(message.content):
            return MESSAGE
        return {"train": "train", "evaluate": "validate"}.get(message.type.partition(".")[0], MESSAGE)

    def execute(self, client, task, raw):
        """What `DecryptTask`, the app and `EncryptResult` do with a task; None is a return code without a message."""
        site = self._sites[client]
        work = None if task == MESSAGE and raw is None else site.open(raw)
        if task == MESSAGE:
            return site.reply()
        if work is None:
            return None
        try:
            arrays, metrics = self.app(client, "train" if work.updates else "evaluate", work.model)
            result = AppResult([arrays[name] for name in arrays] if work.updates else [], metrics)
        except Exception:
            # NVFlare's executor has raised, and no filter is called. The server asks for the reply by a second task.
            return None
        return site.reply(result)

    def serve(self, model, rounds, **options):
        run = self.run = ServerRun(RunSetup(self.cohort.folder, **options))
        run.begin(list(model), list(model.values()), rounds)
        link = JobLink(self)
        try:
            for index in range(run.done + 1, rounds + 1):
                run.run_round(index, link, link.wait_for(run.setup.minimum, 30), evaluate=True)
        finally:
            run.close()
        run.check_lost()
        return run

    # --- the tasks of a job ------------------------------------------------------------------

    def sites(self):
        return SITES

    def aborted(self):
        return False

    def ended(self, handle):
        return handle in self._lost

    def start(self, site, task, raw, seconds, received):
        handle = object()
        work = (lambda: self._lost.add(handle), SITES.index(site), task, raw, received)
        threading.Thread(target=self.work, args=work, daemon=True).start()
        return handle

    def work(self, lost, client, task, raw, received):
        """Execute a task of the server, past the wire."""
        with self._locks[client]:
            if raw is not None:
                message = self._given[client] = Message.parse(raw)
                raw = self.wire.down(self, client, message).to_bytes()
            found = self.execute(client, task, raw)
            if found is not None:
                reply = self.wire.up(self, client, self._given[client], Message.parse(found))
                if reply is None:
                    lost()
                    return
                found = reply.to_bytes()
        received(found)
