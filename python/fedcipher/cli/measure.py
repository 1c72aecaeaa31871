"""`fedcipher bench round`, `fedcipher bench serve` and `fedcipher advise` measure schemes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from fedcipher._files import writable_folder
from fedcipher._optional import require
from fedcipher._options import filled, whole
from fedcipher._units import seconds, size
from fedcipher.bench import results
from fedcipher.bench.advise import Federation, Prediction, advise, check
from fedcipher.bench.case import Case
from fedcipher.bench.groups import Limits
from fedcipher.bench.link import Link
from fedcipher.bench.study import Study, run_study
from fedcipher.bench.tables import overview, problems
from fedcipher.cli.options import listed_schemes
from fedcipher.cli.parser import OptionGroup, Parser
from fedcipher.codec import Codec
from fedcipher.errors import BenchError, FedcipherError, ParameterError, ReportError
from fedcipher.foreign_text import MAX_NAME, quoted
from fedcipher.schemes import scheme_class, scheme_names

__all__ = ["add_advise", "add_bench", "add_measuring", "cases_of_round", "link_of", "measure", "out_folder"]

_INTERRUPTED = 130
# Columns of the overview that fit a terminal.
_SHOWN = ("case", "keygen", "encrypt", "operate", "decrypt", "whole run", "one update", "server memory")
_RESEARCH = (
    "is neither round nor serve. Presets, studies and reports are in research/, which is not in a wheel: in a "
    "checkout, run `pip install -e research` and then fedcipher-research bench"
)


def add_bench(parser: Parser) -> None:
    """Add the options of `fedcipher bench`."""
    parser.description = "`round` measures rounds of schemes; `serve` runs the server's side for --server."
    parser.add_argument("what", metavar="{round,serve}", help="measure, or serve")
    add_measuring(parser)
    parser.example("round --runs 3 --values 100000 --clients 4 --schemes flashe,bfv,oneshot", "serve --listen :7700")
    parser.set_defaults(run=_bench)


def add_measuring(parser: Parser) -> None:
    """Add the options of a measurement: its size, its link, the limits of its processes, and its output."""
    what = parser.add_argument_group("round")
    _add_schemes(what)
    what.add_argument("--values", type=int, default=100_000, help="parameters of the model")
    what.add_argument("--clients", type=int, default=4, help="updates in a sum")
    what.add_argument("--sums", type=int, default=1, help="sums in a run")
    what.add_argument("--bits", type=int, default=12, help="bits of a value")
    what.add_argument("--runs", type=int, default=10, help="measurements of each scheme")
    _add_link(parser)
    limit = "limit the client's process and the server's process each to"
    machines = parser.add_argument_group("machines")
    machines.add_argument("--server", type=filled, help="host:port of `fedcipher bench serve` on another machine")
    machines.add_argument(
        "--listen", default="127.0.0.1:7700", help="with serve: host:port; there is no authentication"
    )
    machines.add_argument(
        "--cpus",
        type=float,
        default=0.0,
        help=f"{limit} so many processors (with Linux's control groups; default: all of them)",
    )
    machines.add_argument("--memory", type=filled, help=f"{limit} so much memory, such as 2GiB")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, help="folder of the results (default: runs/bench-NAME)")


def add_advise(parser: Parser) -> None:
    """Add the options of `fedcipher advise`."""
    parser.description = "Rank schemes by predicted round time and bytes, from a calibration on this machine."
    federation = parser.add_argument_group("federation")
    federation.add_argument("--values", type=int, required=True, help="parameters of the model")
    federation.add_argument("--clients", type=int, default=10, help="updates in a round")
    federation.add_argument("--bits", type=int, default=12, help="bits of a value")
    cores = os.cpu_count() or 1
    federation.add_argument("--client-cores", type=int, default=cores, help="cores of a client (default: all here)")
    federation.add_argument("--server-cores", type=int, default=cores, help="cores of the server (default: all here)")
    federation.add_argument(
        "--threat",
        default="server",
        choices=["server", "quantum", "collusion"],
        help="the attacker: a curious server, a server with a quantum computer later, a server that a client helps",
    )
    _add_link(parser)
    measured = parser.add_argument_group("measurement")
    _add_schemes(measured)
    measured.add_argument("--seconds", type=float, default=25.0, help="time to measure all schemes together")
    measured.add_argument(
        "--check", type=whole(0), default=0, metavar="N", help="measure the first N schemes and compare"
    )
    parser.example(
        "--values 61706 --clients 10 --bandwidth 40mbit --latency 80ms --seconds 5",
        "--values 61706 --threat collusion --seconds 5",
    )
    parser.set_defaults(run=_advise)


def _add_schemes(group: OptionGroup) -> None:
    group.add_argument("--schemes", type=filled, help=f"names, separated by commas: {listed_schemes()} (default: all)")


def _add_link(parser: Parser) -> None:
    group = parser.add_argument_group("link")
    group.add_argument("--bandwidth", type=filled, help="bandwidth per direction, such as 40mbit (default: no limit)")
    group.add_argument("--latency", type=filled, help="latency in one direction, such as 80ms (default: none added)")


def _names(text: str | None) -> list[str]:
    """The schemes in a comma list; all schemes for None. Raises `ParameterError` for an unknown name."""
    if text is None:
        return scheme_names()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        scheme_class(name)
    return names


def link_of(options: argparse.Namespace) -> Link:
    """The link in the options. Raises `ParameterError`."""
    return Link.parse(options.bandwidth or "", options.latency or "")


def out_folder(options: argparse.Namespace) -> Path:
    """The folder for the results."""
    return options.out or Path("runs") / f"bench-{options.what}"


def cases_of_round(options: argparse.Namespace) -> list[Case]:
    """The cases that `round` measures, one per scheme. Raises `ParameterError`."""
    names = _names(options.schemes)
    return [Case(n, n, options.values, options.clients, options.sums, options.bits) for n in names]


def _bench(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.what not in ("round", "serve"):
        raise ParameterError(f"bench {quoted(options.what, MAX_NAME)} {_RESEARCH}")
    require("fedcipher bench", "bench", "psutil", "rich")
    from fedcipher.bench.server import serve

    if options.what == "serve":
        serve(options.listen)
        return 0

    def write(study: Study, folder: Path) -> Path:
        results.write(study, folder)
        return folder / "results.json"

    return measure("round", cases_of_round(options), options, f"{options.program} {' '.join(arguments)}", write)


def measure(
    name: str,
    cases: list[Case],
    options: argparse.Namespace,
    command: str,
    write: Callable[[Study, Path], Path],
    show: Callable[[Study], None] = lambda study: None,
) -> int:
    """Measure ``cases`` with the options of `add_measuring`, show and write the results, and return the exit status.

    ``write`` writes the study to a folder and returns the file to look at. ``show`` shows more than the table of
    averages. Raises `ParameterError` and `ReportError`.
    """
    from fedcipher._terminal import print_table

    if not 1 <= options.runs <= 1000:
        raise ParameterError(f"--runs {options.runs} is not between 1 and 1000")
    link, limits = link_of(options), Limits.parse(options.cpus, options.memory or "")
    if limits and options.server:
        raise ParameterError("--cpus and --memory limit the two processes of this machine: leave out --server")
    folder = out_folder(options)
    writable_folder(folder)
    study = _run(name, cases, folder, options, link, limits, command)
    for text in problems(study):
        print(f"fedcipher bench: {text}", file=sys.stderr)
    rows = overview(study)
    shown = [rows[0].index(column) for column in _SHOWN]
    print_table(name, [[row[k] for k in shown] for row in rows])
    show(study)
    if not any(result.runs for result in study.results) and (folder / "results.json").exists():
        print(f"nothing was measured: the report in {folder} is not changed", file=sys.stderr)
        return _INTERRUPTED if study.interrupted else 1
    try:
        print(f"report: {write(study, folder)}")
    except ReportError as error:
        kept = results.write_results(study, folder)
        raise ReportError(f"{error}; the results are in {kept / 'results.json'}") from error
    if study.interrupted:
        return _INTERRUPTED
    return 1 if any(result.failure for result in study.results) else 0


def _run(
    name: str, cases: list[Case], folder: Path, options: argparse.Namespace, link: Link, limits: Limits, command: str
) -> Study:
    from fedcipher._terminal import console, progress

    with progress(console(stderr=True)) as bar:
        task = bar.add_task(cases[0].label, total=len(cases) * options.runs)

        def on_run(study: Study) -> None:
            # The results of an earlier run stay until this run has measured something.
            measured = any(result.runs for result in study.results)
            kept = results.write_results(study, folder) if measured else folder
            if kept != folder:
                raise ReportError(f"{folder} can no longer be written; the results are in {kept / 'results.json'}")
            done = sum(len(r.runs) if not r.failure else options.runs for r in study.results)
            following = cases[min(len(study.results), len(cases)) - 1].label
            bar.update(task, completed=done, description=following)

        return run_study(
            name,
            cases,
            runs=options.runs,
            link=link,
            server=options.server or "",
            command=command,
            limits=limits,
            on_run=on_run,
        )


def _advise(options: argparse.Namespace, _: list[str]) -> int:
    require("fedcipher advise", "bench", "psutil", "rich")
    from fedcipher._terminal import console, print_table, progress

    if min(options.values, options.clients, options.client_cores, options.server_cores) < 1:
        raise ParameterError("--values, --clients and cores are at least 1")
    if not 1 <= options.seconds <= 86_400:
        raise ParameterError(f"--seconds {options.seconds:g} is not between 1 and 86400")
    # Refuses invalid bits once instead of for each scheme.
    Codec(bits=options.bits)
    federation = Federation(
        options.values,
        options.clients,
        link_of(options),
        options.client_cores,
        options.server_cores,
        options.threat,
        options.bits,
    )
    names = _names(options.schemes)
    with progress(console(stderr=True), "measuring") as bar:
        task = bar.add_task("", total=len(names))

        def on_progress(done: int, text: str) -> None:
            bar.update(task, completed=done, description=text)

        found = advise(federation, names, on_progress, options.seconds)
    print_table(
        f"a round of {federation.clients} updates of {federation.values:,} values; {federation.link}",
        [
            ["scheme", "round", "encrypt", "server", "committee", "decrypt", "link", "up", "down", "why"],
            *map(_row, found),
        ],
    )
    if not all(p.excluded for p in found):
        measured = [p for p in found if not p.excluded]
        print_table(
            "basis of the predictions", [["scheme", "measured here"], *([p.scheme, p.basis()] for p in measured)]
        )
    if all(p.excluded for p in found):
        print("no scheme fits, or none could be measured: see the column why", file=sys.stderr)
        return 1
    return _checked(federation, [p for p in found if not p.excluded][: options.check])


def _row(p: Prediction) -> list[str]:
    if p.excluded:
        return [p.scheme, *["-"] * 8, p.why()]
    terms = [seconds(x) for x in (p.seconds, p.encrypt, p.operate, p.answer, p.decrypt, p.transfer)]
    if not p.members:
        terms[3] = "-"
    return [p.scheme, *terms, size(p.update_bytes), size(p.aggregate_bytes), p.why()]


def _checked(federation: Federation, predictions: list[Prediction]) -> int:
    from fedcipher._terminal import print_table

    rows = [["scheme", "predicted", "measured", "off by", "encrypt", "server", "committee", "decrypt"]]
    for prediction in predictions:
        try:
            measured = check(federation, prediction)
        except FedcipherError as error:
            raise BenchError(f"the check of {prediction.scheme} failed: {error}") from error
        pairs = [
            (prediction.encrypt, measured.encrypt),
            (prediction.operate, measured.operate),
            (prediction.answer, measured.answer),
            (prediction.decrypt, measured.decrypt),
        ]
        rows.append(
            [
                prediction.scheme,
                seconds(prediction.seconds),
                seconds(measured.seconds),
                f"{measured.error:+.0%}",
                *(f"{seconds(a)} / {seconds(b)}" for a, b in pairs),
            ]
        )
    if len(rows) > 1:
        print_table("predictions and measured runs (predicted / measured)", rows)
    return 0
