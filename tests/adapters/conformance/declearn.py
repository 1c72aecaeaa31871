"""declearn's adapter without declearn: a client's rounds, and the server's link over an event loop."""

import asyncio
import threading
from functools import partial
from typing import ClassVar

import numpy as np
from fedcipher.adapters.declearn.round_work import (
    RECORD,
    RoundWork,
    evaluated,
    request_record,
    request_settings,
    trained,
)
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.messages import Message
from fedcipher.federation.server.loop_link import LoopLink
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import Plan, RunSetup

from conformance import CLIENTS, EXAMPLES, Adapter

FIELDS = {
    "train": {"batches": {"batch_size": 8}, "n_epoch": 1, "n_steps": None, "timeout": None},
    "evaluate": {"batches": {"batch_size": 8}, "n_steps": None, "timeout": None},
}


class Rounds(Adapter):
    """A client's rounds and the server's link over an event loop: all of the adapter that knows no framework."""

    name = "declearn-rounds"
    # declearn's server applies each mean itself.
    params: ClassVar = {"oneshot": {"reveal": "server"}}
    cannot: ClassVar = {
        "drop-outs": ("docs/how-to/declearn.md", "**No drop-outs.**"),
        "restarts of clients": ("docs/how-to/declearn.md", "A client that goes ends the run"),
        "resume": ("docs/how-to/declearn.md", "| `resume`, `sets_models`, and a server without a mean |"),
    }

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._loop, self._work = asyncio.new_event_loop(), {}
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for client in range(CLIENTS):
            self.restart(client)

    def restart(self, client):
        settings = {"fedcipher-key": str(self.cohort.key(client))}
        self._work[client] = RoundWork(partial(key_holder_of, settings, {}))
        self._work[client].tell(b"the first request")

    def tell(self, client, message):
        return self.tell_bytes(client, message.to_bytes())

    def tell_bytes(self, client, raw):
        made = self._work[client].receive(raw)
        if not isinstance(made, bytes):
            made = self._work[client].seal(partial(self._result, client, made))
        return Message.parse(made)

    def _result(self, client, request, work):
        arrays, metrics = self.app(client, request.purpose, request.arrays)
        weight = metrics[EXAMPLES]
        if request.purpose == "evaluate":
            others = {name: (value, 1.0) for name, value in metrics.items() if name not in ("loss", EXAMPLES)}
            return evaluated({"loss": (metrics["loss"] * weight, weight), **others})
        return trained(work, {name: weighted_change(work.model[name], arrays[name], weight) for name in arrays}, weight)

    def serve(self, model, rounds, **options):
        if self.cohort.opener is not None:
            options.setdefault("opener", self.cohort.opener)
        run = self.run = ServerRun(RunSetup(self.cohort.folder, **options))
        plan = Plan(name="declearn", settings={p: request_settings(fields) for p, fields in FIELDS.items()})
        run.begin(list(model), list(model.values()), rounds, plan)
        link = LoopLink(self._loop, range(CLIENTS), self._ask)
        try:
            for index in range(1, rounds + 1):
                run.begin_round(index, link)
                run.accept_train(self._replies(run, link, "train", index))
                run.end_training(None)
                run.accept_evaluate(self._replies(run, link, "evaluate", index))
                run.end_evaluation(None)
        finally:
            run.close()
        run.check_lost()
        return run

    def _replies(self, run, link, purpose, index):
        content = {RECORD: request_record(FIELDS[purpose])}
        asked = [Message(node, run.charter.types[purpose], dict(content)) for node in range(CLIENTS)]
        return run.gather(partial(link.exchange, run.ask(purpose, index, asked)), run.timeout)

    async def _ask(self, node, number, raw):
        reply = await asyncio.to_thread(self.carry, node, Message.parse(raw))
        return reply.to_bytes()

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)


def weighted_change(before, after, weight):
    """declearn's update: the model before less the model after, times the weight."""
    wide = np.float64 if before.dtype.kind == "f" else np.int64
    return (np.asarray(before, wide) - np.asarray(after, wide)) * weight
