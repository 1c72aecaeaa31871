"""The ready app on a real SuperLink and SuperNodes over TLS, started by `flwr run`."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from deployment_harness import BIN, Programs, free_port, wait_for
from fedcipher import cli

APP = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
CLIENTS = 2


@pytest.fixture
def start(tmp_path):
    """Starts a program with its output in a file; all are gone when the test ends."""
    programs = Programs(tmp_path)
    # As people run it, who do not know that variable.
    del programs.env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
    yield programs
    programs.stop()


def certificate(folder):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    files = ["-addext", names, "-keyout", str(folder / "server.pem"), "-out", str(folder / "ca.crt")]
    subprocess.run([*command, *files], check=True, capture_output=True)


def test_superlink_and_supernodes_over_tls(tmp_path, start):
    certificate(tmp_path)
    keys = tmp_path / "keys"
    assert cli.main(["keygen", "--scheme", "bfv", "--clients", str(CLIENTS), "--equal", "--out", str(keys)]) == 0
    port = free_port()
    ca, secret = tmp_path / "ca.crt", tmp_path / "server.pem"
    superlink, log = start(
        "flower-superlink",
        *("--ssl-certfile", ca, "--ssl-keyfile", secret, "--ssl-ca-certfile", ca, "--port", port),
    )
    wait_for(port, superlink, log)
    for k in range(CLIENTS):
        config = f'partition-id={k} num-partitions={CLIENTS} fedcipher-key="{keys}/client-{k}.key"'
        node = ("--superlink", f"127.0.0.1:{port}", "--root-certificates", ca, "--port", free_port())
        start("flower-supernode", *node, "--node-config", config)

    home = tmp_path / "flwr"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "tls"\n[superlink.tls]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{ca}"\n'
    )
    app = tmp_path / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("keys"))
    overrides = f"fedcipher-keys='{keys}' clients={CLIENTS} rounds=2"
    command = [str(BIN / "flwr"), "run", str(app), "tls", "--stream", "--run-config", overrides]
    done = subprocess.run(command, capture_output=True, text=True, env=start.env, timeout=240, check=False)
    logs = "\n".join(path.read_text()[-3000:] for path in tmp_path.glob("*.log"))
    assert done.stdout.count("aggregate_train: Received 2 results and 0 failures") == 2, done.stdout + logs
    assert "'accuracy'" in done.stdout
    # Each client's own log says which model it began with, and all say the same.
    said = [
        re.findall(r"has the SHA-256 ([0-9a-f]{64})", p.read_text()) for p in tmp_path.glob("flower-supernode-*.log")
    ]
    assert len(said) == CLIENTS and said[0] == said[1] and len(said[0]) == 1, logs


@pytest.mark.parametrize("program", ["flower-supernode", "flower-superlink"])
def test_the_flags_of_the_deployment_page_exist(program):
    page = (APP.parents[1] / "docs" / "deploy.md").read_text()
    (command,) = re.findall(rf"^{program} (?:.*\\\n)*.*$", page, re.MULTILINE)
    flags = set(re.findall(r"--[a-z-]+", command))
    if program == "flower-supernode":
        flags |= {"--allow-runtime-dependency-installation", "--insecure"}
    known = subprocess.run([str(BIN / program), "--help"], capture_output=True, text=True, check=True).stdout
    assert len(flags) >= 4 and all(re.search(rf"{flag}\b", known) for flag in flags)
