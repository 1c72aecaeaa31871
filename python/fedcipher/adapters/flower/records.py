"""Converts Flower's messages to a federation's messages and back, without a copy of the arrays' bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from fedcipher.codec import Array as NumpyArray
from fedcipher.errors import FrameError, LayoutError, SealedModelError
from fedcipher.federation import messages
from fedcipher.federation.app_inputs import digest_of_context
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.evidence import Recorder
from fedcipher.federation.client.session import Work
from fedcipher.federation.messages import Arrays, Config, Content, Metrics, PackedArray, Reply
from fedcipher.federation.refusal import CODE, reference_of, refusal

__all__ = [
    "SealedArrays",
    "array_record",
    "content_of",
    "context_of",
    "message_of",
    "model_record",
    "model_values",
    "record_dict",
    "refuse",
    "reply_of",
    "result_of",
]


def content_of(content: RecordDict) -> Content:
    """The federation's form of a message's records."""
    made: Content = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            made[name] = Arrays({k: PackedArray(a.dtype, a.shape, a.stype, a.data) for k, a in record.items()})
        elif isinstance(record, MetricRecord):
            made[name] = Metrics(record)
        else:
            made[name] = Config(record)
    return made


def array_record(arrays: Arrays) -> ArrayRecord:
    """Flower's form of arrays."""
    return ArrayRecord({k: Array(dtype=a.dtype, shape=a.shape, stype=a.stype, data=a.data) for k, a in arrays.items()})


def record_dict(content: Content) -> RecordDict:
    """Flower's form of a message's records."""
    made = RecordDict()
    for name, record in content.items():
        if isinstance(record, Arrays):
            made[name] = array_record(record)
        else:
            made[name] = MetricRecord(record) if isinstance(record, Metrics) else ConfigRecord(record)
    return made


def message_of(msg: Message, node: int = 0) -> messages.Message:
    """The federation's form of a message."""
    return messages.Message(node, msg.metadata.message_type, content_of(msg.content))


def reply_of(msg: Message, node: int) -> Reply:
    """The federation's form of a reply from ``node``."""
    if msg.has_error():
        reason = msg.error.reason or ""
        return Reply(node, error=reason, reference=reference_of(reason, msg.error.code))
    return Reply(node, content_of(msg.content))


def refuse(msg: Message, error: BaseException, recorder: Recorder | None = None) -> Message:
    """The refusal of ``msg``, with the same text for every cause. The cause goes to this client's log."""
    return Message(Error(code=CODE, reason=refusal(error, recorder)), reply_to=msg)


def model_record(arrays: Mapping[str, NumpyArray]) -> ArrayRecord:
    """Flower's record of arrays by name."""
    return array_record(messages.named(list(arrays), list(arrays.values())))


def result_of(reply: object, work: Work, seconds: float) -> AppResult:
    """The app's result in its ``reply`` to a message, after ``seconds``."""
    if not isinstance(reply, Message) or reply.has_error():
        said = f"an error: {reply.error.reason!r}" if isinstance(reply, Message) else f"{type(reply).__name__}"
        return AppResult(seconds=seconds, failed=f"the app answered with {said}, not with a Message")
    return AppResult.of(content_of(reply.content), work.names, work.arrays, updates=work.updates, seconds=seconds)


def model_values(record: ArrayRecord) -> list[NumpyArray]:
    """The values of a record's arrays, without a copy. Raises `LayoutError` for arrays that cannot be averaged."""
    values: list[NumpyArray] = []
    for name, array in record.items():
        try:
            values.append(messages.to_numpy(cast(Any, array)))
        except FrameError as error:
            raise LayoutError(f"array {name!r} cannot be averaged: {error}") from error
    return values


def context_of(ctxt: Context) -> bytes:
    """The digest of the run's configuration and the installed app, which a charter cannot list."""
    return digest_of_context(ctxt.run_config, _app())


def _app() -> str:
    """The installed app's folder below ``FLWR_HOME/apps``, whose name has the app's hash; empty in a simulation."""
    home = Path(os.environ.get("FLWR_HOME") or os.path.expanduser("~/.flwr")) / "apps"
    found = {path.relative_to(home).parts[0] for path in map(Path, sys.path) if home in path.parents}
    return "\n".join(sorted(found))


class SealedArrays(ArrayRecord):
    """An ArrayRecord without a model, which names the folder of the encrypted model.

    Every method that reads an array raises `SealedModelError`, so that no app saves ciphertext as its model.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.__dict__["folder"] = Path(folder)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SealedModelError(
            f"this server has no key and cannot read the model, which is encrypted in {self.__dict__['folder']}. "
            "The holder of a client's key opens it with `fedcipher open RUN --key FILE --out model.npz`; a server that "
            "may see the model needs SecureStrategy(..., opener=...)"
        )

    __getitem__ = keys = items = __iter__ = to_numpy_ndarrays = to_torch_state_dict = _refuse

    def values(self) -> Any:
        """No arrays. Flower calls this to count bytes for its log."""
        empty: dict[str, Array] = {}
        return empty.values()

    def __repr__(self) -> str:
        return f"SealedArrays({str(self.__dict__['folder'])!r})"
