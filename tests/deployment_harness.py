"""A real SuperLink and SuperNodes on this machine, and `flwr run` against them."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, log):
    for _ in range(1200):
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"{process.args[0]} did not start:\n{log.read_text()[-2000:]}")


def processes(*words, program=""):
    """Command lines, by process id, of all processes of ``program`` that have all of ``words``."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        # A script's first word is its interpreter.
        if all(word in line for word in words) and program in " ".join(line.split()[:2]):
            found[int(path.parent.name)] = line
    return found


def fedcipher(*arguments, cwd, timeout=240, **environment):
    """As people run it, from anywhere, who do not know Flower's variable for tests."""
    env = {k: v for k, v in os.environ.items() if k != "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"}
    command = [str(BIN / "fedcipher"), *map(str, arguments)]
    env |= environment
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=timeout, check=False)


class Programs:
    """Starts programs with their output in files; `stop` ends all of them, and what they have started."""

    def __init__(self, folder):
        self.folder, self.running = Path(folder), []
        self.env = {
            **os.environ,
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def __call__(self, name, *arguments, cwd=None):
        log = self.folder / f"{name}-{len(self.running)}.log"
        process = subprocess.Popen(
            [str(BIN / name), *map(str, arguments)],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env=self.env,
            cwd=cwd,
            start_new_session=True,
        )
        self.running.append(process)
        return process, log

    def stop(self):
        for process in self.running:
            try:
                os.killpg(process.pid, 15)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                try:
                    os.killpg(process.pid, 9)
                except ProcessLookupError:
                    continue
        self.running.clear()


class Federation:
    """A SuperLink without TLS on loopback and SuperNodes with partitions, until `stop`."""

    def __init__(self, folder, clients):
        self.folder, self.clients = Path(folder), clients
        self.programs = Programs(folder)
        # What a ServerApp writes without naming a folder is here.
        self.outputs = self.folder / "outputs"
        self.outputs.mkdir()
        port = free_port()
        superlink, log = self.programs("flower-superlink", "--insecure", "--port", port, cwd=self.outputs)
        wait_for(port, superlink, log)
        self.start_nodes(f"127.0.0.1:{port}")
        self._wait_for_nodes(log)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )

    def start_nodes(self, superlink):
        for k in range(self.clients):
            node = ("--insecure", "--superlink", superlink, "--port", free_port())
            config = f"partition-id={k} num-partitions={self.clients}"
            self.programs("flower-supernode", *node, "--node-config", config, cwd=self.outputs)

    def _wait_for_nodes(self, log):
        """A run that starts before all are there samples from fewer, and no seed makes it the same again."""
        for _ in range(1200):
            if log.read_text().count("Activated node_id") >= self.clients:
                return
            time.sleep(0.1)
        pytest.fail(f"only some of {self.clients} SuperNodes came:\n{self.logs()}")

    def run(self, app, config="", timeout=1200):
        """`flwr run` of the folder ``app``; its output."""
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream"]
        command += ["--run-config", config] if config else []
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.programs.env, timeout=timeout, check=False
        )
        return done.stdout + done.stderr

    def logs(self, last=3000):
        return "\n".join(f"--- {log.name}\n{log.read_text()[-last:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self):
        self.programs.stop()
