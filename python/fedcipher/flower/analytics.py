"""Federated analytics: clients answer a query with numbers, and only their sums are ever opened.

>>> app = ClientApp(mods=[query_mod])                                        # doctest: +SKIP
>>> total = secure_sum(grid, query, "keys", answers=["count"]).open("keys/client-0.key")     # doctest: +SKIP
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedcipher import _native
from fedcipher._arguments import as_text, instance_of, seconds, whole_numbers
from fedcipher._files import write_whole
from fedcipher.errors import (
    CharterError,
    FedcipherError,
    FrameError,
    LayoutError,
    ModelMismatchError,
    ParameterError,
    PlaintextError,
    RevokedError,
    RoundError,
    SetRuleError,
    StrategyError,
)
from fedcipher.federation.answers import Answer, Tally
from fedcipher.federation.fault_finder import no_part
from fedcipher.federation.query import NoisyAnswers, Query, query_lanes
from fedcipher.flower import protocol
from fedcipher.flower.client import client_mod, take_prekeys, type_of
from fedcipher.flower.committee import Committee, members_of, needed_of
from fedcipher.flower.numbers import reserve
from fedcipher.flower.outgoing import checked
from fedcipher.flower.party import Party, party_of, spend
from fedcipher.flower.refusal import reference_of, refuse
from fedcipher.flower.replies import Gathering, answered, check_grid
from fedcipher.flower.set_memory import ServerSets
from fedcipher.flower.settings import prekeys_of
from fedcipher.flower.sums import RoundSums
from fedcipher.flower.told import context_of, records_of
from fedcipher.flower.work import computed, numbers_of
from fedcipher.foreign_files import MAX_FRAME, parse_json, read_file
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.keys.provider import ServerKeys, server_keys
from fedcipher.keys.store import load_client
from fedcipher.schemes import Aggregator, Decryptor, Scheme

if TYPE_CHECKING:
    # Only a type, and not everywhere in the Flower versions that work.
    from flwr.clientapp.typing import ClientAppCallable

__all__ = ["EncryptedSum", "query_mod", "secure_sum"]

_log = quoting_log("fedcipher.flower")

QUERY = protocol.PREFIX + "query"
"""ConfigRecord of a query: its charter, and the round's plan."""
_RECORD = "arrays"

_Totals = dict[str, "int | float | list[int] | list[float]"]


# --- the client ------------------------------------------------------------------------------


def query_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """`client_mod` that also answers the queries of `secure_sum`, encrypted.

    The app's ``@app.query()`` handler stays as it is: it returns one MetricRecord of numbers or lists of numbers. The
    query's charter names the answers; they leave as the lanes of one frame, whatever the app returned. A query that
    `secure_sum` did not send, or that this site's policy does not allow, is refused before the app sees it.
    """
    category = msg.metadata.message_type.partition(".")[0]
    if category != MessageType.QUERY or QUERY not in msg.content.config_records:
        return client_mod(msg, ctxt, call_next)
    try:
        return _answered(msg, ctxt, call_next)
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of native code is a BaseException: none of these may travel with its text.
    except BaseException as error:
        return refuse(msg, error)


def _answered(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    settings = msg.content.config_records.pop(QUERY)
    document, plan = settings.get("document"), settings.get("plan", b"")
    known = {"document", "plan", "prekeys"}
    if not isinstance(document, bytes) or not isinstance(plan, bytes) or not set(settings) <= known:
        raise RoundError("the query's settings are not its charter, a plan and prekeys")
    prekeys = prekeys_of(settings)
    query, party, context = Query.decode(document), party_of(ctxt), context_of(ctxt)
    with party.store.locked():
        _check(query, msg, party)
        encryptor = party.encryptor(query.epoch)
        take_prekeys(encryptor, prekeys)
        work = computed(msg, ctxt, call_next, None, _RECORD)
        if work.failed:
            _log.warning("query: this client answers with zeros that count nothing: %s", work.failed)
        missing = [a.name for a in query.answers if len(numbers_of(work.metrics.get(a.name))) != a.count]
        if missing and not work.failed:
            _log.warning("query: the app's answers %s are missing or of another length, and count as zeros", missing)
        values = {answer.name: numbers_of(work.metrics.get(answer.name)) for answer in query.answers}
        privacy = party.scheme.codec.privacy
        if privacy is None:
            lanes = query_lanes(query.answers, party.scheme)
            tally = Tally(not work.failed, 1, values)
            sent: dict[str, Any] = {"update": [], "lanes": lanes.encode(tally), "counts": lanes.counts}
        else:
            # An app that failed has sent nothing that noise would have to cover.
            sent = {"update": [NoisyAnswers(query.answers, privacy).encode({} if work.failed else values)]}
        frame = encryptor.encrypt(
            **sent, round=query.round, plan=plan, model=query.binding(context), memory=query.memory()
        )
    content = RecordDict({_RECORD: protocol.wire_record({protocol.UPDATE: frame})})
    content[protocol.CONTEXT] = ConfigRecord({"digest": context})
    return checked(Message(content, reply_to=msg), party.scheme.name, query.round, frozenset())


def _check(query: Query, msg: Message, party: Party) -> None:
    """Everything that can be refused, before the app sees the query; then it counts as answered, on disk."""
    if query.key_set != party.key_set(query) or query.scheme != json.loads(json.dumps(party.scheme.spec())):
        raise CharterError("the query is of other keys or another scheme than this client's")
    if query.type != msg.metadata.message_type or records_of(msg.content, without=frozenset()) != query.asked:
        raise CharterError("the message asks something else than the query's charter says")
    policy = party.policy()
    policy.judge_query(query)
    facts = party.store.recall()
    if query.round <= int(facts.get("queried", 0)):
        raise CharterError(f"query {query.round} is not after query {facts['queried']}, which was answered")
    if policy.queries and not party.simulated:
        party.store.count("queries", query.epoch, query.digest.hex(), policy.queries)
    spend(party, query)
    party.store.remember(queried=query.round)


# --- the server ------------------------------------------------------------------------------


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

        ``opener`` is the path of a client's key file, or a `Decryptor` (of an engine, say) and its ``scheme``. What it
        opens is checked to be the sum of the answers of ``clients`` to this very query. Raises what `Decryptor.open`
        raises, and `StrategyError` where no client's app has answered.
        """
        if isinstance(opener, (str, Path)):
            scheme, key = load_client(opener)
            opener = scheme.decryptor(key)
        if scheme is None:
            raise ParameterError("a Decryptor does not say of which scheme it is: pass scheme=... beside it")
        model, memory = self.query.binding(self.context), self.query.memory()
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


def secure_sum(
    grid: Grid,
    query: RecordDict,
    keys: str | Path | ServerKeys,
    *,
    answers: Iterable[Answer | str],
    nodes: Iterable[int] | None = None,
    message_type: str = MessageType.QUERY,
    resolution: float = 1.0,
    largest: float = 2.0**53,
    timeout: float = 3600.0,
    committee_timeout: float = 60.0,
) -> EncryptedSum:
    """Ask ``nodes`` (all by default) a ``query`` and add up their encrypted answers.

    Every ClientApp needs `query_mod`. ``answers`` names the metrics that are summed: as `Answer` with ``how="sum"``,
    or by name, for one number of ``resolution`` and at most ``largest``. Each client rounds to the resolution and
    saturates at the largest. Keys with privacy give sums with noise, which grows with ``largest`` and with the root of
    how many numbers are asked. ``keys`` as in `SecureStrategy`: ``server.key``, its folder, or an authority.

    The server gets no answer, only their sum, and that encrypted. Sums of nearly the same clients would show single
    answers, so clients remember of which sets sums were opened. Under one key rounds increase with time: do not ask
    while a `SecureStrategy` made earlier is running. ``committee_timeout`` is the seconds that a committee has to
    answer, for schemes that have one.

    Raises `ParameterError`, and `StrategyError` where fewer nodes than the scheme's ``min_contributions`` are there or
    have answered, and where too few of the committee have.
    """
    listed = Answer.all_of(answers, "answers", resolution=resolution, largest=largest, how="sum")
    chosen = None if nodes is None else whole_numbers(nodes, "nodes")
    most, patience = seconds(timeout, "timeout"), seconds(committee_timeout, "committee_timeout")
    check_grid(grid)
    type_of(as_text(message_type, "message_type"))
    instance_of(query, RecordDict, "query", "give a RecordDict of what the app is asked")
    provider = server_keys(keys)
    scheme, key = provider.scheme, provider.current()
    asked = Query(
        round=reserve(1),
        key_set=key.fingerprint,
        epoch=key.epoch,
        scheme=json.loads(json.dumps(scheme.spec())),
        type=message_type,
        asked=records_of(query, without=frozenset()),
        answers=listed,
    )
    asked = Query.decode(asked.encode())
    return _Asking(grid, scheme, provider, key, asked).run(query, chosen, most, patience)


class _Asking:
    """One query on its way."""

    def __init__(self, grid: Grid, scheme: Scheme, provider: ServerKeys, key: _native.ServerKey, asked: Query) -> None:
        self._grid, self._scheme, self._key, self._asked = grid, scheme, key, asked
        self._revoked = provider.revoked()
        self._prekeys: list[bytes] = []
        self._client_of: dict[int, int] = {}
        self._frames: dict[int, bytes] = {}
        self._memory = ServerSets("queries", scheme, key)
        self._left_out: dict[int, str] = {}
        privacy = scheme.codec.privacy
        # Of an answer's frame.
        self._elements = query_lanes(asked.answers, scheme).count
        if privacy is not None:
            # Refused here, where the bits hold no noise of so many numbers.
            noisy = NoisyAnswers(asked.answers, privacy)
            noisy.grid(scheme)
            self._elements = noisy.shape.size

    def run(
        self, query: RecordDict, nodes: Iterable[int] | None, timeout: float, committee_timeout: float
    ) -> EncryptedSum:
        """Ask, add, and have the committee answer. Raises `StrategyError`."""
        grid, least = self._grid, self._scheme.min_contributions
        chosen = list(answered(grid.get_node_ids)) if nodes is None else list(nodes)
        if len(chosen) < least:
            raise StrategyError(
                f"{len(chosen)} nodes are asked, and a sum needs the answers of {least}; ask more nodes"
            )
        committee = Committee(committee_timeout, self._scheme, self._key)
        members = members_of(self._scheme, self._key)
        self._prekeys = committee.meet(grid, members, needed_of(self._scheme), self._asked.type)
        if committee.lacking:
            raise StrategyError(f"the answers cannot be added: {committee.lacking}")
        sums = RoundSums(self._empty_sum)
        settings: dict[str, Any] = {
            "document": self._asked.encode(),
            "plan": self._scheme.plan(self._key, []),
            "prekeys": self._prekeys,
        }
        content = RecordDict({**dict(query.items()), QUERY: ConfigRecord({k: v for k, v in settings.items() if v})})
        messages = [Message(content, dst_node_id=node, message_type=self._asked.type) for node in chosen]
        for reply in Gathering(grid, messages, until=time.monotonic() + timeout):
            self._take(reply, sums)
        # Which reply comes first decides nothing for the others.
        aggregator, accepted, others = sums.largest()
        for reply in others:
            why = ModelMismatchError("the client was asked, or its app was told, something else than most were")
            self._leave_out(reply.metadata.src_node_id, why)
        clients = {self._client_of[reply.metadata.src_node_id]: reply.metadata.src_node_id for reply in accepted}
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
        away = committee.ask(grid, aggregator, self._asked.type, clients)
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
            why = no_part(self._memory.least(clients))
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

    def _take(self, reply: Message, sums: RoundSums) -> None:
        node = reply.metadata.src_node_id
        try:
            frame, context = _answer_of(reply)
            _, _, _, _, contributions, elements, *_ = _native.inspect(frame)
            named = [client for client, _ in contributions]
            for client in named:
                if client in self._revoked:
                    raise RevokedError(f"client {client} has been revoked; its answer is not used")
            if elements != self._elements:
                raise LayoutError(f"an answer of {elements} values, the query has {self._elements}")
            self._client_of[node] = sums.add(frame, reply, named, context).client
            self._frames[node] = frame
        except FedcipherError as error:
            self._leave_out(node, error)

    def _leave_out(self, node: int, error: FedcipherError) -> None:
        self._left_out[node] = quoted(f"{type(error).__name__}: {error}")
        _log.warning("the answer of node %s is left out: %s", node, self._left_out[node])


def _answer_of(reply: Message) -> tuple[bytes, bytes]:
    """The frame, and what its client's app was told beside the query."""
    if reply.has_error():
        reference = reference_of(reply)
        raise StrategyError(
            f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"
            if reference
            else quoted(reply.error.reason)
        )
    arrays = [array for record in reply.content.array_records.values() for array in record.items()]
    context = reply.content.config_records.get(protocol.CONTEXT, ConfigRecord()).get("digest")
    if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE or not isinstance(context, bytes):
        raise PlaintextError("the answer is not encrypted; add fedcipher.flower.analytics.query_mod to the app's mods")
    return protocol.frame_bytes(arrays[0][1]), context
