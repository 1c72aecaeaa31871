"""Public headers of frames: what `fedcipher.frame.inspect` and the command read of each kind of frame."""

import hashlib
import re

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors
from fedcipher.federation.chain import Chain
from fedcipher.frame import Kind, inspect
from places import ROOT
from test_golden import VERSIONS, unpacked

WIRE = ROOT / "crates" / "fedcipher-core" / "src" / "wire.rs"


def kinds_of_the_core():
    body = re.search(r"pub enum Kind \{(.*?)^\}", WIRE.read_text(), re.DOTALL | re.MULTILINE)[1]
    previous, found = 0, {}
    for name, number in re.findall(r"^ {4}([A-Z]\w+)(?: = (\d+))?,", body, re.MULTILINE):
        previous = int(number or previous + 1)
        found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()] = previous
    return found


def test_kinds_are_those_of_the_core():
    assert {kind.name: kind.value for kind in Kind} == kinds_of_the_core()


@pytest.fixture(scope="module", params=VERSIONS)
def files(request, tmp_path_factory):
    """Frames and key files of every scheme, as a released version wrote them."""
    folder = unpacked(request.param, tmp_path_factory.mktemp(request.param))
    return [path for path in folder.rglob("*") if path.suffix in (".fedc", ".key") and path.name != "my.key"]


def test_the_command_reads_frames_of_every_kind_on_disk(files, capsys):
    shown = set()
    for path in files:
        assert cli.main(["inspect", str(path)]) == 0, path
        shown.add(capsys.readouterr().out.partition(" of scheme ")[0])
    assert shown >= {"update", "aggregate", "client key", "server key", "request", "answer", "prekey"}


def test_a_header_has_what_its_frame_was_made_with():
    scheme = fedcipher.scheme("flashe", clients=4)
    keys = scheme.keygen(3, epoch=9)
    update = [np.zeros((2, 3), np.float32), np.zeros(4, np.float32)]
    frames = [scheme.encryptor(keys.client(j)).encrypt(update, round=5) for j in (0, 1, 2)]
    header = inspect(frames[2])
    assert header[:6] == (Kind.UPDATE, "flashe", 9, 5, [(2, 1)], 10)
    assert (header.clients, str(header.kind)) == ([2], "update")
    assert 0 < header.payload_bytes < len(frames[2])
    aggregator = scheme.aggregator(keys.server())
    assert [aggregator.add(frame) for frame in frames] == [(0, 1), (1, 1), (2, 1)]
    assert inspect(aggregator.finish())[:6] == (Kind.AGGREGATE, "flashe", 9, 5, [(0, 1), (1, 1), (2, 1)], 10)


@pytest.mark.parametrize("frame", [b"", b"FEDC", bytes(200), "text", None, 3])
def test_what_is_not_a_frame_has_no_header(frame):
    with pytest.raises((errors.FrameError, errors.ParameterError)):
        inspect(frame)


def test_the_last_step_is_named_as_the_protocol_page_says():
    scheme = fedcipher.scheme("flashe", clients=6)
    keys = scheme.keygen(6)
    frames = []
    for number, clients in ((7, (2, 0, 1)), (8, (5, 3, 4))):
        aggregator = scheme.aggregator(keys.server())
        for j in clients:
            aggregator.add(scheme.encryptor(keys.client(j)).encrypt([np.zeros(3, np.float32)], round=number))
        frames.append(aggregator.finish())
    text = b"[(7, [0, 1, 2]), (8, [3, 4, 5])]"
    assert text.decode() in (ROOT / "docs" / "reference" / "protocol.md").read_text()
    parts = [len(text).to_bytes(8, "little"), text, (8).to_bytes(8, "little"), (3).to_bytes(8, "little")]
    assert Chain.step_digest(frames, 3) == hashlib.sha256(b"".join(parts)).digest()
