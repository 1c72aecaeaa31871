"""What `fedcipher` says to wrong input: one line that says what to do, a status that is not 0, and no traceback."""

import os
import subprocess
import sys
from contextlib import contextmanager

import fedcipher
import pytest
from fedcipher import cli, errors, keys
from fedcipher.keys import roster

NOBODY = 65534
KEYGEN = ["keygen", "--clients", "3", "--equal"]


def refused(capsys, *command):
    """The one line that the command leaves on standard error."""
    capsys.readouterr()
    try:
        status = cli.main(list(map(str, command)))
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert status == 2 and said.startswith("fedcipher") and said.count("\n") == 1, said
    return said


@contextmanager
def somebody_else():
    """Another user than the one who made the files; a superuser is refused nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("clip", ["foo", "0", "-1", "nan", "inf", ""])
def test_a_clip_range_is_a_positive_number(capsys, tmp_path, clip):
    said = refused(capsys, *KEYGEN, "--out", tmp_path / "keys", f"--clip={clip}")
    assert f"--clip {clip}: give auto, aciq or a positive number" in said
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("masking", "NAME=VALUE"),
        ("=single", "NAME=VALUE"),
        ("maskign=single", "it takes clients, max_weight, min_contributions, masking"),
        ("clients=9", "--per-round"),
        ("codec=9", "--bits"),
        ("masking=treble", "masking"),
    ],
)
def test_a_setting_that_no_scheme_has_is_explained(capsys, setting, advice):
    assert advice in refused(capsys, "spec", "--per-round", 4, "--scheme", "flashe", "--set", setting)


@pytest.mark.parametrize("link", ["0", "-1", "nan"])
def test_a_link_has_a_speed(capsys, link):
    assert "positive number of Mbit/s" in refused(capsys, "train", f"--link-mbit={link}")


def test_wrong_options_take_one_line_too(capsys):
    assert "fedcipher train --help" in refused(capsys, "train", "--rounds", "ten")
    assert "fedcipher --help" in refused(capsys, "trian")
    assert "--clients" in refused(capsys, "keygen")


def test_inspect_of_what_is_no_frame(capsys, tmp_path):
    assert "/nope: no such file or directory; check the path" in refused(capsys, "inspect", "/nope")
    assert f"{tmp_path}: is a directory; name a file in this folder" in refused(capsys, "inspect", tmp_path)
    (tmp_path / "text").write_text("a shopping list")
    said = refused(capsys, "inspect", tmp_path / "text")
    assert "is not a complete frame or key file" in said and "transmit" not in said
    assert f"{os.devnull} is a device or a pipe, not a file" in refused(capsys, "inspect", os.devnull)
    assert "not a directory" in refused(capsys, "inspect", tmp_path / "text" / "x")


def test_inspect_shows_the_public_head_of_a_key_file(capsys, tmp_path):
    assert cli.main([*KEYGEN, "--scheme", "bfv", "--out", str(tmp_path / "keys")]) == 0
    assert cli.main(["inspect", str(tmp_path / "keys" / "client-1.key")]) == 0
    assert "client key of scheme bfv, key epoch 1" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["/proc/x", "file", "file/keys", "taken", "/dev/null", "n" * 300])
def test_keys_that_have_no_place_to_go(capsys, tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "client-0.key").write_text("older")
    before = sorted(tmp_path.rglob("*"))
    said = refused(capsys, *KEYGEN, "--out", tmp_path / place)
    assert str(tmp_path / place) in said and ("choose" in said or "check the path" in said)
    assert "/." not in said, "the draft's name is nobody's business"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["/proc/x", "file", "file/out"])
@pytest.mark.parametrize("command", [["train", "--rounds", "1"], ["bench", "round", "--runs", "1"]])
def test_a_report_that_has_no_place_to_go_is_refused_before_anything_runs(capsys, tmp_path, place, command):
    (tmp_path / "file").write_text("")
    assert "with --out" in refused(capsys, *command, "--out", tmp_path / place)


def test_files_that_may_not_be_read(capsys, open_path):
    made = fedcipher.scheme("flashe", clients=2)
    folder = keys.save(made.keygen(2), made, open_path / "keys")
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o000 if os.geteuid() else 0o600)
    with somebody_else():
        assert "permission denied; ask its owner" in refused(capsys, "inspect", folder / "server.key")
        for load, name in ((keys.load_server, "server.key"), (keys.load_client, "client-0.key")):
            with pytest.raises(errors.KeyFormatError, match="permission denied; ask its owner"):
                load(folder / name)
        assert "permission denied" in refused(capsys, *KEYGEN, "--out", open_path / "more")


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("command", [["schemes"], ["train", "--help"]])
def test_a_reader_that_has_gone_ends_it_without_a_word(command, buffered):
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-m", "fedcipher.cli", *command]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    done = subprocess.run(run, stdout=write, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(write)
    assert done.stderr == b""
    # argparse itself keeps silent about a help text that it could not write.
    assert done.returncode == 141 or (done.returncode, command[-1], buffered) == (0, "--help", "1")


def test_key_files_are_damaged_and_never_transmitted(tmp_path):
    """Whatever is wrong with a key file, its error speaks of a file: the core's own texts are for frames."""
    made = fedcipher.scheme("flashe", clients=2)
    folder = keys.save(made.keygen(2), made, tmp_path / "keys")
    for name, load in (("client-0.key", keys.load_client), ("server.key", keys.load_server)):
        path = folder / name
        whole = path.read_bytes()
        head = whole.index(b"\n") + 1
        wrong = [b"", b"{", b"[]\n", b"3\n", whole[: head - 1], whole[:head], whole[:-1], whole + b"\0"]
        wrong += [whole[:k] + bytes([whole[k] ^ 4]) + whole[k + 1 :] for k in range(0, len(whole), 7)]
        refusals = 0
        for content in wrong:
            path.write_bytes(content)
            try:
                load(path)
            except errors.KeyFormatError as error:
                refusals += 1
                said = str(error)
                assert str(path) in said and said.count(";") == 1, said
                assert not any(word in said for word in ("transmi", "frame", "__init__", "column", "codec")), said
        assert refusals > len(wrong) - 5, "a flipped bit in a number of the head may leave a scheme"
        path.write_bytes(whole)
        load(path)


def test_what_is_no_file_is_no_key_file(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for load in (keys.load_client, keys.load_server):
        with pytest.raises(errors.KeyFormatError, match="pipe"):
            load(tmp_path / "pipe")
    with pytest.raises(errors.KeyFormatError, match="is a directory; name a file in this folder"):
        keys.load_client(tmp_path)


def test_text_in_brackets_is_printed(capsys):
    """rich takes ``[demo]`` for a style and ``:key:`` for a picture unless it is told not to."""
    from fedcipher._terminal import console, print_table, progress

    print_table("a [title]", [["[head]", "b"], ["[red]", ":key: [/]"]])
    with progress(console(), "[bar]") as bar:
        bar.add_task("round [1/2]", total=2)
    print_table("", [["why"], ["pip install 'fedcipher[demo]'"]])
    shown = capsys.readouterr().out
    for text in ("a [title]", "[head]", "[red]", ":key: [/]", "[bar]", "round [1/2]", "fedcipher[demo]"):
        assert text in shown


@pytest.mark.parametrize("command", ["cluster up", "keygen --equal", "roster"])
def test_a_round_has_no_more_clients_than_there_are(capsys, tmp_path, command):
    cards = [roster.new_identity(name, tmp_path / "id")[1] for name in "abc"] if command == "roster" else []
    place = "--folder" if command == "cluster up" else "--out"
    clients = ["--equal", "--member", "a", *cards] if cards else ["--clients", 3]
    said = refused(capsys, *command.split(), *clients, "--per-round", 9, place, tmp_path / "new")
    assert "--per-round 9" in said and "3 " in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "option", ["--schemes", "--server", "--bandwidth", "--latency", "--memory", "advise --schemes", "advise --latency"]
)
@pytest.mark.parametrize("value", ["", " "])
def test_an_option_that_is_given_and_empty_is_not_taken_for_its_default(capsys, tmp_path, option, value):
    command, option = (
        ("advise --values 9", option[7:]) if " " in option else (f"bench round --out {tmp_path}/b", option)
    )
    assert f"argument {option}: is empty" in refused(capsys, *command.split(), f"{option}={value}")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("names", [",", "flashe,", "flashe,,bfv"])
def test_a_list_of_schemes_has_a_name_in_each_place(capsys, tmp_path, names):
    assert "scheme '' is not one of" in refused(capsys, "bench", "round", "--schemes", names, "--out", tmp_path / "b")
    assert not (tmp_path / "b").exists()
