"""A client's answer to a query of `fedcipher.federation.server.query_sum`."""

from __future__ import annotations

import json
from typing import Any

from fedcipher.errors import CharterError, RoundError
from fedcipher.federation.answers import Tally
from fedcipher.federation.app_inputs import records_of
from fedcipher.federation.client.app_result import AppResult, numbers_of
from fedcipher.federation.client.egress import checked
from fedcipher.federation.client.key_holder import KeyHolder, spend, take_prekeys
from fedcipher.federation.messages import CONTEXT, QUERY, RECORD, UPDATE, Config, Content, Message, wire_record
from fedcipher.federation.query import NoisyAnswers, Query, query_lanes
from fedcipher.federation.round_settings import prekeys_of
from fedcipher.foreign_text import quoting_log

__all__ = ["QueryFrame"]

_log = quoting_log("fedcipher.federation")
_FIELDS = {"document", "plan", "prekeys"}


class QueryFrame:
    """The answer to one query; everything that can be refused is refused when it is made.

    Use it inside the lock of the ``holder``'s memory. Raises `FedcipherError`.
    """

    def __init__(self, message: Message, holder: KeyHolder, context: bytes) -> None:
        settings = message.content[QUERY]
        document, plan = settings.get("document"), settings.get("plan", b"")
        if not isinstance(document, bytes) or not isinstance(plan, bytes) or not set(settings) <= _FIELDS:
            raise RoundError("the query's settings are not its charter, a plan and prekeys")
        prekeys = prekeys_of(Config(settings))
        self._query, self._holder, self._plan, self._context = Query.decode(document), holder, plan, context
        self._check(message)
        self._encryptor = holder.encryptor(self._query.epoch)
        take_prekeys(self._encryptor, prekeys)

    def _check(self, message: Message) -> None:
        """Refuse what has to be refused, before the app sees the query; then it counts as answered, on disk."""
        query, holder = self._query, self._holder
        if query.key_set != holder.key_set(query) or query.scheme != json.loads(json.dumps(holder.scheme.spec())):
            raise CharterError("the query is of other keys or another scheme than this client's")
        told = records_of(message.content, without=frozenset([QUERY]))
        if query.type != message.type or told != query.asked:
            raise CharterError("the message asks something else than the query's charter says")
        policy = holder.policy()
        policy.judge_query(query)
        facts = holder.store.recall()
        if query.round <= int(facts.get("queried", 0)):
            raise CharterError(f"query {query.round} is not after query {facts['queried']}, which was answered")
        if policy.queries and not holder.simulated:
            holder.store.count("queries", query.epoch, query.digest.hex(), policy.queries)
        spend(holder, query)
        holder.store.remember(queried=query.round)

    def seal(self, result: AppResult) -> Content:
        """The reply with the answers in the app's ``result``, or with zeros that count nothing."""
        query, scheme = self._query, self._holder.scheme
        if result.failed:
            _log.warning("query: this client answers with zeros that count nothing: %s", result.failed)
        values = {answer.name: numbers_of(result.metrics.get(answer.name)) for answer in query.answers}
        missing = [answer.name for answer in query.answers if len(values[answer.name]) != answer.count]
        if missing and not result.failed:
            _log.warning("query: the app's answers %s are missing or of another length, and count as zeros", missing)
        privacy = scheme.codec.privacy
        if privacy is None:
            lanes = query_lanes(query.answers, scheme)
            tally = Tally(not result.failed, 1, values)
            sent: dict[str, Any] = {"update": [], "lanes": lanes.encode(tally), "counts": lanes.counts}
        else:
            # An app that failed has sent nothing that noise would have to cover.
            sent = {"update": [NoisyAnswers(query.answers, privacy).encode({} if result.failed else values)]}
        frame = self._encryptor.encrypt(
            **sent,
            round=query.round,
            round_plan=self._plan,
            model=query.associated_data(self._context),
            memory=query.memory(),
        )
        content: Content = {RECORD: wire_record({UPDATE: frame}), CONTEXT: Config({"digest": self._context})}
        return checked(content, scheme.name, query.round, frozenset())
