"""Replies of a round: the sums that they make, and the step of the model that follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedcipher.codec import Array
from fedcipher.errors import DecryptError, ForgedAggregateError, SetRuleError
from fedcipher.federation.answers import Report, Sums
from fedcipher.federation.bit_widths import ADVICE, advice_answer
from fedcipher.federation.chain import OpenedStep
from fedcipher.federation.charter import Purpose
from fedcipher.federation.messages import CONFIG, Arrays, Message, Reply
from fedcipher.federation.ranges import ranges_follow_updates
from fedcipher.federation.records import ClientRecord, RoundRecord, counted_of, losses, thin_text
from fedcipher.federation.server.asking import Asking
from fedcipher.federation.server.committee import NoSum, addressed
from fedcipher.federation.server.intake import Added, Intake
from fedcipher.federation.server.journal import Ended
from fedcipher.federation.server.reports import Reports, request
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoting_log

__all__ = ["Accepting", "Summed"]

_log = quoting_log("fedcipher.federation")
_SAT_OUT = "with its update, sums would have differed by too few clients"
_UNOPENED = "the sum that its update was in does not open"


@dataclass(frozen=True)
class Summed:
    """A round, or its evaluation, that has a sum."""

    nodes: list[int]
    """Whose frames count."""
    said: Sums | Report | None
    """The clients' answers, where this server opens them or readers have reported them."""
    model: list[Array] | None = None
    """The model after the round's mean, where this server may see it."""
    sealed: Arrays | None = None
    """The round's sums, where this server may not see the model."""


class Accepting:
    """Takes the replies to what ``asking`` has asked in the rounds of ``run``."""

    def __init__(self, run: RunState, asking: Asking) -> None:
        self._run, self._asking = run, asking
        self._intake = Intake(run)
        self._reports = Reports(run.setup.corrupt, run.setup.committee_timeout)

    def accept_train(self, replies: Iterable[Reply]) -> Summed | None:
        """Sum the updates in ``replies``, and take the next step of the model; None where the round has no aggregate.

        A reply that is garbage is left out with a warning.
        """
        record, model = self._run.record, self._run.model
        if not self._run.plan.trains:
            return None
        before: dict[int, dict[str, float]] = {}
        if model.measuring:
            asked = self._measured(record, replies)
            if asked is None:
                return None
            replies, before = asked
        summed = self._step(record, replies, record.number)
        record.clients[:] = [replace(c, phases=_together(c.phases, before.get(c.node, {}))) for c in record.clients]
        if summed is None:
            return None
        added, frames = summed
        record.aggregate_bytes = sum(map(len, frames))
        if self._run.setup.opener is not None:
            return self._opened(record, frames, added)
        if self._run.charter.reports:
            # Readers get the step now: a server that is killed from here on must not make another.
            self._run.ended = Ended(model.steps)
            self._run.note("train", None)
        said = self._reported("train", added.nodes, record.round)
        self._say(record)
        return Summed(added.nodes, said, sealed=model.sealed(frames))

    def accept_evaluate(self, replies: Iterable[Reply]) -> Summed | None:
        """Sum the answers in ``replies``; None where there is no sum, or nobody tells this server what it says."""
        record, model = self._run.record, self._run.model
        said = f"does not evaluate round {record.round}"
        added = self._taken("evaluate", replies, record.evaluated, said)
        self._note_opened(record.evaluations, added.unopened)
        self._note_silent(record.evaluations, said, "no answer when the evaluation closed")
        if len(added.nodes) < self._run.setup.minimum:
            if record.evaluations:
                _log.warning(
                    "round %s has no evaluation: %s usable answers, %s are needed",
                    *(record.round, len(added.nodes), self._run.setup.minimum),
                )
            return None
        frame = self._run.sums.finish(added.aggregator, record, self._run.link, self._run.charter.types["train"])
        if isinstance(frame, NoSum):
            _log.warning("round %s has no evaluation: %s", record.round, frame.why)
            return None
        if added.context != model.folder.context:
            model.folder.know_context(added.context)
        model.folder.append_evaluation(frame, record.round)
        sums = self._said_of(record, added, frame)
        return None if sums is None else Summed(added.nodes, sums)

    def _taken(
        self, purpose: Purpose, replies: Iterable[Reply], number: int, said: str, *, kept: bool = False
    ) -> Added:
        sums = RoundSums(lambda: self._run.sums.empty(number))
        return self._intake.take(purpose, replies, self._run.record, sums, said, kept=kept)

    def _note_silent(self, heard: list[ClientRecord], said: str, why: str) -> None:
        """Write down the nodes of which nothing was ``heard``."""
        silent = self._run.setup.round_close.silent(self._run.record, heard, training=self._run.training)
        heard.extend(self._intake.left_out(node, said, why) for node in silent)

    def _step(self, record: RoundRecord, replies: Iterable[Reply], number: int) -> tuple[Added, list[bytes]] | None:
        """The next step of the run: the sums of the frames of ``number``; None where there is none."""
        model, measuring = self._run.model, self._run.model.measuring
        said = f"is left out of round {record.round}"
        remembers = model.at_first_model and not model.charter.sets_models
        first = ServerSets("first", self._run.scheme, self._run.key) if remembers else None
        kept = self._run.search.under_way(self._run.key.cohort) or bool(first.groups if first else model.measured)
        added = self._taken("train", replies, number, said, kept=kept)
        self._note_opened(record.clients, added.unopened)
        self._note_silent(record.clients, said, "no answer when the round closed")
        # Where the sum of histograms is withdrawn, its updates go with it.
        if len(added.nodes) < self._run.setup.minimum or model.measuring != measuring:
            why = f"{len(added.nodes)} usable updates, {self._run.setup.minimum} are needed"
            if self._run.sums.lacking:
                why = f"{why}; {self._run.sums.lacking}"
            self._run.leave_unfinished(why)
            return None
        frames = self._summed_in_sets(added, record, first, number)
        if isinstance(frames, NoSum):
            self._run.search.drop(asked=frames.asked)
            self._run.leave_unfinished(frames.why)
            return None
        model.append(frames, record.round, added.context)
        summed = frozenset[int]().union(*self._run.search.pending)
        _mark_unsummed(record, summed, _SAT_OUT)
        there = [node for node in added.nodes if self._run.nodes.client_of[node] in summed]
        return replace(added, nodes=there), frames

    def _measured(
        self, record: RoundRecord, replies: Iterable[Reply]
    ) -> tuple[Iterable[Reply], dict[int, dict[str, float]]] | None:
        """Sum the histograms that set the first ranges, and ask the same clients for their updates.

        Their replies, and what each node has said of its histograms' frame.
        """
        summed = self._step(record, replies, record.measured)
        if summed is None or (self._run.setup.opener is not None and self._open_step(summed[1], record.round) is None):
            return None
        there = set(summed[0].nodes)
        # Nobody trains any more: all are waited for.
        self._run.waits_for_all = True
        before = {client.node: client.phases for client in record.clients if client.node in there}
        record.clients[:] = [client for client in record.clients if client.node not in there]
        again = self._asking.again(there)
        link = self._run.link
        assert link is not None
        messages = self._asking.with_model(again, record.round, record.number)
        return self._run.gathered(partial(link.exchange, messages), self._run.timeout), before

    def _reported(
        self, purpose: Purpose, accepted: Sequence[int], index: int, frame: bytes | None = None
    ) -> Report | None:
        """What readers say of the answers in the newest sum; ``frame`` is that of an evaluation."""
        model, answers = self._run.model, self._run.setup.answers[purpose]
        # What the next bits are is asked beside the charter's answers.
        beside = [advice_answer()] if purpose == "train" and model.widths.bits else []
        if not model.charter.reports or not [*answers, *beside] or self._run.link is None:
            return None
        committee = self._run.scheme.committee
        readers = frozenset[int]() if committee is None else committee.readers(self._run.key)
        asked = [node for node in accepted if self._run.nodes.client_of[node] in readers][: self._reports.wanted]
        messages = [self._report_message(purpose, node, index, frame) for node in asked]
        said = self._reports.ask(self._run.link, messages, [*answers, *beside])
        for node in self._reports.heard:
            model.delivered(node)
        if said is not None and beside:
            model.widths.take_advice(round(said.values[ADVICE][0]))
        return said if answers else None

    def _report_message(self, purpose: Purpose, node: int, index: int, frame: bytes | None) -> Message:
        charter, client = self._run.charter, self._run.nodes.client_of[node]
        content = request(purpose, None if frame is None else addressed(self._run.scheme, frame, client))
        brought = self._run.model.to_node(node, client)
        content[charter.record] = brought.arrays
        content[CONFIG] = self._asking.settings(brought, index, self._run.number)
        return Message(node, charter.types[purpose], content)

    def _opened(self, record: RoundRecord, frames: list[bytes], added: Added) -> Summed | None:
        """What sums lead to that this server opens."""
        opened = self._open_step(frames, record.round)
        if opened is None:
            return None
        self._check_kept(opened)
        self._count(record, "train", opened.answers)
        there = {client for clients in opened.clients for client in clients}
        _mark_unsummed(record, there, _UNOPENED)
        self._say(record)
        accepted = [node for node in added.nodes if self._run.nodes.client_of[node] in there]
        return Summed(accepted, opened.answers, model=self._run.model.arrays)

    def _check_kept(self, opened: OpenedStep) -> None:
        """End a run that would lose most of what its clients learn, round for round."""
        follow = ranges_follow_updates(self._run.scheme) and not self._run.setup.sets_models
        if (
            opened.kept is not None
            and opened.kept < self._run.setup.least_kept
            and self._run.model.steps == 1
            and not follow
        ):
            self._run.ends = (
                f"{100 * opened.kept:.0f}% of the clients' updates are kept, and no range changes. "
                f"{thin_text(opened.thin)}. SecureStrategy(least_kept=0) goes on all the same"
            )

    def _open_step(self, frames: list[bytes], index: int) -> OpenedStep | None:
        """What the newest step's sums lead to; None where they do not open and are withdrawn."""
        assert self._run.setup.opener is not None
        try:
            opened = self._run.model.open(self._run.setup.opener, frames, index)
        except (DecryptError, ForgedAggregateError) as error:
            self._run.search.settle(range(len(frames)))
            self._withdraw(f"it does not open ({error})")
            return None
        # Without the key of tags a false sum may open: where clients open it too, they say.
        if not self._run.setup.opens_itself:
            self._run.search.settle(opened.failed)
        return opened

    def _count(self, record: RoundRecord, purpose: Purpose, sums: Sums | None) -> None:
        """What the opened sum says of the clients' counters, as means over the clients."""
        if sums is None:
            return
        record.counted.update(counted_of(sums, purpose))
        for lost in losses(sums, purpose, record.elements):
            _log.warning("round %s: %s", record.round, lost)

    def _say(self, record: RoundRecord) -> None:
        share = record.clipped_share
        clipped = f", {100 * share:.2g}% of the values clipped" if "clipped" in record.counted else ""
        self._run.shown(
            f"round {record.round}: sum of {record.accepted} encrypted updates, "
            f"{len(record.clients) - record.accepted} left out{clipped}"
        )

    def _summed_in_sets(
        self, added: Added, record: RoundRecord, first: ServerSets | None, number: int
    ) -> list[bytes] | NoSum:
        """The round's sums: one, or while a liar is searched one of each group; or why there is none.

        ``first`` remembers the sets of all first positions. Elsewhere updates count beside their round's histograms.
        """
        clients = [self._run.nodes.client_of[node] for node in added.nodes]
        if first is None:
            remembered = [(measured, self._run.setup.minimum) for measured in self._run.model.measured_sets]
        else:
            first.refresh()
            remembered = first.groups
        sets, why = self._run.search.sets(clients, remembered, round=record.round, measures=self._run.model.measuring)
        if not sets:
            return self._no_sets(clients, why)
        together = len(sets) == 1 and sets[0] == frozenset(clients)
        if not together and not added.frames:
            return NoSum("its clients do not fit the rule of sets beside the sums before")
        if first is not None:
            try:
                # Not later: members of a committee remember each set that they answer for.
                first.remember(*sets)
            except SetRuleError as error:
                return NoSum(f"another run has summed other clients meanwhile: {error}. The next round chooses again")
        link, message_type = self._run.link, self._run.charter.types["train"]
        if together:
            frame = self._run.sums.finish(added.aggregator, record, link, message_type)
            return frame if isinstance(frame, NoSum) else [frame]
        frames = list(zip(clients, added.frames, strict=True))
        return self._run.sums.groups(sets, frames, record, number, link, message_type)

    def _no_sets(self, clients: Collection[int], why: str) -> NoSum:
        """Why no set of ``clients`` may be summed."""
        measured = {client for group in self._run.model.measured_sets for client in group}
        away = sorted(measured - set(clients))
        if why and away and not self._run.search.under_way(self._run.key.cohort):
            # They may come back: the next round asks for its updates again.
            return NoSum(
                f"clients {away} were in the sum of histograms and have sent no update, and a sum without them "
                f"would set them apart: {why}"
            )
        if why:
            self._run.ends = why
        return NoSum(why or "no set of clients fits the rule of sets")

    def _note_opened(self, replies: list[ClientRecord], unopened: dict[int, list[int]]) -> None:
        """What replies say of the last step, which this server cannot open, or not check."""
        sums, model = self._run.search.pending, self._run.model
        outcome = self._run.search.heard(replies, unopened) if model.last else None
        if outcome is None or not outcome.failed:
            return
        if not outcome.step:
            self._withdraw("clients do not open it")
            return
        if not model.measured:
            self._note_last_step(frozenset[int]().union(*outcome.opened))
        if self._run.setup.opens_itself and self._run.setup.opener is not None:
            failed = [number for number, clients in enumerate(sums) if clients in outcome.failed]
            model.leave_out(self._run.setup.opener, failed)
            _log.warning(
                "round %s: its clients do not open the sums of %s, which this server cannot check: the model goes on "
                "without them. What the round has returned counted them",
                model.folder.round_of(model.steps),
                [sorted(clients) for clients in outcome.failed],
            )

    def _record_of(self, number: int) -> RoundRecord:
        return next(record for record in self._run.rounds if record.round == number)

    def _note_last_step(self, summed: Collection[int]) -> None:
        """Of the last step only the updates of these clients count."""
        record = self._record_of(self._run.model.folder.round_of(self._run.model.steps))
        _mark_unsummed(record, summed, _UNOPENED)
        if self._run.journal is not None:
            self._run.journal.change(record)

    def _withdraw(self, why: str) -> None:
        """Without the last step, which one of its clients has spoilt: its clients are summed in groups next."""
        record = self._record_of(self._run.model.folder.round_of(self._run.model.steps))
        clients = self._run.model.withdraw()
        record.unfinished = f"its sum, of clients {clients}, is withdrawn: {why}, so one of them has spoilt it"
        if self._run.journal is not None:
            self._run.journal.change(record)
        _log.warning("round %s has no aggregate, the global model stays: %s", record.round, record.unfinished)

    def _said_of(self, record: RoundRecord, added: Added, frame: bytes) -> Sums | Report | None:
        """The answers in the sum of an evaluation, as far as this server may know them."""
        if self._run.setup.opener is None:
            return self._reported("evaluate", added.nodes, record.round, frame)
        try:
            sums = self._run.model.open_answers(self._run.setup.opener, frame, record.round)
        except (DecryptError, ForgedAggregateError) as error:
            _log.warning("round %s has no evaluation: the sum of its answers does not open (%s)", record.round, error)
            return None
        self._count(record, "evaluate", sums)
        return sums


def _mark_unsummed(record: RoundRecord, summed: Collection[int], why: str) -> None:
    """Write into the round's record that the frames of all clients but those ``summed`` count nothing."""
    record.clients[:] = [
        replace(client, left_out=why, unsummed=True)
        if client.left_out is None and client.client not in summed
        else client
        for client in record.clients
    ]


def _together(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}
