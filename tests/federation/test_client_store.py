"""Files of arrays in a client's memory: each array has memory of its own, and a changed file is refused."""

import json

import numpy as np
import pytest
from fedcipher.errors import StateError
from fedcipher.federation.store import Store


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "state", "client")
    with made.locked():
        yield made


@pytest.fixture
def file(store, tmp_path):
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 4)), np.array(7, np.int64)]
    store.keep_cut(0, arrays)
    (found,) = (tmp_path / "state").rglob("cut-0.bin")
    return found


def test_each_stored_array_has_memory_of_its_own(store, file):
    read = store.cut(0)
    assert [(x.dtype.str, x.shape) for x in read] == [("<f4", (2, 3)), ("<f8", (0, 4)), ("<i8", ())]
    np.testing.assert_array_equal(read[0], np.arange(6).reshape(2, 3))
    assert read[2] == 7
    for array in read:
        owner = array if array.base is None else array.base
        assert owner.base is None and owner.nbytes == array.nbytes and owner.flags.writeable


@pytest.mark.parametrize("at", [0, 64, 70, -1])
def test_a_file_with_one_changed_byte_is_refused(store, file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(StateError, match="is damaged"):
        store.cut(0)


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: c + b"\0", lambda c: c[:30], lambda c: b""])
def test_a_file_of_another_length_is_refused(store, file, change):
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(StateError, match="is damaged"):
        store.cut(0)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("<f4", [1 << 60]), ("<f4", [-1]), ("|O", [1]), ("<f4", [1 << 62, 1 << 62]), ("x", [1])]
)
def test_a_head_that_names_arrays_the_file_lacks_is_refused_before_memory_is_taken(store, file, dtype, shape):
    digest, head, rest = file.read_bytes().split(b"\n", 2)
    named = json.loads(head)
    named["arrays"][0][0] = [dtype, shape]
    file.write_bytes(b"\n".join([digest, json.dumps(named).encode(), rest]))
    with pytest.raises(StateError, match="is damaged"):
        store.cut(0)
