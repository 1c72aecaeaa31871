"""The client mod: updates the model, calls the app, encrypts its result, and refuses all other messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message

from fedcipher._arguments import texts
from fedcipher.adapters.flower.no_run import refuse_without_run
from fedcipher.adapters.flower.records import content_of, context_of, message_of, record_dict, refuse, result_of
from fedcipher.errors import PlaintextError
from fedcipher.federation import messages
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.egress import only_metrics
from fedcipher.federation.client.session import ClientSession, Work
from fedcipher.guard.log import logged_holder

if TYPE_CHECKING:
    # Types that some supported versions of Flower lack.
    from flwr.clientapp.typing import ClientAppCallable, Mod

__all__ = ["client_mod", "make_client_mod", "query_mod"]


def client_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Encrypt every update this ClientApp sends, decrypt every aggregate it receives, and refuse other messages.

    The key is in an engine or in a file; `fedcipher.federation.client.key_holder` lists the settings that name it.

    The answer to a message of a `SecureStrategy` round is one encrypted frame: an update with the answers of training,
    or the answers of an evaluation. Every other message is refused before the app sees it, except the types that
    `make_client_mod` allows. A message is checked before the app uses any data. Every refusal has the same text with
    a reference; this client's log has the cause under this reference. After the check there is no refusal: if the app
    raises, or does not return an update, the client sends a frame of zeros that counts no examples.
    """
    return _answer(msg, ctxt, call_next, frozenset())


def query_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """`client_mod` that also answers the queries of `secure_sum`, encrypted.

    The app's ``@app.query()`` handler needs no change: it returns one MetricRecord of numbers or lists of numbers. The
    query's charter names the answers, and only these are sent, in one encrypted frame. A query that `secure_sum` did
    not send, or that this site's policy does not allow, is refused before the app sees it.
    """
    return _answer(msg, ctxt, call_next, frozenset(), queries_too=True)


def make_client_mod(*, allow: Iterable[str] = ()) -> Mod:
    """Make a `client_mod` that also answers messages outside of rounds, of the types named in ``allow``.

    >>> app = ClientApp(mods=[make_client_mod(allow=["query.stats"])])              # doctest: +SKIP

    Their replies are not encrypted. They may have metrics and settings, but no arrays and no bytes.
    Raises `ParameterError` for a name that is not a message type of Flower.
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
    session = ClientSession(lambda: logged_holder(ctxt.node_config, ctxt.run_config), lambda: context_of(ctxt))
    try:
        message = message_of(msg)
        opened = session.open(message, queries_too=queries_too)
        if isinstance(opened, Work):
            with opened as work:
                opened = session.seal(message, work, _computed(msg, ctxt, call_next, work))
        if opened is not None:
            return Message(record_dict(opened.content), reply_to=msg)
        if messages.split_type(message.type) in allowed:
            return _unencrypted(call_next(msg, ctxt))
        return refuse_without_run(
            msg, message.content, "wrap the server's strategy, or allow the type with make_client_mod"
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    # Also a BaseException, such as a panic of native code: no error may be sent with its text.
    except BaseException as error:
        return refuse(msg, error, session.recorder)


def _computed(msg: Message, ctxt: Context, call_next: ClientAppCallable, work: Work) -> AppResult:
    """Call the app, with the model in the message and without the run's settings."""
    msg.content = record_dict(work.inputs(content_of(msg.content)))
    began = time.perf_counter()
    try:
        reply: Any = call_next(msg, ctxt)
        return result_of(reply, work, time.perf_counter() - began)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return AppResult.raised(error, time.perf_counter() - began)


def _unencrypted(reply: object) -> Message:
    """Check and return an allowed reply. Raises `PlaintextError` for an error, arrays or bytes."""
    if not isinstance(reply, Message):
        raise PlaintextError(f"the app answered with {type(reply).__name__}, not with a Message")
    if reply.has_error():
        raise PlaintextError(f"the app's error reply is not sent, because it may quote data: {reply.error.reason}")
    only_metrics(content_of(reply.content))
    return reply
