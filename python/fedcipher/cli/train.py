"""`fedcipher train` simulates a federation on this machine."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedcipher import _native
from fedcipher._files import resolved, writable_folder
from fedcipher._optional import require
from fedcipher._options import positive, whole
from fedcipher._scratch import scratch_folder
from fedcipher.app.layers import LayerBits, LayerClips, tensor_names
from fedcipher.cli.options import MAX_CLIENTS, add_privacy, add_scheme, default_bits, made, privacy_of, sets
from fedcipher.cli.parser import Parser
from fedcipher.data import DATASETS
from fedcipher.dp import Privacy
from fedcipher.engine.accelerator import LIBRARY, Accelerator
from fedcipher.errors import ParameterError
from fedcipher.schemes import Scheme, scheme

if TYPE_CHECKING:
    from fedcipher.app.settings import Settings

__all__ = ["add_train"]

# A round's number has so many bits for the round within its run.
_MAX_ROUNDS = 2**_native.ROUND_INDEX_BITS - 1
_SETTINGS = (
    *("dataset", "model", "clients", "per_round", "rounds"),
    *("epochs", "batch", "learning_rate", "learning_rate_end", "optimiser", "dirichlet", "seed"),
    *("test_share", "validation_share", "patience", "resume"),
)
"""Options with the name and value of a run's setting."""


def add_train(parser: Parser) -> None:
    """Add the options of `fedcipher train`."""
    _add_federation(parser)
    _add_training(parser)
    add_scheme(parser, layers=True)
    add_privacy(parser, rounds=False)
    _add_engine(parser)
    _add_output(parser)
    parser.example(
        "--clients 4 --rounds 3",
        "--scheme oneshot --clients 12 --per-round 12",
        "--dataset mnist --data-dir mnist --compare plain",
    )
    parser.set_defaults(run=_train)


def _add_federation(parser: Parser) -> None:
    group = parser.add_argument_group("data and clients")
    group.add_argument("--dataset", default="digits", help=", ".join(DATASETS))
    group.add_argument(
        "--data-dir", default="", help="folder with the data set's files: IDX, input.txt, or as published"
    )
    group.add_argument(
        "--clients", type=whole(1, MAX_CLIENTS), default=12, help="clients, each with a part of the data"
    )
    group.add_argument(
        "--per-round",
        type=whole(1, MAX_CLIENTS),
        default=0,
        help="clients sampled in each round (default: a third; digits: all)",
    )
    group.add_argument(
        "--dirichlet",
        type=positive(1e-3, 1e6, zero=True),
        default=0.0,
        help="label skew: Dirichlet's alpha (default: 0, no skew)",
    )
    group.add_argument(
        "--test-share",
        type=positive(1e-6, 0.99, zero=True),
        default=0.0,
        help="share of each client's examples to evaluate on (default: 0, use the data set's test examples)",
    )
    group.add_argument(
        "--validation-share",
        type=positive(1e-6, 0.99, zero=True),
        default=0.0,
        help="share of a client's training examples that decide when its training stops early",
    )
    group.add_argument(
        "--seed", type=whole(0, 2**32 - 1), default=0, help="seed of the parts, the samples and the model"
    )


def _add_training(parser: Parser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--model",
        default="",
        help="cnn-8k, lenet5, cnn-1.2m, resnet20, gru or gru-0.66m (default: by the data set)",
    )
    group.add_argument("--rounds", type=whole(1, _MAX_ROUNDS), default=10, help="number of rounds")
    group.add_argument(
        "--epochs", type=whole(1), default=0, help="passes over the local data per round (default: 1; digits: 5)"
    )
    group.add_argument("--batch", type=whole(1), default=0, help="examples per step (default: 64; digits: 16)")
    # fedcipher.models has the names, but its import needs JAX. `Settings` checks the name.
    group.add_argument("--optimiser", default="nadam", help="nadam or adam")
    group.add_argument("--learning-rate", type=positive(1e-12, 1e6), default=1e-3, help="rate of the first round")
    group.add_argument(
        "--learning-rate-end",
        type=positive(1e-12, 1e6, zero=True),
        default=0.0,
        help="rate of the last round; the rates follow a cosine (default: constant rate)",
    )
    group.add_argument(
        "--patience", type=whole(1), default=1, help="passes without a better validation loss before a client stops"
    )


def _add_engine(parser: Parser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine",
        choices=["off", "auto"],
        help="auto: an engine process holds the keys, from an authority (default: off; auto with --accelerator)",
    )
    group.add_argument(
        "--accelerator",
        default="off",
        choices=["off", "sim"],
        help="sim: do bfv's arithmetic on a simulation of FedBit's device",
    )
    group.add_argument(
        "--accelerator-library", type=Path, default=LIBRARY, help="library that `make hardware-sim` builds"
    )


def _add_output(parser: Parser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder of the report")
    group.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in --out if there is one; keys stay in OUT/keys until the run has ended",
    )
    group.add_argument("--dashboard", action="store_true", help="serve a page that shows the run while it runs")
    group.add_argument("--compare", choices=["plain"], help="run a second time under this scheme, for comparison")
    group.add_argument(
        "--link-mbit", type=float, default=100.0, help="rate in Mbit/s for the transfer times in the report"
    )


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    _check(options)
    require("fedcipher train", "demo", "flwr", "ray", "jax", "flax", "optax", "rich", "matplotlib")
    if options.dashboard:
        from fedcipher.cli.runs import require_dashboard

        require_dashboard()
    from fedcipher.app.forked_run import run_forked
    from fedcipher.app.simulate import train
    from fedcipher.cli.program import refused

    # With --resume the keys are in the run's folder. Otherwise they are in a temporary folder, made after all checks.
    keys_folder = str(resolved(options.out) / "keys")
    privacy = privacy_of(options, options.rounds)
    settings = _settings(options, privacy, keys_folder)
    _take_layers(options, settings, privacy)
    chosen = made(options, settings.per_round, 1, privacy)
    on = Accelerator.simulated(options.accelerator_library, chosen) if options.accelerator == "sim" else None
    writable_folder(options.out)
    beside = _beside(chosen, options.compare) if options.compare else None

    def work(keys_folder: str) -> int:
        train(
            *(replace(settings, keys=keys_folder), chosen, options.out, [options.program, *arguments]),
            link_mbit=options.link_mbit,
            engine=_in_engine(options),
            accelerator=on,
            beside=beside,
            dashboard=options.dashboard,
        )
        return 0

    if options.resume:
        return run_forked(lambda: work(keys_folder), refused)
    with scratch_folder("fedcipher-") as scratch:
        return run_forked(lambda: work(str(Path(scratch) / "keys")), refused)


def _check(options: argparse.Namespace) -> None:
    """Raise `ParameterError` for options that exclude each other."""
    if not (math.isfinite(options.link_mbit) and options.link_mbit > 0):
        raise ParameterError(f"--link-mbit {options.link_mbit:g}: give a positive number of Mbit/s")
    if options.compare == options.scheme:
        raise ParameterError(f"--compare {options.compare} beside --scheme {options.scheme}: choose another scheme")
    if options.accelerator != "off" and options.engine == "off":
        raise ParameterError("--accelerator needs an engine: leave out --engine off")
    if options.resume and (options.compare or _in_engine(options)):
        raise ParameterError(
            "--resume needs one run with keys in files: leave out --compare, --engine and --accelerator"
        )


def _in_engine(options: argparse.Namespace) -> bool:
    return options.engine == "auto" or options.accelerator != "off"


def _settings(options: argparse.Namespace, privacy: Privacy | None, keys_folder: str) -> Settings:
    """The run's `Settings`. With privacy this also sets the scheme's ``min_contributions``."""
    from fedcipher.app.settings import Settings
    from fedcipher.app.simulate import client_sizes, largest_weight

    shape = {name: getattr(options, name) for name in _SETTINGS}
    shape["data_dir"] = str(resolved(options.data_dir)) if options.data_dir else ""
    settings = Settings(keys=keys_folder, **shape)
    if privacy is None:
        return replace(settings, examples_per_weight=largest_weight(client_sizes(settings)))
    # Clients do not drop out of a simulation, so require all: with fewer noise shares each share would be larger.
    if not sets(options, "min_contributions"):
        options.set.append(f"min_contributions={settings.per_round}")
    return settings


def _take_layers(options: argparse.Namespace, settings: Settings, privacy: Privacy | None) -> None:
    """Replace bits and ranges by layer with bits and ranges by tensor."""
    if not isinstance(options.bits, LayerBits) and not isinstance(options.clip, LayerClips):
        return
    names = tensor_names(settings.dataset, settings.data_dir, settings.model)
    if isinstance(options.bits, LayerBits):
        options.bits = options.bits.of(names, default_bits(options, privacy, layers=True))
    if isinstance(options.clip, LayerClips):
        options.clip = options.clip.of(names)


def _beside(made: Scheme, name: str) -> Scheme:
    """The scheme ``name`` for the same cohort and codec."""
    params = made.params()
    shape = {key: params[key] for key in ("clients", "max_weight", "min_contributions") if key in params}
    return scheme(name, codec=made.codec, **shape)
