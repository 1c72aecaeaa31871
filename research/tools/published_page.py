"""Writes docs/evidence/published.md: a row for every table and figure of the five papers, from the committed reports.

    python research/tools/published_page.py

Verdicts come from the reports under research/results: reports of presets, reports of training, and `outcomes.json` of
other experiments (`fedcipher_research.published.record`). A place without a report is "not run", which means remaining
work.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from fedcipher.bench import results
from fedcipher_research.bench.presets import preset, preset_names
from fedcipher_research.published import PAPERS, Published, cell, doubt, doubts, everything_of, figure, places, sections
from fedcipher_research.published.record import Record
from fedcipher_research.published.tables import beside, markdown_table
from fedcipher_research.published.verdict import RULE, Outcome, judged

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "research" / "results"
PAGE = ROOT / "docs" / "evidence" / "published.md"

_CIFAR = "CIFAR-10 here is a class-balanced subset of 20,000 and 5,000 images"
# Columns of tables that describe a row and are not results.
_GIVEN = {"numbers", "plaintext_KB", "parameters", "FL rounds", "epochs"}

WORDS = {
    ("flashe", "Table 1"): "it compares schemes in words, nothing in it is measured",
    ("flashe", "Table 3"): "it has asymptotic costs, nothing in it is measured",
    ("hybrid-he", "Table 1"): "it is the set-up of the other tables, nothing in it is measured",
    ("resource-study", "slide: HE classification"): "it compares schemes in words, nothing in it is measured",
    ("resource-study", "slide: studied schemes"): "it names schemes and libraries, nothing in it is measured",
    ("resource-study", "slide: system configuration"): "it describes the authors' machines; ours stand with each run",
    ("fednic", "Table 1"): "it compares techniques in words, nothing in it is measured",
    ("fednic", "Table 2"): "it compares kinds of SmartNIC, none of which is here",
}
"""Places in which nothing can be measured, with the reason."""

ELSEWHERE = {("hybrid-he", "Fig. 7"): ("Fig. 7a", "Fig. 7b")}
"""Places that the paper prints as tables with names of their own."""


@dataclass(frozen=True)
class Run:
    """One report under research/results, and its record."""

    folder: str
    record: Record

    def of(self, paper: str, place: str = "") -> list[Outcome]:
        """The outcomes of this run for a paper, or for one place of the paper."""
        found = [o for o in self.record.outcomes if o.published.paper == paper and o.verdict]
        return [o for o in found if not place or o.published.place == place]


def committed(path: Path) -> str:
    """The commit that added a file. Older reports do not name the commit of their source."""
    # For a file that was moved, the commit before the move counts.
    log = ("log", "--follow", "--diff-filter=AM", "-1", "--format=%h", "--abbrev=9", "--")
    git = ["git", "-C", str(ROOT), *log, str(path.relative_to(ROOT))]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def place_of(machine: dict[str, str]) -> str:
    """A short description of a machine."""
    memory = f", {machine['memory']}" if "memory" in machine else ""
    return f"{machine['processor']}, {machine['cores']} cores{memory}"


def presets() -> Iterator[Run]:
    """The runs of presets of `fedcipher-research bench`."""
    for name in preset_names():
        path = RESULTS / name / "results.json"
        if path.exists():
            study, chosen = results.load(path), preset(name)
            commit = study.machine.get("commit") or committed(path)
            outcomes = tuple(chosen.outcomes(study))
            yield Run(name, Record(study.command, commit, place_of(study.machine), outcomes, tuple(chosen.differs)))


def training() -> Iterator[Run]:
    """The trainings to compare with the hybrid-HE study, FedBit and FLASHE. A run without a report has no row."""
    for folder, outcomes, differs in (*hybrid_runs(), *other_runs()):
        path = RESULTS / folder / "report.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            commit = found["machine"].get("commit") or committed(path)
            machine = place_of(found["machine"])
            yield Run(folder, Record(found["command"], commit, machine, tuple(outcomes(found)), differs))


Outcomes = Callable[[dict[str, Any]], list[Outcome]]
Trained = tuple[str, Outcomes, tuple[str, ...]]
"""(folder, function from a report to outcomes, differences from the published set-up)."""


def hybrid_runs() -> Iterator[Trained]:
    """The trainings of the hybrid-HE study."""
    gpu = "training on two shared cores here, on a GPU there"
    differs = (
        "no validation part and no early stopping here; the test set is shared out among the clients",
        gpu,
    )
    own = "the study's BFV is TenSEAL's at N = 16384 over its int8 codec, this is Fedcipher's over 12-bit deltas"
    delta = "14-bit deltas here, int8 weights there"
    for folder, scheme, curve, because in (
        ("hhe-pasta-delta", "PASTA+BFV", "PASTA+BFV", delta),
        ("hhe-plain-delta", "FL without encryption", "plaintext", delta),
        ("hhe-bfv-delta", "BFV", "BFV", own),
    ):
        yield folder, partial(quality, folder, scheme, curve, because), differs
    stops = "a client stops after one pass without a smaller validation loss and keeps the best"
    never = "a client trains all its passes and keeps the one with the least validation loss"
    kept = "; the study does not say how patient its early stopping is"
    for patience, how in (("study", stops), ("patient", never)):
        for name, scheme, curve, more in (
            ("pasta", "PASTA+BFV", "PASTA+BFV", ()),
            ("plain", "FL without encryption", "plaintext", ("without encryption values have 24 bits here",)),
            ("bfv", "BFV", "BFV", ("BFV is TenSEAL's, as there, at N = 16384",)),
        ):
            folder = f"hhe-{name}-{patience}"
            yield folder, partial(quality, folder, scheme, curve, ""), (gpu, how + kept, *more)


def quality(folder: str, scheme: str, curve: str, because: str, found: dict[str, Any]) -> list[Outcome]:
    """The outcomes for Table 2 and the end of Fig. 5; for PASTA, the time of training too."""
    ends = doubt("hybrid-he", "Final accuracy differs between text and Table 2")
    gone = doubt("hybrid-he", "BFV clients ran out of memory")
    totals, contradictions = found["totals"], (ends, gone) if scheme == "BFV" else (ends,)
    outcomes = [
        judged(
            f"{folder}: {name}",
            cell("hybrid-he", "Table 2", {"scheme": scheme}, name, "" if name == "loss" else "%"),
            totals[name.lower()] * (1 if name == "loss" else 100),
            better="smaller" if name == "loss" else "larger",
            because=because,
            doubts=contradictions,
        )
        for name in ("accuracy", "loss", "precision", "recall", "F1")
    ]
    outcomes.append(
        judged(
            f"{folder}: accuracy after the last round",
            figure("hybrid-he", "Fig. 5", curve),
            totals["accuracy"] * 100,
            better="larger",
            because=because,
            doubts=contradictions,
        )
    )
    kind, _, whole = folder.removeprefix("hhe-").partition("-")
    if kind == "pasta" and whole != "delta":
        trained = cell("hybrid-he", "Fig. 7a", {"operation": "Training"}, scheme, "s")
        outcomes.append(judged(f"{folder}: training, a client and round", trained, totals["train"]))
        plain = RESULTS / f"hhe-plain-{whole}" / "report.json"
        if plain.exists():
            drop = json.loads(plain.read_text(encoding="utf-8"))["totals"]["accuracy"] - totals["accuracy"]
            printed = figure("hybrid-he", "Fig. 5", "accuracy drop, less than")
            what = f"{folder}: accuracy below that without encryption"
            outcomes.append(judged(what, printed, drop * 100, bound="at most", doubts=(ends,)))
    return outcomes


def other_runs() -> Iterator[Trained]:
    """The trainings of FedBit and FLASHE, with as many rounds as two cores can do."""
    for name, kind in (("Fashion-MNIST", "mnist"), ("CIFAR-10", "cifar10")):
        mnist = kind == "mnist"
        data = "MNIST in the place of Fashion-MNIST" if mnist else "a subset of CIFAR-10"
        differs = "MNIST has the shape and the number of images" if mnist else _CIFAR
        skew = "the paper's split is not stated; Dirichlet's here, alpha 0.5"
        table = cell("fedbit", "Table I", {"dataset": name, "metric": "accuracy %"}, "FedBit", "%")
        fig5 = figure("fedbit", "Fig. 5", name)
        yield f"fedbit-{kind}", partial(reached, f"fedbit-{kind}", fig5, data), (differs, "IID clients")
        folder = f"fedbit-{kind}-skewed"
        yield folder, partial(reached, folder, table, data), (differs, skew)
    fig5 = figure("fedbit", "Fig. 5", "Fashion-MNIST")
    for folder, bits in (
        ("fedbit-mnist-8", "8 bits"),
        ("fedbit-mnist-6", "6 bits"),
        ("fedbit-mnist-layers", "10 bits in the convolutions, 6 in the rest"),
    ):
        yield folder, partial(reached, folder, fig5, f"{bits}, MNIST in the place of Fashion-MNIST"), ("IID clients",)
    for folder, name, data in (
        ("flashe-resnet", "ResNet-20 peak accuracy", "a subset of CIFAR-10"),
        ("flashe-gru", "GRU accuracy", "characters of tiny Shakespeare"),
        ("flashe-cnn", "CNN accuracy", "MNIST in the place of FEMNIST"),
    ):
        printed = figure("flashe", "Fig. 9", name)
        yield folder, partial(reached, folder, printed, data), ("every client trains in every round",)


def reached(folder: str, printed: Published, data: str, found: dict[str, Any]) -> list[Outcome]:
    """The outcome for the best accuracy over all rounds of a report."""
    best = max(r["metrics"]["accuracy"] for r in found["rounds"] if "accuracy" in r["metrics"])
    count = len(found["rounds"])
    because = f"{count} rounds, and {data}"
    return [judged(f"{folder}: best accuracy of {count} rounds", printed, 100 * best, better="larger", because=because)]


def recorded() -> Iterator[Run]:
    """The runs of experiments that write their outcomes themselves."""
    for path in sorted(RESULTS.glob("*/outcomes.json")):
        found = Record.load(path)
        yield Run(path.parent.name, found if found.commit else Record(**{**vars(found), "commit": committed(path)}))


def printed(paper: str, place: str = "") -> list[tuple[Published, str]]:
    """Results that a paper, or one place of it, prints as single numbers, each with the texts in its row."""
    return [
        (single, of)
        for single, of in everything_of(paper)
        if isinstance(single.value, (int, Decimal))
        and single.what not in _GIVEN
        and (paper, single.place) not in WORDS
        and place in ("", single.place)
    ]


def alone(paper: str, runs: list[Run]) -> dict[str, list[str]]:
    """The single numbers of a paper without a counterpart of ours, by place. Numbers cited from others are left out."""
    ours = [o.published for run in runs for o in run.of(paper)]
    cells, values = {(p.place, p.value) for p in ours}, {p.value for p in ours}
    found: dict[str, list[str]] = {}
    for single, of in printed(paper):
        # The text of a paper repeats numbers of its tables and figures.
        said = single.place not in places(paper) and (single.value in values or single.what.startswith("cited"))
        if (single.place, single.value) not in cells and not said:
            what = f"{of}: {single.what}" if of else single.what
            found.setdefault(single.place, []).append(f"{what}, {single.value:,} {single.unit}".rstrip())
    return found


def counted(outcomes: list[Outcome]) -> str:
    """The number of outcomes by verdict, like ``beaten 3, missed 1``."""
    count = Counter(o.verdict for o in outcomes)
    return ", ".join(
        f"{name} {count[name]}" for name in ("reproduced", "beaten", "missed", "not comparable") if count[name]
    )


def row(paper: str, place: str, runs: list[Run]) -> list[str]:
    """A row of a paper's table."""
    what, section = places(paper)[place], sections()[paper]["places"][place]
    shown = f"{place} ({section})" if section else place
    if (paper, place) in WORDS:
        return [shown, what, f"not comparable, because {WORDS[paper, place]}", "", "", ""]
    if (paper, place) in ELSEWHERE:
        return [shown, what, f"see {' and '.join(ELSEWHERE[paper, place])}", "", "", ""]
    reached = [run for run in runs if run.of(paper, place)]
    if not reached:
        return [shown, what, "**not run**", "", "", ""]
    outcomes = [outcome for run in reached for outcome in run.of(paper, place)]
    compared = len({(o.published.what, o.published.value) for o in outcomes if o.here is not None})
    every = len(printed(paper, place))
    verdict = counted(outcomes) + (f"; {compared} of {every} figures" if every else "")
    commands = "<br>".join(f"`{run.record.command}` ([report](../../research/results/{run.folder}))" for run in reached)
    commits = "<br>".join(f"`{run.record.commit}`" for run in reached)
    machines = "<br>".join(sorted({run.record.machine for run in reached}))
    return [shown, what, verdict, commands, commits, machines]


def paper_part(paper: str, runs: list[Run], left: dict[str, list[str]]) -> list[str]:
    """A paper's section of the page; ``left`` is what `alone` finds."""
    name = PAPERS[paper]
    head = ["table or figure (section)", "content", "verdict", "command", "commit", "machine"]
    parts = [
        f"## {name[0].upper()}{name[1:]}",
        markdown_table([head, *(row(paper, place, runs) for place in places(paper))]),
    ]
    for run in runs:
        outcomes = run.of(paper)
        if outcomes:
            shown = beside(outcomes)
            parts += [f"### {run.folder}", *(f"**{text}**" for text in shown.reversed), markdown_table(shown.rows)]
            reasons = [texts for title, texts in shown.notes if title.startswith("Not comparable")]
            parts += ["Not comparable, because:\n\n" + "\n".join(f"* {text}" for text in texts) for texts in reasons]
            if run.record.differs:
                listed = "\n".join(f"* {text}" for text in run.record.differs)
                parts += [f"Differences from the published set-up:\n\n{listed}"]
    if left:
        parts.append(f"### Figures of {name} without a counterpart here")
        parts.append("\n".join(f"* {place}: {'; '.join(texts)}" for place, texts in left.items()))
    texts = [f"{at}. {text}" for at, text in enumerate(doubts(paper), 1)]
    return [*parts, f"### Contradictions and open points of {name}", "\n".join(texts)]


def missing(runs: list[Run]) -> list[tuple[str, str]]:
    """Places without a run, which are remaining work."""
    every = [(paper, place) for paper in PAPERS for place in places(paper)]
    return [at for at in every if at not in WORDS and at not in ELSEWHERE and not any(run.of(*at) for run in runs)]


def page() -> str:
    """The whole page."""
    runs = [*presets(), *training(), *recorded()]
    every = sum(len(places(paper)) for paper in PAPERS)
    left = missing(runs)
    numbers = sum(len(printed(paper)) for paper in PAPERS)
    unmatched = {paper: alone(paper, runs) for paper in PAPERS}
    single = sum(len(texts) for by_place in unmatched.values() for texts in by_place.values())
    rest = [
        f"* {PAPERS[paper]}: {', '.join(place for of, place in left if of == paper)}"
        for paper in PAPERS
        if any(of == paper for of, _ in left)
    ]
    parts = [
        "# The published experiments beside ours",
        "Written by `python research/tools/published_page.py`. Published figures come from "
        "`fedcipher_research.published` (`research/fedcipher_research/published/published.json`), and ours from the "
        f"reports under `research/results`. Of {every} tables and figures, {len(WORDS)} have nothing to measure and "
        f"{len(left)} have not been run yet. {single} of {numbers} single numbers, including numbers in texts, have no "
        "counterpart of ours; each paper's part lists them. Fashion-MNIST, CIFAR-100 and FEMNIST were not available, "
        "so nothing here was trained on them.",
        RULE,
        "A number in brackets after a verdict refers to a contradiction in the paper's list that concerns the figure. "
        "The commit is the commit of the source that ran. For reports older than this page, it is the commit that "
        "added the figures. *Extractor's arithmetic* was computed from a paper's figures while reading the paper.",
    ]
    for paper in PAPERS:
        parts += paper_part(paper, runs, unmatched[paper])
    if rest:
        parts += ["## Not run yet", "These places have no verdict. They are remaining work.", "\n".join(rest)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
