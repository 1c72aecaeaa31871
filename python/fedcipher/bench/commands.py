"""`fedcipher bench` and `fedcipher advise`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fedcipher._files import writable_folder
from fedcipher._optional import require
from fedcipher._options import filled, whole
from fedcipher._units import seconds, size
from fedcipher.bench.advise import Federation, Prediction, advise, check
from fedcipher.bench.case import Case
from fedcipher.bench.groups import Limits
from fedcipher.bench.link import Link
from fedcipher.bench.preset import Preset
from fedcipher.bench.presets import preset, preset_names
from fedcipher.bench.study import Study, run_study
from fedcipher.bench.tables import compared, overview, problems
from fedcipher.codec import Codec
from fedcipher.errors import BenchError, FedcipherError, ParameterError, ReportError
from fedcipher.schemes import scheme_class, scheme_names
from fedcipher.studies import study_names

__all__ = ["add_commands"]

_INTERRUPTED = 130
# Columns of the overview that fit a terminal.
_SHOWN = ("case", "keygen", "encrypt", "operate", "decrypt", "whole run", "one update", "server memory")
_PACKAGES = ("psutil", "rich", "matplotlib")


def add_commands(commands: Any) -> None:
    """Adds both commands to the parser's."""
    bench: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure schemes in a client and a server process",
        description="A preset or a study lays published figures beside measured ones; `round` measures what you ask "
        "for; `serve` is the server's side for --server; `report` draws an earlier results.json again.",
    )
    bench.add_argument("what", choices=[*preset_names(), *study_names(), "round", "serve", "report"])
    bench.add_argument("--runs", type=int, default=10)
    bench.add_argument(
        "--data-dir", default="", help="studies that train: a folder with one of each data set, as mnist and cifar10"
    )
    bench.add_argument("--schemes", type=filled, help="round: names, with commas (default: all that are installed)")
    bench.add_argument("--values", type=int, default=100_000, help="round: parameters of the model")
    bench.add_argument("--clients", type=int, default=4, help="round: updates in a sum")
    bench.add_argument("--sums", type=int, default=1, help="round: sums in a run")
    bench.add_argument("--bits", type=int, default=12, help="round: bits of a value")
    bench.add_argument("--server", type=filled, help="host:port of `fedcipher bench serve` on another machine")
    bench.add_argument("--listen", default="127.0.0.1:7700", help="serve: host:port; there is no authentication")
    _link_options(bench)
    held = "a preset or round: hold the client's process and the server's each to"
    bench.add_argument("--cpus", type=float, default=0.0, help=f"{held} so many processors (Linux's control groups)")
    bench.add_argument("--memory", type=filled, help=f"{held} so much memory, as 2GiB")
    bench.add_argument("--out", type=Path, help="folder of the report (default: runs/bench-NAME)")
    bench.set_defaults(run=_bench)

    adviser: argparse.ArgumentParser = commands.add_parser(
        "advise", help="rank schemes by predicted round time and bytes, from a calibration on this machine"
    )
    adviser.add_argument("--values", type=int, required=True, help="parameters of the model")
    adviser.add_argument("--clients", type=int, default=10, help="updates in a round")
    adviser.add_argument("--client-cores", type=int, default=os.cpu_count() or 1)
    adviser.add_argument("--server-cores", type=int, default=os.cpu_count() or 1)
    adviser.add_argument("--bits", type=int, default=12)
    adviser.add_argument(
        "--threat",
        default="server",
        choices=["server", "quantum", "collusion"],
        help="who must learn nothing: a curious server, one with a quantum computer later, one that a client helps",
    )
    adviser.add_argument("--schemes", type=filled, help="names, with commas (default: all)")
    adviser.add_argument("--seconds", type=float, default=25.0, help="time for measuring, all schemes together")
    adviser.add_argument("--check", type=whole(0), default=0, metavar="N", help="measure the first N and compare")
    _link_options(adviser)
    adviser.set_defaults(run=_advise)


def _link_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bandwidth", type=filled, help="of each way of the link, as 40mbit (default: as it is)")
    parser.add_argument("--latency", type=filled, help="one way, as 80ms")


def _names(text: str | None) -> list[str]:
    """The schemes that are listed; all where none are asked for."""
    if text is None:
        return scheme_names()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        scheme_class(name)
    return names


def _link(options: argparse.Namespace) -> Link:
    return Link.parse(options.bandwidth or "", options.latency or "")


def _bench(options: argparse.Namespace, arguments: list[str]) -> int:
    require("fedcipher bench", "bench", *_PACKAGES)
    from fedcipher._terminal import print_table
    from fedcipher.bench import report
    from fedcipher.bench.server import serve

    if options.what == "serve":
        serve(options.listen)
        return 0
    folder: Path = options.out or Path("runs") / f"bench-{options.what}"
    if options.what == "report":
        study = report.load(folder / "results.json")
        report.write(study, _preset_of(study), folder)
        print(f"report: {folder / 'report.html'}")
        return 0
    if not 1 <= options.runs <= 1000:
        raise ParameterError(f"--runs {options.runs} is not between 1 and 1000")
    link = _link(options)
    limits = Limits.parse(options.cpus, options.memory or "")
    if limits and (options.server or options.what in study_names()):
        raise ParameterError("--cpus and --memory hold the two processes of a preset or of round on this machine")
    if options.what in study_names():
        return _study(options, folder, link, "fedcipher " + " ".join(arguments))
    chosen = _round(options) if options.what == "round" else preset(options.what)
    writable_folder(folder)
    study = _run(chosen, folder, options, link, limits, "fedcipher " + " ".join(arguments))
    for text in problems(study):
        print(f"fedcipher bench: {text}", file=sys.stderr)
    rows = overview(study)
    shown = [rows[0].index(name) for name in _SHOWN]
    print_table(chosen.name, [[row[k] for k in shown] for row in rows])
    if chosen.comparisons:
        shown = compared(study, chosen)
        print_table("beside the published figures", shown.rows)
        for head, texts in shown.notes:
            print(f"{head}:", *texts, sep="\n  ")
    if not any(result.runs for result in study.results) and (folder / "results.json").exists():
        print(f"nothing was measured: the report in {folder} stays what it was", file=sys.stderr)
        return _INTERRUPTED if study.interrupted else 1
    try:
        report.write(study, chosen, folder)
    except ReportError as error:
        kept = report.write_results(study, folder)
        raise ReportError(f"{error}; the results are in {kept / 'results.json'}") from error
    print(f"report: {folder / 'report.html'}")
    if study.interrupted:
        return _INTERRUPTED
    return 1 if any(result.failure for result in study.results) else 0


def _study(options: argparse.Namespace, folder: Path, link: Link, command: str) -> int:
    from fedcipher._terminal import print_table
    from fedcipher.published.tables import beside
    from fedcipher.studies import Asked, check_data, study
    from fedcipher.studies.findings import circumstances, write

    if options.server:
        raise ParameterError(f"{options.what} makes its own servers: leave out --server")
    check_data(options.what, options.data_dir)
    writable_folder(folder)
    facts = circumstances()
    found = study(options.what)(
        Asked(options.runs, options.data_dir, link, lambda text: print(text, file=sys.stderr, flush=True))
    )
    shown = beside(found.outcomes)
    if found.outcomes:
        print_table("beside the published figures", shown.rows)
    else:
        for table in found.tables:
            print_table(table.title, table.rows)
    for head, texts in shown.notes:
        print(f"{head}:", *texts, sep="\n  ")
    write(options.what, found, command, facts, folder)
    print(f"report: {folder / 'README.md'}")
    return 0


def _round(options: argparse.Namespace) -> Preset:
    names = _names(options.schemes)
    return _round_of([Case(n, n, options.values, options.clients, options.sums, options.bits) for n in names])


def _round_of(cases: list[Case]) -> Preset:
    case = cases[0]
    text = f"{case.clients} updates of {case.values:,} values of {case.bits} bits, {case.sums} times"
    return Preset("round", text, "", [], cases)


def _preset_of(study: Study) -> Preset:
    if study.preset in preset_names():
        return preset(study.preset)
    cases = [result.case for result in study.results]
    if study.preset == "round" and cases:
        return _round_of(cases)
    return Preset(study.preset, study.command, "", [], cases)


def _run(chosen: Preset, folder: Path, options: argparse.Namespace, link: Link, limits: Limits, command: str) -> Study:
    from fedcipher._terminal import console, progress
    from fedcipher.bench import report

    with progress(console(stderr=True)) as bar:
        task = bar.add_task(chosen.cases[0].label, total=len(chosen.cases) * options.runs)

        def on_run(study: Study) -> None:
            # Until something has been measured, what an earlier run has left stays.
            measured = any(result.runs for result in study.results)
            kept = report.write_results(study, folder) if measured else folder
            if kept != folder:
                raise ReportError(f"{folder} can no longer be written; what was measured is in {kept / 'results.json'}")
            done = sum(len(r.runs) if not r.failure else options.runs for r in study.results)
            following = chosen.cases[min(len(study.results), len(chosen.cases)) - 1].label
            bar.update(task, completed=done, description=following)

        return run_study(
            chosen.name,
            chosen.cases,
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
    # Refuses bits that no scheme takes, once and not for each scheme.
    Codec(bits=options.bits)
    federation = Federation(
        options.values,
        options.clients,
        _link(options),
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
        print_table("what these rest on", [["scheme", "measured here"], *([p.scheme, p.basis()] for p in measured)])
    if all(p.excluded for p in found):
        print("no scheme here does that, or none that could be measured", file=sys.stderr)
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
