# pyright: basic
"""The ServerApp: FedAvg inside `SecureStrategy`."""

from __future__ import annotations

import random
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcipher.adapters.flower import RoundRecord, SecureStrategy
from fedcipher.app.answers import evaluate_answers, pool_evaluations, train_answers
from fedcipher.app.settings import Settings
from fedcipher.data import load
from fedcipher.errors import LostRoundsError
from fedcipher.keys.provider import server_keys
from fedcipher.keys.server_keys import ServerKeys
from fedcipher.models import Learner

__all__ = ["app", "make_server_app"]


def make_server_app(
    settings: Settings | None = None,
    on_round: Callable[[RoundRecord], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    keys: ServerKeys | None = None,
    on_end: Callable[[SecureStrategy], None] | None = None,
) -> ServerApp:
    """Make a ServerApp for ``settings`` or, without them, for the run config.

    ``keys`` overrides ``settings.keys``. ``on_round`` and ``on_progress`` go to `SecureStrategy`; ``on_end`` is called
    with the strategy after the last round.
    """
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        chosen = settings or Settings.from_config(context.run_config)
        random.seed(chosen.seed)
        data = load(chosen.dataset, chosen.data_dir or None)
        learner = Learner(chosen.model, data.classes, data.train_x[0])
        initial = learner.initial(chosen.seed)
        held = server_keys(keys or chosen.keys)
        # Noise does not cover answers, so a run with privacy has no answers.
        private = held.scheme.codec.privacy is not None
        strategy = SecureStrategy(
            FedAvg(
                fraction_train=chosen.per_round / chosen.clients,
                # A sum has room for so many clients.
                fraction_evaluate=chosen.per_round / chosen.clients,
                min_train_nodes=chosen.per_round,
                min_evaluate_nodes=chosen.per_round,
                min_available_nodes=chosen.clients,
                evaluate_metrics_aggr_fn=pool_evaluations,
            ),
            held,
            train_answers=[] if private else train_answers(chosen),
            evaluate_answers=[] if private else evaluate_answers(chosen, data),
            out=chosen.out,
            resume=chosen.resume,
            examples_per_weight=chosen.examples_per_weight or None,
            on_round=on_round,
            on_progress=on_progress,
        )
        arrays = ArrayRecord({n: Array(p) for n, p in zip(learner.names, initial, strict=True)})
        lost: LostRoundsError | None = None
        try:
            strategy.start(grid, arrays, num_rounds=chosen.rounds)
        except LostRoundsError as error:
            # First report the rounds that have an aggregate.
            lost = error
        if on_end is not None:
            on_end(strategy)
        if lost is not None:
            raise lost

    return made


app = make_server_app()
