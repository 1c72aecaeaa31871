"""A receipt shows one line of a log, with the proof that a signed head covers it, and none of the other lines."""

from __future__ import annotations

from typing import Any

from fedcipher import _native
from fedcipher.errors import CharterError, ParameterError, StateError
from fedcipher.federation.canonical import decode, encode
from fedcipher.guard.audit import SiteLog
from fedcipher.guard.log import Head, Line

__all__ = ["MAX_RECEIPT", "Receipt", "make_receipt"]

MAX_RECEIPT = 1 << 26
"""Most bytes of a receipt."""
_VERSION = 1
_FIELDS = ["fedcipher_receipt", "head", "line", "proof", "verify"]


def make_receipt(log: SiteLog, number: int) -> bytes:
    """The receipt of line ``number``, from 0, of a log. Raises `ParameterError` for a line that the log lacks."""
    if not 0 <= number < len(log.lines):
        raise ParameterError(f"{log.name} has the lines 0 to {len(log.lines) - 1}, and no line {number}")
    return encode(
        {
            "fedcipher_receipt": _VERSION,
            "line": log.lines[number].raw.decode("ascii"),
            "head": log.parsed.head.encode().hex(),
            "proof": log.parsed.tree.inclusion(number).hex(),
            "verify": log.start["verify"],
        }
    )


class Receipt:
    """A receipt from another party. Making the object checks it; raises `StateError` if it does not hold.

    ``line`` is the line, ``head`` the head that covers it, and ``verify`` the public key that signed the head. The
    caller compares the key with the site's.
    """

    def __init__(self, content: bytes) -> None:
        try:
            found: Any = decode(content)
            if sorted(found) != _FIELDS or found["fedcipher_receipt"] != _VERSION:
                raise StateError("the receipt does not have the fields of a receipt")
            self.line = Line.parse(found["line"].encode("ascii"))
            self.head, proof = Head.decode(bytes.fromhex(found["head"])), bytes.fromhex(found["proof"])
            self.verify = bytes.fromhex(found["verify"])
        except (CharterError, ValueError, TypeError, AttributeError) as error:
            raise StateError("the receipt is damaged") from error
        if not self.head.holds(self.verify):
            raise StateError("the receipt's head is not signed with the key that the receipt names")
        if not 0 <= self.line.n < self.head.size:
            raise StateError("the receipt's head does not cover a line of this number")
        if not _native.log_includes(self.head.size, self.head.root, self.line.n, self.line.raw, proof):
            raise StateError("the receipt's head does not cover the line")
