"""Options of several commands: the scheme and its codec, weights, privacy, and the key that opens sums."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from fedcipher._options import whole
from fedcipher.app.layers import bits_option, clip_option, one_bits_option
from fedcipher.cli.parser import OptionGroup
from fedcipher.codec import Codec
from fedcipher.dp import Privacy
from fedcipher.errors import ParameterError
from fedcipher.foreign_text import show
from fedcipher.keys import roster
from fedcipher.schemes import DEFAULT_SCHEME, Scheme, following_bits, scheme, scheme_class, scheme_names

__all__ = [
    "MAX_CLIENTS",
    "MAX_EPOCH",
    "add_coordinator",
    "add_key",
    "add_per_round",
    "add_privacy",
    "add_scheme",
    "add_weights",
    "coordinator_of",
    "default_bits",
    "examples_per_weight",
    "key_of",
    "listed_schemes",
    "made",
    "max_weight",
    "privacy_of",
    "privacy_of_keys",
    "sets",
    "show_privacy",
]

MAX_CLIENTS = 2**20
MAX_EPOCH = 2**63 - 1
_OWN_OPTIONS = {"clients": "--per-round", "max_weight": "--max-weight", "codec": "--bits, --clip and so on"}
_LAYER_BITS, _DEFAULT_BITS = 6, {"flashe": 16}
_DELTA, _CLIP = 1e-5, 1.0


def listed_schemes() -> str:
    """A text with the names of the schemes and, separately, of the baselines."""
    names = scheme_names()
    baselines = [name for name in names if scheme_class(name).info.baseline]
    chosen = ", ".join(name for name in names if name not in baselines)
    return f"{chosen}; baselines, for measurements only: {', '.join(baselines)}"


def add_scheme(parser: argparse.ArgumentParser, scheme: str = DEFAULT_SCHEME, *, layers: bool = False) -> None:
    """Add the options of the scheme and its codec.

    ``scheme`` is the default. ``layers``: allow bits and ranges for single layers.
    """
    group = parser.add_argument_group("scheme")
    group.add_argument("--scheme", type=_scheme_name, default=scheme, metavar="NAME", help=listed_schemes())
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the scheme, such as min_contributions=4 or preset=fast; may be repeated",
    )
    _add_codec(parser, layers=layers)


def _add_codec(parser: argparse.ArgumentParser, *, layers: bool) -> None:
    group = parser.add_argument_group("values of an update")
    general = (
        "bits per value, or auto: a run chooses 3, 5 or 8 by the noise of its sums (default if ranges follow the "
        "updates: auto for flashe, bfv, oneshot and plain, else 6; otherwise 16 for flashe, else 12)"
    )
    bits = "; by layer: conv1=8,fc=12,10, the last number for all others" if layers else ""
    clips = "; by layer: conv1=2,fc=5,1, the last number for all others" if layers else ""
    group.add_argument("--bits", type=bits_option if layers else one_bits_option, help=general + bits)
    group.add_argument(
        "--clip", type=clip_option if layers else str, default="auto", help=f"range: auto, aciq or a number{clips}"
    )
    group.add_argument("--target", default="delta", choices=["delta", "weights"], help="values that clients send")
    group.add_argument(
        "--top", type=float, help="fraction of each tensor to send, the same entries for every client (default: all)"
    )
    group.add_argument(
        "--rounding",
        default="nearest",
        choices=["nearest", "stochastic"],
        help="how values are rounded; if ranges follow the updates, nearest applies only where it has no bias",
    )


def add_per_round(cohort: OptionGroup) -> None:
    """Add the option for the number of clients in a round."""
    cohort.add_argument("--per-round", type=whole(1, MAX_CLIENTS), help="maximum of clients in a round (default: all)")


def add_weights(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options for the weights of clients in a mean."""
    group = parser.add_argument_group("weights")
    how = group.add_mutually_exclusive_group(required=required)
    how.add_argument(
        "--examples",
        type=float,
        metavar="MAX",
        help="weight clients by their number of training examples, like FedAvg; MAX is the number of the largest "
        "client, and more examples count as MAX",
    )
    how.add_argument("--equal", action="store_true", help="give all clients the same weight")
    group.add_argument(
        "--max-weight",
        type=whole(1),
        default=1,
        help="largest integer weight of an update in your own program; Flower needs 1; larger weights cost bits per "
        "value (default: 1)",
    )


def add_privacy(parser: argparse.ArgumentParser, *, rounds: bool) -> None:
    """Add the options of differential privacy; ``rounds``: also the number of updates under one set of keys."""
    group = parser.add_argument_group("differential privacy")
    group.add_argument(
        "--dp-epsilon",
        type=float,
        help="clip updates and add noise: epsilon for all data of a client, after all its updates (needs --equal)"
        if rounds
        else "clip updates and add noise: epsilon for all data of a client, after all rounds",
    )
    group.add_argument("--dp-delta", type=float, help=f"with --dp-epsilon: the delta (default: {_DELTA:g})")
    group.add_argument(
        "--dp-clip", type=float, help=f"with --dp-epsilon: largest L2 norm of an update (default: {_CLIP:g})"
    )
    if rounds:
        group.add_argument(
            "--dp-rounds",
            type=int,
            help="required with --dp-epsilon: maximum of updates that a client sends under these keys",
        )


def add_coordinator(group: OptionGroup) -> None:
    """Add the option for the coordinator, whose signature makes clients accept a charter."""
    group.add_argument(
        "--coordinator",
        type=Path,
        metavar="CARD",
        help="card of the coordinator; clients accept every charter that the coordinator has signed",
    )


def add_key(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the options for the key that opens a run's sums."""
    group = parser.add_argument_group("key that opens the run's sums")
    why = "" if required else "; shows the metrics, which are encrypted"
    holder = group.add_mutually_exclusive_group(required=required)
    holder.add_argument("--key", type=Path, help=f"a client's key file{why}")
    holder.add_argument("--engine", metavar="TARGET", help=f"a client's engine: unix:/path, or host:port{why}")
    group.add_argument("--device", default="", help="with --engine: the engine's device to use, if it has several")
    group.add_argument("--credentials", type=Path, help="with --engine host:port: folder with the host's certificate")


def key_of(options: argparse.Namespace) -> Any:
    """The key file or the `Engine` in the options of `add_key`; None without either."""
    from fedcipher.engine import connect

    if options.engine is None and (options.device or options.credentials):
        raise ParameterError("--device and --credentials need --engine; give --engine in place of --key")
    if options.engine is None:
        return options.key
    return connect(options.engine, device=options.device, credentials=options.credentials)


def coordinator_of(options: argparse.Namespace) -> str:
    """The public keys in the card of `add_coordinator`; empty without a card."""
    return "" if options.coordinator is None else roster.coordinator_of(options.coordinator)


def privacy_of(options: argparse.Namespace, rounds: int | None) -> Privacy | None:
    """The privacy in the options of `add_privacy`; None without ``--dp-epsilon``. Raises `ParameterError`."""
    if options.dp_epsilon is None:
        if (options.dp_delta, options.dp_clip, getattr(options, "dp_rounds", None)) != (None, None, None):
            raise ParameterError("--dp-delta, --dp-clip and --dp-rounds need --dp-epsilon; give it too")
        return None
    if rounds is None:
        raise ParameterError("--dp-epsilon needs --dp-rounds, the maximum of updates that a client sends")
    delta = _DELTA if options.dp_delta is None else options.dp_delta
    clip = _CLIP if options.dp_clip is None else options.dp_clip
    return Privacy.for_epsilon(options.dp_epsilon, delta=delta, rounds=rounds, clip=clip)


def privacy_of_keys(options: argparse.Namespace) -> Privacy | None:
    """The privacy in the options of `add_privacy`, checked against those of `add_weights`. Raises `ParameterError`."""
    privacy = privacy_of(options, options.dp_rounds)
    if privacy is not None and not options.equal:
        raise ParameterError("--dp-epsilon needs --equal: the noise does not hide how many examples a client has")
    return privacy


def max_weight(options: argparse.Namespace) -> int:
    """The largest weight in the options of `add_weights`. Raises `ParameterError` for wrong ``--examples``."""
    if options.examples is not None and not 1 <= options.examples < math.inf:
        raise ParameterError(f"--examples {options.examples} is not a number of examples")
    return options.max_weight


def examples_per_weight(options: argparse.Namespace) -> float:
    """The number of examples per unit of weight; 0 if all clients have the same weight.

    Call this after a scheme was made, which checks the largest weight.
    """
    return 0.0 if options.equal else options.examples / options.max_weight


def show_privacy(privacy: Privacy | None, made: Scheme) -> None:
    """Show the guarantee of differential privacy, if there is noise."""
    if privacy is not None:
        show(privacy.statement(made.noise_shares))


def _scheme_name(text: str) -> str:
    try:
        scheme_class(text)
    except ParameterError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def made(options: argparse.Namespace, clients: int, max_weight: int, privacy: Privacy | None = None) -> Scheme:
    """The scheme in the options of `add_scheme`, for ``clients`` per round and ``max_weight``.

    Raises `ParameterError`.
    """
    # A list of ranges, one per tensor, is parsed already.
    clip: Any = options.clip
    if not isinstance(clip, list) and clip not in ("auto", "aciq"):
        clip = _range(clip)
    codec = Codec(
        bits=options.bits or default_bits(options, privacy),
        clip=clip,
        target=options.target,
        rounding=options.rounding,
        top=options.top,
        privacy=privacy,
    )
    extra = dict(_assignment(text) for text in options.set)
    return scheme(options.scheme, clients=clients, max_weight=max_weight, codec=codec, **extra)


def default_bits(options: argparse.Namespace, privacy: Privacy | None, *, layers: bool = False) -> Any:
    """The default bits: a fixed range needs more bits than a range that follows the updates.

    ``layers``: return a number for one layer, never ``auto``.
    """
    parts = options.top is not None or any(text.startswith("per_client_top=") for text in options.set)
    if options.clip == "auto" and options.target == "delta" and privacy is None and not parts:
        return _LAYER_BITS if layers else following_bits(options.scheme)
    return _DEFAULT_BITS.get(options.scheme, 12)


def _range(text: str) -> float:
    try:
        clip = float(text)
    except ValueError:
        clip = math.nan
    if not (math.isfinite(clip) and clip > 0):
        raise ParameterError(f"--clip {text}: give auto, aciq or a positive number")
    return clip


def _assignment(text: str) -> tuple[str, str | int | float | bool]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise ParameterError(f"--set {text}: give NAME=VALUE, such as masking=adaptive")
    if name in _OWN_OPTIONS:
        raise ParameterError(f"--set {text}: {name} has an option of its own, {_OWN_OPTIONS[name]}")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            found = kind(value)
        except ValueError:
            continue
        # Parameters are sent as JSON, which has neither infinity nor NaN.
        return name, found if math.isfinite(found) else value
    return name, value


def sets(options: argparse.Namespace, name: str) -> bool:
    """Whether ``--set`` gives this parameter."""
    return any(text.partition("=")[0] == name for text in options.set)
