"""The ready app on a real SuperLink and SuperNodes over TLS, started by `flwr run`."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fedcipher import cli

BIN = Path(sys.executable).parent
APP = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
CLIENTS = 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, log):
    for _ in range(300):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"{process.args[0]} did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture
def start(tmp_path):
    """Starts a program with its output in a file; all are gone when the test ends."""
    running = []
    env = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }

    def run(name, *arguments):
        log = tmp_path / f"{name}-{len(running)}.log"
        process = subprocess.Popen(
            [str(BIN / name), *map(str, arguments)],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        running.append(process)
        return process, log

    run.env = env
    yield run
    for process in running:
        try:
            os.killpg(process.pid, 15)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, 9)


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
    assert cli.main(["keygen", "--scheme", "bfv", "--clients", str(CLIENTS), "--out", str(keys)]) == 0
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
