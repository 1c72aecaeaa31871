"""The one answer to a server whatever went wrong, and how to find its cause.

A refusal is the same text and the same code for a wrong key, a damaged aggregate, a malformed setting, an
exception of the app: its cause may quote decrypted sums or training data, and even *which* check failed
tells an active server something about the key. Only a random reference differs, and says nothing.

What is not hidden: *that* a message was refused, and when. What is wrong with a round's settings or its
aggregate is found before training, what is wrong with the update after it, so the time of a refusal
tells these two apart. An aggregate is tried once, so R tries tell at most log2(R + 1) bits.
"""

from __future__ import annotations

import re
import secrets

from flwr.app import Error, Message

from fedcipher.errors import FedcipherError
from fedcipher.foreign_text import quoting_log

__all__ = ["CODE", "TEXT", "reference_of", "refuse"]

_log = quoting_log("fedcipher.flower")

CODE = 6
"""flwr.common.constant.ErrorCode.MOD_FAILED_PRECONDITION, for every refusal."""
TEXT = "Fedcipher refused this message; the cause is in this client's own log, reference "
"""Every refusal's text, before its reference of eight hexadecimal digits."""

_REFERENCE = re.compile(re.escape(TEXT) + r"([0-9a-f]{8})")


def refuse(msg: Message, error: BaseException) -> Message:
    """The refusal of ``msg``; ``error`` goes to this client's log (`fedcipher.flower`) under its reference."""
    reference = secrets.token_hex(4)
    _log.warning("refused, reference %s: %s: %s", reference, type(error).__name__, error)
    if not isinstance(error, FedcipherError):
        # Ours name their cause themselves; of another's the line that failed says more. The traceback's
        # text without the error's own: that is on one line above.
        _log.traceback(f"traceback of reference {reference}", error)
    return Message(Error(code=CODE, reason=TEXT + reference), reply_to=msg)


def reference_of(reply: Message) -> str | None:
    """The reference of a refusal; ``None`` when ``reply`` is anything else."""
    if not reply.has_error() or reply.error.code != CODE:
        return None
    found = _REFERENCE.fullmatch(reply.error.reason or "")
    return found[1] if found else None
