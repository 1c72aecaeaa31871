"""The wrapped strategy: it samples, sets configurations and aggregates metrics, and sees of updates what it may."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcipher.errors import FedcipherError, RunError, StrategyError
from fedcipher.federation.answers import Answer, Report, Sums
from fedcipher.federation.optimiser_step import Optimiser
from fedcipher.flower import probe, protocol
from fedcipher.flower.optimiser import mean_part, optimiser_of
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_npz
from fedcipher.foreign_text import quoting_log

__all__ = ["Inner", "metrics_of"]

_log = quoting_log("fedcipher.flower")
_PROBE = protocol.PREFIX + "probe"
_PROBE_SIZE = 4
_ROBUST = frozenset({"Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"})
"""Flower's strategies that choose among single updates. With some numbers and few clients they are a mean."""


class Inner:
    """A Flower strategy inside `fedcipher.flower.SecureStrategy`.

    ``opens`` says whether the server sees the mean of each round, ``sets_models`` whether it makes the next model of
    it, ``delta`` whether updates are changes of the model.
    Raises `StrategyError` for what is no strategy of Flower's message API.
    """

    def __init__(self, strategy: Strategy, *, opens: bool, sets_models: bool, delta: bool) -> None:
        if not isinstance(cast(object, strategy), Strategy):
            raise StrategyError(
                f"{type(strategy).__name__} is no flwr.serverapp.strategy.Strategy; strategies of flwr.server.strategy "
                "are of Flower's older API: use the class of the same name from flwr.serverapp.strategy"
            )
        self.strategy = strategy
        self._opens, self._sets_models, self._delta = opens, sets_models, delta
        self.optimiser: Optimiser | None = None
        """What clients make of a mean; known from `check` on."""
        self.trains = True
        """Whether it asks anybody to train in any round; known from `check` on."""
        self._began_with: dict[str, tuple[object, bytes | None]] = {}
        self._warned: set[str] = set()

    @property
    def name(self) -> str:
        """Of its class."""
        return type(self.strategy).__name__

    @property
    def weighted_by(self) -> str:
        """The metric that clients are weighted by."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    # --- before the first round --------------------------------------------------------------

    def check(self, rounds: int) -> None:
        """Refuse, with `StrategyError`, what would not run or would lose its model in so many rounds."""
        cls = type(self.strategy)
        self._began_with = {name: (value, _digest_of(value)) for name, value in vars(self.strategy).items()}
        if cls.start is not Strategy.start:
            raise StrategyError(
                f"{self.name} has a start() of its own, which would not run under SecureStrategy: do its work in "
                "on_round=, or in a class derived from SecureStrategy"
            )
        own = cls.aggregate_train.__module__.partition(".")[0] != "flwr"
        if not own and cls.aggregate_train.__qualname__.partition(".")[0] in _ROBUST:
            raise StrategyError(
                f"{self.name} looks at single updates, which no server sees under encryption, so it could leave none "
                "out. Use a strategy that needs the mean only (FedAvg, FedProx, FedAdam, ...)"
            )
        if not self._opens and own and not getattr(self.strategy, "fedcipher_blind", False):
            raise StrategyError(
                f"{self.name} has an aggregate_train() of its own. Without opener=... it would be given random "
                "numbers in place of updates and models, and whatever it kept or saved of them would be lost: pass an "
                "opener, or set fedcipher_blind = True on it if it touches metrics only"
            )
        self.trains = probe.trains(self.strategy, rounds)
        if not self.trains:
            # Nothing is averaged. Two sums of answers to one model would tell one client's from the others'.
            if rounds > 1:
                raise StrategyError(
                    f"{self.name} asks nobody to train in {rounds} rounds, and a client evaluates a model once: start "
                    "it with num_rounds=1, and once more for another evaluation"
                )
            return
        if self._sets_models:
            probe.check_sees_only_the_mean(self.strategy, self.weighted_by)
            return
        self.optimiser = optimiser_of(self.strategy)
        if self.optimiser is None:
            probe.check_is_mean(self.strategy, self.weighted_by)
            return
        if not self._delta:
            raise StrategyError(
                f"{self.name} makes its step on the clients, from the mean of their changes, and these keys are for "
                'whole models: make them with Codec(target="delta"), which is the default'
            )
        probe.check_step(self.strategy, self.weighted_by, self.optimiser)

    def check_unchanged(self) -> None:
        """Refuse, with `StrategyError`, another optimiser than at `check`."""
        if self.optimiser is not None and optimiser_of(self.strategy) != self.optimiser:
            raise StrategyError(
                f"the run began with {self.optimiser}, which {self.name} no longer is: clients hold "
                "on to the first numbers. Where they are to change from round to round, the server has to set the "
                "models: SecureStrategy(sets_models=True, opener=...)"
            )

    # --- to go on after the server has died --------------------------------------------------

    def export(self) -> bytes:
        """What the strategy keeps from round to round, for `restore`: its attributes that changed since `check`.

        Those of numbers, texts, arrays, and lists and dicts of such; a warning names one that is of something else.
        """
        kept: dict[str, Any] = {}
        arrays: list[NDArray[Any]] = []
        for name, value in vars(self.strategy).items():
            flat: list[NDArray[Any]] = []
            try:
                said = _flat(value, flat)
            except TypeError:
                if value is not self._began_with.get(name, (None, None))[0] and name not in self._warned:
                    self._warned.add(name)
                    _log.warning(
                        "%s.%s is of a type that is not kept: a run that is resumed begins without it", self.name, name
                    )
                continue
            if _digest(said, flat) != self._began_with.get(name, (None, None))[1]:
                kept[name] = _flat(value, arrays)
        packed = io.BytesIO()
        named_arrays = {str(i): array for i, array in enumerate(arrays)}
        np.savez(packed, allow_pickle=False, tree=np.frombuffer(json.dumps(kept).encode(), np.uint8), **named_arrays)
        return packed.getvalue()

    def restore(self, state: bytes) -> None:
        """Take up what `export` gave. Raises `RunError`."""
        try:
            arrays = read_npz(state, MAX_MODEL)
            kept = parse_json(arrays.pop("tree").tobytes())
            values = {name: _deep(said, arrays) for name, said in kept.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"what {self.name} kept of the run is damaged: {error}; copy the run again") from error
        for name, value in values.items():
            setattr(self.strategy, name, value)

    # --- in a round --------------------------------------------------------------------------

    @staticmethod
    def shown(model: ArrayRecord | None) -> ArrayRecord:
        """The model where the server may see it, else numbers that stand for it."""
        return ArrayRecord({_PROBE: Array(np.zeros(_PROBE_SIZE))}) if model is None else model

    def sample(
        self, evaluate: bool, server_round: int, shown: ArrayRecord | None, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord, list[Message]]:
        """Its messages to train or to evaluate, and the record in the place of whose model they have.

        ``shown`` is the model where the server may see it; else numbers stand for it.
        """
        model = self.shown(shown)
        configure = self.strategy.configure_evaluate if evaluate else self.strategy.configure_train
        return model, list(configure(server_round, model, config, grid))

    def place_of_model(self, message: Message, shown: ArrayRecord) -> str:
        """The ArrayRecord of ``message`` that is what the strategy was ``shown``."""
        names = list(shown.keys())
        found = [key for key, record in message.content.array_records.items() if list(record.keys()) == names]
        if len(found) == 1:
            record = message.content.array_records[found[0]]
            if record is shown or all(_equal(record[name], shown[name]) for name in names):
                return found[0]
        raise StrategyError(
            f"{self.name} sends node {message.metadata.dst_node_id} something else than the arrays it "
            "was given: every client trains from one model, whole and unchanged. Further arrays of the server's own go "
            "into an ArrayRecord beside it"
        )

    def on_mean(
        self,
        server_round: int,
        accepted: list[Message],
        model: ArrayRecord,
        sums: Sums | None,
        answers: Sequence[Answer],
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """What it makes of a round whose mean the server has opened: each reply has the ``model`` and mean answers."""
        self._answer(accepted, sums, answers)
        # One record each: a strategy may empty those that it has read.
        records = [ArrayRecord(dict(model.items())) for _ in accepted]
        made, metrics = self._aggregate(server_round, accepted, records)
        if made is None or list(made.keys()) != list(model.keys()):
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        return made, metrics

    def blind(
        self, server_round: int, accepted: list[Message], said: Report | None, answers: Sequence[Answer]
    ) -> MetricRecord | None:
        """Run it on random numbers: proof that it still is a mean. Its metrics, where readers have reported answers."""
        rng = np.random.default_rng()
        probes = [rng.normal(size=_PROBE_SIZE) for _ in accepted]
        self._answer(accepted, said, answers)
        with contextlib.nullcontext() if said is not None else self._without_metrics():
            made, metrics = self._aggregate(server_round, accepted, [ArrayRecord({_PROBE: Array(p)}) for p in probes])
        if made is None or _PROBE not in made:
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        if not np.allclose(made[_PROBE].numpy(), np.mean(probes, axis=0), rtol=1e-6):
            raise StrategyError(
                f"{self.name} does not compute a weighted mean of its updates, which is all that "
                "can be done on ciphertexts; use FedAvg, FedProx or another averaging strategy"
            )
        return None if said is None else metrics

    @contextlib.contextmanager
    def _without_metrics(self) -> Generator[None]:
        """An app's own aggregation of metrics would look for metrics that this server does not see."""
        hook = "train_metrics_aggr_fn"
        before = getattr(self.strategy, hook, None)
        if before is not None:
            setattr(self.strategy, hook, _no_metrics)
        try:
            yield
        finally:
            if before is not None:
                setattr(self.strategy, hook, before)

    def evaluated(
        self, server_round: int, accepted: list[Message], sums: Sums | Report, answers: Sequence[Answer]
    ) -> MetricRecord | None:
        """Its aggregation of metrics, from one reply with the mean answers for each client."""
        self._answer(accepted, sums, answers)
        try:
            return self.strategy.aggregate_evaluate(server_round, accepted)
        except FedcipherError:
            raise
        except Exception as error:
            raise StrategyError(f"{self.name} cannot aggregate the answers of an evaluation: {error}") from error

    def _answer(self, accepted: list[Message], sums: Sums | Report | None, answers: Sequence[Answer]) -> None:
        """Give each reply the same metrics: of a mean the mean, of a sum its part."""
        for reply in accepted:
            reply.content["metrics"] = metrics_of(sums, answers, self.weighted_by, len(accepted))

    def _aggregate(
        self, server_round: int, accepted: list[Message], records: list[ArrayRecord]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Its aggregation, with other arrays in the replies."""
        for reply, record in zip(accepted, records, strict=True):
            key = next(iter(reply.content.array_records))
            reply.content.array_records[key] = record
        try:
            aggregate = self.strategy.aggregate_train if self.optimiser is None else mean_part(self.strategy)
            return aggregate(server_round, accepted)
        except FedcipherError:
            raise
        except Exception as error:
            raise StrategyError(f"{self.name} cannot aggregate: {error}") from error


def metrics_of(sums: Sums | Report | None, answers: Sequence[Answer], weighted_by: str, clients: int) -> MetricRecord:
    """One client's part of opened answers, so that weighted means and sums over ``clients`` such records are right."""
    if sums is None:
        return MetricRecord({weighted_by: 1})
    made: dict[str, Any] = {weighted_by: max(sums.examples, 1) / clients}
    for answer in answers:
        held = sums.ratio(answer)
        values = [value / clients for value in held] if answer.how == "sum" else held
        made[answer.name] = values if answer.length else values[0]
    return MetricRecord(made)


def _no_metrics(*_: object) -> MetricRecord:
    return MetricRecord()


def _equal(a: Array, b: Array) -> bool:
    return a is b or (a.dtype, a.shape, a.data) == (b.dtype, b.shape, b.data)


def _flat(value: object, arrays: list[NDArray[Any]]) -> Any:
    """``value`` for JSON, with its arrays moved into ``arrays``. Raises `TypeError` for what cannot be kept."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, np.generic):
        return _flat(np.asarray(value), arrays)
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, (list, tuple)):
        items = cast("list[object] | tuple[object, ...]", value)
        return {"tuple" if isinstance(value, tuple) else "list": [_flat(x, arrays) for x in items]}
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value).items()
        return {"dict": [[_flat(key, arrays), _flat(x, arrays)] for key, x in pairs]}
    if isinstance(value, ArrayRecord):
        return {"record": [[name, _flat(protocol.to_numpy(array), arrays)] for name, array in value.items()]}
    raise TypeError(type(value).__name__)


def _deep(said: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The value that `_flat` was given."""
    ((kind, value),) = said.items()
    if kind == "array":
        return arrays[str(value)]
    if kind == "dict":
        return {_deep(key, arrays): _deep(x, arrays) for key, x in value}
    if kind == "record":
        return ArrayRecord({name: Array(_deep(x, arrays)) for name, x in value})
    if kind in ("list", "tuple"):
        items = [_deep(x, arrays) for x in value]
        return tuple(items) if kind == "tuple" else items
    return value


def _digest(said: Any, arrays: Sequence[NDArray[Any]]) -> bytes:
    hashed = hashlib.sha256(json.dumps([said, [[x.dtype.str, x.shape] for x in arrays]]).encode())
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.digest()


def _digest_of(value: object) -> bytes | None:
    arrays: list[NDArray[Any]] = []
    try:
        return _digest(_flat(value, arrays), arrays)
    except TypeError:
        return None
