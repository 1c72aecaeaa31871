"""The client mod: brings the model up to date, lets the app compute, encrypts what leaves, and denies the rest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message

from fedcipher._arguments import texts
from fedcipher.adapters.flower.records import content_of, context_of, message_of, model_record, record_dict, refuse
from fedcipher.errors import PlaintextError
from fedcipher.federation import messages
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.egress import only_metrics
from fedcipher.federation.client.key_holder import key_holder_of
from fedcipher.federation.client.session import ClientSession, Work

if TYPE_CHECKING:
    # Only types, and not in every Flower that works.
    from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["client_mod", "make_client_mod", "query_mod"]


def client_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Encrypt every update this ClientApp sends, decrypt every aggregate it receives, and refuse the rest.

    The key is in an engine or in a file; `fedcipher.federation.client.key_holder` says which settings name it.

    A message of a `SecureStrategy` round is answered with one encrypted frame: an update with the answers of training,
    or the answers of an evaluation. Every other message is refused before the app sees it; `make_client_mod` can allow
    some by name. A message is judged before data is touched, and refused with one constant text; the cause stands in
    this client's log under the reference that the refusal carries. After that there is no refusal: an app that raises,
    or returns something else than an update, makes a frame of zeros that counts nothing.
    """
    return _answer(msg, ctxt, call_next, frozenset())


def query_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """`client_mod` that also answers the queries of `secure_sum`, encrypted.

    The app's ``@app.query()`` handler stays as it is: it returns one MetricRecord of numbers or lists of numbers. The
    query's charter names the answers; they leave as the lanes of one frame, whatever the app returned. A query that
    `secure_sum` did not send, or that this site's policy does not allow, is refused before the app sees it.
    """
    return _answer(msg, ctxt, call_next, frozenset(), queries_too=True)


def make_client_mod(*, allow: Iterable[str] = ()) -> Mod:
    """`client_mod` that also answers messages without a round's settings, of the types named in ``allow``.

    >>> app = ClientApp(mods=[make_client_mod(allow=["query.stats"])])              # doctest: +SKIP

    Their replies leave in the clear. They may carry metrics and settings, no arrays and no bytes.
    Raises `ParameterError` for a name that is no message type of Flower's.
    """
    allowed = frozenset(messages.type_of(name) for name in texts([allow] if isinstance(allow, str) else allow, "allow"))

    def mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        return _answer(msg, ctxt, call_next, allowed)

    return mod


def _answer(
    msg: Message,
    ctxt: Context,
    call_next: ClientAppCallable,
    allowed: frozenset[tuple[str, str]],
    *,
    queries_too: bool = False,
) -> Message:
    try:
        session = ClientSession(lambda: key_holder_of(ctxt.node_config, ctxt.run_config), lambda: context_of(ctxt))
        message = message_of(msg)
        opened = session.open(message, queries_too=queries_too)
        if isinstance(opened, Work):
            with opened as work:
                opened = session.seal(message, work, _computed(msg, ctxt, call_next, work))
        if opened is not None:
            return Message(record_dict(opened.content), reply_to=msg)
        if messages.split_type(message.type) in allowed:
            return _in_the_clear(call_next(msg, ctxt))
        raise PlaintextError(
            f"a message of type {message.type!r} without a round of SecureStrategy; wrap the server's "
            "strategy, or allow the type with make_client_mod"
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of native code is a BaseException: none of these may travel with its text.
    except BaseException as error:
        return refuse(msg, error)


def _computed(msg: Message, ctxt: Context, call_next: ClientAppCallable, work: Work) -> AppResult:
    """Let the app compute, with the model in the message and nothing of the run's settings."""
    for name in (messages.CONFIG, messages.QUERY):
        msg.content.pop(name, None)
    if work.record:
        msg.content[work.record] = model_record(work.model)
    began = time.perf_counter()
    try:
        reply: Any = call_next(msg, ctxt)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return AppResult.raised(error, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    if not isinstance(reply, Message):
        return AppResult(seconds=seconds, failed=f"the app answered with {type(reply).__name__}, not with a Message")
    if reply.has_error():
        return AppResult(seconds=seconds, failed=f"the app answered with an error: {reply.error.reason!r}")
    made = content_of(reply.content)
    return AppResult.of(made, work.names, work.arrays, updates=work.updates, seconds=seconds)


def _in_the_clear(reply: object) -> Message:
    """An allowed reply, where it is fit to leave. Raises `PlaintextError`."""
    if not isinstance(reply, Message):
        raise PlaintextError(f"the app answered with {type(reply).__name__}, not with a Message")
    if reply.has_error():
        raise PlaintextError(f"the app's error reply stays here, its text may quote data: {reply.error.reason}")
    only_metrics(content_of(reply.content))
    return reply
