"""Federated analytics: clients answer a query with numbers, and only their sums are ever opened.

>>> app = ClientApp(mods=[query_mod])                                        # doctest: +SKIP
>>> total = secure_sum(grid, query, "keys").open("keys/client-0.key")        # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedcipher import _native
from fedcipher._files import write_whole
from fedcipher.errors import (
    FedcipherError,
    FrameError,
    LayoutError,
    ModelMismatchError,
    PlaintextError,
    RevokedError,
    RoundError,
    StrategyError,
)
from fedcipher.flower import exact, protocol
from fedcipher.flower.client import client_mod
from fedcipher.flower.committee import Committee
from fedcipher.flower.numbers import reserve
from fedcipher.flower.outgoing import Expected, checked
from fedcipher.flower.party import party_of
from fedcipher.flower.refusal import reference_of, refuse
from fedcipher.flower.replies import Gathering, answered
from fedcipher.flower.sums import Sums
from fedcipher.foreign_files import MAX_FRAME, parse_json, read_file
from fedcipher.foreign_text import quoted, quoting_log
from fedcipher.keys.provider import ServerKeys, server_keys
from fedcipher.keys.store import load_client
from fedcipher.schemes import Decryptor

if TYPE_CHECKING:
    # Only a type, and not everywhere in the Flower versions that work.
    from flwr.clientapp.typing import ClientAppCallable

__all__ = ["EncryptedSum", "query_mod", "secure_sum"]

_log = quoting_log("fedcipher.flower")

QUERY = protocol.PREFIX + "query"
"""ConfigRecord of a query: its round, key epoch, plan and resolution."""
ANSWER = protocol.PREFIX + "answer"
"""ConfigRecord of an answer: what its numbers are called, and how many each name has (0: a single number)."""

_Totals = dict[str, "int | float | list[int] | list[float]"]


# --- what both ends say of a query -----------------------------------------------------------


@dataclass(frozen=True)
class _Query:
    """A query's settings, which the server writes and the client checks."""

    round: int
    epoch: int
    plan: bytes
    resolution: float

    @classmethod
    def parse(cls, record: ConfigRecord) -> _Query:
        """From a message. Raises `RoundError` for anything missing, of another type or out of range."""
        kinds = {"round": int, "epoch": int, "plan": bytes, "resolution": float}
        for name, kind in kinds.items():
            if type(record.get(name)) is not kind:
                raise RoundError(f"the query's settings have no {name} of type {kind.__name__}")
        made = cls(**{name: cast(Any, record[name]) for name in kinds})
        if not (1 <= made.round < 2**63 and 0 <= made.epoch < 2**63):
            raise RoundError(f"round {made.round} or epoch {made.epoch} of the query is out of range")
        if not (math.isfinite(made.resolution) and made.resolution > 0):
            raise RoundError(f"the query's resolution {made.resolution} is not a positive number")
        return made


def _described(content: RecordDict) -> str:
    """What was asked, in one text: equal for equal queries only."""
    said: list[Any] = []
    for name, record in sorted(content.items()):
        if name == QUERY:
            continue
        if isinstance(record, ArrayRecord):
            items = [[key, array.dtype, list(array.shape), array.data.hex()] for key, array in record.items()]
        else:
            items = [
                [key, type(value).__name__, value.hex() if isinstance(value, bytes) else repr(value)]
                for key, value in record.items()
            ]
        said.append([type(record).__name__, name, items])
    return json.dumps(said)


def _digest(asked: str, resolution: float, names: Sequence[str], lengths: Sequence[int]) -> bytes:
    """Goes into each answer's tag: answers to different questions do not add up to anything that opens."""
    said = json.dumps(["fedcipher query 1", asked, repr(resolution), list(names), list(lengths)])
    return hashlib.sha256(said.encode()).digest()


# --- the client ------------------------------------------------------------------------------


def query_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """`client_mod` that also answers the queries of `secure_sum`, encrypted.

    The app's ``@app.query()`` handler stays as it is: it returns one MetricRecord of numbers or lists of numbers,
    which leaves as one frame. Names and lengths leave in the clear. A query that `secure_sum` did not send is
    refused, as everything that `client_mod` refuses, and with the same answer.
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
    query = _Query.parse(msg.content.config_records.pop(QUERY))
    asked = _described(msg.content)
    party = party_of(ctxt)
    encryptor = party.encryptor(query.epoch)
    reply = call_next(msg, ctxt)
    if not isinstance(cast(object, reply), Message) or reply.has_error():
        # The check on the way out says what is wrong with it.
        return checked(reply, Expected(party.scheme.name, query.round))
    names, lengths, numbers = _numbers_of(reply.content, query.resolution)
    update, reference = exact.encode(numbers, party.scheme.codec)
    frame = encryptor.encrypt(
        [update],
        round=query.round,
        reference=[reference],
        plan=query.plan,
        model=_digest(asked, query.resolution, names, lengths),
    )
    answer = ConfigRecord({"names": names, "lengths": lengths})
    reply.content = RecordDict({"arrays": protocol.wire_record({protocol.UPDATE: frame}), ANSWER: answer})
    return checked(reply, Expected(party.scheme.name, query.round))


def _numbers_of(content: RecordDict, resolution: float) -> tuple[list[str], list[int], list[int]]:
    """Names, lengths and all numbers, in units of ``resolution``."""
    records = list(content.values())
    if len(records) != 1 or not isinstance(records[0], MetricRecord) or not len(records[0]):
        raise PlaintextError("an answer that is to be summed is one MetricRecord with numbers, and nothing else")
    names: list[str] = []
    lengths: list[int] = []
    numbers: list[int] = []
    for name, held in sorted(records[0].items()):
        values = held if isinstance(held, list) else [held]
        if not values:
            raise LayoutError(f"{name!r} is an empty list; every client answers with the same number of values")
        names.append(name)
        lengths.append(len(values) if isinstance(held, list) else 0)
        numbers += [_units(name, value, resolution) for value in values]
    return names, lengths, numbers


def _units(name: str, value: float, resolution: float) -> int:
    if not math.isfinite(value):
        raise LayoutError(f"{name!r} is {value}, which cannot be added up")
    # The decimal number that was written, not the float next to it: 3 in units of 0.001 is 3000.
    units = Fraction(value) / Fraction(repr(resolution))
    if resolution == 1 and units.denominator != 1:
        raise LayoutError(f"{name!r} is {value}: not a whole number; pass secure_sum a resolution, such as 0.001")
    return round(units)


# --- the server ------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncryptedSum:
    """The sum of all answers to a query, encrypted; `open` needs a client's or an auditor's key."""

    frame: bytes = field(repr=False)
    asked: str
    round: int
    bits: int
    resolution: float
    names: list[str]
    lengths: list[int]
    clients: list[int]
    """Whose answers are in it."""
    left_out: dict[int, str] = field(default_factory=dict[int, str])
    """Nodes whose answers are not in it, and why."""

    def open(self, opener: Decryptor | str | Path) -> _Totals:
        """The totals by name, exact in units of the resolution: ints where that is 1, floats otherwise.

        ``opener`` is a `Decryptor` (of an engine, say) or the path of a client's key file. What it opens is checked
        to be the sum of the answers of ``clients`` to this very query. Raises what `Decryptor.open` raises.
        """
        decryptor = opener
        if isinstance(decryptor, (str, Path)):
            scheme, key = load_client(decryptor)
            decryptor = scheme.decryptor(key)
        model = _digest(self.asked, self.resolution, self.names, self.lengths)
        opened = decryptor.open(self.frame, round=self.round, model=model)
        found = sorted(contribution.client for contribution in opened.contributions)
        if found != self.clients:
            raise FrameError(f"the sum is of the clients {found}, and it was said to be of {self.clients}")
        units = exact.total(decryptor.sums(self.frame), len(found), self.bits)
        if len(units) != sum(length or 1 for length in self.lengths):
            raise LayoutError(f"{len(units)} totals do not fit the lengths {self.lengths} of the answers")
        scale = Fraction(repr(self.resolution))
        values = units if self.resolution == 1 else [float(unit * scale) for unit in units]
        totals: _Totals = {}
        at = 0
        for name, length in zip(self.names, self.lengths, strict=True):
            totals[name] = values[at] if length == 0 else cast(Any, values[at : at + length])
            at += length or 1
        return totals

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all, to be opened where a key is. Raises `RunError`."""
        head = asdict(self)
        del head["frame"]
        write_whole(Path(path), json.dumps({"fedcipher-sum": 1, **head}).encode() + b"\n" + self.frame, follow=True)

    @classmethod
    def load(cls, path: str | Path) -> EncryptedSum:
        """Read what `save` wrote. Raises `FrameError`."""
        try:
            head, _, frame = read_file(path, MAX_FRAME, follow=True).partition(b"\n")
            said = parse_json(head)
            if said.pop("fedcipher-sum") != 1:
                raise ValueError("another version")
            said["left_out"] = {int(node): why for node, why in said["left_out"].items()}
            return cls(frame=frame, **said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FrameError(f"{path} is no encrypted sum: {error}") from error


def secure_sum(
    grid: Grid,
    query: RecordDict,
    keys: str | Path | ServerKeys,
    *,
    nodes: Iterable[int] | None = None,
    message_type: str = MessageType.QUERY,
    resolution: float = 1.0,
    timeout: float = 3600.0,
    committee_timeout: float = 60.0,
) -> EncryptedSum:
    """Ask ``nodes`` (all by default) a ``query`` and add up their encrypted answers.

    Every ClientApp needs `query_mod`. Answers are MetricRecords of whole numbers; with a ``resolution`` also of
    fractions, which each client rounds to a multiple of it. All must have the same names and lengths; each number
    up to 2**63 units. ``keys`` as in `SecureStrategy`: ``server.key``, its folder, or an authority.

    The server gets no answer, only their sum, and that encrypted. Whoever opens sums of two queries to almost
    the same clients learns their difference: ask all clients, and do not ask the same again with some left out.
    Under one key rounds increase with time: do not ask while a `SecureStrategy` made earlier is running.
    ``committee_timeout`` is the seconds that a committee has to answer, for schemes that have one.

    Raises `StrategyError` where fewer nodes than the scheme's ``min_contributions`` are there or have answered, and
    where too few of the committee have.
    """
    provider = server_keys(keys)
    scheme, key = provider.scheme, provider.current()
    exact.check_codec(scheme.codec)
    asked = _described(query)
    least = scheme.min_contributions
    chosen = list(answered(grid.get_node_ids)) if nodes is None else list(nodes)
    if len(chosen) < least:
        raise StrategyError(f"{len(chosen)} nodes are asked, and a sum needs the answers of {least}; ask more nodes")
    settings = _Query(reserve(1), key.epoch, scheme.plan(key, []), float(resolution))
    content = RecordDict({**dict(query.items()), QUERY: ConfigRecord(asdict(settings))})
    messages = [Message(content, dst_node_id=node, message_type=message_type) for node in chosen]
    sums = Sums(lambda: scheme.aggregator(key, round=settings.round))
    revoked = provider.revoked()
    # By node: which client it is, and what its answer holds.
    heard: dict[int, tuple[int, tuple[list[str], list[int]]]] = {}
    left_out: dict[int, str] = {}

    def leave_out(node: int, error: FedcipherError) -> None:
        left_out[node] = quoted(f"{type(error).__name__}: {error}")
        _log.warning("the answer of node %s is left out: %s", node, left_out[node])

    for reply in Gathering(grid, messages, until=time.monotonic() + timeout):
        node = reply.metadata.src_node_id
        try:
            frame, names, lengths = _answer_of(reply)
            _refuse_revoked(frame, revoked)
            heard[node] = sums.add(frame, reply, (names, lengths)).client, (names, lengths)
        except FedcipherError as error:
            leave_out(node, error)
    # Who answers first decides nothing for the others.
    aggregator, accepted, others = sums.largest()
    clients = {heard[node][0]: node for node in (reply.metadata.src_node_id for reply in accepted)}
    names, lengths = heard[next(iter(clients.values()))][1] if clients else ([], [])
    for node in (reply.metadata.src_node_id for reply in others):
        its, of = heard[node][1]
        if (its, of) == (names, lengths):
            leave_out(node, ModelMismatchError("the client was asked something else than most were"))
        else:
            leave_out(
                node, LayoutError(f"the answer has {its} of lengths {of}, most have {names} of lengths {lengths}")
            )
    left_out.update({node: "no answer" for node in chosen if node not in {*left_out, *clients.values()}})
    if len(clients) < least:
        raise StrategyError(f"{len(clients)} usable answers, a sum needs {least}; left out: {left_out}")
    away = Committee(committee_timeout).ask(grid, aggregator, message_type, clients)
    if away is not None:
        raise StrategyError(f"the answers cannot be added: {away}")
    return EncryptedSum(
        frame=aggregator.finish(),
        asked=asked,
        round=settings.round,
        bits=scheme.codec.bit_widths[0],
        resolution=settings.resolution,
        names=names,
        lengths=lengths,
        clients=sorted(clients),
        left_out=left_out,
    )


def _refuse_revoked(frame: bytes, revoked: frozenset[int]) -> None:
    for client, _ in _native.inspect(frame)[4]:
        if client in revoked:
            raise RevokedError(f"client {client} has been revoked; its answer is not used")


def _answer_of(reply: Message) -> tuple[bytes, list[str], list[int]]:
    if reply.has_error():
        reference = reference_of(reply)
        raise StrategyError(
            f"it refused; its own log (fedcipher.flower) has the cause, reference {reference}"
            if reference
            else quoted(reply.error.reason)
        )
    arrays = [array for record in reply.content.array_records.values() for array in record.items()]
    answer = reply.content.config_records.get(ANSWER)
    if len(arrays) != 1 or arrays[0][0] != protocol.UPDATE or answer is None:
        raise PlaintextError("the answer is not encrypted; add fedcipher.flower.analytics.query_mod to the app's mods")
    names, lengths = answer.get("names"), answer.get("lengths")
    if (
        not isinstance(names, list)
        or not isinstance(lengths, list)
        or len(names) != len(lengths)
        or not all(isinstance(name, str) for name in names)
        or not all(isinstance(length, int) and length >= 0 for length in lengths)
    ):
        raise LayoutError("the answer does not say what its numbers are")
    return protocol.frame_bytes(arrays[0][1]), cast("list[str]", names), cast("list[int]", lengths)
