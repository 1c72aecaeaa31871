"""A site's log: every line is signed before what it records leaves, and a changed log is found."""

import hashlib
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import fedcipher
import pytest
from fedcipher import _files, _native
from fedcipher.errors import RunError, StateError
from fedcipher.guard import log as log_module
from fedcipher.guard.audit import audit
from fedcipher.guard.log import Head, Line, Log, parse_log, read_log
from hypothesis import given
from hypothesis import strategies as st

KEYS = fedcipher.scheme("flashe", clients=3).keygen(3)
KEY, OTHER = KEYS.client(0), KEYS.client(1)


def root_of(lines):
    """Section 2.1 of RFC 6962."""
    if not lines:
        return hashlib.sha256(b"").digest()
    if len(lines) == 1:
        return hashlib.sha256(b"\0" + lines[0]).digest()
    split = 1 << (len(lines) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root_of(lines[:split]) + root_of(lines[split:])).digest()


def path_of(index, lines):
    """Section 2.1.1: the audit path of a line."""
    if len(lines) == 1:
        return []
    split = 1 << (len(lines) - 1).bit_length() - 1
    if index < split:
        return [*path_of(index, lines[:split]), root_of(lines[split:])]
    return [*path_of(index - split, lines[split:]), root_of(lines[:split])]


def proof_of(size, lines, known=True):
    """Section 2.1.2: that the tree of the first ``size`` lines is the beginning of the tree of ``lines``."""
    if size == len(lines):
        return [] if known else [root_of(lines)]
    split = 1 << (len(lines) - 1).bit_length() - 1
    if size <= split:
        return [*proof_of(size, lines[:split], known), root_of(lines[split:])]
    return [*proof_of(size - split, lines[split:], False), root_of(lines[:split])]


def tree_of(lines):
    tree = _native.LogTree()
    for line in lines:
        tree.push(line)
    return tree


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def log(folder):
    made = Log(folder, KEY)
    for number in range(5):
        made.record("refusal", {"reference": f"{number:08x}"})
    return made


def findings(folder):
    return audit([folder], keys=[KEYS.server()]).findings


# --- the tree --------------------------------------------------------------------------------

# Leaves and roots of the test vectors of Certificate Transparency (certificate-transparency/cpp/merkletree).
PUBLISHED = [
    (bytes.fromhex(leaf), root)
    for leaf, root in (
        ("", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
        ("00", "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
        ("10", "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
        ("2021", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"),
        ("3031", "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"),
        ("40414243", "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"),
        ("5051525354555657", "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
        ("606162636465666768696a6b6c6d6e6f", "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"),
    )
]


def test_roots_are_the_published_ones():
    tree = _native.LogTree()
    assert tree.root() == hashlib.sha256(b"").digest()
    for leaf, root in PUBLISHED:
        tree.push(leaf)
        assert tree.root().hex() == root


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.data())
def test_roots_and_proofs_are_those_of_a_second_implementation(lines, data):
    tree = tree_of(lines)
    index, size = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(1, len(lines)))
    assert tree.root() == root_of(lines) and len(tree) == len(lines)
    assert tree.inclusion(index) == b"".join(path_of(index, lines))
    assert tree.consistency(size) == b"".join(proof_of(size, lines))
    assert _native.log_includes(len(lines), tree.root(), index, lines[index], tree.inclusion(index))
    assert not _native.log_includes(len(lines), tree.root(), index, lines[index] + b"x", tree.inclusion(index))
    now, before = (len(lines), tree.root()), (size, root_of(lines[:size]))
    assert _native.log_continues(before, now, tree.consistency(size))
    assert not _native.log_continues((size, bytes(32)), now, tree.consistency(size))


# --- what a log writes -----------------------------------------------------------------------


def test_a_log_holds_what_was_recorded_under_a_signed_head(log, folder):
    parsed = parse_log(*read_log(folder))
    assert len(parsed.lines) == 6 and parsed.head == log.head and not parsed.missing
    assert parsed.head.root == root_of(parsed.lines)
    assert parsed.head.holds(KEY.verify_key) and not parsed.head.holds(OTHER.verify_key)
    assert KEYS.server().verify_keys[0] == KEY.verify_key
    assert findings(folder) == []


def test_a_record_returns_the_head_that_covers_its_line(folder):
    log = Log(folder, KEY)
    for size in range(2, 12):
        head = Head.decode(log.record("refusal", {"reference": "0"}))
        assert head.size == size and head.root == root_of(parse_log(*read_log(folder)).lines)


def test_a_line_is_on_disk_when_its_head_leaves(log, monkeypatch):
    synced, sync = [], os.fsync

    def watched(handle):
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    log.record("refusal", {"reference": "more"})
    assert "lines.jsonl" in synced


def test_a_line_that_is_due_once_is_written_once(log, folder):
    for _ in range(2):
        log.record("charter", {"run": 1}, once=True)
        Log(folder, KEY).record("charter", {"run": 1}, once=True)
    assert log.head.size == 7


def test_equal_facts_give_other_lines_so_a_head_reveals_none(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(log_module.time, "time", lambda: 1.0)
    first, second = Log(folder, KEY), Log(tmp_path / "second", KEY)
    for log in (first, second):
        log.record("refusal", {"reference": "0"})
    (_, line), (_, other) = (parse_log(*read_log(path)).lines for path in (folder, tmp_path / "second"))
    assert line != other and Line.parse(line).facts == Line.parse(other).facts


def test_processes_and_threads_write_one_log_in_turns(folder):
    logs = [Log(folder, KEY) for _ in range(4)]

    def write(log):
        for number in range(10):
            log.record("refusal", {"reference": str(number)})

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parse_log(*read_log(folder)).head.size == 41 and findings(folder) == []


def test_a_log_of_another_key_is_not_continued(log, folder):
    with pytest.raises(StateError, match="signed with another key"):
        Log(folder, OTHER)


def test_a_log_that_was_put_back_is_not_continued(log, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    log.record("refusal", {"reference": "later"})
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(StateError, match="no longer begins with the lines"):
        log.record("refusal", {"reference": "again"})


@pytest.mark.parametrize("name", ["head.json", "lines.jsonl"])
def test_a_log_without_one_of_its_files_is_not_begun_again(log, folder, name):
    (folder / name).unlink()
    with pytest.raises(StateError):
        Log(folder, KEY)


# --- crashes ---------------------------------------------------------------------------------


def killed_at(number, work):
    """Do ``work`` in a process that ends at its ``number``-th call on a file; returns whether it ended there."""
    child = os.fork()
    if child == 0:
        calls = [0]

        def counted(function):
            def call(*args, **kwargs):
                calls[0] += 1
                if calls[0] == number:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        for name in ("open", "fsync", "fdopen"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def write_to(folder):
    Log(folder, KEY).record("refusal", {"reference": "killed"})


@pytest.mark.parametrize("new", [True, False], ids=["new log", "old log"])
def test_a_kill_at_any_write_leaves_a_log_that_verifies_and_goes_on(tmp_path, new):
    for number in range(1, 60):
        folder = tmp_path / str(number)
        if not new:
            Log(folder, KEY).record("refusal", {"reference": "before"})
        killed = killed_at(number, partial(write_to, folder))
        if (folder / "head.json").exists():
            assert findings(folder) == [], number
        Log(folder, KEY).record("refusal", {"reference": "after"})
        assert findings(folder) == [] and b"after" in (folder / "lines.jsonl").read_bytes()
        assert not list(folder.glob(".*.draft"))
        if not killed:
            break
    assert 10 < number < 59


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_line_that_a_crash_cut_is_taken_from_the_head(log, folder, kept):
    content = (folder / "lines.jsonl").read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    (folder / "lines.jsonl").write_bytes(content[:start] + content[start:][:kept])
    assert findings(folder) == []
    assert Log(folder, KEY).head.size == 6 and (folder / "lines.jsonl").read_bytes() == content


@pytest.mark.parametrize("full", ["head", "line"])
def test_a_full_disk_lets_nothing_out_and_the_log_goes_on_when_there_is_room(log, folder, full, monkeypatch):
    def no_room(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if full == "head":
            patch.setattr(_files.os, "open", no_room)
        else:
            patch.setattr(log_module, "create_private", no_room)
        with pytest.raises((RunError, OSError)):
            log.record("refusal", {"reference": "full"})
    log.record("refusal", {"reference": "room"})
    assert findings(folder) == []
    assert log.head.size == (7 if full == "head" else 8)


# --- changes by others -----------------------------------------------------------------------


def test_a_change_of_any_byte_is_found(log, folder):
    for name in ("lines.jsonl", "head.json"):
        path, content = folder / name, (folder / name).read_bytes()
        for at in range(len(content)):
            for bit in (0, 5):
                path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
                assert findings(folder), (name, at, bit)
        path.write_bytes(content)
    assert findings(folder) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:2] + lines[3:],
        lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
        lambda lines: [*lines[:3], lines[2], *lines[3:]],
        lambda lines: [*lines[:-1], lines[-2], b""],
        lambda lines: [*lines[:-3], b""],
        lambda lines: [],
        lambda lines: [*lines[:-1], b'{"at":1,"facts":{},"kind":"refusal","n":6,"salt":""}', b""],
        lambda lines: [*lines[:-1], b"half"],
    ],
    ids=["removed", "reordered", "duplicated", "repeated", "cut", "emptied", "forged", "half a line"],
)
def test_changed_lines_are_found_and_not_continued(log, folder, change):
    """``change`` gets the lines, and an empty text at the end, which stands for the last end of a line."""
    lines = (folder / "lines.jsonl").read_bytes().split(b"\n")
    (folder / "lines.jsonl").write_bytes(b"\n".join(change(lines)))
    assert findings(folder)
    with pytest.raises(StateError, match="was changed"):
        log.record("refusal", {"reference": "more"})


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_hostile_files_are_findings_and_no_errors(tmp_path_factory, head, lines):
    folder = tmp_path_factory.mktemp("log")
    (folder / "head.json").write_bytes(head)
    (folder / "lines.jsonl").write_bytes(lines)
    assert len(findings(folder)) == 1


def test_links_pipes_and_large_files_are_not_read(log, folder, tmp_path, monkeypatch):
    for make in (lambda p: p.symlink_to("/dev/zero"), os.mkfifo, lambda p: os.truncate(os.open(p, 65), 1 << 40)):
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "bad")
        (tmp_path / "bad" / "lines.jsonl").unlink()
        make(tmp_path / "bad" / "lines.jsonl")
        assert "cannot be read" in findings(tmp_path / "bad")[0]
