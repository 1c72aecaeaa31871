"""Makes the messages of a round: which clients are asked, and what each message carries."""

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
from fedcipher.federation.server.consent import agreed_nodes
from fedcipher.federation.server.model import Delivery
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoting_log

__all__ = ["Asking"]

_log = quoting_log("fedcipher.federation")


class Asking:
    """Makes the messages of ``run``'s rounds."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        # The messages that ask for histograms. They are sent once more to ask for updates.
        self._measuring_messages: list[Message] = []
        self._asked_for_consent = False

    def ask(self, purpose: Purpose, index: int, messages: list[Message]) -> Iterator[Message]:
        """Add the model and the round's settings to ``messages``.

        Messages to clients that may not answer are dropped. Each message is completed only when it is sent. Raises
        `StrategyError` for a setting that the charter does not contain, and for a first round that samples too few or
        too many clients.
        """
        self._run.training, self._run.waits_for_all = purpose == "train", False
        messages = self._with_consent(messages)
        messages = self._sampled_to_train(index, messages) if self._run.training else self._sampled(index, messages)
        for message in messages:
            self._check_settings(message, purpose, index)
        number = self._run.number
        if self._run.training and self._run.model.measuring:
            number = self._run.record.measured
            self._measuring_messages = [replace(message, content=dict(message.content)) for message in messages]
        return self.with_model(messages, index, number)

    @property
    def evaluates(self) -> bool:
        """Whether clients may be asked to evaluate.

        With privacy and without answers, an evaluation yields nothing, but its frame would still count against each
        client's privacy budget.
        """
        return self._run.scheme.codec.privacy is None or bool(self._run.setup.answers["evaluate"])

    def _with_consent(self, messages: list[Message]) -> list[Message]:
        """Before the run's first messages, wait until sites agree to the charter. Drop messages to the others."""
        if self._asked_for_consent or not self._run.setup.consent_timeout or not messages or self._run.link is None:
            return messages
        self._asked_for_consent = True
        nodes = {message.node for message in messages}
        agreed = agreed_nodes(self._run, nodes, self._run.setup.consent_timeout)
        return [message for message in messages if message.node in agreed]

    def _sampled_to_train(self, index: int, messages: list[Message]) -> list[Message]:
        messages = self._run.nodes.without(messages, {*self._run.nodes.sent_false_shares, *self._run.search.found})
        able = self._run.nodes.without(messages, self._out_of_budget())
        if len(able) < min(len(messages), self._run.setup.minimum):
            why = f"{len(messages) - len(able)} of {len(messages)} sampled clients have used up their privacy budget"
            self._run.leave_unfinished(f"{why}, and a round needs {self._run.setup.minimum} updates")
            return []
        if 0 < len(able) < self._run.setup.minimum:
            return self._too_few(len(able))
        return self._too_many(index, able) if len(able) > self._run.setup.max_clients else able

    def _sampled(self, index: int, sampled: list[Message]) -> list[Message]:
        messages = self._run.nodes.without(sampled, self._out_of_budget())
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
        return messages[: self._run.setup.max_clients]

    def _out_of_budget(self) -> set[int]:
        """Clients that have used up their privacy budget in this run, by updates and by answers to evaluations.

        These clients would refuse. A round in which all clients refuse looks like a round whose sum did not open.
        """
        privacy = self._run.scheme.codec.privacy
        if privacy is None:
            return set()
        heard = (client for record in self._run.rounds for client in [*record.clients, *record.evaluations])
        given = Counter(client.client for client in heard if client.left_out is None or client.unsummed)
        return {client for client, count in given.items() if client is not None and count >= privacy.rounds}

    def _too_few(self, sampled: int) -> list[Message]:
        """Skip a round that samples too few clients. Raises `StrategyError` in the first round."""
        minimum = self._run.setup.minimum
        why = f"{self._run.plan.name} sampled {sampled} clients, and a round needs {minimum} updates"
        if len(self._run.rounds) == 1:
            # A sum of one client is that client's update. Under a committee, each sum needs two honest clients.
            lying, most = self._run.scheme.params().get("corrupt_clients", 0), max(0, sampled - 2)
            keys = f"min_contributions={max(sampled, 2)}{f' and corrupt_clients={most}' if lying > most else ''}"
            raise StrategyError(
                f"{why}: raise its fraction_train or min_train_nodes (or per-round) until it samples {minimum}, "
                f"or make keys with {keys}, which allows decrypting the sum of so few clients"
            )
        self._run.leave_unfinished(why)
        return []

    def _too_many(self, index: int, messages: list[Message]) -> list[Message]:
        """Keep as many messages as a sum has room for. Raises `StrategyError` in the first round."""
        most = self._run.setup.max_clients
        why = f"{self._run.plan.name} sampled {len(messages)} clients, and the keys have room for {most}"
        cohort = len(self._run.key.cohort)
        if len(self._run.rounds) == 1 and cohort < len(messages):
            # A larger --per-round alone does not help: a round cannot have more clients than there are keys.
            raise StrategyError(
                f"{why}. The key set has {cohort} clients, so {len(messages) - cohort} or more nodes have no key. Make "
                f"keys for all of them, with `fedcipher keygen --clients {len(messages)}` or a roster of all, or lower "
                "fraction_train and min_train_nodes"
            )
        if len(self._run.rounds) == 1:
            raise StrategyError(
                f"{why} in a round: lower its fraction_train and min_train_nodes, or make keys with "
                f"`fedcipher keygen --per-round {len(messages)}`"
            )
        _log.warning("round %s: %s; the others are not asked", index, why)
        return messages[:most]

    def with_model(self, messages: list[Message], index: int, number: int) -> Iterator[Message]:
        """Add to each message what its node lacks of the model, and the settings for frames of ``number``."""
        plan = self._run.scheme.round_plan(self._run.key, self._run.nodes.clients(messages))
        if messages and self._run.link is not None:
            self._run.sums.collect_prekeys(self._run.link, self._run.charter.types["train"])
        return self._with_content(messages, index, number, plan)

    def _with_content(self, messages: list[Message], index: int, number: int, plan: bytes) -> Iterator[Message]:
        """Complete each message when it is sent, and keep no reference: a message can hold all sums of the run."""
        while messages:
            message = messages.pop(0)
            delivery = self._run.model.to_node(message.node, self._run.nodes.client_of.get(message.node))
            # A strategy may put the same record into all messages, so each message gets a new dict.
            message.content = {
                **message.content,
                self._run.charter.record: delivery.arrays,
                CONFIG: self.settings(delivery, index, number, plan, self._run.sums.prekeys),
            }
            del delivery
            yield message

    def settings(
        self, delivery: Delivery, index: int, number: int, plan: bytes = b"", prekeys: Sequence[bytes] = ()
    ) -> Config:
        """The settings of a message of round ``index`` that carries ``delivery`` and asks for a frame of ``number``."""
        model, charter = self._run.model, self._run.charter
        return RoundSettings(
            charter=charter.digest,
            round=number,
            index=index,
            steps=0 if charter.sets_models else model.steps,
            document=delivery.document,
            signature=model.folder.signature if delivery.document else b"",
            plan=plan,
            last=b"" if charter.sets_models else model.last,
            indices=delivery.indices,
            bits=model.widths.bits,
            prekeys=list(prekeys),
        ).to_record()

    def _check_settings(self, message: Message, purpose: Purpose, index: int) -> None:
        """Raise `StrategyError` for settings that are not the charter's, because clients would refuse them."""
        charter = self._run.charter
        sent, agreed = records_of(message.content, without=frozenset()), charter.settings[purpose].at(index)
        placed = message.type == charter.types[purpose] and message.place in ("", charter.record)
        if placed and encode(sent) == encode(agreed):
            return
        changed = sorted(
            f"{name}.{key}"
            for name in {*sent, *agreed}
            for key in {*sent.get(name, {}), *agreed.get(name, {})}
            if encode(sent.get(name, {}).get(key)) != encode(agreed.get(name, {}).get(key))
        )
        raise StrategyError(
            f"in round {index}, {self._run.plan.name} sends node {message.node} other settings than it gave when the "
            f"run's charter was made: {changed or 'another message type or record'}. Settings must depend on the round "
            "number only and be the same for all clients"
        )

    def measuring_messages(self, nodes: Collection[int]) -> list[Message]:
        """The messages that asked ``nodes`` for histograms, without model and settings."""
        return [message for message in self._measuring_messages if message.node in nodes]
