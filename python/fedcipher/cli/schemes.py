"""`fedcipher schemes` lists the schemes, and `fedcipher spec` prints one for an authority."""

from __future__ import annotations

import argparse
import json

from fedcipher._optional import missing
from fedcipher._options import whole
from fedcipher.cli.options import MAX_CLIENTS, add_privacy, add_scheme, made, privacy_of
from fedcipher.cli.parser import Parser
from fedcipher.errors import ParameterError
from fedcipher.foreign_text import show
from fedcipher.schemes import DEFAULT_SCHEME, scheme_class, scheme_names

__all__ = ["add_schemes", "add_spec"]


def add_schemes(parser: Parser) -> None:
    """Set up `fedcipher schemes`, which has no options."""
    parser.example("")
    parser.set_defaults(run=_schemes)


def add_spec(parser: Parser) -> None:
    """Add the options of `fedcipher spec`."""
    cohort = parser.add_argument_group("cohort")
    cohort.add_argument("--per-round", type=whole(1, MAX_CLIENTS), required=True, help="maximum of clients in a round")
    cohort.add_argument(
        "--max-weight",
        type=whole(1),
        default=1,
        help="largest integer weight of an update in your own program (default: 1)",
    )
    add_scheme(parser)
    add_privacy(parser, rounds=True)
    parser.example("--per-round 12 > spec.json", "--per-round 12 --scheme oneshot > spec.json")
    parser.set_defaults(run=_spec)


def _schemes(_: argparse.Namespace, __: list[str]) -> int:
    names = scheme_names()
    baselines = [name for name in names if scheme_class(name).info.baseline]
    for name in names:
        if name not in baselines:
            _show_scheme(name)
    show("", "baselines, for measurements only:")
    for name in baselines:
        _show_scheme(name)
    return 0


def _show_scheme(name: str) -> None:
    info = scheme_class(name).info
    show(f"{name} (default)" if name == DEFAULT_SCHEME else name)
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


def _spec(options: argparse.Namespace, __: list[str]) -> int:
    privacy = privacy_of(options, options.dp_rounds)
    if privacy is not None and options.target != "delta":
        raise ParameterError("--dp-epsilon clips updates, not whole models: give --target delta")
    print(json.dumps(made(options, options.per_round, options.max_weight, privacy).spec()))
    return 0
