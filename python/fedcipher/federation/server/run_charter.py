"""Makes a run's charter on the server, and checks that a resumed run still has the same charter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from fedcipher.codec import Array
from fedcipher.errors import CharterError, StrategyError
from fedcipher.federation.canonical import encode
from fedcipher.federation.charter import Charter, arrays_digest
from fedcipher.federation.server.state import RunState

__all__ = ["charter_of", "check_same"]

_SPARE_ROUNDS = 10
"""A charter allows this many times the rounds that a run begins with, so that a resumed run may be longer."""


def charter_of(run: RunState, names: Sequence[str], values: Sequence[Array]) -> Charter:
    """The charter of ``run`` with this first model: all that it computes from private data. Raises `StrategyError`."""
    setup, scheme, key, plan = run.setup, run.scheme, run.key, run.plan
    optimiser, reported = plan.optimiser, any(setup.answers.values()) or scheme.codec.adaptive
    try:
        made = Charter(
            run=run.base + 1,
            key_set=key.fingerprint,
            epoch=key.epoch,
            scheme=json.loads(json.dumps(scheme.spec())),
            record=plan.record,
            arrays=[(name, x.dtype.str, x.shape) for name, x in zip(names, values, strict=True)],
            first=arrays_digest(names, values).hex(),
            optimiser=None if optimiser is None else (optimiser.kind, optimiser.numbers),
            equal_weights=not setup.unit,
            weighted_by=plan.weighted_by,
            largest_weight=setup.largest,
            weighs_each_round=setup.weighs_each_round,
            answers=setup.answers,
            clear={"train": setup.clear, "evaluate": setup.clear},
            types=dict(plan.types),
            rounds=run.planned if plan.listed else _SPARE_ROUNDS * run.planned,
            reader="server" if setup.opener is not None else "clients",
            reports=setup.opener is None and scheme.committee is not None and reported,
            sets_models=setup.sets_models,
            settings=dict(plan.settings),
        )
        # Decoding it applies the same checks as each client's.
        return Charter.decode(made.encode())
    except CharterError as error:
        raise StrategyError(f"clients would refuse such a run: {error}") from error


def check_same(run: RunState, path: Path, begun: Charter, names: Sequence[str], values: Sequence[Array]) -> None:
    """Raise `StrategyError` if the resumed run in ``path`` would have another charter than ``begun``."""
    if begun.epoch != run.key.epoch or begun.key_set != run.key.fingerprint:
        raise StrategyError(
            f"the run {path} has key epoch {begun.epoch}, but the server has another key set or epoch, and a run keeps "
            "its epoch. Start a new run with another out=..., from the model of `fedcipher open`"
        )
    if [x.shape for x in values] != [shape for _, _, shape in begun.arrays]:
        raise StrategyError(f"the model of the run {path} has other shapes than initial_arrays")
    if run.planned > begun.rounds:
        raise StrategyError(
            f"the charter of the run {path} allows {begun.rounds} rounds, and {run.planned} are asked for: start a new "
            "run, from the model of `fedcipher open`"
        )
    ours = charter_of(run, names, values)
    # Only the names and shapes of the arrays that the run is resumed with count.
    ours = replace(ours, first=begun.first, rounds=begun.rounds)
    asked = range(1, run.planned + 1)
    same = {
        p: [encode(ours.settings[p].at(i)) == encode(begun.settings[p].at(i)) for i in asked] for p in begun.settings
    }
    listed = [field.name for field in fields(ours) if field.name != "settings"]
    changed = [name for name in listed if getattr(ours, name) != getattr(begun, name)]
    changed += [] if all(all(rounds) for rounds in same.values()) else ["settings"]
    if changed:
        raise StrategyError(
            f"the run {path} cannot continue because these parts of its charter have changed: {', '.join(changed)}. "
            "Start a new run with another out=..., or restore the app"
        )
