"""Federated analytics: clients answer a query with numbers, and only the sums of their answers are opened."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcipher._files import write_whole
from fedcipher.errors import (
    CharterError,
    FedcipherError,
    FrameError,
    LayoutError,
    ModelMismatchError,
    ParameterError,
    RevokedError,
    RoundError,
    SetRuleError,
    StrategyError,
)
from fedcipher.federation.answers import Answer
from fedcipher.federation.app_inputs import records_of
from fedcipher.federation.fault_finder import why_no_sum
from fedcipher.federation.messages import QUERY, Config, Content, Message, Reply
from fedcipher.federation.query import NoisyAnswers, Query, query_lanes
from fedcipher.federation.server.committee import Committee, members_of, needed_of
from fedcipher.federation.server.intake import frame_in, refusal_in
from fedcipher.federation.server.link import Link
from fedcipher.federation.server.round_ids import reserve
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.foreign_files import MAX_FRAME, parse_json, read_file
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.frame import inspect
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.keys.store import load_client
from fedcipher.schemes import Aggregator, Decryptor, Scheme

__all__ = ["EncryptedSum", "QueryRun"]

_log = quoting_log("fedcipher.federation")

_Totals = dict[str, "int | float | list[int] | list[float]"]


@dataclass(frozen=True)
class EncryptedSum:
    """The encrypted sum of all answers to a query; `open` needs a client's or an auditor's key."""

    frame: bytes = field(repr=False)
    query: Query
    context: bytes
    """Digest of the clients' settings that are not in the query."""
    clients: list[int]
    """The clients whose answers are in the sum, sorted."""
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """The nodes whose answers are not in the sum, each with the reason."""

    def open(self, opener: Decryptor | str | Path, scheme: Scheme | None = None) -> _Totals:
        """The totals by name, exact in units of each answer's resolution: ints if the resolution is 1, else floats.

        Under a scheme with privacy the totals are floats with noise; `noise` gives its standard deviation.

        ``opener`` is the path of a client's key file (``~`` is the home folder), or a `Decryptor`, such as an engine's,
        with its ``scheme``. Opening checks that the sum is of the answers of ``clients`` to this query. Raises the
        errors of `Decryptor.open`, and `StrategyError` if no client's app has answered.
        """
        if isinstance(opener, (str, Path)):
            scheme, key = load_client(Path(opener).expanduser())
            opener = scheme.decryptor(key)
        if scheme is None:
            raise ParameterError("a Decryptor does not know its scheme: pass scheme=... as well")
        model, memory = self.query.associated_data(self.context), self.query.memory()
        privacy = scheme.codec.privacy
        like = () if privacy is None else [NoisyAnswers(self.query.answers, privacy).shape]
        opened = opener.open(self.frame, round=self.query.round, model=model, memory=memory, like=like)
        found = sorted(contribution.client for contribution in opened.contributions)
        if found != self.clients:
            raise FrameError(f"the sum is of the clients {found}, but it should be of {self.clients}")
        if privacy is not None:
            (mean,) = opened.arrays
            return self._named(NoisyAnswers(self.query.answers, privacy).totals(mean, len(found)))
        sums = query_lanes(self.query.answers, scheme).decode(opened.lanes, len(found))
        if sums.counted < len(found):
            _log.warning(
                "the apps of %s of %s clients failed, so these clients are not counted",
                len(found) - sums.counted,
                len(found),
            )
        if not sums.counted:
            raise StrategyError("no client's app has answered the query; see the clients' logs")
        return self._named(sums.numbers)

    def _named(self, numbers: Mapping[str, list[Any]]) -> _Totals:
        """The totals by name: a list for an answer with a length, a single number for any other."""
        return {a.name: numbers[a.name] if a.length else numbers[a.name][0] for a in self.query.answers}

    def noise(self, scheme: Scheme) -> dict[str, float]:
        """The standard deviation of the noise in each total, by name; 0 if ``scheme`` has no privacy."""
        privacy = scheme.codec.privacy
        if privacy is None:
            return {answer.name: 0.0 for answer in self.query.answers}
        asked = NoisyAnswers(self.query.answers, privacy)
        grid = asked.grid(scheme)
        return asked.deviations(math.sqrt(grid.variance) * grid.step, len(self.clients))

    def save(self, path: str | Path) -> None:
        """Write the sum to a file atomically. Raises `RunError`."""
        head = {
            "fedcipher-sum": 2,
            "query": self.query.encode().decode(),
            "context": self.context.hex(),
            "clients": self.clients,
            "left_out": {str(node): why for node, why in self.left_out.items()},
        }
        write_whole(Path(path), json.dumps(head).encode() + b"\n" + self.frame, follow=True)

    @classmethod
    def load(cls, path: str | Path) -> EncryptedSum:
        """Read the file that `save` wrote. Raises `FrameError` for any other file."""
        try:
            head, _, frame = read_file(path, MAX_FRAME, follow=True).partition(b"\n")
            stored = parse_json(head)
            if stored["fedcipher-sum"] != 2:
                raise ValueError("another version")
            return cls(
                frame=frame,
                query=Query.decode(stored["query"].encode()),
                context=bytes.fromhex(stored["context"]),
                clients=[int(client) for client in stored["clients"]],
                left_out={int(node): quoted(why) for node, why in stored["left_out"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, CharterError) as error:
            raise FrameError(f"{path} is not an encrypted sum: {quoted(error)}") from error


class QueryRun:
    """One query under the keys of ``provider``.

    ``content`` is the content of the query for the app, ``answers`` describes the numbers to sum, and ``message_type``
    is the type of the query's messages. Raises `ParameterError` if the keys' bit width has no room for the noise of so
    many numbers.
    """

    def __init__(self, provider: ServerKeys, content: Content, answers: Sequence[Answer], message_type: str) -> None:
        self._scheme, self._key, self._content = provider.scheme, provider.current(), content
        scheme, key = self._scheme, self._key
        asked = Query(
            round=reserve(1),
            key_set=key.fingerprint,
            epoch=key.epoch,
            scheme=json.loads(json.dumps(scheme.spec())),
            type=message_type,
            asked=records_of(content, without=frozenset()),
            answers=answers,
        )
        self._asked = Query.decode(asked.encode())
        self._revoked = provider.revoked()
        self._prekeys: list[bytes] = []
        self._client_of: dict[int, int] = {}
        self._frames: dict[int, bytes] = {}
        self._memory = ServerSets("queries", scheme, key)
        self._left_out: dict[int, str] = {}
        privacy = scheme.codec.privacy
        # Number of values in the frame of a client's answers.
        self._elements = query_lanes(self._asked.answers, scheme).count
        if privacy is not None:
            # Raises `ParameterError` now, before any client is asked, if the bits have no room for the noise.
            noisy = NoisyAnswers(self._asked.answers, privacy)
            noisy.grid(scheme)
            self._elements = noisy.shape.size

    def run(self, link: Link, nodes: Collection[int] | None, timeout: float, committee_timeout: float) -> EncryptedSum:
        """Ask ``nodes`` (all by default), add their answers, and collect the committee's. Raises `StrategyError`.

        ``timeout`` and ``committee_timeout`` are in seconds.
        """
        minimum = self._scheme.min_contributions
        chosen = list(link.nodes() if nodes is None else nodes)
        if len(chosen) < minimum:
            raise StrategyError(
                f"the query asks {len(chosen)} nodes, and a sum needs the answers of {minimum}; ask more nodes"
            )
        committee = Committee(committee_timeout, self._scheme, self._key)
        members = members_of(self._scheme, self._key)
        self._prekeys = committee.collect_prekeys(link, members, needed_of(self._scheme), self._asked.type)
        if committee.why_no_sum:
            raise StrategyError(f"the answers cannot be added: {committee.why_no_sum}")
        sums = RoundSums(self._empty_sum)
        settings: dict[str, Any] = {
            "document": self._asked.encode(),
            "plan": self._scheme.round_plan(self._key, []),
            "prekeys": self._prekeys,
        }
        content = {**self._content, QUERY: Config({k: v for k, v in settings.items() if v})}
        messages = [Message(node, self._asked.type, content) for node in chosen]
        for reply in link.exchange(messages, until=time.monotonic() + timeout):
            self._add_reply(reply, sums)
        # The largest sum counts, so that the first reply cannot decide which others are accepted.
        aggregator, accepted, others = sums.largest()
        for reply in others:
            why = ModelMismatchError("the client got another query or other settings than most clients")
            self._leave_out(reply.node, why)
        clients = {self._client_of[reply.node]: reply.node for reply in accepted}
        heard = {*self._left_out, *clients.values()}
        self._left_out.update({node: "no answer" for node in chosen if node not in heard})
        if len(clients) >= minimum:
            aggregator, clients = self._fitting(aggregator, clients)
        if len(clients) < minimum:
            raise StrategyError(f"{len(clients)} usable answers, a sum needs {minimum}; left out: {self._left_out}")
        try:
            # Before the committee is asked, because its members remember each set that they answer for.
            self._memory.remember(clients)
        except SetRuleError as error:
            raise StrategyError(f"another query has summed other clients since: {error}. Ask again") from error
        failed = committee.collect_answers(link, aggregator, self._asked.type, clients)
        if failed is not None:
            raise StrategyError(f"the answers cannot be added: {failed.why}")
        context = sums.context
        assert isinstance(context, bytes)
        return EncryptedSum(aggregator.finish(), self._asked, context, sorted(clients), self._left_out)

    def _fitting(self, aggregator: Aggregator, clients: dict[int, int]) -> tuple[Aggregator, dict[int, int]]:
        """The sum of as many ``clients`` as the rule of sets allows after the key's earlier queries, and these clients.

        ``clients`` maps clients to nodes. Raises `StrategyError` if too few clients remain.
        """
        self._memory.refresh()
        fitting = self._memory.fitting(clients)
        if len(fitting) == len(clients):
            return aggregator, clients
        if len(fitting) < self._scheme.min_contributions:
            why = why_no_sum(self._memory.minimum_of(clients))
            raise StrategyError(
                f"after the earlier queries, no sum of these {len(clients)} answers is allowed. {why}; "
                f"left out: {self._left_out}"
            )
        made = self._empty_sum()
        for client in fitting:
            made.add(self._frames[clients[client]])
        for client in sorted(set(clients) - set(fitting)):
            why = RoundError("its sum with the others would differ from an earlier query's by too few clients")
            self._leave_out(clients[client], why)
        return made, {client: clients[client] for client in fitting}

    def _empty_sum(self) -> Aggregator:
        made = self._scheme.aggregator(self._key, round=self._asked.round)
        if made.committee is not None:
            made.committee.take_prekeys(self._prekeys)
        return made

    def _add_reply(self, reply: Reply, sums: RoundSums) -> None:
        try:
            refused = refusal_in(reply)
            if refused is not None:
                raise StrategyError(refused)
            frame, context = frame_in(reply, "answer", "query_mod")
            header = inspect(frame)
            for client in header.clients:
                if client in self._revoked:
                    raise RevokedError(f"client {client} has been revoked; its answer is not used")
            if header.elements != self._elements:
                raise LayoutError(f"the answer has {header.elements} values, but the query has {self._elements}")
            self._client_of[reply.node] = sums.add(frame, reply, header.clients, context).client
            self._frames[reply.node] = frame
        except FedcipherError as error:
            self._leave_out(reply.node, error)

    def _leave_out(self, node: int, error: FedcipherError) -> None:
        self._left_out[node] = quoted(f"{type(error).__name__}: {error}")
        _log.warning("the answer of node %s is left out: %s", node, self._left_out[node])
