"""Files of every version that was ever released open for ever, or CHANGELOG.md has the sentence that refuses them."""

import json
import shutil
import tarfile

import numpy as np
import pytest
from fedcipher import errors, keys
from fedcipher.adapters.flower import open_run
from fedcipher.federation.server.journal import read_journal
from fedcipher.keys.roster import join, look, read_identity, who_joined
from fedcipher.schemes import scheme_names
from places import TESTS

GOLDEN = TESTS / "golden"
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
ROUND, VALUES = 7, [np.array([0.5, -0.25, 0.125, 0.0, -1.0], np.float32), np.array(0.75, np.float32)]
NO_LEDGER = {"plain"}


def unpacked(version, folder):
    """Into ``folder``: git keeps no modes of files that only their user may read."""
    with tarfile.open(GOLDEN / f"{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


@pytest.fixture(scope="module", params=VERSIONS)
def golden(request, tmp_path_factory):
    """A version's files, with the modes that its programs gave them."""
    return unpacked(request.param, tmp_path_factory.mktemp(request.param))


BASELINES = ("paillier", "ckks")
"""Variants of schemes that research/ registers: `tests/research/test_golden_baselines.py`."""


def variants(golden):
    """Its folders of single rounds, under the schemes that this process knows."""
    known = set(scheme_names())
    found = sorted(path.parent for path in golden.glob("*/opened.json"))
    return [folder for folder in found if folder.name not in BASELINES or folder.name in known]


@pytest.fixture
def remembering(monkeypatch, tmp_path):
    """The state folder is a copy of a golden one."""

    def use(folder):
        state = tmp_path / folder.name
        shutil.copytree(folder / "state", state)
        monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(state))

    return use


def test_there_are_golden_files():
    assert VERSIONS


@pytest.mark.parametrize("name", BASELINES)
def test_keys_of_a_baseline_are_refused_without_what_registers_it(golden, name):
    """CHANGELOG.md has the sentence."""
    if name not in scheme_names():
        with pytest.raises(errors.KeyFormatError, match=f"'{name}', which is not known here; .*FEDCIPHER_SCHEMES"):
            keys.load_client(golden / name / "keys" / "client-0.key")


def test_keys_and_aggregates_open(golden, monkeypatch, tmp_path):
    """A reader that has not opened this round yet."""
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path))
    for folder in variants(golden):
        scheme, key = keys.load_client(folder / "keys" / "client-0.key")
        opener = scheme.decryptor(key)
        if scheme.committee and scheme.committee.reveals_to_server:
            opener = scheme.committee.server_decryptor(keys.load_server(folder / "keys")[1])
        mean = opener.decrypt((folder / "frames" / "aggregate.fedc").read_bytes(), round=ROUND)
        for got, want in zip(mean, json.loads((folder / "opened.json").read_text()), strict=True):
            np.testing.assert_array_equal(got, np.array(want, got.dtype), err_msg=folder.name)


def test_updates_are_still_added_and_answered(golden, monkeypatch, tmp_path, remembering):
    """Under the server's key of that time; the members' prekeys of a committee are gone since."""
    for folder in variants(golden):
        if not (folder / "frames" / "update-0.fedc").exists():
            continue
        remembering(folder)
        scheme, server = keys.load_server(folder / "keys")
        aggregator = scheme.aggregator(server, round=ROUND)
        if scheme.info.committee:
            prekeys = [path.read_bytes() for path in sorted((folder / "frames").glob("prekey-*"))]
            assert aggregator.committee.take_prekeys(prekeys) == []
        for path in sorted((folder / "frames").glob("update-*.fedc")):
            aggregator.add(path.read_bytes())
        for path in sorted((folder / "frames").glob("answer-*.fedc")):
            aggregator.committee.requests()
            aggregator.committee.answer(path.read_bytes())
        if not scheme.info.committee:
            assert aggregator.finish() == (folder / "frames" / "aggregate.fedc").read_bytes(), folder.name
        else:
            assert aggregator.finish()


def test_memories_still_refuse(golden, remembering):
    """A round that the key has encrypted in, and a sum that was opened of other clients."""
    for folder in variants(golden):
        scheme, key = keys.load_client(folder / "keys" / "client-0.key")
        if scheme.name in NO_LEDGER or not (folder / "frames" / "update-0.fedc").exists():
            continue
        remembering(folder)
        encryptor = scheme.encryptor(key)
        if scheme.info.committee:
            encryptor.take_prekeys([p.read_bytes() for p in sorted((folder / "frames").glob("prekey-*"))])
        with pytest.raises(errors.NonceReuseError):
            encryptor.encrypt(VALUES, round=ROUND)


def test_runs_open_and_their_journals_are_read(golden, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path))
    runs = sorted(golden.glob("run-*"))
    assert runs
    for folder in runs:
        model = open_run(folder / "run", folder / "keys" / "client-1.key")
        with np.load(folder / "model.npz") as want:
            for name, value in model.items():
                np.testing.assert_array_equal(value, want[name.replace("/", ".")], err_msg=folder.name)
        past = read_journal(folder / "run")
        assert [(made.round, made.unfinished) for made in past.rounds] == [(1, None), (2, None)]


def test_rosters_and_identities_are_read(golden, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path))
    listed = look(golden / "roster" / "server.key")
    assert [party for party, _ in who_joined(listed, sorted(golden.glob("roster/*/*.joined")))] == [0, 1, 2]
    assert [party.name for party in listed.parties] == ["ada", "bob", "cid"]
    for party in listed.parties:
        folder = golden / "roster" / party.name
        scheme, key = keys.load_client(folder / "my.key")
        assert scheme.name == "oneshot" and key.client == party.number
        read_identity(folder / f"{party.name}.identity")
        assert look(folder / "my.key").digest == listed.digest


def test_a_roster_of_earlier_parameters_is_joined_by_nobody_new(tmp_path):
    """Its other parties would have other keys; CHANGELOG.md says so."""
    unpacked("0.1.0.dev1", tmp_path)
    own, listed = tmp_path / "roster" / "ada" / "ada.identity", tmp_path / "roster" / "server.key"
    with pytest.raises(errors.WrongRosterError, match="an earlier version of Fedcipher made the roster"):
        join(own, listed, tmp_path / "new.key", accept=lambda shown: None)
