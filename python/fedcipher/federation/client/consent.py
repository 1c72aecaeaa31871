"""Whether a site's people agree to a run. A client answers "waiting" until they do, and its app computes nothing."""

from __future__ import annotations

from typing import Protocol

from fedcipher.errors import RoundError
from fedcipher.federation.charter import Charter
from fedcipher.federation.client.key_holder import KeyHolder
from fedcipher.federation.messages import CONSENT, READY, WAITING, Config, Content
from fedcipher.federation.round_settings import RoundSettings

__all__ = ["Consent", "answer", "waiting"]

_FIELDS = {"charter", "document", "signature"}


class Consent(Protocol):
    """A site's decision about what its data is used for."""

    def given(self, digest: bytes, document: bytes) -> bool:
        """Whether the site's people agree to the charter, or the query, with the SHA-256 ``digest``.

        ``document`` is the charter or the query itself; empty if the client has accepted it before. Raises
        `FedcipherError` if the site refuses.
        """
        ...


def answer(record: Config, holder: KeyHolder, consent: Consent | None) -> Content:
    """The reply to a server that asks for consent to a charter before its first round.

    The charter is not accepted yet, so the question ends no earlier run. Raises `CharterError` if the site's policy
    does not allow the charter.
    """
    if set(record) - _FIELDS:
        raise RoundError("the question for consent has an unknown field")
    # The numbers of a round are not in this question, and do not count.
    asked = RoundSettings.parse(Config({**record, "round": 1, "index": 1, "steps": 0}))
    holder.policy().judge(Charter.named(asked.document, asked.charter), asked.signature)
    if consent is None or consent.given(asked.charter, asked.document):
        return {CONSENT: Config({"state": READY})}
    return waiting()


def waiting() -> Content:
    """The reply of a client whose site has not agreed yet."""
    return {CONSENT: Config({"state": WAITING})}
