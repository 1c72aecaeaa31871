"""Runs clients of Flower's older API (`flwr.client.NumPyClient`) in a `ClientApp` of the current API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcipher._arguments import callable_or_none, several
from fedcipher.adapters.flower.mod import client_mod
from fedcipher.adapters.flower.records import model_record, model_values
from fedcipher.codec import Array
from fedcipher.errors import LayoutError, StrategyError

if TYPE_CHECKING:
    # A type that some supported versions of Flower lack.
    from flwr.clientapp.typing import Mod

__all__ = ["numpy_client_app"]


def numpy_client_app(client_fn: Callable[[Context], Any], *, mods: Sequence[Mod] = (client_mod,)) -> ClientApp:
    """Make a ClientApp of the clients that ``client_fn`` makes, like the older ``ClientApp(client_fn=...)``.

    ``fit(parameters, config)`` trains; ``evaluate(parameters, config)`` evaluates, and its loss is the metric ``loss``.
    ``config`` is the strategy's ``train_config`` or ``evaluate_config`` with ``server-round``. The server side is a
    ServerApp with `SecureStrategy`; strategies of ``flwr.server.strategy`` and ``start_simulation`` are not supported.
    """
    callable_or_none(client_fn, "client_fn")
    for mod in several(mods, "mods"):
        callable_or_none(mod, "mods")
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        key, names, parameters, config = _received(message)
        trained, examples, metrics = _client(client_fn, context).fit(parameters, config)
        if len(trained) != len(names):
            raise LayoutError(f"fit() returned {len(trained)} arrays for a model of {len(names)}")
        content = RecordDict(
            {key: model_record(dict(zip(names, trained, strict=True))), "metrics": _metrics(examples, metrics)}
        )
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, _, parameters, config = _received(message)
        loss, examples, metrics = _client(client_fn, context).evaluate(parameters, config)
        content = RecordDict({"metrics": _metrics(examples, {"loss": float(loss), **metrics})})
        return Message(content, reply_to=message)

    return app


def _client(client_fn: Callable[[Context], Any], context: Context) -> Any:
    # Imported here, because some versions of Flower lack the older API.
    from flwr.client import NumPyClient

    made = client_fn(context)
    # The client_fn of an older app ends with `.to_client()`.
    made = getattr(made, "numpy_client", made)
    if not isinstance(made, NumPyClient):
        raise StrategyError(
            f"client_fn made a {type(made).__name__}: return the NumPyClient itself, without .to_client(); a "
            "flwr.client.Client has no arrays to encrypt"
        )
    return made


def _received(message: Message) -> tuple[str, list[str], list[Array], dict[str, Any]]:
    ((key, record),) = list(message.content.array_records.items())
    config: dict[str, Any] = {}
    for settings in message.content.config_records.values():
        config.update(settings)
    return key, list(record.keys()), model_values(record), config


def _metrics(examples: int, metrics: dict[str, Any]) -> MetricRecord:
    # The older API allows texts and truth values as metrics, the current one only numbers.
    numbers = {k: float(v) if isinstance(v, bool) else v for k, v in metrics.items() if not isinstance(v, str | bytes)}
    return MetricRecord({**numbers, "num-examples": int(examples)})
