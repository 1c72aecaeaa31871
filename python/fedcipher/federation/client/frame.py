"""Makes one frame of a round: prepares it before the app computes, and encrypts the app's result."""

from __future__ import annotations

import time
from typing import cast

import numpy as np

from fedcipher.codec import Array
from fedcipher.federation.answers import Lanes, Tally
from fedcipher.federation.chain import lanes_of
from fedcipher.federation.charter import Purpose
from fedcipher.federation.client.app_result import AppResult, numbers_of
from fedcipher.federation.client.model import ClientModel
from fedcipher.federation.ranges import HISTOGRAMS
from fedcipher.federation.round_settings import RoundSettings
from fedcipher.federation.whole_numbers import MAX_MAGNITUDE, WHOLE
from fedcipher.foreign_text import quoting_log
from fedcipher.schemes import Encryptor

__all__ = ["RoundFrame"]

_log = quoting_log("fedcipher.federation")
_MAX_RATIO_TO_MEAN = 1.05
"""A client whose number of examples is beyond this ratio to the mean gets a warning."""


class RoundFrame:
    """The frame of one message of a round, from `prepare` to `seal`."""

    def __init__(self, model: ClientModel, encryptor: Encryptor, settings: RoundSettings, purpose: Purpose) -> None:
        self._model, self._encryptor, self._settings = model, encryptor, settings
        self._purpose: Purpose = purpose
        self._scheme, self._charter = model.scheme, model.charter
        self._measures = purpose == "train" and model.measuring
        self._lanes: Lanes | None = (
            model.lanes if purpose == "train" else lanes_of(model.charter, model.scheme, purpose)
        )
        self._counts = False
        self.phases: dict[str, float | int] = {}

    def prepare(self) -> None:
        """Do the work that does not depend on the data, before the app computes."""
        if self._purpose != "train" or self._measures:
            return
        began = time.perf_counter()
        if self._scheme.sends_parts:
            self._encryptor.import_state(self._model.unsent)
        self._encryptor.precompute(
            self._model.shaped,
            round=self._settings.round,
            reference=self._model.reference,
            round_plan=self._settings.plan,
            lanes=0 if self._lanes is None else self._lanes.count,
            counts=0 if self._lanes is None else self._lanes.counts,
            hide_ranges=self._model.hides_ranges,
            bits=self._settings.bits,
        )
        self.phases["offline_seconds"] = time.perf_counter() - began

    def seal(self, result: AppResult) -> bytes:
        """Encrypt the app's result into the frame. If the app failed, the frame holds zeros that do not count."""
        charter = self._charter
        values = {a.name: numbers_of(result.metrics.get(a.name)) for a in charter.answers[self._purpose]}
        values["fedcipher.seconds"] = [result.seconds]
        tally = Tally(not result.failed, self._examples(result), values)
        trains = self._purpose == "train"
        update = self._update(result, tally, values) if trains else []
        if self._measures:
            # Only the histogram of the update leaves, in ``values``.
            trains, update = False, []
        lanes = None if self._lanes is None else self._lanes.encode(tally)
        frame = self._encryptor.encrypt(
            update,
            round=self._settings.round,
            reference=self._model.reference if trains else None,
            round_plan=self._settings.plan,
            model=self._model.associated_data(self._purpose),
            memory=self._model.memory(self._purpose),
            lanes=lanes,
            counts=0 if self._lanes is None else self._lanes.counts,
            unbiased=trains and self._model.at_random,
            hide_ranges=self._model.hides_ranges,
            bits=self._settings.bits,
        )
        # Store the part of an update that was not sent. If this update does not count, the earlier unsent part stays.
        if self._counts and self._scheme.sends_parts:
            self._model.keep_unsent(self._encryptor.export_state())
        stats = self._encryptor.stats
        self.phases["encode_seconds"] = stats.encode_seconds
        self.phases["encrypt_seconds"] = stats.encrypt_seconds
        self.phases["upload_bytes"] = len(frame)
        self.phases["setup_bytes"] = stats.setup_bytes
        if stats.scaled < 1:
            # Only in this client's log, because no noise covers an update's norm.
            _log.info(
                "round %s: the update was multiplied by %.3g to keep the L2 norm of its privacy",
                self._settings.index,
                stats.scaled,
            )
        return frame

    def _update(self, result: AppResult, tally: Tally, values: dict[str, list[float]]) -> list[Array]:
        """The update to encrypt: the change times this client's share of the largest weight.

        Adds counters to ``values``.
        """
        model = self._model
        share, cut = 1.0, 0
        if self._lanes is not None and not self._charter.equal_weights:
            share = self._lanes.weight(tally.examples) / self._charter.largest_weight
        self._counts = not result.failed and share > 0
        if not self._counts:
            if self._scheme.sends_parts:
                self._encryptor.import_state(b"")
            update = [np.zeros_like(x) for x in model.shaped]
        else:
            update, odd = model.update(result.arrays)
            values["fedcipher.saturated"] = [odd]
            update = model.with_waiting(update)
            values[WHOLE], cut = cast("tuple[list[float], int]", model.whole(result.arrays))
        values[HISTOGRAMS] = cast("list[float]", model.histogram_counts(update, share))
        if self._counts:
            # Relative to the largest recent weight, instead of the charter's largest weight.
            share /= model.recent_weight
            if share != 1:
                update = [np.asarray(x * np.float32(share)) for x in update]
        if self._measures:
            return update
        update, counted = model.encode(update, share, counts=self._counts)
        values.update(counted)
        if cut:
            values["fedcipher.clipped"][0] += cut
            _log.warning("round %s: %s whole numbers were cut to %s", self._settings.index, cut, MAX_MAGNITUDE)
        return update

    def _examples(self, result: AppResult) -> int | float:
        numbers = numbers_of(result.metrics.get(self._charter.weighted_by))
        return numbers[0] if numbers else 0.0

    def valid(self, result: AppResult) -> AppResult:
        """Return ``result``, or a failed one if its arrays do not fit the model, or its examples give no weight.

        A number of examples that is negative or NaN gives no weight.
        """
        if not result.failed:
            model = self._model
            result = result.fitting(model.charter.names, model.arrays, updates=self._purpose == "train")
        examples = self._examples(result)
        if self._lanes is None or result.failed or examples >= 0:
            return result
        why = f"{self._charter.weighted_by!r} is {examples}; the app must return a number of examples of at least 0"
        return AppResult(seconds=result.seconds, failed=why)

    def warn(self, result: AppResult) -> None:
        """Log which parts of the app's ``result`` do not count."""
        charter, examples = self._charter, self._examples(result)
        surplus = sorted(set(result.metrics) - charter.metrics(self._purpose))
        if surplus:
            _log.warning(
                "round %s: the metrics %s stay on this client: the charter does not name them. Name them in "
                "SecureStrategy(%s_answers=[...])",
                self._settings.index,
                surplus,
                self._purpose,
            )
        if result.failed:
            # With differential privacy, no lane counts failures: their number depends on data, and no noise covers it.
            counts = "do not count" if self._lanes is not None else "count as an update, because privacy hides failures"
            _log.warning("round %s: this client sends zeros that %s: %s", self._settings.index, counts, result.failed)
        elif self._lanes is not None and not charter.equal_weights and self._lanes.weight(examples) == 0:
            _log.warning(
                "round %s: %r is %s, so this client's update does not count",
                self._settings.index,
                charter.weighted_by,
                examples,
            )
        elif not charter.equal_weights and examples > charter.largest_weight:
            _log.warning(
                "round %s: %s examples count as %s, the largest weight of the charter; make keys with "
                "`fedcipher keygen --examples %.0f`",
                self._settings.index,
                examples,
                charter.largest_weight,
                examples,
            )
        elif charter.equal_weights and self._purpose == "train":
            self._warn_unequal(examples)

    def _warn_unequal(self, examples: float) -> None:
        """Log a warning if FedAvg would weight clients by examples but these keys do not."""
        mean = self._model.mean_examples
        if not mean or mean / _MAX_RATIO_TO_MEAN <= examples <= mean * _MAX_RATIO_TO_MEAN:
            return
        _log.warning(
            "round %s: this client has %s examples, the clients of the last round had %.4g on average, and all have "
            "the same weight. To weight by examples, make keys with `fedcipher keygen --examples N`, with N of the "
            "largest client",
            *(self._settings.index, examples, mean),
        )
