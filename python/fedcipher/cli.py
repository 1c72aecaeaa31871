"""The command line: schemes, keygen, spec, inspect, train, bench, advise."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedcipher import __version__, _native, keys
from fedcipher._optional import install, missing, require
from fedcipher.bench.commands import add_commands
from fedcipher.codec import Codec
from fedcipher.errors import FedcipherError
from fedcipher.schemes import Scheme, scheme, scheme_class, scheme_names

__all__ = ["main"]

_WEIGHT_LEVELS = 16
_DEFAULT_BITS = {"flashe": 16}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``fedcipher``; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        return options.run(options, arguments)
    except FedcipherError as error:
        print(f"fedcipher: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedcipher: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedcipher", description="Encrypted federated averaging.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    schemes = commands.add_parser("schemes", help="list schemes with threat model, expansion and cost")
    schemes.set_defaults(run=_schemes)

    inspect = commands.add_parser("inspect", help="print the public header of a frame file")
    inspect.add_argument("file", type=Path)
    inspect.set_defaults(run=_inspect)

    keygen = commands.add_parser("keygen", help="make a key file for the server and each client")
    _scheme_options(keygen)
    keygen.add_argument("--clients", type=int, required=True, help="clients 0..N-1 of the cohort")
    keygen.add_argument("--per-round", type=int, help="most clients in one round (default: all)")
    keygen.add_argument("--max-weight", type=int, default=1, help="largest integer weight of a client")
    keygen.add_argument("--epoch", type=int, default=1)
    keygen.add_argument("--out", type=Path, default=Path("keys"))
    keygen.set_defaults(run=_keygen)

    spec = commands.add_parser("spec", help="print a scheme as JSON, for fedcipher-authority init")
    _scheme_options(spec)
    spec.add_argument("--per-round", type=int, required=True, help="most clients in one round")
    spec.add_argument("--max-weight", type=int, default=1, help="largest integer weight of a client")
    spec.set_defaults(run=_spec)

    train = commands.add_parser("train", help="train a model under encryption, in simulation")
    _scheme_options(train)
    train.add_argument("--dataset", default="digits", help="digits, mnist, fashion-mnist, cifar10, shakespeare")
    train.add_argument("--data-dir", default="", help="folder of IDX files, or of input.txt")
    train.add_argument("--model", default="", help="cnn-8k, lenet5, cnn-1.2m, resnet20, gru")
    train.add_argument("--clients", type=int, default=12)
    train.add_argument(
        "--per-round", type=int, default=0, help="clients sampled a round (default: a third; digits: all)"
    )
    train.add_argument("--rounds", type=int, default=10)
    train.add_argument(
        "--epochs", type=int, default=0, help="passes over the local data a round (default: 1; digits: 5)"
    )
    train.add_argument("--batch", type=int, default=0, help="examples a step (default: 64; digits: 16)")
    train.add_argument("--learning-rate", type=float, default=1e-3)
    train.add_argument("--dirichlet", type=float, default=0.0, help="label skew: Dirichlet alpha (0: IID)")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument(
        "--engine", default="off", choices=["off", "auto"], help="auto: keys in an engine process, from an authority"
    )
    train.add_argument("--link-mbit", type=float, default=100.0, help="link for computed transfer seconds")
    train.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder of the report")
    train.set_defaults(run=_train)
    add_commands(commands)
    return parser


def _scheme_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheme", default="flashe", choices=scheme_names())
    parser.add_argument("--bits", type=int, help="bits of a value (default: 16 for flashe, else 12)")
    parser.add_argument("--clip", default="auto", help="auto, aciq or a number")
    parser.add_argument("--target", default="weights", choices=["weights", "delta"])
    parser.add_argument(
        "--top", type=float, help="fraction of each tensor to send, the same of every client (with --target delta)"
    )
    parser.add_argument("--rounding", default="nearest", choices=["nearest", "stochastic"])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the scheme, as masking=adaptive, preset=fast",
    )


def _made(options: argparse.Namespace, clients: int, max_weight: int) -> Scheme:
    clip = options.clip if options.clip in ("auto", "aciq") else float(options.clip)
    bits = options.bits or _DEFAULT_BITS.get(options.scheme, 12)
    codec = Codec(bits=bits, clip=clip, target=options.target, rounding=options.rounding, top=options.top)
    extra = dict(_assignment(text) for text in options.set)
    return scheme(options.scheme, clients=clients, max_weight=max_weight, codec=codec, **extra)


def _assignment(text: str) -> tuple[str, str | int | float | bool]:
    name, _, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


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
            print(f"  {label + ': ' if label else ''}{text}")
        if missing(*info.packages):
            print(f"  not installed: {install(info.extra)}")
    return 0


def _inspect(options: argparse.Namespace, __: list[str]) -> int:
    kinds = {1: "update", 2: "aggregate", 3: "client key", 4: "server key"}
    kind, name, epoch, number, contributions, elements, size = _native.inspect(options.file.read_bytes())
    print(f"{kinds[kind]} of scheme {name}, key epoch {epoch}, round {number}")
    print(f"{elements} elements, payload of {size} bytes")
    print("clients (weight): " + ", ".join(f"{c} ({w})" for c, w in contributions))
    return 0


def _spec(options: argparse.Namespace, __: list[str]) -> int:
    print(json.dumps(_made(options, options.per_round, options.max_weight).spec()))
    return 0


def _keygen(options: argparse.Namespace, __: list[str]) -> int:
    made = _made(options, options.per_round or options.clients, options.max_weight)
    folder = keys.save(made.keygen(options.clients, epoch=options.epoch), made, options.out)
    print(f"{folder}: server.key and {options.clients} client keys for {made}")
    return 0


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    require("fedcipher train", "demo", "flwr", "ray", "jax", "flax", "optax", "rich", "matplotlib")
    from fedcipher.app.settings import Settings
    from fedcipher.app.simulate import client_sizes, train, weight_unit

    with tempfile.TemporaryDirectory(prefix="fedcipher-") as scratch:
        data_dir = str(Path(options.data_dir).resolve()) if options.data_dir else ""
        shape = {
            name: getattr(options, name)
            for name in (
                *("dataset", "model", "clients", "per_round", "rounds"),
                *("epochs", "batch", "learning_rate", "dirichlet", "seed"),
            )
        }
        keys_folder = str(Path(scratch) / "keys")
        settings = Settings(keys=keys_folder, data_dir=data_dir, **shape)
        unit, max_weight = weight_unit(client_sizes(settings), _WEIGHT_LEVELS)
        settings = Settings(keys=keys_folder, data_dir=data_dir, examples_per_weight=unit, **shape)
        made = _made(options, settings.per_round, max_weight)
        engine = options.engine == "auto"
        train(settings, made, options.out, arguments, link_mbit=options.link_mbit, engine=engine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
