"""Key files and the command line."""

import json
import stat
from pathlib import Path

import fedcipher
import numpy as np
import pytest
from fedcipher import cli, errors, keys
from fedcipher.codec import AUTO_BITS
from fedcipher.federation.ranges import ranges_follow_updates
from fedcipher.keys.provider import FileKeys, server_keys


def test_key_files_round_trip(tmp_path):
    scheme = fedcipher.scheme("bfv", clients=3, max_weight=2, codec=fedcipher.Codec(bits=[8, 10], clip=[1.0, 2.0]))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    assert stat.S_IMODE((folder / "client-1.key").stat().st_mode) == 0o600
    with pytest.raises(errors.KeyFormatError, match="exists"):
        keys.save(scheme.keygen(3), scheme, folder)
    server_scheme, server = keys.load_server(folder)
    update = [np.full(3, 0.5, np.float32), np.full(2, -1.5, np.float32)]
    aggregator = server_scheme.aggregator(server)
    for j in range(3):
        made, key = keys.load_client(folder / f"client-{j}.key")
        assert made.codec == scheme.codec and key.client == j
        aggregator.add(made.encryptor(key).encrypt(update, round=1, weight=j % 2 + 1))
    got = made.decryptor(key).decrypt(aggregator.finish())
    np.testing.assert_allclose(got[0], 0.5, atol=1e-2)
    np.testing.assert_allclose(got[1], -1.5, atol=1e-2)


def test_damaged_key_files(tmp_path):
    scheme = fedcipher.scheme("flashe", clients=1, min_contributions=1)
    folder = keys.save(scheme.keygen(1), scheme, tmp_path / "keys")
    path = folder / "client-0.key"
    head, _, key = path.read_bytes().partition(b"\n")
    content = json.loads(head)
    with pytest.raises(errors.KeyFormatError, match=r"there are client-0\.key"):
        keys.load_client(folder / "client-9.key")
    with pytest.raises(errors.KeyFormatError, match="server key"):
        keys.load_server(path)
    for damage in ({"params": {"wrong": 1}}, {"fedcipher": 99}, {"codec": None}):
        path.write_bytes(json.dumps({**content, **damage}).encode() + b"\n" + key)
        with pytest.raises((errors.KeyFormatError, errors.ParameterError)):
            keys.load_client(path)
    path.write_bytes(head + b"\n" + key[:-1])
    with pytest.raises(errors.KeyFormatError, match="cut short") as refusal:
        keys.load_client(path)
    assert "transmit" not in str(refusal.value)
    path.write_text("not json")
    with pytest.raises(errors.KeyFormatError):
        keys.load_client(path)


def test_schemes_command_lists_threats_and_cost(capsys):
    assert cli.main(["schemes"]) == 0
    out = capsys.readouterr().out
    for word in (*fedcipher.scheme_names(), "withstands:", "broken by:", "expansion, cost:"):
        assert word in out


def test_keygen_and_inspect(tmp_path, capsys):
    out = tmp_path / "keys"
    asked = ["keygen", "--scheme", "flashe", "--clients", "2", "--equal", "--set", "masking=single"]
    assert cli.main([*asked, "--out", str(out)]) == 0
    made, key = keys.load_client(out / "client-0.key")
    assert made.params()["masking"] == "single"
    frame = made.encryptor(key).encrypt([np.ones(4, np.float32)], round=5, reference=[np.ones(4, np.float32)])
    (tmp_path / "frame").write_bytes(frame)
    assert cli.main(["inspect", str(tmp_path / "frame")]) == 0
    assert "update of scheme flashe, key epoch 1, round 5" in capsys.readouterr().out
    (tmp_path / "frame").write_bytes(frame[:-1])
    assert cli.main(["inspect", str(tmp_path / "frame")]) == 2
    assert "FrameError" in capsys.readouterr().err
    assert cli.main([*asked, "--out", str(out)]) == 2


def test_keygen_asks_how_clients_weigh_and_where_keys_go(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main(["keygen", "--clients", "2", "--name", "app"])
    assert "--examples --equal" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["keygen", "--clients", "2", "--equal"])
    assert "--name --out" in capsys.readouterr().err
    assert cli.main(["keygen", "--clients", "2", "--examples", "800", "--name", "app"]) == 0
    found = FileKeys("app")
    assert found.examples_per_weight == 800 and found.scheme.max_weight == 1
    with pytest.raises(errors.KeyFormatError, match="give an absolute path"):
        keys.store.locate("~nobody-of-this-name/keys")
    assert keys.store.locate("app") == tmp_path / "keys" / "app"
    assert cli.main(["keygen", "--clients", "2", "--equal", "--name", "other"]) == 0
    assert FileKeys(tmp_path / "keys" / "other").examples_per_weight == 0
    for bad in ("--examples=0", "--examples=nan", "--examples=-3"):
        assert cli.main(["keygen", "--clients", "2", bad, "--name", "bad"]) == 2
    assert cli.main(["keygen", "--clients", "2", "--equal", "--name", "../bad"]) == 2


USUAL = [
    (["--scheme", "flashe"], AUTO_BITS),
    (["--scheme", "bfv"], AUTO_BITS),
    (["--scheme", "bfv", "--bits", "auto"], AUTO_BITS),
    (["--scheme", "flashe", "--clip", "0.5"], 16),
    (["--scheme", "bfv", "--target", "weights"], 12),
    (["--scheme", "flashe", "--top", "0.1"], 16),
    (["--scheme", "flashe", "--set", "per_client_top=0.1"], 16),
    (["--scheme", "flashe", "--clip", "aciq"], 16),
    (["--scheme", "bfv", "--bits", "9"], 9),
]


@pytest.mark.parametrize(("asked", "bits"), USUAL)
def test_keygen_leaves_bits_to_the_run_where_ranges_follow_the_updates(tmp_path, asked, bits):
    assert cli.main(["keygen", *asked, "--clients", "3", "--equal", "--out", str(tmp_path / "keys")]) == 0
    made = FileKeys(tmp_path / "keys").scheme
    assert (
        made.codec.bits == bits
        and made.codec.adaptive == (bits == AUTO_BITS)
        and ranges_follow_updates(made) == (bits in (AUTO_BITS, 6, 9))
    )


@pytest.mark.parametrize("asked", ["keys", "./keys", "keys/server.key", "..", ""])
def test_relative_key_folders_are_refused_in_an_app(tmp_path, monkeypatch, asked):
    """Another app's keys lay where the SuperLink was started."""
    scheme = fedcipher.scheme("flashe", clients=3)
    keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    with pytest.raises(errors.KeyFormatError, match=r"absolute path.*--name|not a name for keys"):
        FileKeys(asked)


def test_core_needs_only_numpy():
    """The package imports with every optional dependency blocked."""
    import subprocess
    import sys

    code = """
import sys
for name in ("flwr", "jax", "flax", "rich", "matplotlib", "sklearn", "fedcipher_research"):
    sys.modules[name] = None
import fedcipher, fedcipher.cli
from fedcipher.errors import DependencyError
assert fedcipher.cli.main(["schemes"]) == 0
assert fedcipher.cli.main(["train"]) == 2
try:
    import fedcipher.adapters.flower
except DependencyError as error:
    assert "fedcipher[flower]" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fedcipher[demo]" in done.stderr


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_client_key_that_others_may_read_is_refused(tmp_path, mode):
    scheme = fedcipher.scheme("flashe", clients=1, min_contributions=1)
    folder = keys.save(scheme.keygen(1), scheme, tmp_path / "keys")
    (folder / "client-0.key").chmod(mode)
    for load in (keys.load_client, keys.open_client):
        with pytest.raises(errors.KeyFormatError, match=f"chmod 600 {folder / 'client-0.key'}"):
            load(folder / "client-0.key")
    (folder / "server.key").chmod(0o644)
    keys.load_server(folder)


def test_a_client_key_in_a_folder_that_all_may_write_to_is_refused(tmp_path):
    scheme = fedcipher.scheme("flashe", clients=1, min_contributions=1)
    folder = keys.save(scheme.keygen(1), scheme, tmp_path / "keys")
    folder.chmod(0o777)
    with pytest.raises(errors.KeyFormatError, match=f"chmod go-w {folder}"):
        keys.load_client(folder / "client-0.key")
    folder.chmod(0o1777)
    with pytest.raises(errors.KeyFormatError, match="mkdir -m 700"):
        keys.load_client(folder / "client-0.key")


def test_top_is_an_option_of_the_codec(capsys):
    command = ["spec", "--scheme", "bfv", "--per-round", "4"]
    assert cli.main([*command, "--target", "delta", "--top", "0.1"]) == 0
    spec = json.loads(capsys.readouterr().out)
    assert spec["codec"]["top"] == 0.1 and fedcipher.schemes.from_spec(spec).codec.top == 0.1
    assert cli.main([*command, "--target", "weights", "--top", "0.1"]) == 2
    assert "target='delta'" in capsys.readouterr().err
    assert cli.main(["spec", "--scheme", "flashe", "--per-round", "4", "--target", "delta", "--set", "top=0.1"]) == 2
    assert "per_client_top" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said", ["authority://", "authority://host:7443", "authority:///folder", "authority://h:1/f?x=1"]
)
def test_an_authority_is_named_by_its_address_and_a_folder(said):
    with pytest.raises(errors.ParameterError, match="authority://HOST:PORT/FOLDER"):
        server_keys(said)


def test_a_runs_name_is_found_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    named = tmp_path / "home" / "runs" / "app"
    named.mkdir(parents=True)
    assert keys.store.locate_run("app") == named
    (tmp_path / "app").mkdir()
    assert keys.store.locate_run("app") == named
    assert keys.store.locate_run("./other/app") == Path("other/app")
    (tmp_path / "app" / "run-2").mkdir()
    assert keys.store.locate_run("app") == Path("app/run-2")
    (tmp_path / "app" / "journal.db").touch()
    assert keys.store.locate_run("app") == Path("app")
    assert keys.store.locate_run("absent") == tmp_path / "home" / "runs" / "absent"


def test_what_is_no_keys_of_an_engine_is_said(capsys, tmp_path):
    out = ["--out", str(tmp_path / "model.npz")]
    assert cli.main(["open", str(tmp_path), "--key", "k", "--device", "client-1", *out]) == 2
    assert "--engine" in capsys.readouterr().err
    assert cli.main(["open", str(tmp_path), "--engine", f"unix:{tmp_path}/none.sock", *out]) == 2
    assert "EngineUnavailableError" in capsys.readouterr().err


def test_privacy_is_in_a_spec_for_an_authority(capsys):
    command = ["spec", "--scheme", "bfv", "--per-round", "20", "--dp-epsilon", "8", "--dp-rounds", "10"]
    assert cli.main([*command, "--bits", "16"]) == 0
    privacy = fedcipher.schemes.from_spec(json.loads(capsys.readouterr().out)).codec.privacy
    assert privacy.rounds == 10 and 7.5 < privacy.epsilon() <= 8
    assert cli.main([*command, "--target", "weights"]) == 2
    assert "--target delta" in capsys.readouterr().err
    assert cli.main(["spec", "--per-round", "20", "--dp-rounds", "10"]) == 2
    assert "--dp-epsilon" in capsys.readouterr().err
