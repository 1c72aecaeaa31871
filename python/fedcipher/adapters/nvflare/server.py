"""The server's side: a link over NVFlare's tasks, and the controller that runs a federation over this link."""

from __future__ import annotations

import hashlib
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from fedcipher.adapters.nvflare._framework import Controller, ModelLearnableKey, Shareable, Task, learnable_of
from fedcipher.adapters.nvflare.site import MESSAGE
from fedcipher.codec import Array
from fedcipher.errors import FedcipherError, FrameError, RunError, StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import COMMITTEE, REPORT, Config, Content, Message, Reply, split_type
from fedcipher.federation.optimiser_step import KINDS, Optimiser
from fedcipher.federation.server.link import reply_from
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import Plan, RunOptions, RunSetup
from fedcipher.federation.server.survey import survey

__all__ = ["APP_TASKS", "NVFlareLink", "SecureFedAvg", "check_options", "node_of"]

_TASKS = {"train": "train", "evaluate": "validate"}
"""NVFlare's name of a task for each category of messages."""
APP_TASKS = list(_TASKS.values())
"""The tasks that the app executes."""
_SETTINGS = "config"
_POLL_SECONDS = 0.5
_MAX_SECONDS = 1 << 30


def node_of(name: str) -> int:
    """The number of the site called ``name``. It is the same in every run and process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


class NVFlareLink:
    """The `fedcipher.federation.server.link.Link` of a job's sites: each message is one task for one site.

    ``send`` starts a task, with arguments (task, site). ``sites`` returns the names of the connected sites. ``aborted``
    says whether the job is ended. ``gone`` says whether NVFlare has lost a site.
    """

    def __init__(
        self,
        send: Callable[[Any, str], None],
        sites: Callable[[], Iterable[str]],
        aborted: Callable[[], bool] = lambda: False,
        gone: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._send, self._sites, self._aborted, self._gone = send, sites, aborted, gone
        self._names: dict[int, str] = {}
        self._arrived: queue.Queue[tuple[str, Reply]] = queue.Queue()
        self._late: list[tuple[str, Reply]] = []
        self._tasks: dict[str, Any] = {}
        self._sent = 0

    def nodes(self) -> Collection[int]:
        """Like `Link.nodes`."""
        self._names.update({node_of(name): name for name in self._sites()})
        return [node for node, name in self._names.items() if not self._gone(name)]

    def wait_for(self, count: int, seconds: float) -> list[int]:
        """The connected nodes, as soon as there are ``count``. Raises `StrategyError` after ``seconds``."""
        until = time.monotonic() + seconds
        while len(nodes := self.nodes()) < count:
            self.check()
            if time.monotonic() > until:
                raise StrategyError(
                    f"{len(nodes)} sites are connected, and a round needs {count}: start the other sites, or make keys "
                    f"with min_contributions={max(2, len(nodes))}"
                )
            time.sleep(_POLL_SECONDS)
        return list(nodes)

    def check(self) -> None:
        """Raise `RunError` if NVFlare ends the job."""
        if self._aborted():
            raise RunError("NVFlare has ended the job; a new job with resume=True continues the run")

    def exchange(self, messages: Iterable[Message], **ends: Any) -> _Exchange:
        """Like `Link.exchange`."""
        return _Exchange(self, messages, **ends)

    def late(self, names: Collection[str], until: float) -> Iterator[tuple[str, Reply]]:
        """Like `Link.late`."""
        self._late.extend(self._drain(0.0))
        found = [(name, reply) for name, reply in self._late if name in names]
        self._late = [(name, reply) for name, reply in self._late if name not in names]
        yield from found

    # --- for the exchange --------------------------------------------------------------------

    def send(self, message: Message, until: float) -> str:
        """Send ``message`` as a task, and return its id."""
        self._sent += 1
        name = str(self._sent)
        needs_no_app = REPORT in message.content or COMMITTEE in message.content
        task_name = MESSAGE if needs_no_app else _TASKS.get(split_type(message.type)[0], MESSAGE)
        self._start(name, task_name, message.node, message.to_bytes(), until)
        return name

    def _start(self, name: str, task_name: str, node: int, raw: bytes | None, until: float) -> None:
        def received(client_task: Any, fl_ctx: Any) -> None:
            result, client_task.result = client_task.result, None
            found = result.get(MESSAGE)
            if found is None and raw is not None:
                # The app was not called, or it raised an error. The site has a reply all the same.
                self._start(name, MESSAGE, node, None, until)
                return
            self._arrived.put((name, _reply_of(node, found)))

        seconds = min(max(1, int(until - time.monotonic()) + 1), _MAX_SECONDS)
        data = Shareable({} if raw is None else {MESSAGE: raw})
        task = Task(name=task_name, data=data, timeout=seconds, result_received_cb=received)
        self._tasks[name] = task
        self._send(task, self._names[node])

    def replies(self, seconds: float) -> list[tuple[str, Reply]]:
        """The replies that have arrived, each with its message's id; waits up to ``seconds`` for the first one."""
        self.check()
        return self._drain(seconds)

    def _drain(self, seconds: float) -> list[tuple[str, Reply]]:
        found: list[tuple[str, Reply]] = []
        try:
            found.append(self._arrived.get(timeout=seconds) if seconds > 0 else self._arrived.get_nowait())
            while True:
                found.append(self._arrived.get_nowait())
        except queue.Empty:
            for name, _ in found:
                self._tasks.pop(name, None)
            return found

    def keep(self, name: str, reply: Reply) -> None:
        """Keep a reply to an ended exchange for `late`."""
        self._late.append((name, reply))

    def lost(self, name: str, node: int) -> bool:
        """Whether the message ``name`` will have no reply, because NVFlare has lost its site."""
        task = self._tasks.get(name)
        return self._gone(self._names[node]) or (task is not None and task.completion_status is not None)


class _Exchange:
    """The messages of one `exchange`, and the replies as they arrive."""

    def __init__(
        self,
        link: NVFlareLink,
        messages: Iterable[Message],
        *,
        until: float,
        enough: Callable[[], bool] = lambda: False,
        grace: Callable[[float], float] = lambda seconds: 0.0,
    ) -> None:
        self._link, self._until, self._enough, self._grace = link, until, enough, grace
        self._began, self.asked, self.waiting = time.monotonic(), list[int](), dict[str, int]()
        for message in messages:
            self.waiting[link.send(message, until)] = message.node
            self.asked.append(message.node)

    def __iter__(self) -> Iterator[Reply]:
        until, satisfied = self._until, False
        while self.waiting and (now := time.monotonic()) < until:
            for name, reply in self._link.replies(min(until - now, _POLL_SECONDS)):
                if self.waiting.pop(name, None) is None:
                    self._link.keep(name, reply)
                else:
                    yield reply
            for name, node in list(self.waiting.items()):
                if self._link.lost(name, node):
                    del self.waiting[name]
                    yield Reply(node, error="NVFlare has lost this site")
            if not satisfied and self._enough():
                satisfied, now = True, time.monotonic()
                until = min(until, now + self._grace(now - self._began))


def _reply_of(node: int, raw: object) -> Reply:
    if not isinstance(raw, bytes):
        return Reply(node, error="the site has answered without a message of Fedcipher")
    try:
        return reply_from(node, Message.parse(raw, node))
    except FrameError as error:
        return Reply(node, error=str(error))


class SecureFedAvg(Controller):
    """Runs a federation of Fedcipher as the workflow of an NVFlare job. The server sees no update.

    Parameters
    ----------
    keys
        ``server.key``, or the folder that holds it, on the server.
    num_rounds
        Number of rounds.
    persistor_id
        The component that has the first model, a ``ModelPersistor`` of NVFlare. With ``opener``, it also saves the
        model after each round.
    options
        The options of `fedcipher.federation.server.setup.RunSetup` by name, as JSON has them. An answer is a name, or
        a list of the arguments of `fedcipher.federation.answers.Answer`.
    optimiser
        ``["adam", eta, beta_1, beta_2, tau]``, or another kind of `fedcipher.federation.optimiser_step.KINDS`. The
        clients make its step from each mean.
    settings
        Settings that the app gets in its model's ``meta``, such as ``{"fedproxloss_mu": 0.1}``. The charter lists them.
    wait
        Seconds to wait for enough sites before a round.
    timeout
        Seconds to wait for the replies of a round.
    """

    def __init__(
        self,
        keys: str,
        num_rounds: int,
        persistor_id: str = "persistor",
        options: Mapping[str, Any] | None = None,
        optimiser: Sequence[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        wait: float = 300.0,
        timeout: float = 3600.0,
    ) -> None:
        super().__init__()
        self.keys, self.num_rounds, self.persistor_id = keys, num_rounds, persistor_id
        self.options, self.optimiser = dict(options or {}), None if optimiser is None else list(optimiser)
        self.settings, self.wait, self.timeout = dict(settings or {}), wait, timeout
        self._persistor: Any = None

    def start_controller(self, fl_ctx: Any) -> None:
        """Find the persistor."""
        self._persistor = fl_ctx.get_engine().get_component(self.persistor_id)
        if not callable(getattr(self._persistor, "load_model", None)):
            self.system_panic(f"the component {self.persistor_id!r} is not a ModelPersistor", fl_ctx)

    def stop_controller(self, fl_ctx: Any) -> None:
        """End the tasks that are still open."""
        self.cancel_all_tasks(fl_ctx=fl_ctx)

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run all rounds. An error of the run ends the job with the error's text."""
        try:
            self._run(abort_signal, fl_ctx)
        except FedcipherError as error:
            self.system_panic(f"Fedcipher: {error}", fl_ctx)

    def _run(self, abort_signal: Any, fl_ctx: Any) -> None:
        run = ServerRun(setup_of(self.keys, self.options), show=partial(self.log_info, fl_ctx))
        run.timeout = self.timeout
        self.log_info(fl_ctx, f"Fedcipher: {run.setup.summary()}")
        link = NVFlareLink(
            lambda task, name: self.send(task, fl_ctx, targets=[name]),
            lambda: [client.name for client in fl_ctx.get_engine().get_clients()],
            lambda: bool(abort_signal.triggered),
            lambda name: self.get_client_disconnect_time(name) is not None,
        )
        learnable = self._persistor.load_model(fl_ctx)
        weights: dict[str, Any] = {str(k): np.asarray(v) for k, v in learnable[ModelLearnableKey.WEIGHTS].items()}
        plan = plan_of(run.setup, self.num_rounds, self.optimiser, self.settings)
        run.begin(list(weights), list(weights.values()), self.num_rounds, plan)
        before = len(run.rounds)
        run.warn_of_budget(self.num_rounds)
        try:
            for index in range(run.done + 1, self.num_rounds + 1):
                self._round(run, index, link)
                self._save(run, fl_ctx)
        finally:
            run.close()
        run.check_some_finished(self.num_rounds, before)
        for line in () if run.setup.opener is not None else run.where_the_model_is():
            self.log_info(fl_ctx, f"Fedcipher: {line}")
        run.check_lost()

    def _round(self, run: ServerRun, index: int, link: NVFlareLink) -> None:
        nodes = link.wait_for(run.setup.minimum, self.wait)
        run.begin_round(index, link)
        run.accept_train(self._asked(run, "train", index, link, nodes))
        run.end_training(None)
        if run.setup.answers["evaluate"]:
            run.accept_evaluate(self._asked(run, "evaluate", index, link, nodes))
            run.end_evaluation(None)
        run.call_on_round()

    def _asked(
        self, run: ServerRun, purpose: Purpose, index: int, link: NVFlareLink, nodes: list[int]
    ) -> Iterable[Reply]:
        asked = [Message(node, run.charter.types[purpose], _content(self.settings, self.num_rounds)) for node in nodes]
        return run.gather(partial(link.exchange, run.ask(purpose, index, asked)), run.timeout)

    def _save(self, run: ServerRun, fl_ctx: Any) -> None:
        """Give the persistor the model, if this server may see it."""
        if run.setup.opener is not None:
            weights: dict[str, Array] = run.model.by_name(run.model.arrays)
            self._persistor.save_model(learnable_of(weights=weights, meta_props={}), fl_ctx)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `StrategyError` for ``options`` that a run does not have."""
    unknown = sorted(set(options) - set(RunOptions.__annotations__))
    if unknown:
        raise StrategyError(f"{unknown} are not options of a run; its options are {list(RunOptions.__annotations__)}")


def setup_of(keys: str, options: Mapping[str, Any]) -> RunSetup:
    """The setup of a run from the options of a job. Raises the errors of `RunSetup`."""
    check_options(options)
    given = dict(options)
    for name in ("train_answers", "evaluate_answers"):
        given[name] = [Answer(*answer) if isinstance(answer, list) else answer for answer in given.get(name, ())]
    return RunSetup(keys, **cast(RunOptions, given))


def plan_of(setup: RunSetup, rounds: int, optimiser: Sequence[Any] | None, settings: Mapping[str, Any]) -> Plan:
    """The plan of a run of ``rounds`` rounds. Raises `ParameterError` for an optimiser that clients do not accept."""

    def configure(purpose: Purpose, index: int) -> list[Message]:
        if purpose == "evaluate" and not setup.answers["evaluate"]:
            return []
        return [Message(0, purpose, _content(settings, rounds), "arrays")]

    kind, *numbers = optimiser or [None]
    made = None if kind is None else Optimiser(str(kind), tuple(float(number) for number in numbers))
    name = "SecureFedAvg" if made is None else KINDS[made.kind][0]
    return replace(survey(name, configure, rounds), optimiser=made)


def _content(settings: Mapping[str, Any], rounds: int) -> Content:
    return {_SETTINGS: Config({"total-rounds": rounds, **settings})}
