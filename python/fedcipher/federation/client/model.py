"""The global model on one client: its charter, its position in the chain, and the form of its updates."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedcipher.codec import Array, largest_magnitude
from fedcipher.errors import CharterError, LayoutError, NonceReuseError, RoundError, RunError, StateError
from fedcipher.federation.answers import Lanes, Sums
from fedcipher.federation.bit_widths import ADVICE
from fedcipher.federation.chain import Chain, ChainState, OpenedStep
from fedcipher.federation.charter import Charter, Purpose, digest_of
from fedcipher.federation.client.app_result import AppResult
from fedcipher.federation.client.clip_feedback import ClipFeedback, with_waiting
from fedcipher.federation.client.evidence import CHARTER, OPENED, charter_facts, opened_facts
from fedcipher.federation.client.key_holder import KeyHolder, charge_privacy_budget
from fedcipher.federation.kept_share import KEPT_SHARE, MIN_KEPT_SHARE, kept_share_lanes, kept_shares, rounds_at_random
from fedcipher.federation.messages import AGGREGATE_PREFIX, Arrays, aggregate_of, frame_bytes, to_numpy
from fedcipher.federation.optimiser_step import in_type_of
from fedcipher.federation.ranges import ranges_follow_updates
from fedcipher.federation.records import CLIPPED, drowned_text, thin_text
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Decryptor

__all__ = ["ClientModel"]

_log = quoting_log("fedcipher.federation")

_MAX_NUMBERS_AT_POSITION = 128
"""A client sends updates from one position for at most this many round numbers after its first update from there.

This equals `MAX_NUMBERS` of ``ledger/memories.rs``: when parties forget a memory of sets, they refuse this many numbers
after its last round.
"""
_NEVER_FORGOTTEN = b"\x01"
"""First byte of the name of a memory of sets that parties never forget."""


class ClientModel:
    """This client's model of a run. Every change is stored in its state folder at once.

    Use it inside the store's lock. Raises `CharterError` if the message's charter is not accepted, and `RoundError` for
    a bit width that the charter does not allow.
    """

    def __init__(self, holder: KeyHolder, settings: RoundSettings, context: bytes) -> None:
        self._holder, self._settings = holder, settings
        self.scheme, self.context = holder.scheme, context
        self._store = holder.store
        self._codec = holder.scheme.codec
        self._waiting = ClipFeedback(holder.store)
        self._chain: Chain | None = None
        self._kept: ChainState | None = None
        self.charter = self._charter()
        if holder.recorder is not None:
            # Also after a crash between the charter's acceptance and its line.
            holder.recorder.record(CHARTER, charter_facts(self.charter, context), once=True)
        if settings.bits not in (self._codec.bit_widths if self._codec.adaptive else [0]):
            raise RoundError(f"the charter does not allow {settings.bits} bits for each value")

    def _charter(self) -> Charter:
        """The run's charter, accepted before anything is computed."""
        accepted = self._store.accepted()
        if accepted is not None and accepted.digest == self._settings.charter:
            return accepted
        if not self._settings.document:
            raise CharterError(
                "the message names a charter that this client does not have; the server sends it next round"
            )
        charter = Charter.named(self._settings.document, self._settings.charter)
        ours = (self._holder.key_set(charter), _as_json(self.scheme.spec()))
        if (charter.key_set, charter.scheme) != ours:
            raise CharterError("the charter has other keys or another scheme than this client")
        if charter.reports and self.scheme.committee is None:
            raise CharterError("the charter asks for reports, which under a common key could reveal single clients")
        policy, signature = self._holder.policy(), self._settings.signature
        self._store.accept(charter, policy, counts=not self._holder.simulated, signature=signature)
        _log.info(
            "this client takes part in run %s: its charter has the SHA-256 %s, its first model %s; every client of the "
            "run must log the same digests",
            *(charter.run, charter.digest.hex(), charter.first),
        )
        return charter

    # --- the content of a message ------------------------------------------------------------

    def receive(self, record: Arrays, decryptor: Decryptor) -> None:
        """Take the first model, the steps of the chain, or both from a message's ``record``.

        Raises `LayoutError`, `StateError`, `RoundError`, `CharterError` and the errors of a decryptor.
        """
        steps, initial = self._content_of(record)
        if self.charter.sets_models:
            self._take_server_model(initial, steps)
            return
        self._chain = self._start_of(initial, steps)
        earlier: ChainState | None = None
        for number in sorted(steps):
            frames, index = steps[number]
            if number <= self._chain.state.steps:
                continue
            if number != self._chain.state.steps + 1:
                raise StateError(
                    f"step {self._chain.state.steps + 1} is missing; the server sends all steps again next round"
                )
            earlier = self._chain.state
            measured, bound = self._chain.measuring, self._chain.associated_data("train", index)
            opened = self._chain.step(decryptor, frames, index)
            what = "measure" if measured else "train"
            self._record_opened(frames, opened.failed, what, index, bound, before=earlier.position)
            self._save_notes(number, opened)
            if not measured:
                included = any(self._holder.client in clients for clients in opened.clients)
                self._waiting.stepped(index, included=included)
            if opened.drowned:
                _log.warning("step %s: %s", number, drowned_text(opened.drowned))
            if opened.failed:
                _log.warning("step %s: %s of its %s sums do not open", number, len(opened.failed), len(frames))
        if (self._chain.state.steps, self._chain.state.last) != (self._settings.steps, self._settings.last):
            raise StateError("the sums that this client has opened are not those of the message's chain")
        self._chain.choose_bits(self._settings.bits)
        # The earlier model is as large as the present one, and is not needed while the app computes.
        kept, self._kept = self._kept, None
        if self._chain.state is kept:
            return
        if earlier is not None and earlier is kept:
            self._store.advance_to(self._chain.state)
        else:
            self._store.save_state(self._chain.state, previous=earlier)

    def _record_opened(
        self, frames: list[bytes], failed: list[int], purpose: str, index: int, bound: bytes, *, before: bytes
    ) -> None:
        """Write the opened sums to the site's log, before the model that they lead to is stored."""
        if self._holder.recorder is None:
            return
        facts = opened_facts(
            frames,
            failed,
            charter=self.charter.digest,
            purpose=purpose,
            index=index,
            bound=bound,
            positions=(before, self._running.position),
        )
        # After a crash the same step is made again.
        self._holder.recorder.record(OPENED, facts, once=True)

    def _save_notes(self, number: int, opened: OpenedStep) -> None:
        """Store the answers of step ``number`` before the step itself. After a kill, the step is made again."""
        notes: dict[str, Any] = {"step": number, "last": self._running.state.last.hex(), "unopened": opened.failed}
        if self.charter.reports and opened.answers is not None:
            notes["answers"] = _ratios(opened.answers, self.charter, "train")
            if self._codec.adaptive:
                notes["answers"][ADVICE] = [float(opened.advice)]
        if self.charter.equal_weights and opened.answers is not None and opened.answers.counted:
            notes["mean_examples"] = opened.answers.examples / opened.answers.counted
        if len(notes) > 3 or opened.failed or self._store.recall().get("opened"):
            self._store.remember(opened=notes)

    def _notes(self) -> dict[str, Any]:
        notes = self._store.recall().get("opened") or {}
        return notes if (notes.get("step"), notes.get("last")) == (self._at.steps, self._at.last.hex()) else {}

    @property
    def unopened(self) -> list[int]:
        """The numbers of the newest step's sums that did not open."""
        return [] if self.charter.sets_models else self._notes().get("unopened", [])

    @property
    def mean_examples(self) -> float:
        """Mean number of examples of the newest step's clients, if all have the same weight; 0 if unknown."""
        return 0.0 if self.charter.sets_models else self._notes().get("mean_examples", 0.0)

    @property
    def reported(self) -> dict[str, list[float]]:
        """The training answers of the newest step, by name. Raises `StateError` if there are none."""
        notes = self._notes()
        if "answers" not in notes:
            raise StateError("the newest step of this client has no answers")
        return notes["answers"]

    def evaluated(self, frame: bytes, decryptor: Decryptor) -> dict[str, list[float]]:
        """The answers in ``frame``, the sum of evaluations at this position. Raises the errors of a decryptor."""
        index = self._settings.index
        sums = self._running.open_answers(decryptor, frame, index)
        bound = self._running.associated_data("evaluate", index)
        self._record_opened([frame], [], "evaluate", index, bound, before=self._running.position)
        return _ratios(sums, self.charter, "evaluate")

    def _content_of(self, record: Arrays) -> tuple[dict[int, tuple[list[bytes], int]], list[Array]]:
        """The sums by step, each step with its round, and the first model. Raises `LayoutError` and `RoundError`."""
        frames: dict[int, dict[int, bytes]] = {}
        initial: list[str] = []
        for key in record:
            if key.startswith(AGGREGATE_PREFIX):
                step, group = aggregate_of(key)
                frames.setdefault(step, {})[group] = frame_bytes(record[key])
            else:
                initial.append(key)
        if initial and initial != self.charter.names:
            raise LayoutError("the arrays of the message are not those that the charter names")
        if len(frames) != len(self._settings.indices):
            raise RoundError("the message does not name a round for each step that it brings")
        if any(sorted(groups) != list(range(len(groups))) for groups in frames.values()):
            raise RoundError("the groups of a step are not numbered from 0")
        ordered = zip(sorted(frames), self._settings.indices, strict=True)
        steps = {n: ([frames[n][g] for g in sorted(frames[n])], index) for n, index in ordered}
        return steps, [to_numpy(record[key]) for key in initial]

    def _take_server_model(self, initial: list[Array], steps: dict[int, Any]) -> None:
        if steps or not initial:
            raise CharterError("if the charter lets the server set models, a message must bring a model and no sums")
        nowhere = ChainState(initial, None, [], b"", b"", 0)
        self._chain = Chain(self.charter, self.scheme, self.context, state=nowhere)
        self._chain.set_model(initial)
        self._chain.choose_bits(self._settings.bits)
        _log.info("round %s: the server has set a model, position %s", self._settings.index, self._chain.position.hex())

    def _start_of(self, initial: list[Array], steps: dict[int, Any]) -> Chain:
        """The chain at the position where the message's steps begin. Raises `StateError` if there is no model."""
        self._kept = self._store.newest_state()
        if self._kept is None:
            if not initial:
                raise StateError("this client has no model of the run; the server sends it again next round")
            return Chain(self.charter, self.scheme, self.context, first=initial)
        at = self._position_before(self._kept, steps) or self._kept
        return Chain(self.charter, self.scheme, self.context, state=at)

    def _position_before(self, kept: ChainState, steps: dict[int, Any]) -> ChainState | None:
        """The position before ``kept`` if the server has withdrawn the last step; otherwise None.

        A server may withdraw one step, and only once from each position. Raises `RoundError` for a second one.
        """
        instead = Chain.step_digest(*steps[kept.steps]) if kept.steps in steps else b""
        withdrawn = self._settings.steps < kept.steps or instead not in (b"", kept.last)
        if not withdrawn:
            return None
        earlier = self._store.previous_state()
        if earlier is None or earlier.steps != kept.steps - 1:
            return None
        # A repeated withdrawal is accepted, because this client may have failed after the first.
        now = [earlier.position.hex(), kept.last.hex(), instead.hex()]
        before = self._store.recall().get("withdrawn")
        if before and before[0] == now[0] and before != now:
            raise RoundError("the server withdraws a second step from one position")
        self._store.remember(withdrawn=now)
        self._waiting.forget()
        _log.warning("the server has withdrawn step %s of the run", kept.steps)
        return earlier

    # --- the frame that leaves ---------------------------------------------------------------

    def claim(self, purpose: Purpose) -> None:
        """Claim this message's round on disk: one frame for each round, one evaluation for each model.

        Raises `NonceReuseError`, `RoundError` and `PrivacyBudgetError`.
        """
        facts, settings = self._store.recall(), self._settings
        if settings.round <= int(facts.get("answered", 0)):
            raise NonceReuseError(
                f"round {settings.round} is not later than round {facts['answered']}, which was answered"
            )
        charge_privacy_budget(self._holder, self.charter)
        if purpose == "evaluate":
            # ``moved``, because a sum of histograms changes the position but neither the model nor the memory of sets.
            position = self._at.moved.hex()
            evaluated: list[str] = facts.get("evaluated", [])
            if position in evaluated:
                raise NonceReuseError("this client has already evaluated the model at this position")
            # Two positions are enough, because the chain goes back by at most one.
            self._store.remember(answered=settings.round, evaluated=[*evaluated[-1:], position])
            return
        # The same round under another number is accepted, because a server that was killed asks again.
        if settings.index < int(facts.get("index", 0)):
            raise NonceReuseError(f"round {settings.index} of the run is before round {facts['index']}")
        stood = self._first_numbers(facts.get("stood", {}))
        self._store.remember(answered=settings.round, index=settings.index, stood=stood)

    def _first_numbers(self, stood: dict[str, int]) -> dict[str, int]:
        """The round number of this client's first update from a position, for the present position and the one before.

        ``stood`` is the stored value. Parties that remember sets may forget those of a position. They then refuse sums
        from there, up to `_MAX_NUMBERS_AT_POSITION` numbers after the last one that they knew. Raises `RoundError` for
        an update more than that many numbers after the first one, because parties might accept the sum of a later one.
        """
        position, number = self._at.moved.hex(), self._settings.round
        begun = stood.get(position, number)
        if number - begun > _MAX_NUMBERS_AT_POSITION and not self.memory("train").startswith(_NEVER_FORGOTTEN):
            raise RoundError(
                f"round {number} asks for an update from a position whose first update this client sent in round "
                f"{begun}. Parties may have forgotten the sets of so old a position. Start a new run from the model of "
                "`fedcipher open`"
            )
        others = {at: first for at, first in stood.items() if at != position}
        return {**dict(list(others.items())[-1:]), position: begun}

    @property
    def _running(self) -> Chain:
        assert self._chain is not None
        return self._chain

    @property
    def _at(self) -> ChainState:
        return self._running.state

    @property
    def arrays(self) -> list[Array]:
        """The model, in the charter's order."""
        return self._at.model

    def associated_data(self, purpose: Purpose) -> bytes:
        """The position and round that this message's frame is bound to."""
        return self._running.associated_data(purpose, self._settings.index)

    def memory(self, purpose: Purpose) -> bytes:
        """The name of the memory of sets that this message's frame counts in."""
        return self._running.memory(purpose)

    @property
    def recent_weight(self) -> float:
        """Like `Chain.recent_weight`."""
        return self._running.recent_weight

    def histogram_counts(self, update: Sequence[Array], share: float) -> list[int]:
        """Like `Chain.histogram_counts`."""
        return self._running.histogram_counts(update, share)

    @property
    def hides_ranges(self) -> bool:
        """Like `Chain.hides_ranges`."""
        return self._running.hides_ranges

    @property
    def shaped(self) -> list[Array]:
        """Arrays with the shapes and types of an update."""
        return self._running.shaped

    def update(self, trained: Sequence[Array]) -> tuple[list[Array], float]:
        """The update that leads to ``trained``, in the types that all clients send, and how many values were odd.

        Odd values are NaN or infinite. NaN becomes zero. An infinite value becomes the end of its range, since a larger
        one would widen the range of all clients.
        """
        made = self._difference(trained)
        odd = [0 if x.dtype.kind != "f" else int(x.size - np.count_nonzero(np.isfinite(x))) for x in made]
        if any(odd):
            made = [_within(x, limit) if count else x for x, limit, count in zip(made, self._clips(), odd, strict=True)]
        return self.in_sent_types(self._running.whole.without(made)), float(sum(odd))

    def with_waiting(self, update: list[Array]) -> list[Array]:
        """``update`` plus the part that was cut from earlier updates, if ranges follow the updates."""
        waiting = self._waiting.taken(self._settings.index, update) if ranges_follow_updates(self.scheme) else []
        if not waiting:
            return update
        return [with_waiting(x, w) for x, w in zip(update, waiting, strict=True)]

    def encode(self, update: list[Array], share: float, *, counts: bool) -> tuple[list[Array], dict[str, list[float]]]:
        """The values of this client's frame, and their counters by name.

        ``update`` has been scaled by ``share``. If the update ``counts``, its cut part waits for the next update.
        """
        coding = self._running.coding
        if coding is None:
            return update, self._counters(update)
        index, chain = self._settings.index, self._running
        # A party that knew these random bits could find one client's part of a sum.
        draws = chain.rounding_seed(index, self._holder.client) if self._holder.policy().repeatable else os.urandom(16)
        coded = coding.encode(update, chain.seed(index), draws)
        if counts and not self.charter.sets_models:
            self._waiting.keep(coded.rest, coding.scales, self._settings.index, share=share)
        return coded.values, self._counts_with_kept(coded.kept, clipped=coded.clipped, vanished=0)

    @property
    def at_random(self) -> bool:
        """Whether the frame's encryptor rounds at random. Coded updates are already whole steps."""
        coding = self._running.coding
        return coding is None and rounds_at_random(self.charter, self.scheme)

    def whole(self, trained: Sequence[Array]) -> tuple[list[int], int]:
        """Like `WholeNumbers.values`."""
        return self._running.whole.values(trained, self.arrays)

    def _clips(self) -> list[float]:
        """The clip range of each array's update."""
        if self._codec.privacy is not None:
            return [self._codec.privacy.clip] * len(self.arrays)
        if self.measuring:
            # An infinite value would otherwise set the range of all clients.
            return [0.0] * len(self.arrays)
        coding = self._running.coding
        if coding is None:
            return [alpha for _, _, alpha, _ in self._running.layout.tensors]
        return coding.limits

    def in_sent_types(self, update: Sequence[Array]) -> list[Array]:
        """``update`` in the types that all clients send, whatever types the app returned.

        A frame's header names these types. They are floats, since an update times a weight is not a whole number.
        """
        return [_in(like, x) for x, like in zip(update, self.shaped, strict=True)]

    def _difference(self, trained: Sequence[Array]) -> list[Array]:
        """The input of the codec: ``trained`` itself for whole models, otherwise ``trained`` minus the model.

        The difference of integers is int64, any other difference is float32.
        """
        if self._codec.target == "weights":
            return list(trained)
        out: list[Array] = []
        for new, old in zip(trained, self.arrays, strict=True):
            with np.errstate(all="ignore"):
                if new.dtype == old.dtype == np.float32:
                    out.append(np.asarray(new - old))
                elif new.dtype.kind in "iu" and old.dtype.kind in "iu":
                    out.append(np.asarray(new.astype(np.int64) - old.astype(np.int64)))
                else:
                    out.append(np.asarray(new.astype(np.float64) - old.astype(np.float64), dtype=np.float32))
        return out

    @property
    def reference(self) -> list[Array] | None:
        """Like `Chain.reference`."""
        return self._running.reference

    def _counters(self, update: list[Array]) -> dict[str, list[float]]:
        """Counters of ``update``: values cut to their range, values of tensors that round to zero, and shares kept."""
        if self._codec.privacy is not None:
            return {}
        tensors, levels, index = self._running.layout.tensors, self.scheme.levels, self._settings.index
        clipped = vanished = 0
        for name, x, (_, bits, alpha, _) in zip(self.charter.names, update, tensors, strict=True):
            largest = largest_magnitude(x)
            cut = int(np.count_nonzero(np.abs(x) > alpha)) if largest > alpha else 0
            clipped += cut
            if cut > CLIPPED * x.size:
                _log.warning(
                    "round %s: %s of %s values of %r were cut to their clip range, which grows with the next "
                    "aggregate. If it does not grow, set clip to a number that is large enough",
                    *(index, cut, x.size, name),
                )
            if not isinstance(self._codec.clip, str) and 0 < largest < alpha / levels.of(bits):
                vanished += x.size
                _log.warning(
                    "round %s: all %s values of %r are below half a step of their range and are lost. Use a clip for "
                    "each tensor, clip='auto' or more bits",
                    *(index, x.size, name),
                )
        kept = kept_shares(update, self._running.layout, levels, unbiased=self.at_random)
        return self._counts_with_kept(kept, clipped=clipped, vanished=vanished)

    def _counts_with_kept(self, kept: list[float], *, clipped: int, vanished: int) -> dict[str, list[float]]:
        thin = [(name, part) for name, part in zip(self.charter.names, kept[1:], strict=True) if part < MIN_KEPT_SHARE]
        if thin:
            _log.warning("round %s: %s", self._settings.index, thin_text(thin))
        return {
            "fedcipher.clipped": [float(clipped)],
            "fedcipher.vanished": [float(vanished)],
            KEPT_SHARE: kept_share_lanes(kept),
        }

    # --- the app's result, before its ranges are known -----------------------------------------

    @property
    def measuring(self) -> bool:
        """Like `Chain.measuring`."""
        return self._running.measuring

    @property
    def lanes(self) -> Lanes | None:
        """Like `Chain.lanes`."""
        return self._running.lanes

    def save_work(self, work: AppResult, names: Collection[str]) -> None:
        """Save the app's ``work``, with only the metrics ``names``, for the frame that follows."""
        try:
            self._store.keep_work(self._work_name, work.to_bytes(names))
        except (RunError, ValueError, TypeError) as error:
            _log.warning("the work of round %s is not saved and will be repeated: %s", self._settings.index, error)

    def saved_work(self) -> AppResult | None:
        """The result of `save_work` in this round, if only the sum of its histograms has come since; otherwise None."""
        if not self._running.measured:
            return None
        try:
            content = self._store.work(self._work_name)
            return None if content is None else AppResult.parse(content)
        except (ValueError, TypeError, KeyError, StateError) as error:
            _log.warning("the saved work of round %s is damaged and will be repeated: %s", self._settings.index, error)
            return None

    def drop_saved_work(self) -> None:
        """Delete the saved work, which is in a frame or no longer usable."""
        self._store.drop_work()

    @property
    def _work_name(self) -> bytes:
        """Names the saved work by context, round and position. The charter fixes all other settings of the app."""
        return digest_of(b"work", self.context, self._settings.index.to_bytes(8, "little"), self._at.moved)

    @property
    def unsent(self) -> bytes:
        """The encryptor state with the part of this client's updates that was not sent yet."""
        return self._store.unsent()

    def keep_unsent(self, state: bytes) -> None:
        """Store an encryptor's state for the next round of this run."""
        self._store.keep_unsent(state)


def _ratios(sums: Sums, charter: Charter, purpose: Purpose) -> dict[str, list[float]]:
    return {answer.name: sums.ratio(answer) for answer in charter.answers[purpose]}


def _within(x: Array, limit: float) -> Array:
    """``x`` with zero for NaN, and plus or minus ``limit`` for infinite values."""
    limit = min(limit, float(np.finfo(x.dtype).max))
    return np.nan_to_num(x, nan=0.0, posinf=limit, neginf=-limit)


def _in(like: Array | np.float32, x: Array) -> Array:
    """``x`` in the type of ``like``, clipped to the range of that type."""
    if x.dtype == like.dtype:
        return x
    if like.dtype.kind == "f" and x.dtype.kind == "f":
        limit = float(np.finfo(like.dtype).max)
        x = np.clip(x, -limit, limit) if float(np.finfo(x.dtype).max) > limit else x
    return in_type_of(np.asarray(like), x)


def _as_json(spec: Any) -> Any:
    """``spec`` as JSON gives it back: lists for tuples."""
    return json.loads(json.dumps(spec))
