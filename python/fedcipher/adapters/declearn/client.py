"""A client's side: the configuration for declearn's client, and the network that lets only frames out.

This module has no postponed annotations, because declearn reads the types of fields.
"""

import dataclasses
from typing import Any, NoReturn

from fedcipher.adapters.declearn import api
from fedcipher.adapters.declearn.round_work import Request, RoundWork, evaluated, trained
from fedcipher.adapters.declearn.wire import NAME, Collector, Held, Ready, RoundQuery, RoundReply, SetupQuery
from fedcipher.errors import CharterError, UnsupportedError
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.client.session import Work
from fedcipher.federation.refusal import refusal

__all__ = ["ProtectedNetwork", "SecaggClient"]

_messages = api.messaging


@dataclasses.dataclass
class SecaggClient(api.secagg.SecaggConfigClient):
    """The ``secagg`` argument of declearn's own ``FederatedClient``.

    Parameters
    ----------
    id_keys
        Not used: the key is Fedcipher's. declearn passes this field.
    key
        The client's key file, by its absolute path, as from `fedcipher keygen` or `fedcipher join`.
    engine, device
        An engine's address and the device's name there, in place of ``key``.
    metadata
        Fields of the dataset's description, such as ``features_shape``, that this client may tell the server in the
        clear. declearn's server asks for them if its model is not initialised.
    """

    id_keys: Any = None
    key: str = ""
    engine: str = ""
    device: str = ""
    metadata: tuple[str, ...] = ()

    secagg_type = NAME

    @classmethod
    def parse_metadata(cls, field: Any, inputs: Any) -> tuple[str, ...]:
        """The field of a TOML file, where it is a list."""
        return tuple(inputs or ())

    def protect(self, network: Any) -> "ProtectedNetwork":
        """The ``netwk`` argument of declearn's client: ``network``, a ``NetworkClient``, behind this client's key."""
        return ProtectedNetwork(network, self)

    def settings(self) -> dict[str, Any]:
        """The settings of `fedcipher.federation.client.key_holder.key_holder_of`, from this machine alone."""
        named = {"fedcipher-key": self.key, "fedcipher-engine": self.engine, "fedcipher-device": self.device}
        return {name: value for name, value in named.items() if value}

    async def setup_encrypter(self, netwk: Any, query: Any) -> Collector:
        """Answer the server's `SetupQuery`. Raises `ValueError` for a network that is not protected."""
        if not isinstance(netwk, ProtectedNetwork) or not issubclass(query.message_cls, SetupQuery):
            text = refusal(UnsupportedError("give the client the network of SecaggClient.protect(network)"))
            await netwk.send_message(_messages.Error(text))
            raise ValueError(text)
        await netwk.send_message(Ready())
        return Collector()


class ProtectedNetwork(api.communication.NetworkClient):
    """A declearn ``NetworkClient`` between the app and ``inner``, another one.

    The server's requests come from messages of the run, which the client's session checks. The app's answers leave as
    one frame. Every other message in either direction is refused, except those of set-up and end.
    """

    protocol = NAME

    # The base class's own set-up would read certificates for a second connection.
    def __init__(self, inner: Any, config: SecaggClient) -> None:
        self.server_uri, self.name, self._inner = inner.server_uri, inner.name, inner
        self.logger = inner.logger
        self._metadata = frozenset(config.metadata)
        settings = config.settings()
        self._rounds = RoundWork(lambda: key_holder_of(settings, {}))
        self._number, self._vector = 0, None

    async def start(self) -> None:
        """Connect."""
        await self._inner.start()

    async def stop(self) -> None:
        """Disconnect. Work that the app has not answered is dropped."""
        self._rounds.drop()
        await self._inner.stop()

    async def register(self) -> bool:
        """Register at the server."""
        return await self._inner.register()

    @staticmethod
    def _setup_ssl_context(certificate: str | None = None) -> None:
        """The inner network has its own."""

    async def _send_message(self, bin_msg: bytes) -> NoReturn:
        raise UnsupportedError("a protected network sends no bytes of its own")

    # --- from the server ---------------------------------------------------------------------

    async def recv_message(self, timeout: float | None = None) -> Any:
        """The next message for the app. Messages of the run that need no app are answered here."""
        while True:
            received = await self._inner.recv_message(timeout)
            if not issubclass(received.message_cls, RoundQuery):
                await self._check(received)
                return received
            query = received.deserialize()
            self._number = query.number
            opened = self._rounds.receive(query.content)
            if isinstance(opened, Request):
                return self._request(opened)
            await self._reply(opened)

    async def _check(self, received: Any) -> None:
        """Refuse a message that is not part of set-up or end. Raises `CharterError`."""
        try:
            self._admit(received)
        except Exception as error:
            text = refusal(error)
            await self._inner.send_message(_messages.Error(text))
            raise CharterError(text) from error

    def _admit(self, received: Any) -> None:
        kind = received.message_cls
        if issubclass(kind, (SetupQuery, _messages.StopTraining, _messages.CancelTraining)):
            return
        if issubclass(kind, _messages.MetadataQuery):
            unnamed = set(received.deserialize().fields) - self._metadata
            if unnamed:
                raise CharterError(
                    f"the server asks for {sorted(unnamed)} of the data in the clear; name them in "
                    "SecaggClient(metadata=...) if they may leave, or let the server initialise its model"
                )
        elif issubclass(kind, _messages.InitRequest):
            self._begin(received)
        else:
            raise CharterError(f"the server sends a {kind.__name__}, which no charter covers")

    def _begin(self, received: Any) -> None:
        request = received.deserialize()
        if request.dpsgd or request.fairness:
            raise CharterError("the server asks for DP-SGD or fairness, which no charter covers")
        check_aggregator(request.aggrg)
        self._rounds.tell(received.bin_data)
        self._vector = request.model.get_weights(trainable=True)

    def _request(self, made: Request) -> Any:
        """declearn's request for the app, as if the server had sent it."""
        assert self._vector is not None, "a session opens no message before InitRequest"
        weights = type(self._vector).unpack(made.arrays)
        shared = {"round_i": made.index, "weights": weights, **made.fields}
        if made.purpose == "train":
            request = _messages.TrainRequest(aux_var={}, **shared)
        else:
            request = _messages.EvaluationRequest(**shared)
        return _messages.SerializedMessage.from_bin_message(request.serialize())

    # --- from the app ------------------------------------------------------------------------

    async def send_message(self, message: Any) -> None:
        """Send the app's ``message``: an answer as one frame, an error without its text. Raises `UnsupportedError`."""
        if self._rounds.open:
            await self._reply(self._rounds.seal(lambda work: _result(message, work)))
        elif isinstance(message, _messages.Error):
            await self._inner.send_message(_messages.Error(refusal(RuntimeError(message.message))))
        elif self._may_leave(message):
            await self._inner.send_message(message)
        else:
            raise UnsupportedError(f"a {type(message).__name__} may not leave this client")

    def _may_leave(self, message: Any) -> bool:
        if isinstance(message, _messages.MetadataReply):
            return self._metadata.issuperset(message.data_info)
        return isinstance(message, (_messages.InitReply, Ready))

    async def _reply(self, content: bytes) -> None:
        await self._inner.send_message(RoundReply(self._number, content))


def check_aggregator(aggregator: Any) -> None:
    """Raise `UnsupportedError` for another aggregator than declearn's mean."""
    if type(aggregator) is not api.aggregator.AveragingAggregator:
        raise UnsupportedError(
            f"Fedcipher opens the mean of updates, and {type(aggregator).__name__} is another aggregate: take "
            "AveragingAggregator"
        )


def _result(message: Any, work: Work) -> AppResult:
    """The result in the app's ``message``. Any error in it counts as a failure of the app."""
    if isinstance(message, _messages.Error):
        raise RuntimeError(message.message)
    if work.updates:
        if message.aux_var:
            raise UnsupportedError(f"auxiliary variables {sorted(message.aux_var)} have no place in a frame")
        update = _held(message.updates)
        return trained(work, update.updates.pack(), update.weights)
    states = {name: _held(state) for name, state in message.metrics.items()}
    return evaluated({n: (s.num_sum, s.divisor) for n, s in states.items() if isinstance(s, api.mean.MeanState)})


def _held(aggregate: Held) -> Any:
    return aggregate.value
