"""Options that several commands have: the scheme and its codec, weights, privacy, and whose key opens sums."""

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
    "say_privacy",
    "sets",
]

MAX_CLIENTS = 2**20
MAX_EPOCH = 2**63 - 1
_OWN_OPTIONS = {"clients": "--per-round", "max_weight": "--max-weight", "codec": "--bits, --clip and so on"}
_LAYER_BITS, _DEFAULT_BITS = 6, {"flashe": 16}
_DELTA, _CLIP = 1e-5, 1.0


def listed_schemes() -> str:
    """Names of the schemes to choose from, and apart those that are there to be measured."""
    names = scheme_names()
    baselines = [name for name in names if scheme_class(name).info.baseline]
    chosen = ", ".join(name for name in names if name not in baselines)
    return f"{chosen}; baselines, for measurements only: {', '.join(baselines)}"


def add_scheme(
    parser: argparse.ArgumentParser, target: str = "delta", scheme: str = DEFAULT_SCHEME, *, layers: bool = False
) -> None:
    """Adds the scheme and its codec, with those defaults; ``layers``: bits and ranges may be of a layer."""
    group = parser.add_argument_group("scheme")
    group.add_argument("--scheme", type=_scheme_name, default=scheme, metavar="NAME", help=listed_schemes())
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the scheme, as min_contributions=4, preset=fast; repeat",
    )
    _add_codec(parser, target, layers=layers)


def _add_codec(parser: argparse.ArgumentParser, target: str, *, layers: bool) -> None:
    group = parser.add_argument_group("values of an update")
    usual = (
        "bits of a value, or auto: a run chooses 3, 5 or 8 by the noise of its sums (default where ranges follow the "
        "updates: auto for flashe, bfv, oneshot and plain, else 6; elsewhere 16 for flashe, else 12)"
    )
    bits = "; of a layer's values: conv1=8,fc=12,10, the last of all others" if layers else ""
    clips = "; of a layer's values: conv1=2,fc=5,1, the last of all others" if layers else ""
    group.add_argument("--bits", type=bits_option if layers else one_bits_option, help=usual + bits)
    group.add_argument(
        "--clip", type=clip_option if layers else str, default="auto", help=f"range: auto, aciq or a number{clips}"
    )
    group.add_argument("--target", default=target, choices=["delta", "weights"], help="what clients send")
    group.add_argument(
        "--top", type=float, help="fraction of each tensor to send, the same of every client (default: all of it)"
    )
    group.add_argument(
        "--rounding", default="nearest", choices=["nearest", "stochastic"], help="of a value to a whole number"
    )


def add_per_round(cohort: OptionGroup) -> None:
    """Adds the number of clients of a round."""
    cohort.add_argument("--per-round", type=whole(1, MAX_CLIENTS), help="most clients in one round (default: all)")


def add_weights(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds how clients weigh in a mean."""
    group = parser.add_argument_group("weights")
    how = group.add_mutually_exclusive_group(required=required)
    how.add_argument(
        "--examples",
        type=float,
        metavar="MOST",
        help="weight clients by their number of training examples, as FedAvg does; MOST is that of the largest client, "
        "and a client with more counts as that",
    )
    how.add_argument("--equal", action="store_true", help="all clients weigh the same")
    group.add_argument(
        "--max-weight",
        type=whole(1),
        default=1,
        help="largest integer weight of an update in your own program; Flower needs 1; costs as many bits a value "
        "(default: 1)",
    )


def add_privacy(parser: argparse.ArgumentParser, *, rounds: bool) -> None:
    """Adds the noise of differential privacy; ``rounds``: for keys, and so with the number of updates under them."""
    group = parser.add_argument_group("differential privacy")
    group.add_argument(
        "--dp-epsilon",
        type=float,
        help="clip updates and add noise: epsilon of a client's whole data, after all its updates (needs --equal)"
        if rounds
        else "clip updates and add noise: epsilon of a client's whole data, after all rounds",
    )
    group.add_argument("--dp-delta", type=float, help=f"with --dp-epsilon: its delta (default: {_DELTA:g})")
    group.add_argument(
        "--dp-clip", type=float, help=f"with --dp-epsilon: largest L2 norm of an update (default: {_CLIP:g})"
    )
    if rounds:
        group.add_argument(
            "--dp-rounds",
            type=int,
            help="with --dp-epsilon: most updates of a client under these keys; it gives no more",
        )


def add_coordinator(group: OptionGroup) -> None:
    """Adds whose signature of a charter clients accept."""
    group.add_argument(
        "--coordinator",
        type=Path,
        metavar="CARD",
        help="of the party whose signature makes a client accept a charter whatever it says",
    )


def add_key(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds whose key opens a run's sums."""
    group = parser.add_argument_group("key that opens the run's sums")
    why = "" if required else "; shows the metrics, which are encrypted"
    whose = group.add_mutually_exclusive_group(required=required)
    whose.add_argument("--key", type=Path, help=f"a client's key file{why}")
    whose.add_argument("--engine", metavar="TARGET", help=f"a client's engine: unix:/path, or host:port{why}")
    group.add_argument("--device", default="", help="with --engine: which of its devices, where it has several")
    group.add_argument("--credentials", type=Path, help="with --engine host:port: folder of the host's certificate")


def key_of(options: argparse.Namespace) -> Any:
    """A key file, an `Engine`, or none, of `add_key`."""
    from fedcipher.engine import connect

    if options.engine is None and (options.device or options.credentials):
        raise ParameterError("--device and --credentials say more of --engine; give that in the place of --key")
    if options.engine is None:
        return options.key
    return connect(options.engine, device=options.device, credentials=options.credentials)


def coordinator_of(options: argparse.Namespace) -> str:
    """The keys of `add_coordinator`'s card; empty for none."""
    return "" if options.coordinator is None else roster.coordinator_of(options.coordinator)


def privacy_of(options: argparse.Namespace, rounds: int | None) -> Privacy | None:
    """Of `add_privacy`."""
    if options.dp_epsilon is None:
        if (options.dp_delta, options.dp_clip, getattr(options, "dp_rounds", None)) != (None, None, None):
            raise ParameterError("--dp-delta, --dp-clip and --dp-rounds say more of --dp-epsilon; give that too")
        return None
    if rounds is None:
        raise ParameterError("--dp-epsilon needs --dp-rounds, the most updates that a client gives")
    delta = _DELTA if options.dp_delta is None else options.dp_delta
    clip = _CLIP if options.dp_clip is None else options.dp_clip
    return Privacy.for_epsilon(options.dp_epsilon, delta=delta, rounds=rounds, clip=clip)


def privacy_of_keys(options: argparse.Namespace) -> Privacy | None:
    """Of `add_privacy` and `add_weights`."""
    privacy = privacy_of(options, options.dp_rounds)
    if privacy is not None and not options.equal:
        raise ParameterError("--dp-epsilon needs --equal: no noise covers how many examples a client has")
    return privacy


def max_weight(options: argparse.Namespace) -> int:
    """Of `add_weights`, which are checked."""
    if options.examples is not None and not 1 <= options.examples < math.inf:
        raise ParameterError(f"--examples {options.examples} is not a number of examples")
    return options.max_weight


def examples_per_weight(options: argparse.Namespace) -> float:
    """Examples per weight, once a scheme has taken the largest weight; 0 where all weigh the same."""
    return 0.0 if options.equal else options.examples / options.max_weight


def say_privacy(privacy: Privacy | None, made: Scheme) -> None:
    """Show what the noise promises."""
    if privacy is not None:
        show(privacy.statement(made.noise_shares))


def _scheme_name(text: str) -> str:
    try:
        scheme_class(text)
    except ParameterError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def made(options: argparse.Namespace, clients: int, max_weight: int, privacy: Privacy | None = None) -> Scheme:
    """The scheme of `add_scheme`, for so many clients of a round and that largest weight. Raises `ParameterError`."""
    # By tensor they are numbers already.
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
    """A range that does not fit needs more than one that follows the updates; ``layers``: a number."""
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
        raise ParameterError(f"--set {text}: give NAME=VALUE, as masking=adaptive")
    if name in _OWN_OPTIONS:
        raise ParameterError(f"--set {text}: {name} has an option of its own, {_OWN_OPTIONS[name]}")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            found = kind(value)
        except ValueError:
            continue
        # JSON, in which parameters travel, has neither infinity nor NaN.
        return name, found if math.isfinite(found) else value
    return name, value


def sets(options: argparse.Namespace, name: str) -> bool:
    """Whether ``--set`` gives this parameter."""
    return any(text.partition("=")[0] == name for text in options.set)
