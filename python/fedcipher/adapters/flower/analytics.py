"""Federated analytics on a Flower grid: asks a query and sums the encrypted answers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from fedcipher._arguments import as_text, instance_of, seconds, whole_numbers
from fedcipher.adapters.flower.mod import query_mod
from fedcipher.adapters.flower.polling import FlowerLink, check_grid
from fedcipher.adapters.flower.records import content_of
from fedcipher.federation.answers import Answer
from fedcipher.federation.messages import type_of
from fedcipher.federation.server.query_sum import EncryptedSum, QueryRun
from fedcipher.keys.provider import server_keys
from fedcipher.keys.server_keys import ServerKeys

__all__ = ["EncryptedSum", "query_mod", "secure_sum"]


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

    Every ClientApp needs `query_mod`. ``answers`` names the metrics to sum, each as an `Answer` with ``how="sum"`` or
    as a name. A name stands for one number, which clients round to ``resolution`` and cut at ``largest``. ``keys`` are
    the same as for `SecureStrategy`. Keys with privacy give sums with noise, which grows with ``largest`` and with the
    square root of the count of numbers.

    The server gets only the encrypted sum of the answers. Two sums of nearly the same clients could reveal single
    answers, so clients remember the sets of clients whose sums were opened. Round numbers under one key increase with
    time, so do not call this while a `SecureStrategy` made earlier is running. ``timeout`` and ``committee_timeout``
    are in seconds. Raises `ParameterError`, and `StrategyError` if too few nodes or members have answered.
    """
    listed = Answer.all_of(answers, "answers", resolution=resolution, largest=largest, how="sum")
    chosen = None if nodes is None else whole_numbers(nodes, "nodes")
    most, patience = seconds(timeout, "timeout"), seconds(committee_timeout, "committee_timeout")
    check_grid(grid)
    type_of(as_text(message_type, "message_type"))
    instance_of(query, RecordDict, "query", "give a RecordDict with the app's query")
    asked = QueryRun(server_keys(keys), content_of(query), listed, message_type)
    return asked.run(FlowerLink(grid), chosen, most, patience)
