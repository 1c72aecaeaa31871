"""Sums the replies of a round and makes the next step of the model."""

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
from fedcipher.federation.server.committee import NoSum, for_reader
from fedcipher.federation.server.intake import Added, Intake
from fedcipher.federation.server.journal import Ended
from fedcipher.federation.server.reports import Reports, request
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.federation.server.set_memory import ServerSets
from fedcipher.federation.server.state import RunState
from fedcipher.foreign_text import quoting_log

__all__ = ["Accepting", "Summed"]

_log = quoting_log("fedcipher.federation")
_WOULD_BREAK_SETS = "with its update, sums would have differed by too few clients"
_SUM_DID_NOT_OPEN = "the sum that its update was in does not open"


@dataclass(frozen=True)
class Summed:
    """The result of a training or an evaluation that has a sum."""

    nodes: list[int]
    """The nodes whose frames are in the sum."""
    answers: Sums | Report | None
    """The clients' answers, if this server opened them or readers reported them."""
    model: list[Array] | None = None
    """The model after the round's mean, if this server may see it."""
    sums: Arrays | None = None
    """The round's encrypted sums, if this server may not see the model."""


class Accepting:
    """Accepts the replies to the messages that ``asking`` made in the rounds of ``run``."""

    def __init__(self, run: RunState, asking: Asking) -> None:
        self._run, self._asking = run, asking
        self._intake = Intake(run)
        self._reports = Reports(run.setup.corrupt, run.setup.committee_timeout)

    def accept_train(self, replies: Iterable[Reply]) -> Summed | None:
        """Sum the updates in ``replies`` and make the next step of the model.

        Return None if the round has no aggregate. A malformed reply is left out with a warning.
        """
        record, model = self._run.record, self._run.model
        if not self._run.plan.trains:
            return None
        before: dict[int, dict[str, float]] = {}
        if model.measuring:
            measured = self._measure(record, replies)
            if measured is None:
                return None
            replies, before = measured
        summed = self._step(record, replies, record.number)
        record.clients[:] = [replace(c, phases=_added_up(c.phases, before.get(c.node, {}))) for c in record.clients]
        if summed is None:
            return None
        added, frames = summed
        record.aggregate_bytes = sum(map(len, frames))
        if self._run.setup.opener is not None:
            return self._open_round(record, frames, added)
        if self._run.charter.reports:
            # Readers get the step now. A server that is killed after this point must not make another step.
            self._run.ended = Ended(model.steps)
            self._run.record_part("train", None)
        answers = self._ask_reports("train", added.nodes, record.round)
        self._show_summary(record)
        return Summed(added.nodes, answers, sums=model.named_sums(frames))

    def accept_evaluate(self, replies: Iterable[Reply]) -> Summed | None:
        """Sum the answers in ``replies``. Return None if there is no sum, or if this server cannot learn its values."""
        record, model = self._run.record, self._run.model
        effect = f"does not evaluate round {record.round}"
        added = self._sum_replies("evaluate", replies, record.evaluated, effect)
        self._check_last_step(record.evaluations, added.unopened)
        self._record_silent(record.evaluations, effect, "no answer when the evaluation closed")
        if len(added.nodes) < self._run.setup.minimum:
            if record.evaluations:
                _log.warning(
                    "round %s has no evaluation: it has %s usable answers and needs %s",
                    *(record.round, len(added.nodes), self._run.setup.minimum),
                )
            return None
        frame = self._run.sums.finish(added.aggregator, record, self._run.link, self._run.charter.types["train"])
        if isinstance(frame, NoSum):
            _log.warning("round %s has no evaluation: %s", record.round, frame.why)
            return None
        if added.context != model.folder.context:
            model.folder.set_context(added.context)
        model.folder.append_evaluation(frame, record.round)
        sums = self._answers_of(record, added, frame)
        if sums is None or (isinstance(sums, Sums) and not sums.counted):
            # The means of no client would be zeros.
            return None
        return Summed(added.nodes, sums)

    def _sum_replies(
        self, purpose: Purpose, replies: Iterable[Reply], number: int, effect: str, *, keep_frames: bool = False
    ) -> Added:
        sums = RoundSums(lambda: self._run.sums.empty_sum(number))
        return self._intake.take(purpose, replies, self._run.record, sums, effect, keep_frames=keep_frames)

    def _record_silent(self, records: list[ClientRecord], effect: str, why: str) -> None:
        """Add a record for each node that has not replied; ``records`` are the records of replies."""
        silent = self._run.setup.round_close.silent(self._run.record, records, training=self._run.training)
        records.extend(self._intake.left_out(node, effect, why) for node in silent)

    def _step(self, record: RoundRecord, replies: Iterable[Reply], number: int) -> tuple[Added, list[bytes]] | None:
        """Make the run's next step from the frames of round number ``number``. Return None if there is no step."""
        model, measuring = self._run.model, self._run.model.measuring
        effect = f"is left out of round {record.round}"
        remembers = model.at_first_model and not model.charter.sets_models
        first = ServerSets("first", self._run.scheme, self._run.key) if remembers else None
        keep_frames = self._run.search.active(self._run.key.cohort) or bool(first.groups if first else model.measured)
        added = self._sum_replies("train", replies, number, effect, keep_frames=keep_frames)
        self._check_last_step(record.clients, added.unopened)
        self._record_silent(record.clients, effect, "no answer when the round closed")
        # If the sum of histograms has just been withdrawn, the updates that follow it are withdrawn too.
        if len(added.nodes) < self._run.setup.minimum or model.measuring != measuring:
            why = f"it has {len(added.nodes)} usable updates and needs {self._run.setup.minimum}"
            if self._run.sums.why_no_sum:
                why = f"{why}; {self._run.sums.why_no_sum}"
            self._run.leave_unfinished(why)
            return None
        frames = self._summed_in_sets(added, record, first, number)
        if isinstance(frames, NoSum):
            self._run.search.discard(asked=frames.asked)
            self._run.leave_unfinished(frames.why)
            return None
        model.append(frames, record.round, added.context)
        self._run.setup.keys.finish_epoch(self._run.key.epoch)
        summed = frozenset[int]().union(*self._run.search.pending)
        _mark_unsummed(record, summed, _WOULD_BREAK_SETS)
        nodes = [node for node in added.nodes if self._run.nodes.client_of[node] in summed]
        return replace(added, nodes=nodes), frames

    def _measure(
        self, record: RoundRecord, replies: Iterable[Reply]
    ) -> tuple[Iterable[Reply], dict[int, dict[str, float]]] | None:
        """Sum the histograms that set the first ranges, and ask the same clients for their updates.

        Return the replies with the updates, and the phases that each node reported with its histograms.
        """
        summed = self._step(record, replies, record.measured)
        if summed is None or (self._run.setup.opener is not None and self._open_step(summed[1], record.round) is None):
            return None
        nodes = set(summed[0].nodes)
        # The clients have finished training, so the round waits for all of them.
        self._run.waits_for_all = True
        before = {client.node: client.phases for client in record.clients if client.node in nodes}
        record.clients[:] = [client for client in record.clients if client.node not in nodes]
        again = self._asking.measuring_messages(nodes)
        link = self._run.link
        assert link is not None
        messages = self._asking.with_model(again, record.round, record.number)
        return self._run.gather(partial(link.exchange, messages), self._run.timeout), before

    def _ask_reports(
        self, purpose: Purpose, accepted: Sequence[int], index: int, frame: bytes | None = None
    ) -> Report | None:
        """Ask readers for the answers in the newest sum; ``frame`` is the sum of an evaluation."""
        model, answers = self._run.model, self._run.setup.answers[purpose]
        # Readers also report the bit width for the next round.
        advice = [advice_answer()] if purpose == "train" and model.widths.bits else []
        if not model.charter.reports or not [*answers, *advice] or self._run.link is None:
            return None
        committee = self._run.scheme.committee
        readers = frozenset[int]() if committee is None else committee.readers(self._run.key)
        asked = [node for node in accepted if self._run.nodes.client_of[node] in readers][: self._reports.wanted]
        messages = [self._report_message(purpose, node, index, frame) for node in asked]
        report = self._reports.ask(self._run.link, messages, [*answers, *advice])
        for node in self._reports.answered:
            model.delivered(node)
        if report is not None and advice:
            model.widths.take_advice(round(report.values[ADVICE][0]))
        return report if answers else None

    def _report_message(self, purpose: Purpose, node: int, index: int, frame: bytes | None) -> Message:
        charter, client = self._run.charter, self._run.nodes.client_of[node]
        content = request(purpose, None if frame is None else for_reader(self._run.scheme, frame, client))
        delivery = self._run.model.to_node(node, client)
        content[charter.record] = delivery.arrays
        content[CONFIG] = self._asking.settings(delivery, index, self._run.number)
        return Message(node, charter.types[purpose], content)

    def _open_round(self, record: RoundRecord, frames: list[bytes], added: Added) -> Summed | None:
        """Open the round's sums on this server and take their step. Return None if they do not open."""
        opened = self._open_step(frames, record.round)
        if opened is None:
            return None
        self._check_share_kept(opened)
        self._record_counters(record, "train", opened.answers)
        clients = {client for group in opened.clients for client in group}
        _mark_unsummed(record, clients, _SUM_DID_NOT_OPEN)
        self._show_summary(record)
        accepted = [node for node in added.nodes if self._run.nodes.client_of[node] in clients]
        return Summed(accepted, opened.answers, model=self._run.model.arrays)

    def _check_share_kept(self, opened: OpenedStep) -> None:
        """End the run if its coding loses too much of each update and the ranges cannot adapt."""
        ranges_follow = ranges_follow_updates(self._run.scheme) and not self._run.setup.sets_models
        if (
            opened.kept is not None
            and opened.kept < self._run.setup.least_kept
            and self._run.model.steps == 1
            and not ranges_follow
        ):
            self._run.end_reason = (
                f"the coding keeps {100 * opened.kept:.0f}% of the clients' updates, and the ranges are fixed. "
                f"{thin_text(opened.thin)}. To continue anyway, use SecureStrategy(least_kept=0)"
            )

    def _open_step(self, frames: list[bytes], index: int) -> OpenedStep | None:
        """Open the sums of the newest step. If they do not open, withdraw them and return None."""
        assert self._run.setup.opener is not None
        try:
            opened = self._run.model.open(self._run.setup.opener, frames, index)
        except (DecryptError, ForgedAggregateError) as error:
            self._run.search.record_opened(range(len(frames)))
            self._withdraw(f"the sum does not open ({error})")
            return None
        # A server without the tag key may open a false sum. Then the clients, which open it too, decide.
        if not self._run.setup.opens_itself:
            self._run.search.record_opened(opened.failed)
        return opened

    def _record_counters(self, record: RoundRecord, purpose: Purpose, sums: Sums | None) -> None:
        """Put the means of the clients' counters into ``record``, and log what the clients lost."""
        if sums is None:
            return
        record.counted.update(counted_of(sums, purpose))
        for lost in losses(sums, purpose, record.elements):
            _log.warning("round %s: %s", record.round, lost)

    def _show_summary(self, record: RoundRecord) -> None:
        share = record.clipped_share
        clipped = f", {100 * share:.2g}% of the values clipped" if "clipped" in record.counted else ""
        self._run.show(
            f"round {record.round}: sum of {record.accepted} encrypted updates, "
            f"{len(record.clients) - record.accepted} left out{clipped}"
        )

    def _summed_in_sets(
        self, added: Added, record: RoundRecord, first: ServerSets | None, number: int
    ) -> list[bytes] | NoSum:
        """Make the round's sums: one of all clients, or one of each group during a search for a liar.

        ``first`` remembers the sets of all first positions. At later positions, the rule of sets counts the updates
        together with the histograms of their round. Return `NoSum` if there is no sum.
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
            return NoSum("with the earlier sums, its clients break the rule of sets")
        if first is not None:
            try:
                # Before the sum is made, because members of a committee remember each set that they answer for.
                first.remember(*sets)
            except SetRuleError as error:
                return NoSum(f"another run has summed other clients since: {error}. The next round chooses new sets")
        link, message_type = self._run.link, self._run.charter.types["train"]
        if together:
            frame = self._run.sums.finish(added.aggregator, record, link, message_type)
            return frame if isinstance(frame, NoSum) else [frame]
        frames = list(zip(clients, added.frames, strict=True))
        return self._run.sums.group_sums(sets, frames, record, number, link, message_type)

    def _no_sets(self, clients: Collection[int], why: str) -> NoSum:
        """Say why no set of ``clients`` may be summed."""
        measured = {client for group in self._run.model.measured_sets for client in group}
        missing = sorted(measured - set(clients))
        if why and missing and not self._run.search.active(self._run.key.cohort):
            # These clients may return, so the next round asks for updates again.
            return NoSum(
                f"clients {missing} were in the sum of histograms and have sent no update. A sum without them "
                f"would tell them apart: {why}"
            )
        if why:
            self._run.end_reason = why
        return NoSum(why or "no set of clients keeps the rule of sets")

    def _check_last_step(self, replies: list[ClientRecord], unopened: dict[int, list[int]]) -> None:
        """Infer from ``replies`` whether the last step opened, which this server cannot open or cannot check."""
        sums, model = self._run.search.pending, self._run.model
        outcome = self._run.search.judge(replies, unopened) if model.last else None
        if outcome is None or not outcome.failed:
            return
        if not outcome.step:
            self._withdraw("its clients cannot open the sum")
            return
        if not model.measured:
            self._record_last_step(frozenset[int]().union(*outcome.opened))
        if self._run.setup.opens_itself and self._run.setup.opener is not None:
            failed = [number for number, clients in enumerate(sums) if clients in outcome.failed]
            model.leave_out(self._run.setup.opener, failed)
            _log.warning(
                "round %s: its clients cannot open the sums of %s, and this server cannot check them. The model "
                "continues without these sums. The result of that round included them",
                model.folder.round_of(model.steps),
                [sorted(clients) for clients in outcome.failed],
            )

    def _record_of(self, number: int) -> RoundRecord:
        return next(record for record in self._run.rounds if record.round == number)

    def _record_last_step(self, summed: Collection[int]) -> None:
        """Record that only the updates of the clients ``summed`` count in the last step."""
        record = self._record_of(self._run.model.folder.round_of(self._run.model.steps))
        _mark_unsummed(record, summed, _SUM_DID_NOT_OPEN)
        if self._run.journal is not None:
            self._run.journal.change(record)

    def _withdraw(self, why: str) -> None:
        """Withdraw the last step, because one of its clients made its sum false. Its clients are next summed in groups.

        ``why`` says how this server knows.
        """
        record = self._record_of(self._run.model.folder.round_of(self._run.model.steps))
        clients = self._run.model.withdraw()
        record.unfinished = f"the sum of clients {clients} is withdrawn: {why}, so one of them sent a false update"
        if self._run.journal is not None:
            self._run.journal.change(record)
        _log.warning("round %s has no aggregate, the global model is unchanged: %s", record.round, record.unfinished)

    def _answers_of(self, record: RoundRecord, added: Added, frame: bytes) -> Sums | Report | None:
        """The answers in the sum of an evaluation, or None if this server cannot learn them."""
        if self._run.setup.opener is None:
            return self._ask_reports("evaluate", added.nodes, record.round, frame)
        try:
            sums = self._run.model.open_answers(self._run.setup.opener, frame, record.round)
        except (DecryptError, ForgedAggregateError) as error:
            _log.warning("round %s has no evaluation: the sum of its answers does not open (%s)", record.round, error)
            return None
        self._record_counters(record, "evaluate", sums)
        return sums


def _mark_unsummed(record: RoundRecord, summed: Collection[int], why: str) -> None:
    """Record that only frames of the clients ``summed`` count in the round; ``why`` is the reason for all others."""
    record.clients[:] = [
        replace(client, left_out=why, unsummed=True)
        if client.left_out is None and client.client not in summed
        else client
        for client in record.clients
    ]


def _added_up(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}
