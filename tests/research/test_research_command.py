"""What `fedcipher-research` says to wrong input, and that it is `fedcipher` with more in its `bench`."""

import subprocess
import sys

import pytest
from fedcipher import cli as product
from fedcipher_research import cli

WRONG = [
    ("bench nope", "invalid choice"),
    ("bench fedbit-round --runs 1 --out {N}", "--data-dir"),
    ("bench flashe-wan --runs 1 --out {N}", "--data-dir"),
    ("bench fednic --runs 1 --out {N}", "--data-dir"),
    ("bench fedbit-round --runs 1 --out {N} --data-dir {N}", "no folder mnist"),
    ("bench fedbit-packing --runs 1 --out {N} --server 127.0.0.1:7700", "leave out --server"),
    ("bench fednic --cpus 2", "are for the two processes"),
    ("bench fedbit-packing --runs 0", "--runs 0"),
    ("bench report --out {N}", "check the path"),
]


@pytest.mark.parametrize(("line", "why"), WRONG)
def test_a_wrong_line_is_refused_in_one_line_and_makes_nothing(line, why, capsys, tmp_path):
    try:
        status = cli.main(line.replace("{N}", str(tmp_path / "new")).split())
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert status == 2 and why in said and said.startswith("fedcipher") and said.count("\n") == 1, said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", ["[]", "{}", "3", "no JSON"])
def test_results_of_another_kind_are_refused(content, capsys, tmp_path):
    (tmp_path / "results.json").write_text(content)
    assert cli.main(["bench", "report", "--out", str(tmp_path)]) == 2
    assert "run the study again" in capsys.readouterr().err


def test_a_report_is_drawn_from_the_results_of_a_round(capsys, tmp_path):
    few = ("--runs", "1", "--values", "100", "--clients", "2", "--schemes", "plain")
    assert product.main(["bench", "round", *few, "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "results.csv"}
    assert cli.main(["bench", "report", "--out", str(tmp_path)]) == 0
    assert {"report.html", "README.md", "phases.png"} <= {path.name for path in tmp_path.iterdir()}
    assert cli.main(["bench", "round", *few, "--out", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert "`fedcipher-research bench round" in (tmp_path / "README.md").read_text()


def test_it_has_every_command_of_fedcipher_under_its_own_name():
    command = [sys.executable, "-m", "fedcipher_research", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: fedcipher-research")
    names = product.parser()._subparsers._group_actions[0].choices
    assert all(f"\n  {name} " in done.stdout for name in names)
