"""The global model on one client: its charter, its position in the chain, and what an update of it is."""

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
from fedcipher.federation.client.key_holder import KeyHolder, spend
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

_MOST_NUMBERS_AT_A_POSITION = 128
"""Over so many round numbers after its first one a client sends updates from one position.

The same as `MOST_NUMBERS` of ``ledger/memories.rs``: where a memory of sets is forgotten, parties refuse so many
numbers past its last round.
"""
_PINNED = b"\x01"
"""What the name of a memory begins with that nobody forgets."""


class ClientModel:
    """What this client knows of the model; every change is in its state folder at once. Use it inside its lock.

    Raises `CharterError` where the message's charter is not accepted.
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
        if settings.bits not in (self._codec.bit_widths if self._codec.adaptive else [0]):
            raise RoundError(f"{settings.bits} bits of a value are no choice that the charter leaves")

    def _charter(self) -> Charter:
        """The run's charter, accepted before anything is computed."""
        held = self._store.accepted()
        if held is not None and held.digest == self._settings.charter:
            return held
        if not self._settings.document:
            raise CharterError("the message is of a charter that this client has not accepted; the server sends it")
        charter = Charter.decode(self._settings.document)
        if charter.digest != self._settings.charter:
            raise CharterError("the charter's digest is not the one that the message names")
        ours = (self._holder.key_set(charter), _plain(self.scheme.spec()))
        if (charter.key_set, charter.scheme) != ours:
            raise CharterError("the charter is of other keys or another scheme than this client's")
        if charter.reports and self.scheme.committee is None:
            raise CharterError("the charter wants reports, which under a common key tell of single clients")
        policy, signature = self._holder.policy(), self._settings.signature
        self._store.accept(charter, policy, counts=not self._holder.simulated, signature=signature)
        _log.info(
            "this client takes part in run %s: its charter has the SHA-256 %s, its first model %s; every client of the "
            "run must say the same",
            *(charter.run, charter.digest.hex(), charter.first),
        )
        return charter

    # --- what a message brings ---------------------------------------------------------------

    def receive(self, record: Arrays, decryptor: Decryptor) -> None:
        """Take up the first model, the steps of the chain, or both.

        Raises `LayoutError`, `StateError`, `RoundError`, `CharterError` and what a decryptor raises.
        """
        steps, initial = self._brought(record)
        if self.charter.sets_models:
            self._set(initial, steps)
            return
        self._chain = self._beginning(initial, steps)
        earlier: ChainState | None = None
        for number in sorted(steps):
            frames, index = steps[number]
            if number <= self._chain.state.steps:
                continue
            if number != self._chain.state.steps + 1:
                raise StateError(
                    f"step {self._chain.state.steps + 1} is missing; the server sends all again next round"
                )
            earlier = self._chain.state
            measured = self._chain.measuring
            opened = self._chain.step(decryptor, frames, index)
            self._note(number, opened)
            if not measured:
                there = any(self._holder.client in clients for clients in opened.clients)
                self._waiting.stepped(index, included=there)
            if opened.drowned:
                _log.warning("step %s: %s", number, drowned_text(opened.drowned))
            if opened.failed:
                _log.warning("step %s: %s of its %s sums do not open", number, len(opened.failed), len(frames))
        if (self._chain.state.steps, self._chain.state.last) != (self._settings.steps, self._settings.last):
            raise StateError("this client has opened other sums than the message's chain has")
        self._chain.choose_bits(self._settings.bits)
        if self._chain.state is self._kept:
            return
        if earlier is not None and earlier is self._kept:
            self._store.advance_to(self._chain.state)
        else:
            self._store.save_state(self._chain.state, previous=earlier)

    def _note(self, number: int, opened: OpenedStep) -> None:
        """Remember what step ``number`` has said, before the step itself: a process that is killed makes it again."""
        told: dict[str, Any] = {"step": number, "last": self._running.state.last.hex(), "unopened": opened.failed}
        if self.charter.reports and opened.answers is not None:
            told["answers"] = _ratios(opened.answers, self.charter, "train")
            if self._codec.adaptive:
                told["answers"][ADVICE] = [float(opened.advice)]
        if self.charter.equal_weights and opened.answers is not None and opened.answers.counted:
            told["mean_examples"] = opened.answers.examples / opened.answers.counted
        if len(told) > 3 or opened.failed or self._store.recall().get("opened"):
            self._store.remember(opened=told)

    def _noted(self) -> dict[str, Any]:
        told = self._store.recall().get("opened") or {}
        return told if (told.get("step"), told.get("last")) == (self._at.steps, self._at.last.hex()) else {}

    @property
    def unopened(self) -> list[int]:
        """Numbers of the newest step's sums that did not open."""
        return [] if self.charter.sets_models else self._noted().get("unopened", [])

    @property
    def mean_examples(self) -> float:
        """Of the clients of the newest step, where all weigh the same; 0: not known."""
        return 0.0 if self.charter.sets_models else self._noted().get("mean_examples", 0.0)

    @property
    def reported(self) -> dict[str, list[float]]:
        """The answers of training in the newest step. Raises `StateError` where there are none."""
        told = self._noted()
        if "answers" not in told:
            raise StateError("the newest step of this client brought no answers")
        return told["answers"]

    def evaluated(self, frame: bytes, decryptor: Decryptor) -> dict[str, list[float]]:
        """The answers in the sum of evaluations at this position. Raises what a decryptor raises."""
        sums = self._running.open_answers(decryptor, frame, self._settings.index)
        return _ratios(sums, self.charter, "evaluate")

    def _brought(self, record: Arrays) -> tuple[dict[int, tuple[list[bytes], int]], list[Array]]:
        """The sums by step, with each step's round, and the first model."""
        frames: dict[int, dict[int, bytes]] = {}
        initial: list[str] = []
        for key in record:
            if key.startswith(AGGREGATE_PREFIX):
                step, group = aggregate_of(key)
                frames.setdefault(step, {})[group] = frame_bytes(record[key])
            else:
                initial.append(key)
        if initial and initial != self.charter.names:
            raise LayoutError("the message has other arrays than the charter names")
        if len(frames) != len(self._settings.indices):
            raise RoundError("the message does not name a round for each step that it brings")
        if any(sorted(groups) != list(range(len(groups))) for groups in frames.values()):
            raise RoundError("the groups of a step are not numbered from 0")
        ordered = zip(sorted(frames), self._settings.indices, strict=True)
        steps = {n: ([frames[n][g] for g in sorted(frames[n])], index) for n, index in ordered}
        return steps, [to_numpy(record[key]) for key in initial]

    def _set(self, initial: list[Array], steps: dict[int, Any]) -> None:
        if steps or not initial:
            raise CharterError("under a charter whose server sets the models a message brings a model, and no sums")
        nowhere = ChainState(initial, None, [], b"", b"", 0)
        self._chain = Chain(self.charter, self.scheme, self.context, state=nowhere)
        self._chain.set_model(initial)
        self._chain.choose_bits(self._settings.bits)
        _log.info("round %s: the server has set a model, position %s", self._settings.index, self._chain.position.hex())

    def _beginning(self, initial: list[Array], steps: dict[int, Any]) -> Chain:
        """Where the steps that a message brings begin."""
        self._kept = self._store.newest_state()
        if self._kept is None:
            if not initial:
                raise StateError("this client has no model of the run; the server sends it again next round")
            return Chain(self.charter, self.scheme, self.context, first=initial)
        at = self._earlier(self._kept, steps) or self._kept
        return Chain(self.charter, self.scheme, self.context, state=at)

    def _earlier(self, kept: ChainState, steps: dict[int, Any]) -> ChainState | None:
        """The position before ``kept``, where the server has taken back the last step: one step, once a position."""
        instead = Chain.step_digest(*steps[kept.steps]) if kept.steps in steps else b""
        said = (self._settings.steps, self._settings.last)
        taken_back = said[0] < kept.steps or instead not in (b"", kept.last)
        if not taken_back:
            return None
        earlier = self._store.previous_state()
        if earlier is None or earlier.steps != kept.steps - 1:
            return None
        # The same again goes: what follows may have failed.
        now = [earlier.position.hex(), kept.last.hex(), instead.hex()]
        before = self._store.recall().get("withdrawn")
        if before and before[0] == now[0] and before != now:
            raise RoundError("the server takes back a second step from one position")
        self._store.remember(withdrawn=now)
        self._waiting.forget()
        _log.warning("the server has taken back step %s of the run", kept.steps)
        return earlier

    # --- what leaves -------------------------------------------------------------------------

    def claim(self, purpose: Purpose) -> None:
        """This message is the one that is answered: one frame a round, one evaluation a model, on disk."""
        facts, settings = self._store.recall(), self._settings
        if settings.round <= int(facts.get("answered", 0)):
            raise NonceReuseError(f"round {settings.round} is not after round {facts['answered']}, answered already")
        spend(self._holder, self.charter)
        if purpose == "evaluate":
            # A sum of histograms makes another position of the same model, and of the same memory of sets.
            position = self._at.moved.hex()
            evaluated: list[str] = facts.get("evaluated", [])
            if position in evaluated:
                raise NonceReuseError("this client has evaluated the model at this position already")
            # The chain goes back by one position at most.
            self._store.remember(answered=settings.round, evaluated=[*evaluated[-1:], position])
            return
        # The same again, under another number: a server that was killed asks once more.
        if settings.index < int(facts.get("index", 0)):
            raise NonceReuseError(f"round {settings.index} of the run is before round {facts['index']}")
        self._store.remember(answered=settings.round, index=settings.index, stood=self._stood(facts.get("stood", {})))

    def _stood(self, stood: dict[str, int]) -> dict[str, int]:
        """By position, the number of this client's first update from there: of the present one and the one before.

        Whoever remembers sets may forget a position's. From then on it refuses sums from there, up to
        `_MOST_NUMBERS_AT_A_POSITION` numbers past the last one that it knew. Raises `RoundError` for an update more
        than that many numbers after the first one: the sum of a later one might not be refused.
        """
        position, number = self._at.moved.hex(), self._settings.round
        begun = stood.get(position, number)
        if number - begun > _MOST_NUMBERS_AT_A_POSITION and not self.memory("train").startswith(_PINNED):
            raise RoundError(
                f"round {number} asks for an update from the position that this client sent its first one from in "
                f"round {begun}: the sets of so old a position may be forgotten. Begin a new run from the model of "
                "`fedcipher open`"
            )
        before = {at: first for at, first in stood.items() if at != position}
        return {**dict(list(before.items())[-1:]), position: begun}

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
        """What this message's frame names."""
        return self._running.associated_data(purpose, self._settings.index)

    def memory(self, purpose: Purpose) -> bytes:
        """The memory of sets that this message's frame counts in."""
        return self._running.memory(purpose)

    @property
    def recent_weight(self) -> float:
        """As `Chain.recent_weight`."""
        return self._running.recent_weight

    def histogram_counts(self, update: Sequence[Array], share: float) -> list[int]:
        """As `Chain.histogram_counts`."""
        return self._running.histogram_counts(update, share)

    @property
    def hides_ranges(self) -> bool:
        """As `Chain.hides_ranges`."""
        return self._running.hides_ranges

    @property
    def shaped(self) -> list[Array]:
        """Arrays of an update's shapes and types."""
        return self._running.shaped

    def update(self, trained: Sequence[Array]) -> tuple[list[Array], float]:
        """The update that leads to ``trained``, in every client's types, and how many of its values were not finite.

        NaN is zero, and what is infinite is the end of its range: larger, it would widen everybody's.
        """
        made = self._difference(trained)
        odd = [0 if x.dtype.kind != "f" else int(x.size - np.count_nonzero(np.isfinite(x))) for x in made]
        if any(odd):
            made = [_within(x, end) if count else x for x, end, count in zip(made, self._clips(), odd, strict=True)]
        return self.settled(self._running.whole.without(made)), float(sum(odd))

    def with_waiting(self, update: list[Array]) -> list[Array]:
        """``update`` and what earlier ranges have cut, where ranges follow."""
        waiting = self._waiting.taken(self._settings.index, update) if ranges_follow_updates(self.scheme) else []
        if not waiting:
            return update
        return [with_waiting(x, w) for x, w in zip(update, waiting, strict=True)]

    def coded(self, update: list[Array], share: float, *, counts: bool) -> tuple[list[Array], dict[str, list[float]]]:
        """The values of this client's frame, and what is counted of them.

        ``update`` is ``share`` times its own size. What is cut from one that ``counts`` waits.
        """
        coding = self._running.coding
        if coding is None:
            return update, self._counts(update)
        index, chain = self._settings.index, self._running
        # Whoever knew the draws would find one client's part in a sum.
        draws = chain.rounding_seed(index, self._holder.client) if self._holder.policy().repeatable else os.urandom(16)
        coded = coding.encode(update, chain.seed(index), draws)
        if counts and not self.charter.sets_models:
            self._waiting.keep(coded.rest, coding.scales, self._settings.index, share=share)
        return coded.values, self._kept_counts(coded.kept, clipped=coded.clipped, vanished=0)

    @property
    def at_random(self) -> bool:
        """Whether the frame's encryptor rounds at random; what is coded is whole steps already."""
        coding = self._running.coding
        return coding is None and rounds_at_random(self.charter, self.scheme)

    def whole(self, trained: Sequence[Array]) -> tuple[list[int], int]:
        """As `WholeNumbers.values`."""
        return self._running.whole.values(trained, self.arrays)

    def _clips(self) -> list[float]:
        """The clip range of each array's update."""
        if self._codec.privacy is not None:
            return [self._codec.privacy.clip] * len(self.arrays)
        if self.measuring:
            # It would make the range that everybody gets.
            return [0.0] * len(self.arrays)
        coding = self._running.coding
        if coding is None:
            return [alpha for _, _, alpha, _ in self._running.layout.tensors]
        return coding.limits

    def settled(self, update: Sequence[Array]) -> list[Array]:
        """``update`` in the types that every client sends, whatever its app returned: a frame's head names them.

        Shares of the largest weight are no whole numbers.
        """
        return [_in(like, x) for x, like in zip(update, self.shaped, strict=True)]

    def _difference(self, trained: Sequence[Array]) -> list[Array]:
        """What the codec wants of ``trained``: itself, or less the model, whole numbers as such, else as float32."""
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
        """As `Chain.reference`."""
        return self._running.reference

    def _counts(self, update: list[Array]) -> dict[str, list[float]]:
        """How many values of ``update`` are cut to their range, and how many are of tensors that round to nothing."""
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
                    "round %s: %s of %s values of %r were cut to their clip range, which grows by the next aggregate. "
                    "Where it stays: a number as clip leaves as much room as you say",
                    *(index, cut, x.size, name),
                )
            if not isinstance(self._codec.clip, str) and 0 < largest < alpha / levels.of(bits):
                vanished += x.size
                _log.warning(
                    "round %s: all %s values of %r are below half a step of their range. A clip of its own for each "
                    "tensor, clip='auto' or more bits keeps them",
                    *(index, x.size, name),
                )
        kept = kept_shares(update, self._running.layout, levels, unbiased=self.at_random)
        return self._kept_counts(kept, clipped=clipped, vanished=vanished)

    def _kept_counts(self, kept: list[float], *, clipped: int, vanished: int) -> dict[str, list[float]]:
        thin = [(name, part) for name, part in zip(self.charter.names, kept[1:], strict=True) if part < MIN_KEPT_SHARE]
        if thin:
            _log.warning("round %s: %s", self._settings.index, thin_text(thin))
        return {
            "fedcipher.clipped": [float(clipped)],
            "fedcipher.vanished": [float(vanished)],
            KEPT_SHARE: kept_share_lanes(kept),
        }

    # --- what an app has made, before its ranges are known -------------------------------------

    @property
    def measuring(self) -> bool:
        """As `Chain.measuring`."""
        return self._running.measuring

    @property
    def lanes(self) -> Lanes | None:
        """As `Chain.lanes`."""
        return self._running.lanes

    def keep_work(self, work: AppResult, names: Collection[str]) -> None:
        """Keep the app's ``work`` for the frame that follows, with the metrics ``names`` alone."""
        try:
            self._store.keep_work(self._work_name, work.to_bytes(names))
        except (RunError, ValueError, TypeError) as error:
            _log.warning("the work of round %s is not kept, and is done again: %s", self._settings.index, error)

    def kept_work(self) -> AppResult | None:
        """What `keep_work` was given in this round, where nothing but the sum of its histograms has come since."""
        if not self._running.measured:
            return None
        try:
            content = self._store.work(self._work_name)
            return None if content is None else AppResult.parse(content)
        except (ValueError, TypeError, KeyError, StateError) as error:
            _log.warning("the work of round %s is damaged, and is done again: %s", self._settings.index, error)
            return None

    def drop_work(self) -> None:
        """It is in a frame, or of no use."""
        self._store.drop_work()

    @property
    def _work_name(self) -> bytes:
        """The charter says what the app was told in a round."""
        return digest_of(b"work", self.context, self._settings.index.to_bytes(8, "little"), self._at.moved)

    @property
    def unsent(self) -> bytes:
        """What this client's updates of this run have not sent yet."""
        return self._store.unsent()

    def keep_unsent(self, state: bytes) -> None:
        """An encryptor's state, for the next round of this run."""
        self._store.keep_unsent(state)


def _ratios(sums: Sums, charter: Charter, purpose: Purpose) -> dict[str, list[float]]:
    return {answer.name: sums.ratio(answer) for answer in charter.answers[purpose]}


def _within(x: Array, end: float) -> Array:
    """Floats with zero for NaN, and ``end`` for what is infinite."""
    end = min(end, float(np.finfo(x.dtype).max))
    return np.nan_to_num(x, nan=0.0, posinf=end, neginf=-end)


def _in(like: Array | np.float32, x: Array) -> Array:
    """``x`` in the type of ``like``; what is beyond it ends where it ends."""
    if x.dtype == like.dtype:
        return x
    if like.dtype.kind == "f" and x.dtype.kind == "f":
        most = float(np.finfo(like.dtype).max)
        x = np.clip(x, -most, most) if float(np.finfo(x.dtype).max) > most else x
    return in_type_of(np.asarray(like), x)


def _plain(spec: Any) -> Any:
    """As a document has it: lists for tuples."""
    return json.loads(json.dumps(spec))
