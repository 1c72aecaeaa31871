"""Messages of a round: who is asked, and what each message brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from fedcipher.errors import StrategyError
from fedcipher.federation.app_inputs import records_of
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import CONFIG, Config, Message
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.server.model import Brought
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoting_log

__all__ = ["Asking"]

_log = quoting_log("fedcipher.federation")


class Asking:
    """The messages of ``run``'s rounds."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        # The messages that ask for histograms: they are sent once more for updates.
        self._asked: list[Message] = []

    def ask(self, purpose: Purpose, index: int, messages: list[Message]) -> Iterator[Message]:
        """``messages`` with the model and the round's settings, but for those to clients that may not answer.

        Each is made when it is sent. Raises `StrategyError` for messages that tell a client what the charter does not
        say, and for a first round that samples too few or too many.
        """
        self._run.training, self._run.waits_for_all = purpose == "train", False
        messages = self._sampled_to_train(index, messages) if self._run.training else self._sampled(index, messages)
        for message in messages:
            self._check_told(message, purpose, index)
        number = self._run.number
        if self._run.training and self._run.model.measuring:
            number = self._run.record.measured
            self._asked = [replace(message, content=dict(message.content)) for message in messages]
        return self.with_model(messages, index, number)

    @property
    def evaluates(self) -> bool:
        """Whether clients may be asked to evaluate.

        With privacy and without answers an evaluation says nothing, and its frame would spend an update of each
        client's budget.
        """
        return self._run.scheme.codec.privacy is None or bool(self._run.setup.answers["evaluate"])

    def _sampled_to_train(self, index: int, messages: list[Message]) -> list[Message]:
        messages = self._run.nodes.without(messages, {*self._run.nodes.accused, *self._run.search.found})
        able = self._run.nodes.without(messages, self._spent())
        if len(able) < min(len(messages), self._run.setup.minimum):
            why = f"{len(messages) - len(able)} of {len(messages)} sampled clients have spent their privacy budget"
            self._run.leave_unfinished(f"{why}, and a round needs {self._run.setup.minimum} updates")
            return []
        if 0 < len(able) < self._run.setup.minimum:
            return self._too_few(len(able))
        return self._too_many(index, able) if len(able) > self._run.setup.most else able

    def _sampled(self, index: int, sampled: list[Message]) -> list[Message]:
        messages = self._run.nodes.without(sampled, self._spent())
        if sampled and len(messages) < self._run.setup.minimum:
            _log.warning(
                "round %s is not evaluated: %s of %s sampled clients may answer, and a sum of answers needs %s",
                *(index, len(messages), len(sampled), self._run.setup.minimum),
            )
            return []
        if messages and self._run.rounds:
            self._run.number += 1
            self._run.record.evaluated = self._run.number
            if self._run.journal is not None:
                self._run.journal.change(self._run.record)
        return messages[: self._run.setup.most]

    def _spent(self) -> set[int]:
        """Clients that have given all their updates under differential privacy in this run, answers among them.

        They would refuse, and a round of refusals alone looks like a sum that nobody could open.
        """
        privacy = self._run.scheme.codec.privacy
        if privacy is None:
            return set()
        heard = (client for record in self._run.rounds for client in [*record.clients, *record.evaluations])
        given = Counter(client.client for client in heard if client.left_out is None or client.unsummed)
        return {client for client, count in given.items() if client is not None and count >= privacy.rounds}

    def _too_few(self, sampled: int) -> list[Message]:
        """A round that cannot be finished is not begun; a first one means that no round could be."""
        minimum = self._run.setup.minimum
        said = f"{self._run.plan.name} sampled {sampled} clients, and a round needs {minimum} updates"
        if len(self._run.rounds) == 1:
            # A sum of one is that client's update, and a committee's scheme has two honest clients in each.
            lying, most = self._run.scheme.params().get("corrupt_clients", 0), max(0, sampled - 2)
            keys = f"min_contributions={max(sampled, 2)}{f' and corrupt_clients={most}' if lying > most else ''}"
            raise StrategyError(
                f"{said}: raise its fraction_train or min_train_nodes (or per-round) until it samples {minimum}, "
                f"or make keys with {keys}, which lets whoever decrypts see the sum of so few"
            )
        self._run.leave_unfinished(said)
        return []

    def _too_many(self, index: int, messages: list[Message]) -> list[Message]:
        """A sum has room for so many; whoever is one too many must not train for nothing."""
        most = self._run.setup.most
        said = f"{self._run.plan.name} sampled {len(messages)} clients, and the keys have room for {most}"
        cohort = len(self._run.key.cohort)
        if len(self._run.rounds) == 1 and cohort < len(messages):
            # A larger --per-round alone is refused: no round has more clients than there are keys.
            raise StrategyError(
                f"{said}, of whom there are {cohort}: {len(messages) - cohort} or more nodes have no key. Make keys "
                f"for all of them, with `fedcipher keygen --clients {len(messages)}` or a roster of all, or lower "
                "fraction_train and min_train_nodes"
            )
        if len(self._run.rounds) == 1:
            raise StrategyError(
                f"{said} in a round: lower its fraction_train and min_train_nodes, or make keys with "
                f"`fedcipher keygen --per-round {len(messages)}`"
            )
        _log.warning("round %s: %s; the others are not asked", index, said)
        return messages[:most]

    def with_model(self, messages: list[Message], index: int, number: int) -> Iterator[Message]:
        """The messages of the frames of ``number``, each with what its node lacks of the model."""
        plan = self._run.scheme.round_plan(self._run.key, self._run.nodes.clients(messages))
        if messages and self._run.link is not None:
            self._run.sums.meet(self._run.link, self._run.charter.types["train"])
        return self._one_by_one(messages, index, number, plan)

    def _one_by_one(self, messages: list[Message], index: int, number: int, plan: bytes) -> Iterator[Message]:
        """Each message is made when it is sent, and is nobody's then: to a node that has nothing it brings all sums."""
        while messages:
            message = messages.pop(0)
            brought = self._run.model.to_node(message.node, self._run.nodes.client_of.get(message.node))
            # A strategy may share one record among all messages: each gets its own.
            message.content = {
                **message.content,
                self._run.charter.record: brought.arrays,
                CONFIG: self.settings(brought, index, number, plan, self._run.sums.prekeys),
            }
            del brought
            yield message

    def settings(
        self, brought: Brought, index: int, number: int, plan: bytes = b"", prekeys: Sequence[bytes] = ()
    ) -> Config:
        """Of a message of round ``index`` that brings what is ``brought``, for a frame of ``number``."""
        model, charter = self._run.model, self._run.charter
        return RoundSettings(
            charter=charter.digest,
            round=number,
            index=index,
            steps=0 if charter.sets_models else model.steps,
            document=brought.document,
            signature=model.folder.signature if brought.document else b"",
            plan=plan,
            last=b"" if charter.sets_models else model.last,
            indices=brought.indices,
            bits=model.widths.bits,
            prekeys=list(prekeys),
        ).to_record()

    def _check_told(self, message: Message, purpose: Purpose, index: int) -> None:
        """Refuse, with `StrategyError`, to tell a client what the charter does not say: the client would refuse it."""
        charter = self._run.charter
        told, said = records_of(message.content, without=frozenset()), charter.settings[purpose].at(index)
        placed = message.type == charter.types[purpose] and message.place in ("", charter.record)
        if placed and encode(told) == encode(said):
            return
        changed = sorted(
            f"{name}.{key}"
            for name in {*told, *said}
            for key in {*told.get(name, {}), *said.get(name, {})}
            if encode(told.get(name, {}).get(key)) != encode(said.get(name, {}).get(key))
        )
        raise StrategyError(
            f"{self._run.plan.name} tells node {message.node} in round {index} something else than it did "
            f"before the run, when its charter was made: {changed or 'another message type or record'}. Settings must "
            "follow from the round alone, and be the same for all clients"
        )

    def again(self, nodes: Collection[int]) -> list[Message]:
        """The messages that have asked ``nodes`` for histograms, without model and settings."""
        return [message for message in self._asked if message.node in nodes]
