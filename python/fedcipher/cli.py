"""The command line: schemes, keygen, identity, roster, join, open, status, policy, charter, train, bench and more."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

from fedcipher import __version__, _native, keys
from fedcipher._files import refusal, refuse_to_replace, resolved, writable_folder
from fedcipher._optional import missing, require
from fedcipher._options import positive, whole
from fedcipher._scratch import scratch_folder
from fedcipher._signals import Terminated, raise_on_termination, restore_defaults
from fedcipher.app.layers import LayerBits, LayerClips, bits_option, clip_option, one_bits_option, tensor_names
from fedcipher.bench.commands import add_advise, add_bench
from fedcipher.cluster.commands import add_commands as add_cluster
from fedcipher.cluster.services import add_services
from fedcipher.codec import Codec
from fedcipher.data import DATASETS
from fedcipher.dp import Privacy
from fedcipher.engine.accelerator import LIBRARY, Accelerator
from fedcipher.engine.commands import add_programs
from fedcipher.errors import FedcipherError, ForeignFileError, FrameError, ParameterError, WrongRosterError
from fedcipher.federation.commands import add_commands as add_policy
from fedcipher.foreign_files import MAX_FRAME, read_file
from fedcipher.foreign_text import MAX_LINE, MAX_NAME, quoted, show
from fedcipher.keys.roster import (
    Listed,
    add_joined,
    coordinator_of,
    fingerprint_of,
    look,
    new_identity,
    read_card,
    who_joined,
)
from fedcipher.keys.roster import join as join_roster
from fedcipher.keys.roster import make as make_roster
from fedcipher.keys.store import locate_run, named_folder
from fedcipher.schemes import Member, Scheme, following_bits, scheme, scheme_class, scheme_names
from fedcipher.schemes.base import state_dir
from fedcipher.watch.commands import add_commands as add_dashboard
from fedcipher.watch.commands import require_dashboard

__all__ = ["main"]

_OWN_OPTIONS = {"clients": "--per-round", "max_weight": "--max-weight", "codec": "--bits, --clip and so on"}
_LAYER_BITS, _DEFAULT_BITS = 6, {"flashe": 16}
_DELTA, _CLIP = 1e-5, 1.0
_CLIENTS = 2**20
_EPOCHS = 2**63 - 1
# As many as a round's number has places in a run.
_ROUNDS = 2**_native.ROUND_INDEX_BITS - 1
# As a shell reports a program that Ctrl-C, or a pipe without a reader, has ended.
_INTERRUPTED, _NO_READER = 130, 141


def main(
    argv: Sequence[str] | None = None, *, program: str = "fedcipher", add_bench: Callable[[Any], None] = add_bench
) -> int:
    """Entry point of ``fedcipher``; returns the exit status: 0, or not 0 after one line on standard error.

    Another ``program`` of a checkout has the same commands, and may add a `bench` of its own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        try:
            with raise_on_termination():
                options = _parser(program, add_bench).parse_args(arguments)
                _check_output(options)
                return options.run(options, arguments)
        finally:
            # Here, and not at Python's end, where a reader that has gone is reported as this program's error.
            sys.stdout.flush()
    except FedcipherError as error:
        return _refused(error)
    except BrokenPipeError:
        # `| head` has what it wanted. Connections that break are errors of their own (`PeerLostError` and so on).
        # What is left in the buffer is dropped: Python flushes it once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NO_READER
    except OSError as error:
        return _failed(refusal(error))
    except Terminated as terminated:
        return terminated.report()
    except KeyboardInterrupt:
        show("fedcipher: interrupted", to=sys.stderr)
        return _INTERRUPTED
    finally:
        if argv is None:
            # A signal would interrupt what Python and libraries do at exit, with tracebacks.
            restore_defaults()


def _check_output(options: argparse.Namespace) -> None:
    """Refuse, whatever the command, to write to a file that it is to read. Raises `ParameterError`."""
    out: object = getattr(options, "out", None)
    if not isinstance(out, Path):
        return
    given = [value for name, value in vars(options).items() if name != "out"]
    named = [path for value in given for path in (cast("list[object]", value) if isinstance(value, list) else [value])]
    refuse_to_replace(out, [path for path in named if isinstance(path, Path)])


def _open_streams() -> None:
    """Where this program was started without one of its three streams, it reads and writes nothing there.

    A file that it opens would else have that stream's number, and be written to by whatever prints.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # A path may hold what the terminal's encoding lacks.
        with suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _refused(error: FedcipherError) -> int:
    return _failed(f"{type(error).__name__}: {error}")


def _failed(why: str) -> int:
    show(f"fedcipher: {why}", to=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """One line for a wrong option, where argparse prints its whole usage before."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {quoted(message, MAX_LINE)}; see {self.prog} --help\n")


def _parser(program: str = "fedcipher", add_bench: Callable[[Any], None] = add_bench) -> argparse.ArgumentParser:
    parser = _Parser(prog=program, description="Encrypted federated averaging.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(program=program)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    schemes = commands.add_parser("schemes", help="list schemes with threat model, expansion and cost")
    schemes.set_defaults(run=_schemes)

    inspect = commands.add_parser("inspect", help="print the public header of a frame file or a key file")
    inspect.add_argument("file", type=Path)
    inspect.set_defaults(run=_inspect)

    _keygen_command(commands)

    _roster_commands(commands)

    _run_commands(commands)

    _spec_command(commands)

    train = commands.add_parser("train", help="train a model under encryption, in simulation")
    _scheme_options(train, layers=True)
    train.add_argument("--dataset", default="digits", help=", ".join(DATASETS))
    train.add_argument("--data-dir", default="", help="folder of its files: IDX, input.txt, or as published")
    train.add_argument("--model", default="", help="cnn-8k, lenet5, cnn-1.2m, resnet20, gru, gru-0.66m")
    train.add_argument("--clients", type=whole(1, _CLIENTS), default=12)
    train.add_argument(
        "--per-round",
        type=whole(1, _CLIENTS),
        default=0,
        help="clients sampled a round (default: a third; digits: all)",
    )
    train.add_argument("--rounds", type=whole(1, _ROUNDS), default=10)
    train.add_argument(
        "--epochs", type=whole(1), default=0, help="passes over the local data a round (default: 1; digits: 5)"
    )
    train.add_argument("--batch", type=whole(1), default=0, help="examples a step (default: 64; digits: 16)")
    _privacy_options(train, rounds=False)
    train.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out where there is one; keys stay there (OUT/keys) until the run has ended",
    )
    _training_options(train)
    train.add_argument(
        "--dirichlet", type=positive(1e-3, 1e6, zero=True), default=0.0, help="label skew: Dirichlet alpha (0: IID)"
    )
    train.add_argument("--seed", type=whole(0, 2**32 - 1), default=0)
    train.add_argument(
        "--engine",
        choices=["off", "auto"],
        help="auto: keys in an engine process, from an authority (default: off; auto with --accelerator)",
    )
    train.add_argument(
        "--accelerator",
        default="off",
        choices=["off", "sim"],
        help="sim: bfv's arithmetic on FedBit's device, simulated",
    )
    train.add_argument(
        "--accelerator-library",
        type=Path,
        default=LIBRARY,
        help=f"what `make hardware-sim` builds (default: {LIBRARY})",
    )
    train.add_argument("--link-mbit", type=float, default=100.0, help="link for computed transfer seconds")
    train.add_argument("--dashboard", action="store_true", help="a page that shows the run while it grows")
    train.add_argument("--compare", choices=["plain"], help="a second run, to have it beside the first in the report")
    train.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder of the report")
    train.set_defaults(run=_train)
    add_bench(commands)
    add_advise(commands)
    add_cluster(commands, _scheme_options, _made)
    add_services(commands)
    add_programs(commands)
    add_policy(commands, locate_run)
    add_dashboard(commands, locate_run, _key_options, _key_of)
    return parser


def _keygen_command(commands: Any) -> None:
    keygen = commands.add_parser("keygen", help="make a key file for the server and each client")
    _scheme_options(keygen)
    keygen.add_argument("--clients", type=whole(1, _CLIENTS), required=True, help="clients 0..N-1 of the cohort")
    keygen.add_argument("--per-round", type=whole(1, _CLIENTS), help="most clients in one round (default: all)")
    _weight_options(keygen)
    _privacy_options(keygen, rounds=True)
    keygen.add_argument("--epoch", type=whole(1, _EPOCHS), default=1)
    _coordinator_option(keygen)
    where = keygen.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="folder to make")
    where.add_argument(
        "--name", help="for an app: a folder of this name under ~/.fedcipher/keys, which apps find by name"
    )
    keygen.set_defaults(run=_keygen)


def _training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--learning-rate", type=positive(1e-12, 1e6), default=1e-3)
    parser.add_argument(
        "--learning-rate-end",
        type=positive(1e-12, 1e6, zero=True),
        default=0.0,
        help="of the last round, down to which it follows a cosine (default: it stays)",
    )
    # Names as fedcipher.models has them; that needs JAX, and the settings check it.
    parser.add_argument("--optimiser", default="nadam", help="nadam or adam (default: nadam)")
    parser.add_argument(
        "--test-share",
        type=positive(1e-6, 0.99, zero=True),
        default=0.0,
        help="of each client's own examples, to evaluate on in the place of the data set's test examples",
    )
    parser.add_argument(
        "--validation-share",
        type=positive(1e-6, 0.99, zero=True),
        default=0.0,
        help="of what a client trains on, kept to stop its training early",
    )
    parser.add_argument(
        "--patience", type=whole(1), default=1, help="passes without a better validation loss that end a training"
    )


def _weight_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    how = parser.add_mutually_exclusive_group(required=required)
    how.add_argument(
        "--examples",
        type=float,
        metavar="MOST",
        help="weight clients by their number of training examples, as FedAvg does; MOST is that of the largest client, "
        "and whoever has more counts as that",
    )
    how.add_argument("--equal", action="store_true", help="all clients weigh the same")
    parser.add_argument(
        "--max-weight",
        type=whole(1),
        default=1,
        help="largest integer weight of an update in your own program (default: 1, which Flower needs); costs as many "
        "bits a value",
    )


def _privacy_options(parser: argparse.ArgumentParser, *, rounds: bool) -> None:
    parser.add_argument(
        "--dp-epsilon",
        type=float,
        help="clip updates and add noise: epsilon of a client's whole data, after all its updates (needs --equal)"
        if rounds
        else "clip updates and add noise: epsilon of a client's whole data, after all rounds",
    )
    parser.add_argument("--dp-delta", type=float, help=f"with --dp-epsilon: its delta (default: {_DELTA:g})")
    parser.add_argument("--dp-clip", type=float, help=f"with --dp-epsilon: largest L2 norm of an update ({_CLIP:g})")
    if rounds:
        parser.add_argument(
            "--dp-rounds",
            type=int,
            help="with --dp-epsilon: most updates of a client under these keys; it gives no more",
        )


def _privacy(options: argparse.Namespace, rounds: int | None) -> Privacy | None:
    """Of `_privacy_options`."""
    if options.dp_epsilon is None:
        if (options.dp_delta, options.dp_clip, getattr(options, "dp_rounds", None)) != (None, None, None):
            raise ParameterError("--dp-delta, --dp-clip and --dp-rounds say more of --dp-epsilon; give that too")
        return None
    if rounds is None:
        raise ParameterError("--dp-epsilon needs --dp-rounds, the most updates that a client gives")
    delta = _DELTA if options.dp_delta is None else options.dp_delta
    clip = _CLIP if options.dp_clip is None else options.dp_clip
    return Privacy.for_epsilon(options.dp_epsilon, delta=delta, rounds=rounds, clip=clip)


def _privacy_of_keys(options: argparse.Namespace) -> Privacy | None:
    """Of `_privacy_options` and `_weight_options`."""
    privacy = _privacy(options, options.dp_rounds)
    if privacy is not None and not options.equal:
        raise ParameterError("--dp-epsilon needs --equal: no noise covers how many examples a client has")
    return privacy


def _run_commands(commands: Any) -> None:
    opened = commands.add_parser("open", help="decrypt the model that a run ended with")
    opened.add_argument("folder", type=Path, help="the folder of SecureStrategy(out=...), or its name", metavar="RUN")
    _key_options(opened, required=True)
    opened.add_argument("--out", type=Path, required=True, help="model.npz to write: an array for each name")
    opened.set_defaults(run=_open)

    status = commands.add_parser("status", help="what a run's server has done so far, and whether it is running")
    status.add_argument("folder", type=Path, help="the folder of SecureStrategy(out=...), or its name", metavar="RUN")
    _key_options(status)
    status.set_defaults(run=_status)


def _key_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Whose key opens a run's sums."""
    why = "" if required else ": shows the metrics, which are encrypted"
    whose = parser.add_mutually_exclusive_group(required=required)
    whose.add_argument("--key", type=Path, help=f"a client's key file{why}")
    whose.add_argument("--engine", metavar="TARGET", help=f"a client's engine: unix:/path, or host:port{why}")
    parser.add_argument("--device", default="", help="with --engine: which of its devices, where it has several")
    parser.add_argument("--credentials", type=Path, help="with --engine host:port: folder of the host's certificate")


def _key_of(options: argparse.Namespace) -> Any:
    """A key file, an `Engine`, or none, of `_key_options`."""
    from fedcipher.engine import connect

    if options.engine is None and (options.device or options.credentials):
        raise ParameterError("--device and --credentials say more of --engine; give that in the place of --key")
    if options.engine is None:
        return options.key
    return connect(options.engine, device=options.device, credentials=options.credentials)


def _spec_command(commands: Any) -> None:
    spec = commands.add_parser("spec", help="print a scheme as JSON, for fedcipher authority init")
    # An authority's epochs end with a round each, which a run of deltas cannot follow.
    _scheme_options(spec, target="weights")
    spec.add_argument("--per-round", type=whole(1, _CLIENTS), required=True, help="most clients in one round")
    spec.add_argument(
        "--max-weight", type=whole(1), default=1, help="largest integer weight of an update in your own program"
    )
    _privacy_options(spec, rounds=True)
    spec.set_defaults(run=_spec)


def _roster_commands(commands: Any) -> None:
    identity = commands.add_parser("identity", help="make a party's own keys, for schemes without a shared key")
    identity.add_argument("name", help="of the party; NAME.identity is its secret, NAME.card is for the roster")
    identity.add_argument("--out", type=Path, default=Path(), help="folder for both files (default: here)")
    identity.set_defaults(run=_identity)

    listed = commands.add_parser("roster", help="make the roster of parties from their cards: the server's key file")
    listed.add_argument("cards", type=Path, nargs="*", metavar="CARD")
    listed.add_argument(
        "--check", type=Path, metavar="FILE", help="make none: show who is in the roster of a server's or party's key"
    )
    _expect_option(listed)
    listed.add_argument(
        "--joined", type=Path, nargs="+", default=[], metavar="FILE", help="with --check: NAME.joined of who has joined"
    )
    _scheme_options(listed, scheme="oneshot")
    listed.add_argument("--per-round", type=whole(1, _CLIENTS), help="most clients in one round (default: all)")
    _weight_options(listed, required=False)
    _privacy_options(listed, rounds=True)
    listed.add_argument("--member", action="append", default=[], metavar="NAME", help="of the committee; repeat")
    listed.add_argument("--silent", action="append", default=[], metavar="NAME", help="sends no updates; repeat")
    listed.add_argument("--blind", action="append", default=[], metavar="NAME", help="opens no aggregates; repeat")
    listed.add_argument("--epoch", type=whole(1, _EPOCHS), default=1)
    listed.add_argument("--out", type=Path, help="file to make, such as server.key")
    listed.set_defaults(run=_roster)

    joined = commands.add_parser("join", help="make a party's key file from its identity and the roster")
    joined.add_argument("identity", type=Path)
    joined.add_argument("roster", type=Path)
    joined.add_argument("--out", type=Path, required=True, help="key file to make")
    _expect_option(joined)
    _coordinator_option(joined)
    joined.set_defaults(run=_join)

    heard = commands.add_parser("joined", help="tell a party's key who else has joined its roster, so that it encrypts")
    heard.add_argument("key", type=Path, help="a party's key file")
    heard.add_argument("files", type=Path, nargs="*", metavar="FILE", help="NAME.joined of the others")
    heard.set_defaults(run=_joined)

    forget = commands.add_parser("forget", help="delete a member's prekeys: what was sealed to it opens no more")
    forget.add_argument("keys", type=Path, nargs="+", metavar="KEY", help="key file of a member of the committee")
    forget.set_defaults(run=_forget)


def _expect_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--expect", metavar="FINGERPRINT", help="of the roster, as the others told you: all 64 digits")


def _coordinator_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coordinator",
        type=Path,
        metavar="CARD",
        help="of the party whose signature makes a client accept a charter whatever it says",
    )


def _coordinator(options: argparse.Namespace) -> str:
    return "" if options.coordinator is None else coordinator_of(options.coordinator)


def _scheme_options(
    parser: argparse.ArgumentParser, target: str = "delta", scheme: str = "flashe", *, layers: bool = False
) -> None:
    parser.add_argument(
        "--scheme", type=_scheme_name, default=scheme, choices=scheme_names(), help=f"default: {scheme}"
    )
    usual = (
        "bits of a value, or auto: a run chooses 3, 5 or 8 by the noise of its sums (default where ranges follow the "
        "updates: auto for flashe, bfv, oneshot and plain, else 6; elsewhere 16 for flashe, else 12)"
    )
    if layers:
        named = "; of a layer's values: conv1=8,fc=12,10, the last of all others"
        parser.add_argument("--bits", type=bits_option, help=usual + named)
        parser.add_argument(
            "--clip",
            type=clip_option,
            default="auto",
            help="auto, aciq or a number; of a layer's values: conv1=2,fc=5,1, the last of all others",
        )
    else:
        parser.add_argument("--bits", type=one_bits_option, help=usual)
        parser.add_argument("--clip", default="auto", help="auto, aciq or a number")
    parser.add_argument(
        "--target", default=target, choices=["delta", "weights"], help=f"what clients send (default: {target})"
    )
    parser.add_argument(
        "--top", type=float, help="fraction of each tensor to send, the same of every client (not with weights)"
    )
    parser.add_argument("--rounding", default="nearest", choices=["nearest", "stochastic"])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the scheme, as masking=adaptive, preset=fast",
    )


def _scheme_name(text: str) -> str:
    try:
        scheme_class(text)
    except ParameterError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _made(options: argparse.Namespace, clients: int, max_weight: int, privacy: Privacy | None = None) -> Scheme:
    # By tensor they are numbers already.
    clip: Any = options.clip
    if not isinstance(clip, list) and clip not in ("auto", "aciq"):
        clip = _range(clip)
    codec = Codec(
        bits=options.bits or _usual_bits(options, privacy),
        clip=clip,
        target=options.target,
        rounding=options.rounding,
        top=options.top,
        privacy=privacy,
    )
    extra = dict(_assignment(text) for text in options.set)
    return scheme(options.scheme, clients=clients, max_weight=max_weight, codec=codec, **extra)


def _usual_bits(options: argparse.Namespace, privacy: Privacy | None, *, layers: bool = False) -> Any:
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


def _sets(options: argparse.Namespace, name: str) -> bool:
    return any(text.partition("=")[0] == name for text in options.set)


def _schemes(_: argparse.Namespace, __: list[str]) -> int:
    for name in scheme_names():
        info = scheme_class(name).info
        print(name)
        for label, text in (
            ("", info.summary),
            ("withstands", info.withstands),
            ("broken by", info.broken_by),
            ("expansion, cost", info.cost),
            ("source", info.source),
        ):
            show(f"  {label + ': ' if label else ''}{text}")
        if missing(*info.packages):
            show(f"  not installed: {info.install}")
    return 0


def _inspect(options: argparse.Namespace, __: list[str]) -> int:
    kinds = {1: "update", 2: "aggregate", 3: "client key", 4: "server key"}
    try:
        content = read_file(options.file, MAX_FRAME, follow=True)
    except ForeignFileError as error:
        raise FrameError(f"{options.file} {error.strerror}; name the frame or key file itself") from None
    # A key file is a line of JSON before the key.
    frame = content.partition(b"\n")[2] if content.startswith(b"{") else content
    try:
        kind, name, epoch, number, contributions, elements, size, _ = _native.inspect(frame)
    except FrameError as error:
        # The core speaks to whoever received the frame; this is a file.
        found = str(error).removeprefix("malformed frame: ").partition("; ")[0]
        raise FrameError(f"{options.file} is no whole frame or key file: {found}; copy it again") from error
    show(f"{kinds[kind]} of scheme {name}, key epoch {epoch}, round {number}")
    show(f"{elements} elements, payload of {size} bytes")
    show("clients (weight): " + ", ".join(f"{c} ({w})" for c, w in contributions))
    return 0


def _spec(options: argparse.Namespace, __: list[str]) -> int:
    privacy = _privacy(options, options.dp_rounds)
    if privacy is not None and options.target != "delta":
        raise ParameterError("--dp-epsilon clips updates, not whole models: give --target delta")
    print(json.dumps(_made(options, options.per_round, options.max_weight, privacy).spec()))
    return 0


def _max_weight(options: argparse.Namespace) -> int:
    """Of `_weight_options`, which are checked."""
    if options.examples is not None and not 1 <= options.examples < math.inf:
        raise ParameterError(f"--examples {options.examples} is not a number of examples")
    return options.max_weight


def _unit(options: argparse.Namespace) -> float:
    """Examples per weight, once a scheme has taken the largest weight; 0 where all weigh the same."""
    return 0.0 if options.equal else options.examples / options.max_weight


def _keygen(options: argparse.Namespace, __: list[str]) -> int:
    privacy = _privacy_of_keys(options)
    if options.per_round is not None and options.per_round > options.clients:
        raise ParameterError(f"--per-round {options.per_round}: the cohort has {options.clients} clients")
    made = _made(options, options.per_round or options.clients, _max_weight(options), privacy)
    made_keys = made.keygen(options.clients, epoch=options.epoch)
    out = options.out or named_folder(options.name)
    unit, coordinator = _unit(options), _coordinator(options)
    folder = keys.save(made_keys, made, out, examples_per_weight=unit, coordinator=coordinator)
    show(f"{folder}: server.key and {options.clients} client keys for {made}")
    _say(privacy, made)
    return 0


def _say(privacy: Privacy | None, made: Scheme) -> None:
    if privacy is not None:
        show(privacy.statement(made.noise_shares))


def _identity(options: argparse.Namespace, __: list[str]) -> int:
    secret, card = new_identity(options.name, options.out)
    _, *public = read_card(card)
    show(
        f"{secret}: stays here, and secret",
        f"{card}: for whoever makes the roster",
        f"keys {fingerprint_of(*public)}: as every roster with this party must list them",
    )
    return 0


def _roster(options: argparse.Namespace, __: list[str]) -> int:
    if options.check is not None:
        return _check_roster(options)
    if not options.cards or options.out is None or not (options.equal or options.examples is not None):
        raise ParameterError("to make a roster, name cards, --out and one of --equal and --examples; or --check one")
    if options.expect is not None or options.joined:
        raise ParameterError("--expect and --joined go with --check: a roster that is made is a new one")
    max_weight = _max_weight(options)
    senders = len(options.cards) - len(set(options.silent))
    if options.per_round is not None and options.per_round > senders:
        raise ParameterError(f"--per-round {options.per_round}: {senders} parties of the roster send updates")
    if not _sets(options, "members"):
        options.set.append(f"members={len(set(options.member))}")
    privacy = _privacy_of_keys(options)
    made = _made(options, options.per_round or senders, max_weight, privacy)
    names = {"members": options.member, "silent": options.silent, "blind": options.blind}
    out, listed = make_roster(
        options.cards, made, options.out, epoch=options.epoch, examples_per_weight=_unit(options), **names
    )
    show(f"{out}: for {made}", *listed.lines())
    _say(privacy, made)
    return 0


def _check_roster(options: argparse.Namespace) -> int:
    if options.cards or options.out is not None:
        raise ParameterError("--check looks at a roster and makes none: leave out cards and --out")
    listed = look(options.check)
    show(*listed.lines())
    if options.expect is not None:
        listed.expect(options.expect)
    problems = list(listed.problems)
    if options.joined or listed.joined is not None:
        signed = {number for number, _ in who_joined(listed, options.joined)}
        problems += _say_joined(listed, signed | (listed.joined or set()))
    for problem in problems:
        show(f"fedcipher: {problem}", to=sys.stderr)
    return 1 if problems else 0


def _say_joined(listed: Listed, joined: Collection[int]) -> list[str]:
    """Shows who has joined; what is wrong with that."""
    names = [quoted(party.name, MAX_NAME) for party in listed.parties if party.number in joined]
    show(f"{len(names)} of {len(listed.parties)} parties have joined", *(f"joined: {name}" for name in names))
    lacking = listed.lacking(joined)
    return [f"nobody encrypts before these have joined: {lacking}"] if lacking else []


def _joined(options: argparse.Namespace, __: list[str]) -> int:
    listed = add_joined(options.key, options.files)
    for lacking in _say_joined(listed, listed.joined or ()):
        show(lacking)
    return 0


def _forget(options: argparse.Namespace, __: list[str]) -> int:
    # A key that is none of a member's is found before anything is deleted.
    for path, member in [(path, _member_of(path)) for path in options.keys]:
        member.forget()
        show(f"{path}: nothing that was sealed to this member so far opens any more")
    return 0


def _member_of(path: Path) -> Member:
    """The member that holds this key, where its prekeys are. Raises `ParameterError`."""
    made, key = keys.load_client(path)
    committee = made.committee
    if committee is None:
        raise ParameterError(f"{path} is a key of {made.name}, which has no committee and so no prekeys")
    if key.client not in committee.members(key):
        raise ParameterError(f"{path} is the key of party {key.client}, which is no member of the committee")
    if not (state_dir() / f"{key.fingerprint}-{key.client}.prekeys").exists():
        raise ParameterError(
            f"{path}: this member has no prekeys in {state_dir()}; run this as the user that the member runs as, "
            "with the same FEDCIPHER_STATE_DIR"
        )
    return committee.member(key)


def _join(options: argparse.Namespace, __: list[str]) -> int:
    coordinator = _coordinator(options)

    def accept(listed: Listed) -> None:
        show(*listed.lines())
        if options.expect is not None:
            listed.expect(options.expect)
        else:
            _confirm(listed)

    path, signed, name = join_roster(
        options.identity, options.roster, options.out, accept=accept, coordinator=coordinator
    )
    show(
        f"{path}: the key of {name}; it encrypts when enough others have joined: fedcipher joined {path} FILES...",
        f"{signed}: for the others",
    )
    return 0


def _confirm(listed: Listed) -> None:
    """Raise `WrongRosterError` where no person says that these are the parties."""
    if not sys.stdin.isatty():
        raise WrongRosterError(
            "nobody has confirmed who is in this roster: look at the list, ask the others which fingerprint they "
            f"see, and name it. If it is this one: fedcipher join ... --expect {listed.fingerprint}"
        )
    show("If you know all of them, and the others see this fingerprint, type how many parties there are:", flush=True)
    if sys.stdin.readline().strip() != str(len(listed.parties)):
        raise WrongRosterError("the roster is not confirmed; nothing was written")


def _status(options: argparse.Namespace, __: list[str]) -> int:
    require("fedcipher status", "flower", "flwr")
    from fedcipher.federation.server.outcome import Outcome
    from fedcipher.watch.metrics import Metrics

    folder = locate_run(options.folder)
    shown = Metrics(folder, _key_of(options))
    past = shown.past()
    good = sum(record.unfinished is None for record in past.finished)
    state = "running" if past.running else "not running"
    show(f"{folder}: {state}; {len(past.rounds)} rounds asked for, {good} with an aggregate")
    for record in past.rounds:
        left_out = len(record.clients) - record.accepted
        said = f"{record.accepted} updates, {left_out} left out, {len(record.late)} late"
        if record.unfinished is not None:
            said = f"no aggregate: {record.unfinished}"
        elif record.number not in past.ended:
            said = "under way"
        figures = shown.figures(record)
        show(f"round {record.round} (key epoch {record.epoch}): {said}{f'; {figures}' if figures else ''}")
        for lost in shown.losses(record):
            show(f"    {lost}")
        for client in record.clients:
            if client.left_out is not None:
                show(f"    client {'?' if client.client is None else client.client}: {client.left_out}")
    if shown.notice():
        show(shown.notice())
    if past.over:
        show(Outcome.of(past.over).text())
    return 0


def _open(options: argparse.Namespace, __: list[str]) -> int:
    require("fedcipher open", "flower", "flwr")
    from fedcipher.federation.server.run_folder import open_run, save_model

    folder = locate_run(options.folder)
    refuse_to_replace(options.out, [folder])
    model = open_run(folder, _key_of(options))
    save_model(options.out, model)
    show(f"{options.out}: {len(model)} arrays, {sum(x.size for x in model.values())} values")
    return 0


def _beside(made: Scheme, name: str) -> Scheme:
    """Another scheme for the same cohort and codec."""
    params = made.params()
    shape = {key: params[key] for key in ("clients", "max_weight", "min_contributions") if key in params}
    return scheme(name, codec=made.codec, **shape)


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    if not (math.isfinite(options.link_mbit) and options.link_mbit > 0):
        raise ParameterError(f"--link-mbit {options.link_mbit:g}: give a positive number of Mbit/s")
    if options.compare == options.scheme:
        raise ParameterError(f"--compare {options.compare} beside --scheme {options.scheme}: choose another scheme")
    if options.accelerator != "off" and options.engine == "off":
        raise ParameterError("--accelerator is an engine's: leave out --engine off")
    engine = options.engine == "auto" or options.accelerator != "off"
    if options.resume and (options.compare or engine):
        raise ParameterError(
            "--resume goes with one run whose keys are in files: leave out --compare, --engine and --accelerator"
        )
    require("fedcipher train", "demo", "flwr", "ray", "jax", "flax", "optax", "rich", "matplotlib")
    if options.dashboard:
        require_dashboard()
    from fedcipher.app.apart import run_apart
    from fedcipher.app.settings import Settings
    from fedcipher.app.simulate import client_sizes, largest_weight, train

    data_dir = str(resolved(options.data_dir)) if options.data_dir else ""
    shape = {
        name: getattr(options, name)
        for name in (
            *("dataset", "model", "clients", "per_round", "rounds"),
            *("epochs", "batch", "learning_rate", "learning_rate_end", "optimiser", "dirichlet", "seed"),
            *("test_share", "validation_share", "patience"),
        )
    }
    shape["resume"] = options.resume
    # Of the run, or of this process: then it is made when all else has been found right.
    keys_folder = str(resolved(options.out) / "keys")
    settings = Settings(keys=keys_folder, data_dir=data_dir, **shape)
    privacy = _privacy(options, options.rounds)
    unit = 0.0
    if privacy is None:
        unit = largest_weight(client_sizes(settings))
    # Nobody drops out of a simulation: the fewer shares a sum counts on, the larger each is.
    elif not _sets(options, "min_contributions"):
        options.set.append(f"min_contributions={settings.per_round}")
    settings = Settings(keys=keys_folder, data_dir=data_dir, examples_per_weight=unit, **shape)
    if isinstance(options.bits, LayerBits) or isinstance(options.clip, LayerClips):
        names = tensor_names(settings.dataset, settings.data_dir, settings.model)
        if isinstance(options.bits, LayerBits):
            options.bits = options.bits.of(names, _usual_bits(options, privacy, layers=True))
        if isinstance(options.clip, LayerClips):
            options.clip = options.clip.of(names)
    made = _made(options, settings.per_round, 1, privacy)
    on = Accelerator.simulated(options.accelerator_library, made) if options.accelerator == "sim" else None
    writable_folder(options.out)
    beside = _beside(made, options.compare) if options.compare else None

    def work(keys_folder: str) -> int:
        train(
            *(replace(settings, keys=keys_folder), made, options.out, [options.program, *arguments]),
            link_mbit=options.link_mbit,
            engine=engine,
            accelerator=on,
            beside=beside,
            dashboard=options.dashboard,
        )
        return 0

    if options.resume:
        return run_apart(lambda: work(keys_folder), _refused)
    with scratch_folder("fedcipher-") as scratch:
        return run_apart(lambda: work(str(Path(scratch) / "keys")), _refused)


if __name__ == "__main__":
    sys.exit(main())
