"""Odd command lines of every program: each ends with one reason and a status that is not 0, before anything is made."""

import argparse
import faulthandler
import gzip
import json
import os
import random
import shlex
import signal
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fedcipher import Codec, _files, cli, errors
from fedcipher.engine.local import find_program
from fedcipher.schemes import scheme

# {R}: a folder with keys, cards and data sets; {N}: a name that is not taken.
KEYGEN = "keygen --clients 3 --equal --out {N}"
ROSTER = "roster {R}/id/a.card {R}/id/b.card {R}/id/c.card --equal --member a --member b --member c --out {N}"
NOTHING_MADE = [
    "nope",
    "schemes extra",
    "inspect {R}/none",
    "inspect /dev/zero",
    "inspect /dev/full",
    "keygen",
    *(f"keygen --clients {n} --equal --out {{N}}" for n in ("0", "-1", "1", "99999999999", "x")),
    *(f"{KEYGEN} --clip {clip}" for clip in ("abc", "0", "1e-60", "1e-44", "1e39")),
    *(f"{KEYGEN} --epoch {n}" for n in ("-1", "0", "18446744073709551616")),
    *(f"{KEYGEN} --bits {n}" for n in ("0", "-1", "1", "99", "1.5")),
    *(f"{KEYGEN} --per-round {n}" for n in ("0", "-1", "4")),
    *(f"keygen --clients 3 --examples {n} --out {{N}}" for n in ("nan", "1e400", "1e-320", "0")),
    *(f"keygen --clients 3 --examples 9 --max-weight {n} --out {{N}}" for n in ("0", "-3", "9" * 23)),
    *(f"{KEYGEN} --top {n}" for n in ("0", "nan", "2")),
    *(f"{KEYGEN} --dp-epsilon 1 --dp-rounds {n}" for n in ("0", "-5", "9" * 20)),
    *(f"{KEYGEN} --set min_contributions={n}" for n in ("0", "-1", "99", "x", "1.5", "nan")),
    *(f"{KEYGEN} --set {text}" for text in ("masking=nan", "masking=1e999", "per_client_top=inf", "self=1")),
    f"{KEYGEN} --scheme bfv --set preset=1",
    f"{KEYGEN} --scheme paillier",
    f"{KEYGEN} --scheme bfv --set max_weight=1e999",
    "keygen --clients 3 --equal --out {R}/keys",
    "keygen --clients 3 --equal --out /dev/full",
    "keygen --clients 3 --equal --name ..",
    "identity a/b --out {N}",
    "identity a --out {R}/id",
    "identity 'two\nlines' --out {N}",
    "identity x --out /dev/full",
    ROSTER + " --epoch 99999999999999999999",
    ROSTER + " --member nobody",
    "roster /dev/zero {R}/id/b.card {R}/id/c.card --equal --member b --out {N}",
    "join {R}/id/a.card {R}/id/b.card --out {N}",
    "join {R}/id/a.identity /dev/zero --out {N}",
    "open {R}/none --key {R}/keys/client-0.key --out {N}",
    "open {R} --key /dev/zero --out {N}",
    "status {R}/none",
    "status {R}/file",
    *(f"spec --per-round {n}" for n in ("0", "-1", "99999999999999999999")),
    "spec --per-round 4 --bits 0",
    "dashboard {R}/none",
    "cluster",
    *(f"cluster up --clients {n} --folder {{N}}" for n in ("0", "-1", "99999")),
    *(f"cluster up --clients 2 --folder {{N}} {more}" for more in ("--bits 0", "--per-round -1", "--max-weight 0")),
    "cluster up --clients 3 --per-round 9 --folder {N}",
    "cluster up --clients 2 --folder {R}/file",
    "cluster run {R}/file --folder {R}/none",
    "run {R}/file --access {R}/none",
    "access {R}/none --superlink a:1 --root-certificates {R}/none",
    "access {R}/file --superlink a:1 --root-certificates {R}/file",
    *(f"superlink --control-token {name} --private {{N}}" for name in ("{R}/none", "{R}/file")),
    *(f"supernode --private {{N}} {more}" for more in ("", "-- --insecure", "-- --insec --port 1")),
    "cluster status --folder {R}/none",
    *(f"train {more}" for more in ("--clip abc", "--epoch -1", "--epochs -1", "--batch -1", "--bits 0", "--bits 1")),
    *(f"train --seed {n}" for n in ("-1", "9" * 23, "1.5")),
    *(f"train --rounds {n}" for n in ("-1", "0", "9" * 23)),
    *(f"train --clients {n}" for n in ("0", "-1", "2000")),
    *(f"train --learning-rate {n}" for n in ("nan", "inf", "-1", "0", "1e300", "abc")),
    *(f"train --dirichlet {n}" for n in ("nan", "-1", "inf", "1e-300")),
    *(f"train --model {name}" for name in ("gru", "gru-0.66m", "nope")),
    *(f"train --dataset {name}" for name in ("nope", "shakespeare")),
    *(f"train --clip {text}" for text in ("conv1=0", "conv1=nan", "conv1", "conv1=1,conv1=2", "conv1=1,2,3", "=1")),
    *(f"train --{name}-share {n}" for name in ("test", "validation") for n in ("-0.1", "1", "nan")),
    *(f"train --learning-rate-end {n}" for n in ("nan", "-1", "1e300")),
    "train --optimiser sgd",
    "train --patience 0",
    "train --link-mbit 0",
    "train --out /proc/x",
    "train --out {R}/file",
    *(f"train --dataset mnist --data-dir {{R}}/{name}" for name in ("none", "header", "cut", "nongz", "l255", "empty")),
    *(f"train --dataset cifar10 --data-dir {{R}}/{name}" for name in ("mnist",)),
    *(f"train --dataset shakespeare --data-dir {{R}}/{name}" for name in ("text", "binary", "mnist")),
    "train --dataset mnist --data-dir {R}/small",
    "train --dataset mnist --data-dir {R}/mnist --model gru",
    "train --top nan",
    "train --set min_contributions=99",
    "train --compare plain --scheme plain",
    "train --resume --engine auto",
    *(f"train --accelerator {more}" for more in ("card", "sim", "sim --scheme bfv", "sim --engine off")),
    "bench nope",
    *(f"bench round --runs 1 --schemes plain {more}" for more in ("--values 0", "--clients -1", "--sums 0")),
    *(f"bench round --runs {n}" for n in ("0", "-1", "99999999")),
    *(f"bench round --runs 1 --schemes plain --bandwidth {n}" for n in ("0", "nan", "-5mbit")),
    "bench round --runs 1 --schemes plain --latency 1e9s",
    *(f"bench serve --listen {at}" for at in ("nonsense", "localhost:99999", "localhost:-1", "localhost:²")),
    "bench phe-vs-fhe --runs 1 --out {N}/x",
    *(f"advise --values {n}" for n in ("0", "-1")),
    *(f"advise --values 10 {more}" for more in ("--clients 0", "--bits 0", "--seconds nan", "--schemes nope")),
    "advise --values 10 --bandwidth 0",
]

AUTHORITY = [
    "",
    "init --state {N}",
    *(f"init --state {{N}} --spec {{R}}/{name}" for name in ("none", "file")),
    "init --state {N} --spec /dev/zero",
    *(f"init --state {{N}} --spec {{R}}/spec --name {name!r}" for name in ("", "a b", "☃")),
    "init --spec {R}/spec",
    "enrol d0 --out {N}",
    *(f"enrol {name!r} --out {{N}}" for name in ("", "a/b", "..", "two words")),
    "enrol x --out {R}/file",
    "enrol x --out {R}/d0",
    *(f"enrol x --out {{N}} --days={n}" for n in ("0", "-1", "36501", "99999999999", "9223372036854775807")),
    *(f"enrol x --out {{N}} --from {when}" for when in ("yesterday", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z")),
    *(f"enrol x --out {{N}} --request {name}" for name in ("{R}/none", "{R}/file", "/dev/zero", "{R}")),
    "enrol x --out {N} --name ''",
    *(f"enrol x --out {{N}} --role {role} --name host.example" for role in ("host", "server")),
    "enrol x --out {N} --role host",
    *(f"enrol x --out {{N}} --role host --device {name!r}" for name in ("", "x", "a/b", "d0 d0", "nobody")),
    "enrol x --out {N} --role host --device d0 --device nobody",
    *(f"enrol x --out {{N}} --role {role} --device d0" for role in ("device", "server")),
    *(f"serve --listen {at}" for at in ("nonsense", "127.0.0.1:99999", "unix:{N}")),
    "serve --listen 127.0.0.1:0 --rotate-every=-1",
    "serve --listen 127.0.0.1:0 --state {R}/none",
    "serve --listen 127.0.0.1:0 --state {R}/file",
    "rotate --members a",
    "revoke nobody",
    "status --state {R}/none",
]

SERVE = "serve --listen unix:{N} --state {R}/ledgers"
ENGINE = [
    "",
    *(f"request {name!r} --out {{N}}" for name in ("", "a/b")),
    "request ok --out {R}/file",
    "request ok --out {R}/d0",
    SERVE,
    *(f"{SERVE} --key-file {name}" for name in ("{R}/none", "{R}/file", "{R}/keys/server.key", "/dev/zero")),
    *(f"{SERVE} --key-file {{R}}/keys/client-0.key --threads={n}" for n in ("100000", "257", "-1", "9" * 20)),
    *(f"{SERVE} --key-file {{R}}/keys/client-0.key {more}" for more in ("--metrics x", "--socket-group no-such")),
    *(
        f"{SERVE} --key-file {{R}}/keys/client-0.key --allow-uid {to}"
        for to in ("1000", "1000=", "=client-0", "x=client-0", "-1=client-0", "4294967296=client-0", "0=client-1")
    ),
    *(
        f"serve --listen unix:{at} --state {{R}}/ledgers --key-file {{R}}/keys/client-0.key"
        for at in ("{R}/file", "{R}", "/none/x", "")
    ),
    "serve --listen 127.0.0.1:0 --state {R}/ledgers --key-file {R}/keys/client-0.key",
    "serve --listen unix:{N} --state {R}/file --key-file {R}/keys/client-1.key",
    "serve --listen unix:{N} --state {N} --authority 127.0.0.1:1 --credentials {R}/none",
]


def idx(shape, values):
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def images(folder, shape=(28, 28), count=60, label=None, change=lambda name, content: (name, content)):
    """A folder of IDX files; ``change`` may damage one on its way."""
    folder.mkdir()
    labels = bytes(k % 10 if label is None else label for k in range(count))
    for part in ("train", "t10k"):
        size = count * int(np.prod(shape))
        files = {
            f"{part}-images-idx3-ubyte": idx((count, *shape), bytes(size)),
            f"{part}-labels-idx1-ubyte": idx((count,), labels),
        }
        for name, content in files.items():
            changed, content = change(name, content)
            (folder / changed).write_bytes(content)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    assert cli.main(["keygen", "--clients", "3", "--equal", "--out", str(root / "keys")]) == 0
    for name in "abc":
        assert cli.main(["identity", name, "--out", str(root / "id")]) == 0
    (root / "file").write_text("somebody's")
    images(root / "mnist")
    images(root / "small", (2, 2))
    images(root / "l255", label=255)
    images(root / "empty", count=0)
    images(root / "header", change=lambda name, content: (name, content[:9] if "images" in name else content))
    images(root / "nongz", change=lambda name, content: (f"{name}.gz", content))
    images(root / "cut", change=lambda name, content: (f"{name}.gz", gzip.compress(content)[:-20]))
    for name, content in (("text", b"hello"), ("binary", bytes(range(256)) * 50)):
        (root / name).mkdir()
        (root / name / "input.txt").write_bytes(content)
    return root


def words(line, base, new):
    return [text.format(R=base, N=new) for text in shlex.split(line)]


def everything(folder):
    return sorted(path for path in folder.rglob("*") if "ledgers" not in path.parts)


def judged(said, status, line):
    assert status not in (None, 0), line
    assert said.strip(), f"{line}: silence"
    for word in ("Traceback", "panicked", "while processing"):
        assert word not in said, f"{line}: {said}"


@pytest.mark.parametrize("line", NOTHING_MADE)
def test_fedcipher_says_what_is_wrong_and_makes_nothing(line, base, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    before = everything(base)
    try:
        # An exception of any other kind fails here, with its traceback.
        status = cli.main(words(line, base, tmp_path / "new"))
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    judged(said, status, line)
    assert said.startswith("fedcipher") and said.count("\n") == 1, said
    made = everything(base), [path for path in everything(tmp_path) if path.name not in ("state", "runs", "latest")]
    assert made == (before, []), line


@pytest.fixture(scope="module")
def programs(base):
    """A key authority with a party, for the two programs in Rust."""

    def run(name, *arguments):
        # A service that starts is ended: it should not have.
        command = [find_program(name), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=base)

    (base / "spec").write_text(json.dumps(scheme("flashe", clients=3, codec=Codec(bits=16, clip=1.0)).spec()))
    for command in (["init", "--spec", "spec"], ["enrol", "d0", "--out", "d0"]):
        assert run("fedcipher-authority", "--state", "authority", *command).returncode == 0
    return run


@pytest.mark.parametrize("name", ["fedcipher-authority", "fedcipher-engine"])
def test_the_programs_say_what_is_wrong_and_make_nothing(name, base, programs, tmp_path):
    before = everything(base)
    held = {path: path.read_bytes() for path in before if path.is_file() and "authority" not in path.parts}
    for k, line in enumerate(AUTHORITY if name == "fedcipher-authority" else ENGINE):
        new = tmp_path / str(k)
        given = words(line, base, new)
        if name == "fedcipher-authority" and "--state" not in given:
            given = ["--state", str(base / "authority"), *given]
        try:
            done = programs(name, *given)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{line} is served")
        judged(done.stderr, done.returncode, line)
        # 101: a panic; below 0: a signal.
        assert done.returncode == 2, (line, done.returncode, done.stderr)
        left = [path for path in everything(tmp_path) if path.is_file()]
        assert left == [], (line, left)
    # No key file is bound to a state folder either.
    assert everything(base) == before
    assert held == {path: path.read_bytes() for path in held}
    assert os.listdir(base / "d0")


@pytest.mark.parametrize("name", ["fedcipher-authority", "fedcipher-engine"])
def test_a_log_is_plain_text_or_json(name, base, programs, tmp_path):
    if name == "fedcipher-authority":
        serve = ["--state", str(base / "authority"), "serve", "--listen", "127.0.0.1:0"]
    else:
        assert cli.main(["keygen", "--clients", "3", "--equal", "--out", str(tmp_path / "keys")]) == 0
        serve = ["serve", "--listen", f"unix:{tmp_path}/socket", "--state", str(tmp_path / "ledgers")]
        serve += ["--key-file", str(tmp_path / "keys" / "client-0.key")]

    def logged(*options):
        """All lines of a service that is ended once it listens."""
        command = [find_program(name), *serve, "--allow-swap", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "listening on" in line:
                    process.send_signal(signal.SIGTERM)
            return lines

    for line in (said := logged()):
        assert "\x1b" not in line and (" INFO " in line or " WARN " in line), line
    assert said
    assert all({"timestamp", "level", "message"} <= set(json.loads(line)) for line in logged("--log-format", "json"))


# --- drawn at random ----------------------------------------------------------------------------

ODD = [
    *("", "0", "-1", "1", "2", "3", "2.5", "nan", "inf", "-inf", "1e400", "1e-320", "9" * 30, "0x10", "٣", "1_0"),
    *("x", "☃", "a\nb", "\udcff", "\x1b[31m", "%s", "{}", "'", "x" * 5000, "-", "--", "=", ",", "a,,b", "1,2"),
    *("a=b", "self=1", "=1", "conv1=", "[::1]:1", "localhost:²", ":0", "unix:", "authority://", "2026-99-99", "../.."),
    *(".", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "{R}", "{R}/file", "{R}/none", "{R}/keys"),
    *("{R}/keys/server.key", "{R}/keys/client-0.key", "{R}/id/a.card", "{R}/mnist", "{N}", "{N}/x", "flashe", "bfv"),
]
# These start a service, or work for minutes, where all that they are given is right.
LONG = {"train", "bench", "advise", "cluster", "run", "superlink", "supernode", "superexec", "dashboard"}
LINES = int(os.environ.get("FEDCIPHER_LINES", "300"))


def drawn(parser, draw, given=()):
    """A command line of a command at random, with some of its arguments and values of any kind."""
    options, positional = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            name = draw.choice([*action.choices, "☃"])
            left = action.choices.get(name)
            return drawn(left, draw, (*given, name)) if left else [*given, name]
        if "--help" not in action.option_strings and "--version" not in action.option_strings:
            (options if action.option_strings else positional).append(action)
    some = [action for action in options if draw.random() < (0.8 if action.required else 0.15)]
    words = []
    for action in some:
        words.append(draw.choice(action.option_strings))
        if action.nargs != 0:
            words.append(draw.choice([*ODD, *map(str, action.choices or ())]))
    words += [draw.choice(ODD) for _ in positional if draw.random() < 0.9]
    refused = [action for action in options if action.type not in (None, str, Path)]
    if given[0] in LONG:
        words += [refused[0].option_strings[0], "☃"] if refused else ["--☃"]
    if draw.random() < 0.1:
        words.insert(draw.randrange(len(words) + 1), draw.choice(ODD))
    return [*given, *words]


def test_no_command_line_drawn_at_random_ends_in_a_traceback_or_hangs(base, tmp_path, capsys, monkeypatch, executed):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    draw, before, failed = random.Random(os.environ.get("FEDCIPHER_SEED", "1")), everything(base), []
    statuses = set()
    for k in range(LINES):
        names = {"{R}": str(base), "{N}": str(tmp_path / f"new-{k}")}
        line = drawn(cli.parser(), draw)
        for name, path in names.items():
            line = [word.replace(name, path) for word in line]
        # A line that hangs shows where, and ends the tests.
        faulthandler.dump_traceback_later(60, exit=True, file=sys.__stderr__)
        try:
            status = cli.main(line)
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            failed.append((line, repr(error)))
            continue
        finally:
            faulthandler.cancel_dump_traceback_later()
        statuses.add(status)
        said = capsys.readouterr().err
        # Flower's program refuses what is passed on to it, in its own words.
        ours = said.startswith("fedcipher") or line[0].startswith("super")
        if status not in (0, 2) or (status == 2 and not ours) or "Traceback" in said:
            failed.append((line, status, said))
    assert failed == []
    assert statuses == {0, 2}
    assert everything(base) == before


# --- told to end, or started without a stream ---------------------------------------------------

COMMAND = [sys.executable, "-m", "fedcipher.cli"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_key_generation_that_is_told_to_end_leaves_no_half_of_its_keys(tmp_path, how):
    line = [*COMMAND, "keygen", "--clients", "100000", "--equal", "--out", str(tmp_path / "keys")]
    # A shell has what it starts in the background ignore Ctrl-C, and these tests may be in the background.
    told = {"preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **told) as process:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob(".keys.*/client-9*.key"))) < 10:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + how
    assert said == f"fedcipher: {'interrupted' if how == signal.SIGINT else f'ended by {how.name}'}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_closed_terminal_is_ignored_where_that_was_asked_for(tmp_path):
    program = f"import sys; from fedcipher import cli; print('here', flush=True); sys.exit(cli.main({['schemes']!r}))"
    pause = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); "
    done = subprocess.run(
        ["nohup", sys.executable, "-c", pause + program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0 and "flashe" in done.stdout, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's redirection")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_without_a_stream_works_and_writes_nothing_into_its_files(tmp_path, closed):
    def run(line):
        command = f"{shlex.join([*COMMAND, *line])} {closed}"
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)

    made = run(["keygen", "--clients", "3", "--equal", "--out", "keys"])
    assert made.returncode == 0, made.stderr
    assert cli.main(["inspect", str(tmp_path / "keys" / "client-0.key")]) == 0
    refused = run(["keygen", "--clients", "3", "--equal", "--out", "keys"])
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


# --- what stands where something is to be written -----------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders")
def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    pipe, folder, link, real = (tmp_path / name for name in ("pipe", "folder", "link", "real"))
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(real)
    for taken in (pipe, folder):
        with pytest.raises(errors.RunError, match="is not an ordinary file and stays unchanged"):
            _files.write_whole(taken, b"model")
    assert pipe.is_fifo() and folder.is_dir()
    # A link that a user has named is followed; one in a run's folder, which anybody may have put there, is replaced.
    for content in (b"first", b"second"):
        _files.write_whole(link, content, follow=True)
        assert link.is_symlink() and real.read_bytes() == content
    _files.write_whole(link, b"third")
    assert not link.is_symlink() and (link.read_bytes(), real.read_bytes()) == (b"third", b"second")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe", "real"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of files")
def test_a_file_that_does_not_fit_leaves_nothing(tmp_path):
    import resource

    (tmp_path / "model.npz").write_bytes(b"before")
    (tmp_path / ".model.npz.draft").write_bytes(b"somebody's")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))
    try:
        with pytest.raises(errors.RunError, match="make room"):
            _files.write_whole(tmp_path / "model.npz", bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    _files.write_whole(tmp_path / "other", b"whole")
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {"model.npz": b"before", ".model.npz.draft": b"somebody's", "other": b"whole"}


def test_what_a_killed_writer_has_left_is_dropped_and_nothing_else(tmp_path):
    for name in (".model-0001.npz.0123456789abcdef.draft", ".model.draft", "a.0123456789abcdef.draft"):
        (tmp_path / name).touch()
    _files.drop_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model.draft", "a.0123456789abcdef.draft"]
