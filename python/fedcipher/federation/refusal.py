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

from fedcipher.errors import FedcipherError
from fedcipher.federation.messages import REFUSED, Config, Message
from fedcipher.foreign_text import quoting_log

__all__ = ["CODE", "TEXT", "reference_of", "refusal", "refused"]

_log = quoting_log("fedcipher.federation")

CODE = 6
"""Of every refusal, where a framework has codes: Flower calls it MOD_FAILED_PRECONDITION."""
TEXT = "Fedcipher refused this message; the cause is in this client's own log, reference "
"""Every refusal's text, before its reference of eight hexadecimal digits."""

_REFERENCE = re.compile(re.escape(TEXT) + r"([0-9a-f]{8})")


def refusal(error: BaseException) -> str:
    """The text of a refusal; ``error`` goes to this client's log (`fedcipher.federation`) under its reference."""
    reference = secrets.token_hex(4)
    _log.warning("refused, reference %s: %s: %s", reference, type(error).__name__, error)
    if not isinstance(error, FedcipherError):
        # Ours name their cause themselves; of another's the line that failed says more. The traceback's
        # text without the error's own: that is on one line above.
        _log.traceback(f"traceback of reference {reference}", error)
    return TEXT + reference


def refused(message: Message, error: BaseException) -> Message:
    """The refusal of ``message`` as a message, for an adapter whose framework has no errors of its own."""
    return Message(message.node, message.type, {REFUSED: Config({"text": refusal(error)})})


def reference_of(text: str, code: int = CODE) -> str | None:
    """The reference of a refusal with this ``text`` and ``code``; ``None`` when they are of anything else."""
    found = _REFERENCE.fullmatch(text) if code == CODE else None
    return found[1] if found else None
