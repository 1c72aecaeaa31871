"""Federated analytics: clients answer a query with numbers, and only their sums are ever opened."""

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
from fedcipher.keys.provider import ServerKeys
from fedcipher.keys.store import load_client
from fedcipher.schemes import Aggregator, Decryptor, Scheme

__all__ = ["EncryptedSum", "QueryRun"]

_log = quoting_log("fedcipher.federation")

_Totals = dict[str, "int | float | list[int] | list[float]"]


@dataclass(frozen=True)
class EncryptedSum:
    """The sum of all answers to a query, encrypted; `open` needs a client's or an auditor's key."""

    frame: bytes = field(repr=False)
    query: Query
    context: bytes
    """What the clients' apps were told beside the query."""
    clients: list[int]
    """Whose answers are in it."""
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """Nodes whose answers are not in it, and why."""

    def open(self, opener: Decryptor | str | Path, scheme: Scheme | None = None) -> _Totals:
        """The totals by name, exact in units of each answer's resolution: ints where that is 1, floats otherwise.

        Under a scheme with privacy they are floats with the noise that `noise` tells.

        ``opener`` is the path of a client's key file (``~`` is the home folder), or a `Decryptor` (of an engine, say)
        and its ``scheme``. What it opens is checked to be the sum of the answers of ``clients`` to this very query.
        Raises what `Decryptor.open` raises, and `StrategyError` where no client's app has answered.
        """
        if isinstance(opener, (str, Path)):
            scheme, key = load_client(Path(opener).expanduser())
            opener = scheme.decryptor(key)
        if scheme is None:
            raise ParameterError("a Decryptor does not say of which scheme it is: pass scheme=... beside it")
        model, memory = self.query.associated_data(self.context), self.query.memory()
        privacy = scheme.codec.privacy
        like = () if privacy is None else [NoisyAnswers(self.query.answers, privacy).shape]
        opened = opener.open(self.frame, round=self.query.round, model=model, memory=memory, like=like)
        found = sorted(contribution.client for contribution in opened.contributions)
        if found != self.clients:
            raise FrameError(f"the sum is of the clients {found}, and it was said to be of {self.clients}")
        if privacy is not None:
            (mean,) = opened.arrays
            return self._named(NoisyAnswers(self.query.answers, privacy).totals(mean, len(found)))
        sums = query_lanes(self.query.answers, scheme).decode(opened.lanes, len(found))
        if sums.counted < len(found):
            _log.warning(
                "the apps of %s of %s clients failed: they count nothing", len(found) - sums.counted, len(found)
            )
        if not sums.counted:
            raise StrategyError("no client's app has answered the query; the clients' logs have the cause")
        return self._named(sums.numbers)

    def _named(self, numbers: Mapping[str, list[Any]]) -> _Totals:
        """Lists and single numbers, as the answers are."""
        return {a.name: numbers[a.name] if a.length else numbers[a.name][0] for a in self.query.answers}

    def noise(self, scheme: Scheme) -> dict[str, float]:
        """The standard deviation of the noise in each total, by name; 0 under a ``scheme`` without privacy."""
        privacy = scheme.codec.privacy
        if privacy is None:
            return {answer.name: 0.0 for answer in self.query.answers}
        asked = NoisyAnswers(self.query.answers, privacy)
        grid = asked.grid(scheme)
        return asked.deviations(math.sqrt(grid.variance) * grid.step, len(self.clients))

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all, to be opened where a key is. Raises `RunError`."""
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
        """Read what `save` wrote. Raises `FrameError`."""
        try:
            head, _, frame = read_file(path, MAX_FRAME, follow=True).partition(b"\n")
            said = parse_json(head)
            if said["fedcipher-sum"] != 2:
                raise ValueError("another version")
            return cls(
                frame=frame,
                query=Query.decode(said["query"].encode()),
                context=bytes.fromhex(said["context"]),
                clients=[int(client) for client in said["clients"]],
                left_out={int(node): quoted(why) for node, why in said["left_out"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, CharterError) as error:
            raise FrameError(f"{path} is no encrypted sum: {quoted(error)}") from error


class QueryRun:
    """One query under the keys of ``provider``: ``content`` is what the app is asked, ``answers`` what is summed.

    ``message_type`` is that of the query's messages. Raises `ParameterError` where the keys' bits have no room for the
    noise of so many numbers.
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
        # Of an answer's frame.
        self._elements = query_lanes(self._asked.answers, scheme).count
        if privacy is not None:
            # Refused here, where the bits hold no noise of so many numbers.
            noisy = NoisyAnswers(self._asked.answers, privacy)
            noisy.grid(scheme)
            self._elements = noisy.shape.size

    def run(self, link: Link, nodes: Collection[int] | None, timeout: float, committee_timeout: float) -> EncryptedSum:
        """Ask ``nodes`` (all by default), add, and have the committee answer. Raises `StrategyError`."""
        least = self._scheme.min_contributions
        chosen = list(link.nodes() if nodes is None else nodes)
        if len(chosen) < least:
            raise StrategyError(
                f"{len(chosen)} nodes are asked, and a sum needs the answers of {least}; ask more nodes"
            )
        committee = Committee(committee_timeout, self._scheme, self._key)
        members = members_of(self._scheme, self._key)
        self._prekeys = committee.meet(link, members, needed_of(self._scheme), self._asked.type)
        if committee.lacking:
            raise StrategyError(f"the answers cannot be added: {committee.lacking}")
        sums = RoundSums(self._empty_sum)
        settings: dict[str, Any] = {
            "document": self._asked.encode(),
            "plan": self._scheme.round_plan(self._key, []),
            "prekeys": self._prekeys,
        }
        content = {**self._content, QUERY: Config({k: v for k, v in settings.items() if v})}
        messages = [Message(node, self._asked.type, content) for node in chosen]
        for reply in link.exchange(messages, until=time.monotonic() + timeout):
            self._take(reply, sums)
        # Which reply comes first decides nothing for the others.
        aggregator, accepted, others = sums.largest()
        for reply in others:
            why = ModelMismatchError("the client was asked, or its app was told, something else than most were")
            self._leave_out(reply.node, why)
        clients = {self._client_of[reply.node]: reply.node for reply in accepted}
        heard = {*self._left_out, *clients.values()}
        self._left_out.update({node: "no answer" for node in chosen if node not in heard})
        if len(clients) >= least:
            aggregator, clients = self._fitting(aggregator, clients)
        if len(clients) < least:
            raise StrategyError(f"{len(clients)} usable answers, a sum needs {least}; left out: {self._left_out}")
        try:
            # Not later: members of a committee remember each set that they answer for.
            self._memory.remember(clients)
        except SetRuleError as error:
            raise StrategyError(f"another query has summed other clients meanwhile: {error}. Ask again") from error
        away = committee.ask(link, aggregator, self._asked.type, clients)
        if away is not None:
            raise StrategyError(f"the answers cannot be added: {away.why}")
        context = sums.alike
        assert isinstance(context, bytes)
        return EncryptedSum(aggregator.finish(), self._asked, context, sorted(clients), self._left_out)

    def _fitting(self, aggregator: Aggregator, clients: dict[int, int]) -> tuple[Aggregator, dict[int, int]]:
        """The sum of those ``clients`` (with their nodes) that fits the sets of the key's queries before.

        Raises `StrategyError` where these are too few.
        """
        self._memory.refresh()
        fitting = self._memory.fitting(clients)
        if len(fitting) == len(clients):
            return aggregator, clients
        if len(fitting) < self._scheme.min_contributions:
            why = why_no_sum(self._memory.least(clients))
            raise StrategyError(
                f"no sum of these {len(clients)} answers fits the queries before. {why}; left out: {self._left_out}"
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

    def _take(self, reply: Reply, sums: RoundSums) -> None:
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
                raise LayoutError(f"an answer of {header.elements} values, the query has {self._elements}")
            self._client_of[reply.node] = sums.add(frame, reply, header.clients, context).client
            self._frames[reply.node] = frame
        except FedcipherError as error:
            self._leave_out(reply.node, error)

    def _leave_out(self, node: int, error: FedcipherError) -> None:
        self._left_out[node] = quoted(f"{type(error).__name__}: {error}")
        _log.warning("the answer of node %s is left out: %s", node, self._left_out[node])
