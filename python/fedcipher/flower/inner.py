"""The wrapped strategy: it samples, sets configurations and aggregates metrics, and sees of updates what it may."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcipher.errors import FedcipherError, RunError, StrategyError
from fedcipher.flower import probe, protocol
from fedcipher.flower.optimiser import Optimiser, mean_part
from fedcipher.foreign_files import MAX_MODEL, parse_json, read_npz
from fedcipher.foreign_text import quoted, quoting_log

__all__ = ["Inner"]

_log = quoting_log("fedcipher.flower")
_PROBE = protocol.PREFIX + "probe"
_PROBE_SIZE = 4
_UNEQUAL = 1.05


class Inner:
    """A Flower strategy inside `fedcipher.flower.SecureStrategy`.

    ``opens`` says whether the server sees the mean of each round, ``delta`` whether updates are changes of the model.
    Raises `StrategyError` for what is no strategy of Flower's message API.
    """

    def __init__(self, strategy: Strategy, *, opens: bool, delta: bool) -> None:
        if not isinstance(cast(object, strategy), Strategy):
            raise StrategyError(
                f"{type(strategy).__name__} is no flwr.serverapp.strategy.Strategy; strategies of flwr.server.strategy "
                "are of Flower's older API: use the class of the same name from flwr.serverapp.strategy"
            )
        self.strategy = strategy
        self._opens, self._delta = opens, delta
        self.optimiser: Optimiser | None = None
        """What clients make of a mean that the server does not see; known from `check` on."""
        self._warned_weights = False
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

    def check(self) -> None:
        """Refuse, with `StrategyError`, what would not run or would lose its model."""
        cls = type(self.strategy)
        self._warned_weights = False
        self._began_with = {name: (value, _digest_of(value)) for name, value in vars(self.strategy).items()}
        if cls.start is not Strategy.start:
            raise StrategyError(
                f"{self.name} has a start() of its own, which would not run under SecureStrategy: do its work in "
                "on_round=, or in a class derived from SecureStrategy"
            )
        own = cls.aggregate_train.__module__.partition(".")[0] != "flwr"
        if not self._opens and own and not getattr(self.strategy, "fedcipher_blind", False):
            raise StrategyError(
                f"{self.name} has an aggregate_train() of its own. Without opener=... it would be given random "
                "numbers in place of updates and models, and whatever it kept or saved of them would be lost: pass an "
                "opener, or set fedcipher_blind = True on it if it touches metrics only"
            )
        if self._opens:
            probe.check_sees_only_the_mean(self.strategy, self.weighted_by)
            return
        self.optimiser = Optimiser.of(self.strategy)
        if self.optimiser is None:
            probe.check_is_mean(self.strategy, self.weighted_by)
            return
        if not self._delta:
            raise StrategyError(
                f"{self.name} without opener=... makes its step on the clients, from the mean of their changes, and "
                'these keys are for whole models: make them with Codec(target="delta"), which is the default'
            )
        probe.check_step(self.strategy, self.weighted_by, self.optimiser)

    def check_unchanged(self) -> None:
        """Refuse, with `StrategyError`, another optimiser than at `check`."""
        if self.optimiser is not None and Optimiser.of(self.strategy) != self.optimiser:
            raise StrategyError(
                f"the run began with {self.optimiser}, which {self.name} no longer is: clients hold "
                "on to the first numbers. Where they are to change from round to round, pass opener=..."
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

    def sample(
        self, evaluate: bool, server_round: int, shown: ArrayRecord | None, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord, list[Message]]:
        """Its messages to train or to evaluate, and the record in the place of whose model they have.

        ``shown`` is the model where the server may see it; else numbers stand for it.
        """
        model = ArrayRecord({_PROBE: Array(np.zeros(_PROBE_SIZE))}) if shown is None else shown
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
        self, server_round: int, accepted: list[Message], mean: ArrayRecord
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """What it makes of a round whose mean the server has opened: every update is given as that mean."""
        accepted = self._of_one_form(server_round, accepted)
        made, metrics = self._aggregate(server_round, accepted, [mean] * len(accepted))
        if made is None or list(made.keys()) != list(mean.keys()):
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        return made, metrics

    def blind(self, server_round: int, accepted: list[Message], weighted: bool) -> MetricRecord | None:
        """Run it on random numbers: its metrics, and proof that it still is a mean."""
        accepted = self._of_one_form(server_round, accepted)
        rng = np.random.default_rng()
        probes = [rng.normal(size=_PROBE_SIZE) for _ in accepted]
        weights = [self._examples(reply) for reply in accepted]
        made, metrics = self._aggregate(server_round, accepted, [ArrayRecord({_PROBE: Array(p)}) for p in probes])
        if made is None or _PROBE not in made:
            raise StrategyError(f"{self.name} did not aggregate a round with valid updates")
        result = made[_PROBE].numpy()
        by_examples = np.average(probes, axis=0, weights=weights)
        equal = np.mean(probes, axis=0)
        if not (np.allclose(result, by_examples, rtol=1e-6) or np.allclose(result, equal, rtol=1e-6)):
            raise StrategyError(
                f"{self.name} does not compute a weighted mean of its updates, which is all that "
                "can be done on ciphertexts; use FedAvg, FedProx or another averaging strategy"
            )
        if not weighted and max(weights) > _UNEQUAL * min(weights) and not self._warned_weights:
            self._warned_weights = True
            _log.warning(
                "clients have different %s but weigh the same; pass examples_per_weight to "
                "SecureStrategy and max_weight to the scheme to weight by it",
                self.weighted_by,
            )
        return metrics

    def evaluated(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Its aggregation of metrics."""
        kept = list(replies)
        # Flower logs a reason as it stands.
        failed = [_with_quoted_reason(reply) for reply in kept if reply.has_error()]
        sound = self._of_one_form(server_round, [reply for reply in kept if not reply.has_error()])
        return self.strategy.aggregate_evaluate(server_round, [*sound, *failed])

    def _of_one_form(self, server_round: int, replies: list[Message]) -> list[Message]:
        """The replies whose metrics go together: one client's odd or missing ones must not end the others' run.

        That is the largest set of the same records and names, in which every number is finite and every weight above
        zero. Where there is no such set, all of them: the strategy knows what to say to its app.
        """
        forms: dict[object, list[Message]] = {}
        for reply in replies:
            form = self._form(reply)
            if form is not None:
                forms.setdefault(form, []).append(reply)
        if not forms:
            return replies
        most = max(forms.values(), key=len)
        kept = {id(reply) for reply in most}
        for reply in replies:
            if id(reply) not in kept:
                _log.warning(
                    "round %s: the metrics of node %s are left out: they lack what the others' have, or hold a number "
                    "that is not finite, or a weight (%s) that is not above zero",
                    server_round,
                    reply.metadata.src_node_id,
                    self.weighted_by,
                )
        return most

    def _form(self, reply: Message) -> object:
        """What can be compared of a reply's records; None where its metrics cannot be averaged with any."""
        arrays, form = tuple(reply.content.array_records), list[object]()
        for name, record in reply.content.metric_records.items():
            if not all(np.all(np.isfinite(value)) for value in record.values()):
                return None
            weight = record.get(self.weighted_by, 1)
            # No count of 64 bits; of several beyond all bounds not even a sum exists.
            if isinstance(weight, list) or not 0 < weight < 2**63:
                return None
            form.append((name, frozenset((k, len(v) if isinstance(v, list) else -1) for k, v in record.items())))
        return arrays, tuple(form)

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

    def _examples(self, reply: Message) -> float:
        for record in reply.content.metric_records.values():
            if self.weighted_by in record:
                return float(cast(float, record[self.weighted_by]))
        return 1.0


def _with_quoted_reason(reply: Message) -> Message:
    reply.error.__dict__["_reason"] = quoted(reply.error.reason)
    return reply


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
