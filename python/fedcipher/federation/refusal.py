"""A client's refusal to a server: one constant text for all causes, and a reference to the cause in the client's log.

A refusal has the same text and the same code for a wrong key, a damaged aggregate, a malformed setting and an exception
of the app. The cause may quote decrypted sums or training data. Even the name of the failed check would reveal
something about the key to an active server. Only a random reference differs, which reveals nothing.

A server still learns that a message was refused, and when. Errors in a round's settings or in its aggregate are found
before training, and errors in the update after it. So the time of a refusal distinguishes these two. An aggregate is
tried once, so R tries reveal at most log2(R + 1) bits.
"""

from __future__ import annotations

import re
import secrets
import struct

from fedcipher.errors import FedcipherError
from fedcipher.federation.client.evidence import REFUSAL, Recorder
from fedcipher.federation.messages import REFUSED, Config, Message
from fedcipher.foreign_text import quoting_log

__all__ = ["CODE", "TEXT", "reference_of", "refusal", "refused", "unreadable_array"]

_log = quoting_log("fedcipher.federation")

CODE = 6
"""Error code of every refusal, for frameworks with codes. Flower's name for it is MOD_FAILED_PRECONDITION."""
TEXT = (
    "Fedcipher refused this message. A server without Fedcipher gets no other answer: wrap its strategy in "
    "SecureStrategy, and ask queries with secure_sum. Otherwise the cause is in this client's own log, reference "
)
"""Text of every refusal. A reference of eight hexadecimal digits follows it."""

_REFERENCE = re.compile(re.escape(TEXT) + r"([0-9a-f]{8})")


def refusal(error: BaseException, recorder: Recorder | None = None) -> str:
    """The text of a refusal, with a new reference. Logs ``error`` (`fedcipher.federation`) under this reference.

    ``recorder`` is the site's log, which gets the reference without the cause.
    """
    reference = secrets.token_hex(4)
    _log.warning("refused, reference %s: %s: %s", reference, type(error).__name__, error)
    if not isinstance(error, FedcipherError):
        # Fedcipher's own errors name their cause. For other errors the traceback shows the line that failed. It is
        # logged without the error's text, which the line above has.
        _log.traceback(f"traceback of reference {reference}", error)
    if recorder is not None:
        _record(reference, recorder)
    return TEXT + reference


def _record(reference: str, recorder: Recorder) -> None:
    """Write the refusal to the site's log. A full disk may be the cause of the refusal, so this raises nothing."""
    try:
        recorder.record(REFUSAL, {"reference": reference})
    except (FedcipherError, OSError) as error:
        _log.warning("reference %s is not in the site's log: %s", reference, error)


def refused(message: Message, error: BaseException, recorder: Recorder | None = None) -> Message:
    """The refusal of ``message`` as a message, for an adapter to a framework without errors of its own.

    ``recorder`` is the one of `refusal`: pass `ClientSession.recorder`.
    """
    return Message(message.node, message.type, {REFUSED: Config({"text": refusal(error, recorder)})})


def reference_of(text: str, code: int = CODE) -> str | None:
    """The reference of a refusal with this ``text`` and ``code``; ``None`` if they are not those of a refusal."""
    found = _REFERENCE.fullmatch(text) if code == CODE else None
    return found[1] if found else None


def unreadable_array(text: str) -> bytes:
    """A file in NumPy's format whose head is ``text``: ``numpy.load`` raises `ValueError`, and the error quotes it."""
    head = text.encode()
    return b"\x93NUMPY\x03\x00" + struct.pack("<I", len(head)) + head
