"""A client's answer to a query of `fedcipher.federation.server.query_sum`."""

from __future__ import annotations

import json
from typing import Any

from fedcipher.errors import CharterError, RoundError
from fedcipher.federation.answers import Tally
from fedcipher.federation.app_inputs import records_of
from fedcipher.federation.client.app_result import AppResult, numbers_of
from fedcipher.federation.client.egress import checked
from fedcipher.federation.client.evidence import FRAME, frame_facts, query_facts
from fedcipher.federation.client.evidence import QUERY as QUERY_LINE
from fedcipher.federation.client.key_holder import KeyHolder, charge_privacy_budget, take_prekeys
from fedcipher.federation.messages import CONTEXT, QUERY, RECORD, UPDATE, Config, Content, Message, wire_record
from fedcipher.federation.query import NoisyAnswers, Query, query_lanes
from fedcipher.federation.round_settings import prekeys_of
from fedcipher.foreign_text import quoting_log

__all__ = ["QueryFrame"]

_log = quoting_log("fedcipher.federation")
_FIELDS = {"document", "plan", "prekeys"}


class QueryFrame:
    """The answer to one query. Making the object checks the query and raises `FedcipherError` for a refusal.

    Use it inside the lock of the ``holder``'s store.
    """

    def __init__(self, message: Message, holder: KeyHolder, context: bytes) -> None:
        settings = message.content[QUERY]
        document, plan = settings.get("document"), settings.get("plan", b"")
        if not isinstance(document, bytes) or not isinstance(plan, bytes) or not set(settings) <= _FIELDS:
            raise RoundError("the query's settings must be its charter, a plan and prekeys")
        prekeys = prekeys_of(Config(settings))
        self._query, self._holder, self._plan, self._context = Query.decode(document), holder, plan, context
        self._check(message)
        self._encryptor = holder.encryptor(self._query.epoch)
        take_prekeys(self._encryptor, prekeys)

    def _check(self, message: Message) -> None:
        """Check the query before the app sees it, and record it on disk as answered. Raises `FedcipherError`."""
        query, holder = self._query, self._holder
        if query.key_set != holder.key_set(query) or query.scheme != json.loads(json.dumps(holder.scheme.spec())):
            raise CharterError("the query has other keys or another scheme than this client")
        content = records_of(message.content, without=frozenset([QUERY]))
        if query.type != message.type or content != query.asked:
            raise CharterError("the message asks another question than the query's charter")
        policy = holder.policy()
        policy.judge_query(query)
        facts = holder.store.recall()
        if query.round <= int(facts.get("queried", 0)):
            raise CharterError(f"query {query.round} is not later than query {facts['queried']}, which was answered")
        if policy.queries and not holder.simulated:
            holder.store.count("queries", query.epoch, query.digest.hex(), policy.queries)
        charge_privacy_budget(holder, query)
        if holder.recorder is not None:
            holder.recorder.record(QUERY_LINE, query_facts(query, self._context), once=True)
        holder.store.remember(queried=query.round)

    def seal(self, result: AppResult) -> Content:
        """The reply with the answers in the app's ``result``, or with zeros that do not count if the app failed."""
        query, scheme = self._query, self._holder.scheme
        if result.failed:
            _log.warning("query: this client answers with zeros that do not count: %s", result.failed)
        values = {answer.name: numbers_of(result.metrics.get(answer.name)) for answer in query.answers}
        missing = [answer.name for answer in query.answers if len(values[answer.name]) != answer.count]
        if missing and not result.failed:
            _log.warning("query: the app's answers %s are missing or have another length, and count as zeros", missing)
        privacy = scheme.codec.privacy
        if privacy is None:
            lanes = query_lanes(query.answers, scheme)
            tally = Tally(not result.failed, 1, values)
            sent: dict[str, Any] = {"update": [], "lanes": lanes.encode(tally), "counts": lanes.counts}
        else:
            # If the app failed, the values are zeros, which need no noise.
            sent = {"update": [NoisyAnswers(query.answers, privacy).encode({} if result.failed else values)]}
        bound = query.associated_data(self._context)
        frame = self._encryptor.encrypt(
            **sent, round=query.round, round_plan=self._plan, model=bound, memory=query.memory()
        )
        context: dict[str, Any] = {"digest": self._context}
        if self._holder.recorder is not None:
            facts = frame_facts(frame, query.digest, "query", 0, bound)
            context["head"] = self._holder.recorder.record(FRAME, facts)
        content: Content = {RECORD: wire_record({UPDATE: frame}), CONTEXT: Config(context)}
        return checked(content, scheme.name, query.round, frozenset())
