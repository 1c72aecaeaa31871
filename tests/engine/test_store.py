"""The authority's store and a party's files when the disk is damaged or full; with the real program."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing

import fedcipher
import pytest
from engine_harness import flashe
from fedcipher import cli, errors
from fedcipher.engine.local import find_program, new_authority, run_program


@pytest.fixture
def store(tmp_path):
    """An authority with two devices, in its first epoch; what it says of itself."""
    new_authority(flashe(), 2, tmp_path)

    def authority(*arguments):
        return run_program("fedcipher-authority", "--state", tmp_path / "authority", *arguments)

    (authority.file,) = (tmp_path / "authority").glob("*.db*")
    return authority


def execute(store, statement, *values):
    with closing(sqlite3.connect(store.file)) as database, database:
        done = database.execute(statement, values)
        return done.fetchall() if done.description else done.rowcount


def write(store, statement, *values):
    assert execute(store, statement, *values) == 1


def refusal(store):
    with pytest.raises(errors.EngineError) as caught:
        store("status")
    assert "is damaged" in str(caught.value) and "backup" in str(caught.value)
    return str(caught.value)


def test_a_store_with_flipped_bits_is_found_at_the_start(store):
    whole = store.file.read_bytes()
    for start in range(4096, len(whole), 4096):
        # A page's head: what kind it is and where its entries lie.
        store.file.write_bytes(whole[:start] + bytes(b ^ 0xFF for b in whole[start : start + 64]) + whole[start + 64 :])
        assert store.file.name in refusal(store)
    store.file.write_bytes(whole[: len(whole) // 2])
    refusal(store)
    store.file.write_bytes(whole)
    assert "client-1" in store("status")


def test_a_store_that_others_may_read_is_not_served(store):
    for mode in (0o640, 0o604, 0o666):
        store.file.chmod(mode)
        with pytest.raises(errors.EngineError, match="lets others read all keys; chmod 600"):
            store("status")
    store.file.chmod(0o600)
    store("status")


def test_a_disk_without_room_is_not_taken_for_damage(store):
    command = [find_program("fedcipher-authority"), "--state", str(store.file.parent), "--allow-swap", "rotate"]
    limited = ["sh", "-c", f"trap '' XFSZ; ulimit -f 0; exec {shlex.join(map(str, command))}"]
    for log in (False, True):
        # With the store's log there, and without: made, and written to.
        with closing(sqlite3.connect(store.file)) as database:
            if log:
                database.execute("SELECT * FROM parties").fetchall()
            done = subprocess.run(limited, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done
        assert "has room" in done.stderr and "backup" not in done.stderr, done.stderr
    store("rotate")


def test_a_key_that_is_not_what_was_made_is_found_at_the_start(store):
    """Of a value no structure says what it was."""
    kept = shutil.copy(store.file, store.file.parent / "kept")
    ((key,),) = execute(store, "SELECT key FROM keys WHERE device = 'client-0'")
    changed = key[:-1] + bytes([key[-1] ^ 1])
    write(store, "UPDATE keys SET key = ? WHERE device = 'client-0'", changed)
    said = refusal(store)
    assert "the key of device client-0 in epoch 1" in said and key.hex()[-16:] not in said
    write(store, "UPDATE keys SET key = ? WHERE device = 'client-0'", key)
    store("status")
    write(store, "UPDATE epochs SET server_key = zeroblob(9) WHERE epoch = 1")
    assert "the key of the server in epoch 1" in refusal(store)
    shutil.copy(kept, store.file)
    store("revoke", "client-0")
    write(store, "UPDATE parties SET revoked = 0 WHERE name = 'client-0'")
    assert "client-0 has been revoked and is not any more" in refusal(store)


@pytest.fixture
def full(tmp_path):
    """A folder on a file system of 256 kB, of which some are left."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems are mounted by root only")

    def fill(left):
        (folder / "filler").unlink(missing_ok=True)
        room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        (folder / "filler").write_bytes(bytes(max(0, room - left)))
        return folder

    yield fill
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("left", [0, 4096, 8192])
def test_on_a_full_disk_nothing_half_made_is_in_the_way(left, full, tmp_path, capsys):
    scheme = fedcipher.scheme("bfv", clients=3)
    (tmp_path / "spec.json").write_text(json.dumps(scheme.spec()))
    program = ("fedcipher-authority", "--state")
    folder = full(left)

    def made():
        return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.name != "filler")

    keygen = ["keygen", "--clients", "3", "--equal", "--scheme", "bfv", "--out", str(folder / "keys")]
    assert cli.main(keygen) == 2
    assert "fedcipher: " in capsys.readouterr().err and made() == []
    new = (*program, folder / "authority", "init", "--spec", tmp_path / "spec.json")
    with pytest.raises(errors.EngineError):
        run_program(*new)
    assert [path for path in made() if path.name != "authority"] == []
    # What was refused for want of space is made where there is some, under the same name.
    full(200_000)
    run_program(*new)
    before = made()
    full(left if left else 1)
    enrol = (*program, folder / "authority", "enrol", "client-0", "--out", folder / "client-0")
    with pytest.raises(errors.EngineError):
        run_program(*enrol)
    assert {path for path in made() if path.suffix == ".pem"} == {path for path in before if path.suffix == ".pem"}
    (folder / "filler").unlink()
    run_program(*enrol)
    assert cli.main(keygen) == 0
