"""What `fedcipher --help` and `fedcipher COMMAND --help` say: groups, defaults, and examples that run."""

import argparse
import io
import shlex
import subprocess
import sys

import numpy as np
import page_code
import pytest
from fedcipher import cli
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.cli.commands import COMMANDS, GROUPS
from fedcipher.guard.log import Log
from fedcipher.keys import load_client
from fedcipher.schemes import DEFAULT_SCHEME, register, registry, scheme_names
from flower_harness import LocalGrid, make_app, record
from flwr.serverapp.strategy import FedAvg

BASELINES = "baselines, for measurements only:"
PASSED_ON = {command.name for command in COMMANDS if command.passes_on}
"""Their options are those of the programs that they become."""
PROGRAMS = PASSED_ON | {
    *("train", "cluster", "access", "run", "superlink", "supernode", "superexec", "dashboard", "forget", "guard"),
}
"""These need a network, a certificate or minutes: their examples are parsed."""
LONG = {"serve"}
CLIENTS = 12


def walked(parser, line=()):
    """Each command that takes options or arguments, with its parser."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in inner:
        for name, part in action.choices.items():
            yield from walked(part, (*line, name))
    if not inner:
        yield " ".join(line), parser


PARSERS = dict(walked(cli.parser()))


@pytest.fixture
def named(monkeypatch):
    """A scheme of another package, registered beside the baseline."""
    monkeypatch.setattr(registry, "_registered", {})
    register(page_code.module(page_code.SCHEME, "toy_scheme").Toy)


def shown(capsys, *line):
    with pytest.raises(SystemExit) as end:
        cli.main([*line, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_help_has_every_command_in_its_group_with_one_line(capsys):
    text = shown(capsys)
    blocks = dict(block.split(":\n", 1) for block in text.split("\n\n") if ":\n" in block)
    assert [title for title in blocks if title != "options"] == list(GROUPS)
    for command in COMMANDS:
        (line,) = [line for line in blocks[command.group].splitlines() if line.split()[0] == command.name]
        assert line.split(maxsplit=1)[1] == command.does and len(line) <= 80
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)


def test_the_help_and_a_command_import_no_other_command():
    code = "import sys; from fedcipher import cli\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print(*sorted(m for m in sys.modules if m.startswith(('fedcipher.', 'jax', 'flwr', 'rich'))))"
    for line, module in (["--help"], None), (["schemes"], "fedcipher.cli.schemes"):
        done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=True)
        loaded = set(done.stdout.splitlines()[-1].split())
        assert loaded & ({command.module for command in COMMANDS} | {"jax", "flwr", "rich"}) == {module} - {None}


@pytest.mark.parametrize("name", sorted(PARSERS.keys() - PASSED_ON))
def test_every_option_is_in_a_titled_group_and_says_what_happens_without_it(name):
    parser = PARSERS[name]
    # The first two are argparse's: of arguments by position, and of what is in no other.
    in_none = [
        action for group in parser._action_groups[:2] for action in group._group_actions if action.option_strings
    ]
    assert [action.option_strings for action in in_none] == [["-h", "--help"]]
    for action in parser._actions:
        assert action.help, action
        if action.help == argparse.SUPPRESS or not action.option_strings or action.nargs == 0:
            continue
        text = parser._get_formatter()._expand_help(action)
        said = action.default is None or action.default == [] or f"default: {action.default}" in text
        assert action.required or said or "default" in text or action.default == "", text


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_has_one_to_three_examples_that_it_takes(name):
    parser = PARSERS[name]
    assert 1 <= len(parser.examples) <= 3 and parser.format_help().endswith(parser.examples[-1] + "\n")
    for example in parser.examples:
        options = cli.parser().parse_args(arguments_of(example))
        assert callable(options.run)


def arguments_of(example):
    """Without the program, and without where a shell puts the output."""
    program, *words = shlex.split(example.partition(" > ")[0])
    assert program == "fedcipher"
    return words


class Terminal(io.StringIO):
    """At which somebody types the number of parties."""

    def isatty(self):
        return True


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    """In the order of the help: each finds what those before it have made."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / ".fedcipher"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for other in ("bob", "cid"):
        assert cli.main(["identity", other]) == 0
    ran = set()
    for name, parser in PARSERS.items():
        if name.split()[0] in PROGRAMS:
            continue
        if name == "joined":
            for other in ("bob", "cid"):
                join(monkeypatch, [f"{other}.identity", "server.key", "--out", f"{other}.key"])
        if name == "status":
            a_run("my-app")
        if name == "verify":
            for number, letter in enumerate("ab"):
                key = tmp_path / ".fedcipher" / "keys" / "my-app" / f"client-{number}.key"
                Log(tmp_path / f"log-{letter}", load_client(key)[1])
        for example in parser.examples:
            words = [word.replace("~", str(tmp_path), 1) for word in arguments_of(example)]
            if not LONG & set(words):
                assert (join(monkeypatch, words[1:]) if name == "join" else cli.main(words)) == 0, example
                ran.add(name)
    assert ran == {command.name for command in COMMANDS} - PROGRAMS
    assert (tmp_path / "model.npz").exists()
    said = capsys.readouterr().out
    assert "1 rounds asked for, 1 with an aggregate" in said and "client key of scheme bfv" in said


def join(monkeypatch, words):
    monkeypatch.setattr(sys, "stdin", Terminal("3\n"))
    return cli.main(["join", *words])


def a_run(name):
    """One round of twelve clients, with keys and a folder of this name."""
    goals = [[np.ones(4, np.float32)]] * CLIENTS
    grid = LocalGrid(make_app(goals, [10] * CLIENTS), CLIENTS, name)
    everybody = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
    strategy = SecureStrategy(FedAvg(**everybody), keys=name, out=name, train_answers=["loss"])
    strategy.start(grid, record([np.zeros(4, np.float32)], ["w"]), num_rounds=1)


def test_baselines_are_listed_apart(capsys, named):
    assert cli.main(["schemes"]) == 0
    chosen, measured = capsys.readouterr().out.split(BASELINES)
    assert "plain" in measured and "plain" not in [line.split()[0] for line in chosen.splitlines() if line[:1].strip()]
    assert f"{DEFAULT_SCHEME} (default)\n" in chosen and "\ntoy\n" in chosen
    for command in ("train", "bench"):
        text = " ".join(shown(capsys, command).split())
        assert f"oneshot, pasta-bfv, toy; {BASELINES} plain (default" in text
    assert set(scheme_names()) >= {"plain", "toy"}


@pytest.mark.parametrize(("earlier", "name"), [("--silent", "--no-updates"), ("--blind", "--no-decrypt")])
def test_a_renamed_option_names_its_name_of_today(capsys, earlier, name):
    with pytest.raises(SystemExit) as end:
        cli.main(["roster", "ada.card", earlier, "ada"])
    assert end.value.code == 2 and f"{earlier} was renamed to {name}" in capsys.readouterr().err
    text = shown(capsys, "roster")
    assert name in text and earlier not in text


def test_without_an_option_the_scheme_is_the_default_in_every_command():
    for name, parser in PARSERS.items():
        scheme = parser.get_default("scheme")
        # Rosters are of schemes for which nobody has all keys.
        assert scheme in (None, "oneshot" if name == "roster" else DEFAULT_SCHEME), name
    assert DEFAULT_SCHEME == "bfv"
