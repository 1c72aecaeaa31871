"""Key files as Kubernetes mounts them, and state that ends with a container: by real mounts, users and processes."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import wire_tools
from engine_harness import flashe
from fedcipher import errors, keys
from fedcipher.engine.local import lock_arguments, started
from places import ROOT

USER, GROUP = 65532, 65532
DOCS = ROOT / "docs" / "how-to" / "kubernetes.md"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users, and gives files away")

# Becomes another user once all is loaded: where Python is, that user may not get to.
CLIENT = (
    """
import logging, os, sys
import numpy as np
from fedcipher import keys
from fedcipher.errors import FedcipherError
user, groups, path, *rounds = sys.argv[1:]
logging.basicConfig(format="%(message)s", stream=sys.stdout)
if user != "-":
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(user))
    os.setuid(int(user))
def encrypt(number):
    made, key = keys.open_client(path)
    made.encryptor(key).encrypt([np.full(300, 0.5, np.float32)], round=number)
"""
    + wire_tools.EACH_ROUND
)

# A volume as the kubelet makes it: files in a folder of the date, `..data` a link to that, each name a link through it.
SECRET = """
mount -t tmpfs -o mode=1777 secret "$PLACE"
mkdir "$PLACE/..2026_11_28"
cp "$KEYS"/client-*.key "$PLACE/..2026_11_28"
chmod {mode} "$PLACE"/..2026_11_28/*
{owner}
ln -s ..2026_11_28 "$PLACE/..data"
for file in "$PLACE"/..2026_11_28/*; do ln -s "..data/${{file##*/}}" "$PLACE/${{file##*/}}"; done
mount -o remount,ro "$PLACE"
"""
OF_GROUP = f'chgrp -R {GROUP} "$PLACE"; chmod g+s "$PLACE"'
READ_ONLY = (
    'cp "$KEYS"/* "$PLACE"; chmod 600 "$PLACE"/*; mount --bind "$PLACE" "$PLACE"; mount -o remount,ro,bind "$PLACE"'
)
# What an init container does at each start.
COPIED = 'mount -t tmpfs -o mode=0700 work "$PLACE"; cp "$KEYS"/client-0.key "$PLACE"; chmod 400 "$PLACE"/*'


@pytest.fixture(scope="session")
def unshare():
    """What runs a command in mounts of its own."""
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and subprocess.run([*command, "true"], check=False).returncode == 0:
            return command
    return pytest.skip("this machine lets nobody have mounts of one's own (user namespaces)")


@pytest.fixture
def open_path():
    """A folder that other users get to. Each session of pytest that starts closes those of all others to them."""
    with tempfile.TemporaryDirectory(prefix="fedcipher-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def pod(unshare, open_path):
    """Runs a client in mounts of its own, with what stands in its environment; the lines that it says."""
    made = flashe(2)
    keys.save(made.keygen(2), made, open_path / "keys")
    place = open_path / "secret"
    place.mkdir(mode=0o755)

    def run(mounts, *rounds, user="-", groups="", state=None, then="", **environment):
        own = {"KEYS": open_path / "keys", "PLACE": place, "FEDCIPHER_STATE_DIR": state or open_path / "state"}
        own = {name: str(value) for name, value in {**own, **environment}.items()}
        arguments = [sys.executable, "-c", CLIENT, str(user), str(groups), str(place / "client-0.key")]
        script = f'set -e\n{mounts}\n{then}\nexec "$@"'
        command = [*unshare, "bash", "-c", script, "pod", *arguments, *map(str, rounds)]
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def of_user(folder):
    folder.mkdir()
    os.chown(folder, USER, USER)
    folder.chmod(0o700)
    return folder


# --- a key file that is only read -------------------------------------------------------------


@pytest.mark.parametrize("mounts", [SECRET.format(mode="400", owner=""), READ_ONLY], ids=["a Secret", "a bind mount"])
def test_a_key_on_a_read_only_mount_encrypts_each_round_once(pod, mounts, open_path):
    said, *lines = pod(mounts, 20)
    assert "alone knows what it has encrypted" in said and lines == ["encrypted 20"]
    again, later = pod(mounts, 20, 21)
    assert again.startswith("NonceReuseError") and later == "encrypted 21"
    assert not list((open_path / "keys").glob("*.used"))
    assert len(list((open_path / "state").glob("*-0.used"))) == 1


@as_root
@pytest.mark.parametrize("trusted", [GROUP, "own"])
def test_a_secret_of_the_pods_group_encrypts_where_that_group_is_trusted(pod, trusted, open_path):
    mounts = SECRET.format(mode="440", owner=OF_GROUP)
    of = {"user": USER, "groups": GROUP, "state": of_user(open_path / "volume")}
    for round in (1, 2):
        lines = pod(mounts, round, **of, FEDCIPHER_TRUSTED_GROUP=trusted)
        assert lines[-1] == f"encrypted {round}", lines
    (line,) = pod(mounts, 2, **of, FEDCIPHER_TRUSTED_GROUP=trusted)
    assert line.startswith("NonceReuseError")


@as_root
@pytest.mark.parametrize("mode, owner", [("0440", USER + 1), ("0400", USER)])
def test_a_key_in_a_folder_of_roots_encrypts_without_a_mount(pod, mode, owner, open_path):
    mounts = f'cp "$KEYS"/* "$PLACE"; chown {USER}:{owner} "$PLACE"/*; chmod {mode} "$PLACE"/*'
    of = {"user": USER, "groups": owner, "state": of_user(open_path / "volume"), "FEDCIPHER_TRUSTED_GROUP": owner}
    assert pod(mounts, 1, **of)[-1] == "encrypted 1"
    assert pod("", 1, **of)[-1].startswith("NonceReuseError")


@as_root
@pytest.mark.parametrize(
    "mode, groups, trusted, advice",
    [
        ("440", GROUP, "", f"set FEDCIPHER_TRUSTED_GROUP={GROUP}"),
        ("440", GROUP, GROUP + 1, f"set FEDCIPHER_TRUSTED_GROUP={GROUP}"),
        ("444", GROUP, GROUP, "chmod 600"),
        ("460", GROUP, GROUP, "chmod 600"),
    ],
)
def test_a_key_that_more_than_the_trusted_group_reads_is_refused(pod, mode, groups, trusted, advice, open_path):
    mounts = SECRET.format(mode=mode, owner=OF_GROUP)
    of = {"user": USER, "groups": groups, "state": of_user(open_path / "volume")}
    (line,) = pod(mounts, 1, **of, FEDCIPHER_TRUSTED_GROUP=trusted)
    assert line.startswith("KeyFormatError") and "may be read by other users" in line and advice in line, line


@as_root
def test_a_group_that_this_process_is_not_in_is_not_trusted(open_path, monkeypatch):
    made = flashe(2)
    path = keys.save(made.keygen(2), made, open_path / "keys") / "client-0.key"
    os.chown(path, 0, GROUP)
    path.chmod(0o440)
    monkeypatch.setenv("FEDCIPHER_TRUSTED_GROUP", str(GROUP))
    with pytest.raises(errors.KeyFormatError, match="may be read by other users"):
        keys.load_client(path)


@pytest.mark.parametrize("mode", ["644", "444", "604"])
def test_a_secret_that_everybody_reads_is_refused_with_what_a_manifest_can_change(pod, mode):
    (line,) = pod(SECRET.format(mode=mode, owner=""), 1, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert line.startswith("KeyFormatError"), line
    for word in ("defaultMode: 0440", "fsGroup", "FEDCIPHER_TRUSTED_GROUP"):
        assert word in line
    assert "chmod" not in line


@as_root
def test_a_volume_of_the_pods_group_holds_state_where_that_group_is_trusted(pod, open_path):
    volume = open_path / "volume"
    volume.mkdir()
    os.chown(volume, 0, GROUP)
    volume.chmod(0o2775)
    of = {"user": USER, "groups": GROUP, "state": volume / "fedcipher"}
    mounts = SECRET.format(mode="440", owner=OF_GROUP)
    assert pod(mounts, 1, **of, FEDCIPHER_TRUSTED_GROUP=GROUP)[-1] == "encrypted 1"
    assert pod(mounts, 1, **of, FEDCIPHER_TRUSTED_GROUP=GROUP)[-1].startswith("NonceReuseError")
    volume.chmod(0o2777)
    assert "chmod go-w" in pod(mounts, 2, **of, FEDCIPHER_TRUSTED_GROUP=GROUP)[-1]


def test_a_ledger_that_is_gone_is_missed_though_the_key_is_only_read(pod, open_path):
    mounts = SECRET.format(mode="400", owner="")
    pod(mounts, 1)
    state = open_path / "state"
    shutil.copy(state / "ledgers.index", open_path / "index")
    for ledger in [*state.glob("*.nonce"), *state.glob("*.opened")]:
        ledger.unlink()
    (line,) = pod(mounts, 1)
    assert line.startswith("LedgerError") and "rotate the keys" in line, line
    # As it was before it knew of the key.
    (state / "ledgers.index").write_bytes((open_path / "index").read_bytes()[:128])
    (line,) = pod(mounts, 1)
    assert line.startswith("LedgerError") and "rotate the keys" in line, line


@as_root
def test_an_engine_and_a_process_do_not_share_a_key_that_is_only_read(open_path, unshare):
    made = flashe(2)
    path = keys.save(made.keygen(2), made, open_path / "keys") / "client-0.key"
    script = 'mount --bind "$0" "$0"; mount -o remount,ro,bind "$0"; exec "$@"'
    own = {**os.environ, "FEDCIPHER_STATE_DIR": str(open_path / "other")}
    arguments = [sys.executable, "-c", CLIENT, "-", "", str(path), "1", "wait"]
    with subprocess.Popen(
        [*unshare, "bash", "-c", script, str(path.parent), *arguments],
        **{"env": own, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True},
    ) as process:
        assert "alone knows" in process.stdout.readline()
        assert [process.stdout.readline().strip() for _ in range(2)] == ["encrypted 1", "waiting"]
        namespace = f"/proc/{process.pid}/ns/mnt"
        engine = ("nsenter", f"--mount={namespace}", shutil.which("fedcipher-engine", path=Path(sys.executable).parent))
        serve = ["serve", "--listen", f"unix:{open_path}/socket", "--state", str(open_path / "engine")]
        done = subprocess.run(
            [*engine, *serve, "--key-file", str(path), *map(str, lock_arguments())],
            **{"capture_output": True, "text": True, "timeout": 60, "check": False},
        )
        assert done.returncode == 2 and "KeyInUseError" in done.stderr, done.stderr
        process.communicate("\n", timeout=60)


# --- state that ends with the container ----------------------------------------------------------


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "FEDCIPHER_ALLOW_EPHEMERAL_STATE": ""}
VOLUME = 'mount --bind "$FEDCIPHER_STATE_DIR" "$FEDCIPHER_STATE_DIR"'


def refused(line):
    assert line.startswith("LedgerError") and "ends with the container" in line, line
    for word in ("persistent volume", "FEDCIPHER_STATE_DIR", "engine", "FEDCIPHER_ALLOW_EPHEMERAL_STATE"):
        assert word in line


@pytest.mark.parametrize(
    "of, what",
    [
        ("", "the container's own layer"),
        ('mount -t tmpfs state "$FEDCIPHER_STATE_DIR"', "memory"),
        (
            'mkdir -p "$FEDCIPHER_STATE_DIR/../kubernetes.io~empty-dir/state"; '
            'mount --bind "$FEDCIPHER_STATE_DIR/../kubernetes.io~empty-dir/state" "$FEDCIPHER_STATE_DIR"',
            "an emptyDir",
        ),
    ],
)
def test_a_state_folder_that_ends_with_its_container_is_refused(pod, of, what, open_path):
    (open_path / "state").mkdir()
    (line,) = pod(COPIED, 20, then=of, **IN_POD)
    refused(line)
    assert what in line
    assert list((open_path / "state").iterdir()) == []


def test_a_copied_key_with_its_state_on_a_volume_encrypts_a_round_once(pod, open_path):
    (open_path / "state").mkdir()
    assert pod(COPIED, 20, then=VOLUME, **IN_POD) == ["encrypted 20"]
    # The container starts anew, and has the key copied once more.
    again, later = pod(COPIED, 20, 21, then=VOLUME, **IN_POD)
    assert again.startswith("NonceReuseError") and later == "encrypted 21"


@pytest.mark.parametrize("mark", [{"container": "podman"}, {"container": "docker"}, {"KUBERNETES_SERVICE_HOST": "::1"}])
def test_whatever_marks_a_container_has_state_in_memory_refused(pod, mark, open_path):
    (open_path / "state").mkdir()
    own = {**mark, "FEDCIPHER_ALLOW_EPHEMERAL_STATE": "0"}
    (line,) = pod(COPIED, 1, then='mount -t tmpfs state "$FEDCIPHER_STATE_DIR"', **own)
    refused(line)


def test_keys_that_end_with_their_container_may_have_state_that_does(pod):
    assert pod(COPIED, 20, **{**IN_POD, "FEDCIPHER_ALLOW_EPHEMERAL_STATE": "1"}) == ["encrypted 20"]


def test_an_engine_refuses_a_state_folder_that_ends_with_its_container(tmp_path, monkeypatch):
    made = flashe(2)
    path = keys.save(made.keygen(2), made, tmp_path / "keys") / "client-0.key"
    for name, value in IN_POD.items():
        monkeypatch.setenv(name, value)
    command = ("fedcipher-engine", "serve", "--listen", f"unix:{tmp_path}/socket", "--state", tmp_path / "ledgers")
    with (
        pytest.raises(errors.EngineError) as refusal,
        started(*command, "--key-file", path, *lock_arguments(), log=tmp_path / "log"),
    ):
        pass
    assert "ends with the container" in str(refusal.value)
    assert not (tmp_path / "ledgers").exists() and not list((tmp_path / "keys").glob("*.used"))


# --- the page -------------------------------------------------------------------------------------


def test_the_pages_manifest_is_what_these_tests_have_mounted():
    yaml = pytest.importorskip("yaml")
    (manifest,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    client = yaml.safe_load(manifest)["spec"]
    pod, (claim,) = client["template"]["spec"], client["volumeClaimTemplates"]
    (container,) = pod["containers"]
    settings = {setting["name"]: setting["value"] for setting in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (key,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "key"]
    assert client["replicas"] == 1 and pod["securityContext"]["fsGroup"] == GROUP
    assert pod["securityContext"]["runAsUser"] == USER and key["defaultMode"] == 0o440
    assert settings["FEDCIPHER_TRUSTED_GROUP"] == str(GROUP)
    assert mounts.keys() == {"key", "node", "state", "scratch"} and claim["metadata"]["name"] == "state"
    assert settings["FEDCIPHER_STATE_DIR"].startswith(f"{mounts['state']}/")
    assert f'fedcipher-key="{mounts["key"]}/client-' in container["args"][-1]
