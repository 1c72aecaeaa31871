"""The server's side: declearn's ``FederatedServer`` with the rounds of a `ServerRun`.

declearn collects replies and decrypts their sum in one process, with no message in between. A committee needs such
messages. So this subclass replaces two steps of declearn's rounds: to send a request, and to collect the results.
"""

import asyncio
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedcipher.adapters.declearn import api
from fedcipher.adapters.declearn.client import check_aggregator
from fedcipher.adapters.declearn.round_work import (
    RECORD,
    REQUEST_FIELDS,
    model_of,
    request_record,
    request_settings,
)
from fedcipher.adapters.declearn.wire import NAME, Ready, RoundQuery, RoundReply, SetupQuery, SumReader
from fedcipher.errors import StrategyError
from fedcipher.federation.answers import Answer
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import Config, Message
from fedcipher.federation.server.loop_link import LoopLink
from fedcipher.federation.server.run import ServerRun, Summed
from fedcipher.federation.server.setup import Plan, RunSetup

__all__ = ["FederatedServer", "SecaggServer"]

_messages = api.messaging


@dataclasses.dataclass
class SecaggServer(api.secagg.SecaggConfigServer):
    """The ``secagg`` argument of `FederatedServer`.

    Parameters
    ----------
    bitsize, clipval
        Not used: the keys name a codec. declearn passes these fields.
    keys
        ``server.key``, or the folder that holds it.
    options
        The other arguments of `fedcipher.federation.server.setup.RunSetup`, such as ``opener`` and ``deadline``.
    """

    bitsize: int = 64
    clipval: float = 1e5
    keys: str = ""
    options: Any = None

    secagg_type = NAME

    @classmethod
    def parse_options(cls, field: Any, inputs: Any) -> dict[str, Any]:
        """The field of a TOML file, where it is a table."""
        return dict(inputs or {})

    def run_setup(self, metrics: Any) -> RunSetup:
        """The options of a run. The loss and all mean metrics of ``metrics`` are its answers, unless named otherwise.

        Raises `StrategyError` for options that declearn's server cannot follow.
        """
        given = dict(self.options or {})
        given.setdefault("evaluate_answers", [Answer("loss"), *(Answer(m.name) for m in _means(metrics))])
        setup = RunSetup(self.keys, **given)
        if setup.opener is None:
            raise StrategyError(
                "declearn's server applies each mean itself, and this server has no key: make keys of oneshot with "
                "reveal=server, or pass SecaggServer(options={'opener': ...})"
            )
        if setup.resume or setup.sets_models:
            raise StrategyError("resume and sets_models do not work with declearn's server; leave both out")
        return setup

    def prepare_secagg_setup_query(self) -> SetupQuery:
        """Like declearn's."""
        return SetupQuery(bitsize=self.bitsize, clipval=self.clipval)

    async def finalize_secagg_setup(self, netwk: Any, clients: set[str] | None = None) -> SumReader:
        """Raise `StrategyError` unless every client's network is protected."""
        replies = await netwk.wait_for_messages(clients)
        unready = sorted(name for name, reply in replies.items() if not issubclass(reply.message_cls, Ready))
        if unready:
            raise StrategyError(f"the clients {unready} have no protected network")
        return SumReader(len(replies))


def _means(metrics: Any) -> list[Any]:
    """The metrics beside the loss. Raises `StrategyError` for one that is not a mean of numbers."""
    listed = [metric for metric in metrics.metrics if metric.name != "loss"]
    for metric in listed:
        if not isinstance(metric, api.mean.MeanMetric):
            raise StrategyError(
                f"the metric {metric.name!r} is not a mean over examples, and only such sums are opened"
            )
    return listed


class FederatedServer(api.main.FederatedServer):
    """declearn's server, whose training and evaluation rounds are those of a Fedcipher run.

    Takes the arguments of declearn's ``FederatedServer``, with a `SecaggServer` as ``secagg``. Raises `StrategyError`
    for an aggregator, an optimiser or a metric that clients cannot sum or follow.
    """

    def __init__(self, model: Any, netwk: Any, optim: Any, secagg: SecaggServer, **others: Any) -> None:
        super().__init__(model, netwk, optim, secagg=secagg, **others)
        if not isinstance(self.secagg, SecaggServer):
            raise StrategyError("FederatedServer needs secagg=SecaggServer(...)")
        self._setup = secagg.run_setup(self.metrics)
        self._check_optimiser()
        self.federation = ServerRun(self._setup)
        """The run, with its records and its model."""
        self._names: list[str] = []
        self._clients: list[str] = []
        self._link: LoopLink | None = None
        self._request: Any = None

    def _check_optimiser(self) -> None:
        check_aggregator(self.aggrg)
        if self.aggrg.steps_weighted and not self._setup.unit:
            raise StrategyError(
                "AveragingAggregator weights clients by their steps, and the keys give all clients the same weight: "
                "take steps_weighted=False, or keys with --examples, the most steps of a client"
            )
        config = self.optim.get_config()
        if config["lrate"] != 1.0 or any(config.get(name) for name in ("w_decay", "regularizers", "modules")):
            raise StrategyError(
                "the server's optimiser makes another model than the mean, which clients would not accept: take a "
                "server_opt with a learning rate of 1 and without modules"
            )
        if any(getattr(module, "aux_name", None) for module in self.c_opt.modules):
            raise StrategyError("the clients' optimiser exchanges auxiliary variables, which have no place in a frame")
        if self.fairness is not None:
            raise StrategyError("declearn's fairness sends sums of its own, which no charter covers; leave it out")

    # --- the run -----------------------------------------------------------------------------

    async def initialization(self, config: Any) -> None:
        """Like declearn's; then the run begins."""
        if config.privacy is not None:
            raise StrategyError("DP-SGD is not in the charter: make keys with Codec(privacy=...) instead")
        await super().initialization(config)
        self._clients = sorted(self.netwk.client_names)
        self._link = LoopLink(asyncio.get_running_loop(), range(len(self._clients)), self._ask)
        weights = self.model.get_weights(trainable=True).pack()
        self._names = list(weights)
        plan = Plan(
            name="declearn",
            settings={
                "train": request_settings(config.training.message_params),
                "evaluate": request_settings(config.evaluate.message_params),
            },
        )
        await asyncio.to_thread(self.federation.begin, self._names, list(weights.values()), config.rounds, plan)

    async def async_run(self, config: Any) -> None:
        """Like declearn's; the run's files are closed at the end."""
        try:
            await super().async_run(config)
        finally:
            # The network has stopped, so a committee can no longer be told.
            self.federation.link = None
            self.federation.close()

    async def stop_training(self, rounds: int) -> None:
        """Tell a committee that the run has ended, while its members are there; then like declearn's."""
        await asyncio.to_thread(self.federation.close)
        await super().stop_training(rounds)

    async def _ask(self, node: int, number: int, raw: bytes) -> bytes:
        """Carry a message of the run to a client, and its reply back."""
        name = self._clients[node]
        await self.netwk.send_message(RoundQuery(number, raw), name)
        received = (await self.netwk.wait_for_messages({name}))[name]
        if not issubclass(received.message_cls, RoundReply):
            raise StrategyError(f"client {name} sent a {received.message_cls.__name__} in place of a frame")
        reply = received.deserialize()
        if reply.number != number:
            raise StrategyError(f"client {name} answered message {reply.number} in place of {number}")
        return reply.content

    # --- a round -----------------------------------------------------------------------------

    @property
    def _connected(self) -> LoopLink:
        assert self._link is not None, "a round comes after the initialization"
        return self._link

    async def _send_request_with_optional_weights(self, msg_light: Any, clients: set[str]) -> None:
        """Keep declearn's request for `_collect_results`: clients get it with the run's message, without weights."""
        self._request = msg_light

    async def _collect_results(self, clients: set[str], msgtype: Any, context: str) -> Any:
        """The one result of a round's sum; for messages of set-up like declearn's."""
        if issubclass(msgtype, api.secagg_messages.SecaggTrainReply):
            work = partial(self._train, self._request, clients)
        elif issubclass(msgtype, api.secagg_messages.SecaggEvaluationReply):
            work = partial(self._evaluate, self._request, clients)
        else:
            return await super()._collect_results(clients, msgtype, context)
        try:
            return {"aggregated": _Opened(await asyncio.to_thread(work))}
        except StrategyError as error:
            # The text of a run's own errors is for the operator; clients get none of it.
            await self.netwk.broadcast_message(_messages.CancelTraining("the run has ended; its server knows why"))
            raise RuntimeError(str(error)) from error

    def _train(self, request: Any, clients: set[str]) -> Any:
        run, before = self.federation, [*self.federation.model.arrays]
        run.begin_round(request.round_i, self._connected)
        summed = run.accept_train(self._replies("train", request, clients))
        run.end_training(None)
        if summed is None or summed.model is None:
            raise StrategyError(f"round {request.round_i} has no sum: {run.record.unfinished}")
        change = [old - new for old, new in zip(before, summed.model, strict=True)]
        updates = api.aggregator.ModelUpdates(self._vector(change), 1.0)
        return _messages.TrainReply(n_epoch=-1, n_steps=1, t_spent=0.0, updates=updates, aux_var={})

    def _evaluate(self, request: Any, clients: set[str]) -> Any:
        run = self.federation
        summed = run.accept_evaluate(self._replies("evaluate", request, clients))
        if summed is None or summed.answers is None:
            raise StrategyError(f"the evaluation of round {request.round_i} has no sum")
        means = self._means_of(summed)
        run.end_evaluation(means)
        states = {name: api.mean.MeanState(value, 1.0) for name, value in means.items()}
        return _messages.EvaluationReply(loss=means["loss"], n_steps=1, t_spent=0.0, metrics=states)

    def _means_of(self, summed: Summed) -> dict[str, float]:
        assert summed.answers is not None, "the caller has checked the answers"
        return {answer.name: summed.answers.ratio(answer)[0] for answer in self._setup.answers["evaluate"]}

    def _replies(self, purpose: Purpose, request: Any, clients: set[str]) -> Any:
        run, link = self.federation, self._connected
        fields = {name: getattr(request, name) for name in REQUEST_FIELDS[purpose]}
        nodes = [node for node, name in enumerate(self._clients) if name in clients]
        kind, record = run.charter.types[purpose], request_record(fields)
        asked = [Message(node, kind, {RECORD: Config(record)}) for node in nodes]
        return run.gather(partial(link.exchange, run.ask(purpose, request.round_i, asked)), run.timeout)

    def _conduct_global_update(self, results: Mapping[str, Any]) -> None:
        """Like declearn's, then the run's own model to the last bit: clients have computed that one."""
        super()._conduct_global_update(results)
        self.model.set_weights(self._vector(self.federation.model.arrays), trainable=True)
        self.federation.call_on_round()

    def _vector(self, arrays: list[Any]) -> Any:
        return type(self.model.get_weights(trainable=True)).unpack(model_of(self._names, arrays))


class _Opened:
    """A round's opened sum, where declearn expects a message to decrypt."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def decrypt_wrapped_message(self, decrypter: Any) -> Any:
        return self._reply
