"""`fedcipher keygen` makes key files, and `fedcipher inspect` prints their headers."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedcipher import keys
from fedcipher._options import whole
from fedcipher.cli.options import (
    MAX_CLIENTS,
    MAX_EPOCH,
    add_coordinator,
    add_per_round,
    add_privacy,
    add_scheme,
    add_weights,
    coordinator_of,
    examples_per_weight,
    made,
    max_weight,
    privacy_of_keys,
    show_privacy,
)
from fedcipher.cli.parser import Parser
from fedcipher.errors import ForeignFileError, FrameError, ParameterError
from fedcipher.foreign_files import MAX_FRAME, read_file
from fedcipher.foreign_text import show
from fedcipher.frame import inspect
from fedcipher.keys.store import named_folder

__all__ = ["add_inspect", "add_keygen"]


def add_keygen(parser: Parser) -> None:
    """Add the options of `fedcipher keygen`."""
    cohort = parser.add_argument_group("cohort")
    cohort.add_argument(
        "--clients", type=whole(1, MAX_CLIENTS), required=True, help="how many clients; each has a key: 0, 1, ..."
    )
    add_per_round(cohort)
    cohort.add_argument(
        "--epoch", type=whole(1, MAX_EPOCH), default=1, help="epoch of these keys, higher than all before"
    )
    add_coordinator(cohort)
    add_weights(parser)
    add_scheme(parser)
    add_privacy(parser, rounds=True)
    where = parser.add_argument_group("output").add_mutually_exclusive_group(required=True)
    where.add_argument("--name", help="name of the folder to make in ~/.fedcipher/keys; apps use this name")
    where.add_argument("--out", type=Path, help="folder to make in another place")
    parser.example(
        "--clients 12 --equal --name my-app",
        "--clients 13 --per-round 12 --examples 5000 --name with-a-reader",
        "--clients 12 --equal --scheme oneshot --name without-a-shared-key",
    )
    parser.set_defaults(run=_keygen)


def add_inspect(parser: Parser) -> None:
    """Add the options of `fedcipher inspect`."""
    parser.add_argument("file", type=Path, help="key file or frame")
    parser.example("~/.fedcipher/keys/my-app/client-0.key")
    parser.set_defaults(run=_inspect)


def _keygen(options: argparse.Namespace, __: list[str]) -> int:
    privacy = privacy_of_keys(options)
    if options.per_round is not None and options.per_round > options.clients:
        raise ParameterError(f"--per-round {options.per_round}: the cohort has {options.clients} clients")
    scheme = made(options, options.per_round or options.clients, max_weight(options), privacy)
    made_keys = scheme.keygen(options.clients, epoch=options.epoch)
    out = options.out or named_folder(options.name)
    unit, coordinator = examples_per_weight(options), coordinator_of(options)
    folder = keys.save(made_keys, scheme, out, examples_per_weight=unit, coordinator=coordinator)
    show(f"{folder}: server.key and {options.clients} client keys for {scheme}")
    show_privacy(privacy, scheme)
    return 0


def _inspect(options: argparse.Namespace, __: list[str]) -> int:
    try:
        content = read_file(options.file, MAX_FRAME, follow=True)
    except ForeignFileError as error:
        raise FrameError(f"{options.file} {error.strerror}; name the frame or key file itself") from None
    # A key file is a line of JSON before the key.
    frame = content.partition(b"\n")[2] if content.startswith(b"{") else content
    try:
        header = inspect(frame)
    except FrameError as error:
        # The core's message is for the receiver of a frame. Keep its cause only, because this is a file.
        found = str(error).removeprefix("malformed frame: ").partition("; ")[0]
        raise FrameError(f"{options.file} is not a complete frame or key file: {found}; copy it again") from error
    show(f"{header.kind} of scheme {header.scheme}, key epoch {header.epoch}, round {header.round}")
    show(f"{header.elements} elements, payload of {header.payload_bytes} bytes")
    show("clients (weight): " + ", ".join(f"{client} ({weight})" for client, weight in header.contributions))
    return 0
