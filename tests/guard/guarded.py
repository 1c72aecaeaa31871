"""A real federation whose SuperNodes are guarded: SuperLink, SuperNodes and guards are processes of this machine."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from deployment_harness import BIN, Federation, free_port, wait_for
from flwr.cli.build import build_fab_from_disk


def package_of(app):
    """The SHA-256 of the app's package, as Flower builds it."""
    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()


def rules_for(app, **more):
    """The text of a site's rules that let the folder ``app`` run with any settings, without people."""
    listed = {"apps": [package_of(app)], "run_settings": ["*"], "people_agree": False}
    return json.dumps({"fedcipher_guard": 1, **listed, **more})


class Guarded(Federation):
    """``keys``: the folder of the clients' keys; None: no guard yet. ``guards`` are the processes, one a SuperNode."""

    def __init__(self, folder, clients, keys=None, rules=""):
        self.keys, self.rules, self.guards, self.nodes = keys and Path(keys), rules, [], []
        super().__init__(folder, clients)

    def start_nodes(self, superlink):
        for k in range(self.clients):
            port, secret = free_port(), self.folder / f"secret-{k}"
            secret.write_bytes(os.urandom(32).hex().encode())
            secret.chmod(0o600)
            node, log = self.programs(
                *("flower-supernode", "--insecure", "--superlink", superlink, "--port", port),
                *("--node-config", f"partition-id={k} num-partitions={self.clients}", "--isolation", "process"),
                *("--superexec-auth-secret-file", secret),
                cwd=self.outputs,
            )
            wait_for(port, node, log)
            self.nodes.append((f"127.0.0.1:{port}", secret))
            if self.keys:
                self.guards.append(self.start_guard(k))

    def restart_guards(self, keys, rules):
        """Let guards with other keys and rules take the place of those that run."""
        for guard in self.guards:
            guard.terminate()
        for guard in self.guards:
            guard.wait(60)
        self.keys, self.rules = Path(keys), rules
        self.guards = [self.start_guard(k) for k in range(self.clients)]

    def start_guard(self, k, program=()):
        address, secret = self.nodes[k]
        rules = self.folder / f"guard-{k}.json"
        rules.write_text(self.rules or '{"fedcipher_guard": 1}')
        log = self.folder / f"guard-{k}-{time.time_ns()}.log"
        process = subprocess.Popen(
            [
                *([sys.executable, *program] if program else [str(BIN / "fedcipher")]),
                *("guard", "run", "--supernode", address, "--secret-file", str(secret)),
                *("--key", str(self.key(k)), "--folder", str(self.home(k) / "guard"), "--rules", str(rules)),
            ],
            env={
                **self.programs.env,
                "FEDCIPHER_HOME": str(self.home(k)),
                "FEDCIPHER_STATE_DIR": str(self.home(k) / "state"),
            },
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.programs.running.append(process)
        return process

    def key(self, k):
        return self.keys / f"client-{k}.key"

    def home(self, k):
        made = self.folder / f"home-{k}"
        made.mkdir(mode=0o700, exist_ok=True)
        return made

    def guard_log(self, k):
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"guard-{k}-*.log")))

    def start(self, app, config=""):
        """Start a run of the folder ``app``, without waiting for its end."""
        command = [str(BIN / "flwr"), "run", str(app), "here", "--stream"]
        command += ["--run-config", config] if config else []
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.programs.env
        )
