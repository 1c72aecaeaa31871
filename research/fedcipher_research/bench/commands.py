"""`fedcipher-research bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedcipher._files import writable_folder
from fedcipher.bench import results
from fedcipher.bench.case import Case
from fedcipher.bench.groups import Limits
from fedcipher.bench.study import Study
from fedcipher.cli.measure import add_measuring, cases_of_round, link_of, measure, out_folder
from fedcipher.cli.parser import Parser
from fedcipher.errors import ParameterError

from fedcipher_research._optional import require
from fedcipher_research.bench.preset import Preset
from fedcipher_research.bench.presets import preset, preset_names
from fedcipher_research.bench.tables import compared
from fedcipher_research.studies import study_names

__all__ = ["add_bench"]


def add_bench(parser: Parser) -> None:
    """Add the options of `bench`."""
    parser.description = (
        "A preset or a study compares published figures with measured ones. `round` measures the cases that you name. "
        "`serve` is the server's side for --server. `report` writes the report of an earlier results.json again."
    )
    parser.add_argument(
        "what", choices=[*preset_names(), *study_names(), "round", "serve", "report"], help="the measurement or action"
    )
    add_measuring(parser)
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data-dir", default="", help="for studies that train: a folder with a folder for each data set, like mnist"
    )
    parser.example("round --runs 3 --schemes bfv,paillier", "report --out runs/bench-round")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace, arguments: list[str]) -> int:
    require("fedcipher-research bench", "psutil", "rich", "matplotlib")
    from fedcipher.bench.server import serve

    from fedcipher_research.bench import report

    if options.what == "serve":
        serve(options.listen)
        return 0
    command = f"{options.program} {' '.join(arguments)}"
    if options.what in study_names():
        return _study(options, command)
    if options.what == "report":
        folder = out_folder(options)
        study = results.load(folder / "results.json")
        report.write(study, _preset_of(study), folder)
        print(f"report: {folder / 'report.html'}")
        return 0
    chosen = _round_of(cases_of_round(options)) if options.what == "round" else preset(options.what)

    def write(study: Study, folder: Path) -> Path:
        report.write(study, chosen, folder)
        return folder / "report.html"

    return measure(chosen.name, chosen.cases, options, command, write, lambda study: _show_beside(study, chosen))


def _show_beside(study: Study, chosen: Preset) -> None:
    from fedcipher._terminal import print_table

    if chosen.comparisons:
        shown = compared(study, chosen)
        print_table("beside the published figures", shown.rows)
        _print_notes(shown.notes)


def _print_notes(notes: list[tuple[str, list[str]]]) -> None:
    for head, texts in notes:
        print(f"{head}:", *texts, sep="\n  ")


def _study(options: argparse.Namespace, command: str) -> int:
    from fedcipher._terminal import print_table

    from fedcipher_research.published.tables import beside
    from fedcipher_research.studies import StudySettings, check_data, study
    from fedcipher_research.studies.findings import circumstances, write

    if not 1 <= options.runs <= 1000:
        raise ParameterError(f"--runs {options.runs} is not between 1 and 1000")
    link = link_of(options)
    if Limits.parse(options.cpus, options.memory or ""):
        raise ParameterError("--cpus and --memory are for the two processes of a preset or of round on this machine")
    if options.server:
        raise ParameterError(f"{options.what} starts its own servers: leave out --server")
    check_data(options.what, options.data_dir)
    folder = out_folder(options)
    writable_folder(folder)
    facts = circumstances()
    found = study(options.what)(
        StudySettings(options.runs, options.data_dir, link, lambda text: print(text, file=sys.stderr, flush=True))
    )
    shown = beside(found.outcomes)
    if found.outcomes:
        print_table("beside the published figures", shown.rows)
    else:
        for table in found.tables:
            print_table(table.title, table.rows)
    _print_notes(shown.notes)
    write(options.what, found, command, facts, folder)
    print(f"report: {folder / 'README.md'}")
    return 0


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
