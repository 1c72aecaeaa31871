"""Everything in the package that opens a file, prints or logs does it through the helpers, or is listed here."""

import ast
import json
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import foreign_files
from fedcipher._files import own_target, write_whole
from fedcipher.errors import ForeignFileError, RunError
from fedcipher.foreign_files import open_sqlite_copy, parse_json, read_file, read_npz
from fedcipher.foreign_text import quoted, quoting_log, show

PACKAGE = Path(fedcipher.__file__).parent
KERNEL = "a file of the kernel's, at a path that is written here"
NEW = "into a folder that this process has just made, of mode 0700"
RESULTS = "a measurement of the user's, into the folder that the user names"
NULL = "the null device"
OPENERS = {
    ("_files.py", "os.open(path, _APPEND | _CLOSED if append else _NEW, 384)"): "the helper that writes",
    ("_files.py", "os.open(draft, _NEW, 384)"): "the helper that writes",
    ("_files.py", "os.open(folder, os.O_RDONLY | os.O_DIRECTORY)"): "a folder, to sync it",
    ("_files.py", "_MOUNTS.read_text"): KERNEL,
    ("_files.py", "os.open(os.devnull"): NULL,
    ("_machine.py", "info.read_text"): KERNEL,
    ("app/forked_run.py", "os.open(os.devnull"): NULL,
    ("app/forked_run.py", "(entry / 'stat').read_text"): KERNEL,
    ("app/memory.py", "(proc / 'meminfo').read_text"): KERNEL,
    ("app/memory.py", "(cgroup / name).read_text"): KERNEL,
    ("app/memory.py", "(_PROC / 'self' / 'statm').read_text"): KERNEL,
    ("app/memory.py", "path.read_text"): KERNEL,
    ("bench/groups.py", "(folder / 'cgroup.procs').write_text"): KERNEL,
    ("bench/groups.py", "(parent / 'cgroup.subtree_control').write_text"): KERNEL,
    ("bench/groups.py", "Path('/proc/self/cgroup').read_text"): KERNEL,
    ("bench/groups.py", "(folder / file).write_text"): KERNEL,
    ("bench/groups.py", "(folder / 'cpuacct.usage').read_text"): KERNEL,
    ("bench/groups.py", "(folder / 'cpu.stat').read_text"): KERNEL,
    ("engine/accelerator.py", "direct.open(f'http"): "an engine's page",
    ("guard/app_container.py", "Path('/proc/net/route').read_text"): KERNEL,
    ("guard/app_container.py", "ipv6.read_text"): KERNEL,
    ("guard/app_container.py", "Path('/proc/self/status').read_text"): KERNEL,
    ("bench/sampler.py", "Path(path).write_text"): RESULTS,
    ("cli/program.py", "os.open(os.devnull"): NULL,
    ("cli/program.py", "open(os.devnull"): NULL,
    ("cluster/certificates.py", "(folder / 'ca.crt').write_bytes"): NEW,
    ("cluster/certificates.py", "(folder / 'link.crt').write_bytes"): NEW,
    ("cluster/certificates.py", "public.write_bytes"): NEW,
    ("cluster/certificates.py", "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 384)"): NEW,
    ("cluster/local.py", "(folder / INDEX).write_text"): NEW,
    ("cluster/supervisor.py", "Path(f'/proc/self/task/{os.getpid()}/children').read_text"): KERNEL,
    ("data/idx.py", "gzip.GzipFile(fileobj=file"): "of a file that the helper has opened",
    (
        "federation/server/journal.py",
        "sqlite3.connect(path",
    ): "a server's own journal, after a look at all its files, or its draft",
    ("federation/server/run_folder.py", "zipfile.ZipFile(packed, 'w')"): "in memory",
    ("federation/server/run_folder.py", "archive.open(f'{name}.npy', 'w'"): "in memory",
    ("guard/jail.py", "Path(__file__).with_name('jail_probe.py').read_text"): "a file of this package",
    ("guard/jail.py", "secret.write_text"): NEW,
    ("keys/store.py", "os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)"): "a new file, which follows no link",
}
"""Calls that open a file elsewhere than in `fedcipher.foreign_files`, by how they begin, each with its reason."""
BY_ATTRIBUTE = {"read_bytes", "read_text", "write_bytes", "write_text", "fromfile", "memmap", "genfromtxt", "loadtxt"}
BY_ATTRIBUTE |= {"ZipFile", "GzipFile", "TarFile", "copyfile", "is_zipfile"}
BY_NAME = {
    "open",
    "os.open",
    "io.open",
    "codecs.open",
    "gzip.open",
    "np.load",
    "numpy.load",
    "json.load",
    "tomllib.load",
}
BY_NAME |= {"sqlite3.connect", "pickle.load", "pickle.loads", "tarfile.open", "shelve.open", "mmap.mmap"}
OPEN_OF = {
    *("decryptor", "self", "self._run.model", "session", "self._session", "site", "opener", "model"),
    *("self._receiver", "decryptors[client]"),
}
"""What has an ``open`` that decrypts."""
PRINTS = {
    ("foreign_text.py", "print(quoted(line, MAX_LINE)"): "the helper",
    ("cli/schemes.py", "print(json.dumps("): "JSON for a program, in ASCII",
    ("cli/sites.py", "print(json.dumps("): "JSON for a program, in ASCII",
    ("cli/guard.py", "print(json.dumps("): "JSON for a program, in ASCII",
    ("_signals.py", "print(f'fedcipher: {self}'"): "the name of a signal",
}
LOGGERS = {
    ("foreign_text.py", "logging.getLogger(name)"): "the helper",
    ("app/library_logs.py", "logging.getLogger(name)"): "what libraries say is kept for a file",
    ("app/client_app.py", "logging.getLogger('fedcipher.federation')"): "its handler is set",
    ("cli/guard.py", "logging.getLogger(noisy)"): "its level is set",
    ("federation/server/mean_check.py", "logging.getLogger(name)"): "its level is set",
}
EXEMPT = {"foreign_files.py", "guard/jail_probe.py"}
"""The helper itself, and a hostile program that runs in a jail only."""
TOOLS = ("bench/", "cli/measure.py", "guard/jail_probe.py")
"""Of whoever measures: what they print is their own."""


def calls():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield name, node, ast.unparse(node.func), ast.unparse(node)


def unlisted(found, listed):
    """Calls that no entry of the list names, and entries that name no call."""
    found = set(found)
    stray = [call for call in found if not any(call[0] == at and call[1].startswith(text) for at, text in listed)]
    unused = [(at, text) for at, text in listed if not any(c[0] == at and c[1].startswith(text) for c in found)]
    return sorted(stray), unused


def opens(function):
    of, _, last = function.rpartition(".")
    return function in BY_NAME or (last in BY_ATTRIBUTE and bool(of)) or (last == "open" and of not in OPEN_OF)


def test_every_file_is_opened_by_the_helper():
    found = [(at, text) for at, _, function, text in calls() if at not in EXEMPT and opens(function)]
    assert unlisted(found, OPENERS) == ([], [])


def test_every_line_is_printed_by_the_helper():
    found = [(at, text) for at, _, function, text in calls() if function == "print" and not at.startswith(TOOLS)]
    assert unlisted(found, PRINTS) == ([], [])


def test_every_logger_is_the_helpers():
    found = [(at, text) for at, _, function, text in calls() if function == "logging.getLogger"]
    assert unlisted(found, LOGGERS) == ([], [])


def test_what_is_logged_is_in_the_arguments_of_a_fixed_text():
    for at, node, function, text in calls():
        of, _, last = function.rpartition(".")
        if of in ("_log", "_shown") and last in ("debug", "info", "warning", "error", "exception", "critical"):
            assert isinstance(node.args[0], ast.Constant), f"{at}: {text}"


def test_a_call_that_is_not_listed_is_found():
    stray, unused = unlisted([("new.py", "open(path)")], {("old.py", "open("): "why"})
    assert stray == [("new.py", "open(path)")] and unused == [("old.py", "open(")]
    for text in (
        "Path(name).open('rb')",
        "path.read_bytes()",
        "np.load(path)",
        "gzip.open(path)",
        "zipfile.ZipFile(x)",
    ):
        assert opens(ast.unparse(ast.parse(text).body[0].value.func)), text
    assert not opens("decryptor.open") and not opens("read_text")


# --- the helpers themselves ------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "plain", "ünïcödé", "a\\b", "日本"])
def test_what_can_be_printed_stays(text):
    assert quoted(text) == text


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "\u202e", "\udcff", "\x00" * 1000, "x" * 10_000, "\U000e0041"])
def test_what_cannot_be_printed_is_escaped_and_what_is_long_is_cut(text):
    found = quoted(text, 50)
    assert found.isprintable() and len(found) <= 50 and quoted(found, 50) == found
    found.encode("utf-8")


def test_a_text_that_cannot_be_made_is_no_error():
    class Broken(Exception):
        def __str__(self):
            raise ValueError

    assert quoted(Broken()) == "(Broken without a text)"


def test_a_log_quotes_all_arguments_but_numbers(caplog):
    caplog.set_level(logging.INFO)
    quoting_log("fedcipher.test").warning("%s %.1f %s", "a\nb", 2.5, ValueError("\x1b"))
    (entry,) = caplog.records
    assert entry.getMessage() == "a\\nb 2.5 \\x1b"
    assert entry.funcName == "test_a_log_quotes_all_arguments_but_numbers"


def test_lines_are_shown_one_by_one(capsys):
    show("one\n", "two")
    assert capsys.readouterr().out == "one\\n\ntwo\n"


def test_nested_json_is_refused_and_brackets_in_texts_are_none():
    assert parse_json('["[[[[", {"a": "\\"[[["}]' + " " * 10) == ["[[[[", {"a": '"[[['}]
    assert parse_json(json.dumps([[1]] * 1000)) == [[1]] * 1000
    assert parse_json(json.dumps(["[" * 1000])) == ["[" * 1000]
    for text in ("[" * 65 + "]" * 65, '{"a":' * 100_000, "[" * 65 + "\\"):
        with pytest.raises(ValueError, match="brackets"):
            parse_json(text)


@pytest.mark.parametrize(
    "arrays",
    [[], [np.float32(3)], [np.zeros((0, 3))], [np.asfortranarray(np.arange(6.0).reshape(2, 3))], [np.arange(3)] * 50],
)
def test_what_numpy_packed_is_what_is_read(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", *arrays)
    found = read_npz(tmp_path / "a.npz", 1 << 20, [f"arr_{k}" for k in range(len(arrays))])
    for k, array in enumerate(arrays):
        assert np.array_equal(found[f"arr_{k}"], array) and found[f"arr_{k}"].dtype == np.asarray(array).dtype
        assert found[f"arr_{k}"].flags.writeable
    assert len(found) == len(arrays)


def test_damaged_archives_are_refused(tmp_path, rng):
    np.savez(tmp_path / "a.npz", rng.normal(size=40), rng.integers(9, size=30))
    whole = (tmp_path / "a.npz").read_bytes()
    wanted = read_npz(whole, 1 << 20)
    for at in range(len(whole)):
        for bit in (0x01, 0x80):
            damaged = whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
            try:
                found = read_npz(damaged, 1 << 20, ["arr_0", "arr_1"])
            except ValueError:
                continue
            # Fields that nobody reads, such as a date.
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            read_npz(whole[:end], 1 << 20)


@pytest.mark.parametrize("mode", ["WAL", "DELETE", "PERSIST"])
def test_a_copy_of_a_database_is_whole_while_it_is_written(tmp_path, mode):
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.executescript(f"PRAGMA journal_mode={mode}; CREATE TABLE t (a INTEGER, b TEXT)")
        ends = threading.Event()

        def write():
            with closing(sqlite3.connect(path, isolation_level=None)) as own:
                # Pages go to the file before the change is whole.
                own.executescript(f"PRAGMA journal_mode={mode}; PRAGMA cache_size=1; PRAGMA synchronous=OFF")
                number = 0
                while not ends.is_set():
                    own.execute("BEGIN")
                    own.executemany("INSERT INTO t VALUES (?, ?)", [(number, "x" * 500)] * 10)
                    own.execute("COMMIT")
                    if number % 7 == 0:
                        own.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    number += 1
                    ends.wait(0.005)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(40):
                with open_sqlite_copy(path, 1 << 30) as copy:
                    rows = copy.execute("SELECT a, count(*) FROM t GROUP BY a").fetchall()
                    assert all(count == 10 for _, count in rows)
                    assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        finally:
            ends.set()
            writer.join()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"journal.db", *WITH_IT, "state"}


def test_a_change_that_ends_between_two_looks_is_seen(tmp_path, monkeypatch):
    """Half of it is in the first look at the database; the log is gone at the second look at the logs."""
    path, done = tmp_path / "journal.db", []
    read, logs = foreign_files.read_file, foreign_files._logs_of
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        base.executescript("PRAGMA journal_mode=DELETE; PRAGMA cache_size=1; CREATE TABLE t (a INTEGER, b TEXT)")
        base.executemany("INSERT INTO t VALUES (1, ?)", [("x" * 500,)] * 500)

        def begun_before(at, most):
            if at == path and not done:
                done.append("begun")
                base.execute("BEGIN")
                base.execute("UPDATE t SET a = 2")
            return read(at, most)

        def ended_before(at, most):
            if done == ["begun"]:
                done.append("ended")
                base.execute("COMMIT")
            return logs(at, most)

        monkeypatch.setattr(foreign_files, "read_file", begun_before)
        monkeypatch.setattr(foreign_files, "_logs_of", ended_before)
        with open_sqlite_copy(path, 1 << 30) as copy:
            assert copy.execute("SELECT DISTINCT a FROM t").fetchall() == [(2,)]


WITH_IT = {f"journal.db-{ending}" for ending in ("wal", "shm", "journal")}


def test_sizes_are_checked_before_anything_is_read(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ForeignFileError, match="limit for such a file is 10"):
        read_file(tmp_path / "large", 10)


def test_links_are_followed_only_where_that_is_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(ForeignFileError, match="link"):
        read_file(tmp_path / "link", 10)
    assert read_file(tmp_path / "link", 10, follow=True) == b"1"
    write_whole(tmp_path / "link", b"2", follow=True)
    assert (tmp_path / "file").read_bytes() == b"2"
    write_whole(tmp_path / "link", b"3")
    assert (tmp_path / "file").read_bytes() == b"2" and not (tmp_path / "link").is_symlink()


def test_where_a_path_leads(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to(tmp_path / "b" / "new")
    top = tmp_path.resolve()
    assert own_target(tmp_path / "c") == top / "a" / "new"
    assert own_target(tmp_path / "b" / ".." / "x") == top / "x"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        own_target(tmp_path / "loop")
    with pytest.raises(RunError):
        write_whole(tmp_path / "loop", b"", follow=True)
