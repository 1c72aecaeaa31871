"""NVFlare with real processes: a server and three sites in POC mode. `make e2e-nvflare` makes NVFlare's environment.

The environment of the variable FEDCIPHER_NVFLARE has NVFlare and this checkout of Fedcipher.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from fedcipher.federation.server.run_folder import open_run
from places import ROOT

NVFLARE = Path(os.environ.get("FEDCIPHER_NVFLARE", ROOT / "target/nvflare")) / "bin"
JOB = ROOT / "examples/nvflare/job.py"
SITES = ["site-1", "site-2", "site-3"]
OPTIONS = ["--examples", "300", "--bits", "16"]
"""Options of the keys: the largest site has 300 examples, and 16 bits leave an error that a test can bound."""
FEDCIPHER = [sys.executable, "-m", "fedcipher.cli"]


class Poc:
    """A server and three sites of NVFlare, each with a home of its own for Fedcipher."""

    def __init__(self, folder):
        self.folder, self.results = folder, folder / "results"
        self.workspace = folder / "poc"
        path = f"{NVFLARE}{os.pathsep}{os.environ['PATH']}"
        places = {"NVFLARE_POC_WORKSPACE": str(self.workspace), "HOME": str(folder), "PATH": path}
        self.environment = {**os.environ, **places}
        he = ["-he"] if list(NVFLARE.parent.rglob("tenseal/__init__.py")) else []
        self.check([NVFLARE / "nvflare", "poc", "prepare", "-n", str(len(SITES)), *he])
        self.kits = self.workspace / "example_project/prod_00"
        for site in SITES:
            resources = json.loads((self.kits / site / "local/resources.json.default").read_text())
            resources["allow_log_streaming"] = False
            (self.kits / site / "local/resources.json").write_text(json.dumps(resources))

    def check(self, command, **more):
        done = subprocess.run(command, env=self.environment, text=True, capture_output=True, timeout=300, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def keys(self, scheme):
        """Make keys, and tell each site its own; return the server's folder of keys."""
        folder = self.folder / f"keys-{scheme}"
        if folder.exists():
            pass
        elif scheme == "oneshot":
            self._identities(folder)
        else:
            options = ["--clients", str(len(SITES)), *OPTIONS, "--out", str(folder)]
            self.check([*FEDCIPHER, "keygen", "--scheme", scheme, *options])
        for number, site in enumerate(SITES):
            settings = {"fedcipher-key": str(folder / f"client-{number}.key")}
            (self.kits / site / "local/fedcipher.json").write_text(json.dumps(settings))
        return folder

    def _identities(self, folder):
        """Each site makes its identity and joins the roster, as on machines of their own."""
        folder.mkdir()
        for site in SITES:
            self.check([*FEDCIPHER, "identity", site, "--out", str(folder)])
        members = [word for site in SITES for word in ("--member", site)]
        cards = [str(folder / f"{site}.card") for site in SITES]
        roster = ["roster", *cards, *members, *OPTIONS, "--out", str(folder / "server.key")]
        fingerprint = re.search(r"fingerprint ([-0-9a-f]+)", self.check([*FEDCIPHER, *roster]))[1]
        expect = ["--expect", fingerprint]
        for number, site in enumerate(SITES):
            identity, key = folder / f"{site}.identity", folder / f"client-{number}.key"
            self.check([*FEDCIPHER, "join", str(identity), str(folder / "server.key"), "--out", str(key), *expect])
        joined = [str(path) for path in sorted(folder.glob("*.joined"))]
        for number in range(len(SITES)):
            self.check([*FEDCIPHER, "joined", str(folder / f"client-{number}.key"), *joined])

    def start(self, *names):
        for name in names or ("server", *SITES):
            home = self.folder / f"home-{name}"
            home.mkdir(exist_ok=True)
            # A campaign has more runs in a key epoch than a site allows by itself.
            (home / "policy.json").write_text('{"fedcipher_policy": 1, "runs": 100}')
            places = {"FEDCIPHER_HOME": str(home), "FEDCIPHER_STATE_DIR": str(home / "state")}
            environment = {**self.environment, **places}
            script = self.kits / name / "startup/start.sh"
            subprocess.Popen(
                ["bash", str(script)], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def processes(self, name):
        """The processes of one site or of the server: their commands name its folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.kits / name) in word for word in process.info["cmdline"] or ()):
                found.append(process)
        return found

    def kill(self, *names):
        """Kill all processes of ``names``, the scripts that restart them first."""
        for name in names:
            for process in sorted(self.processes(name), key=lambda p: p.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def export(self, *arguments):
        """Write a job of examples/nvflare; return its folder."""
        folder = self.folder / f"job-{len(list(self.folder.glob('job-*')))}"
        self.check([NVFLARE / "python", str(JOB), str(folder), *map(str, arguments)])
        return folder / "hello"

    def submit(self, job):
        """Submit a job without waiting for its end; return its process and its id. A server may still be starting."""
        kit, script = self.kits / "admin@nvidia.com", ROOT / "tests/e2e/nvflare_session.py"
        command = [str(word) for word in (NVFLARE / "python", script, kit, job, self.results)]
        said = ""
        for _ in range(6):
            process = subprocess.Popen(
                command, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            for line in process.stdout:
                if line.startswith("job "):
                    return process, line.split()[1]
                said += line
            time.sleep(10)
        raise AssertionError(f"the job was not submitted: {said}")

    def finish(self, process):
        """Wait for a job; return its result's folder. Fails unless the job was completed."""
        output = process.communicate(timeout=300)[0]
        logs = "".join(path.read_text() for path in self.results.glob("*/workspace/error_log.txt"))
        assert "status FINISHED:COMPLETED" in output, output + logs + self.errors()
        return Path(re.search(r"^result (.*)$", output, re.M)[1])

    def run(self, job):
        """Run a job to its end; return (result's folder, seconds, uploaded bytes of all sites)."""
        began = time.monotonic()
        process, number = self.submit(job)
        folder = self.finish(process)
        return folder, time.monotonic() - began, self.uploaded(number)

    def uploaded(self, number):
        """The bytes that all sites have uploaded as results of a job's tasks, from NVFlare's own log."""
        texts = [(self.kits / site / number / "log.txt").read_text() for site in SITES]
        return sum(int(size) for text in texts for size in re.findall(r"SubmitUpdate to: .*?\((\d+) Bytes\)", text))

    def errors(self):
        logs = sorted(self.kits.glob("*/*/log.txt"))
        return "\n".join(
            line for log in logs for line in log.read_text().splitlines() if "ERROR" in line or "refused" in line
        )

    def wait_for(self, condition, seconds=120):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, self.errors()
            time.sleep(0.5)


@pytest.fixture(scope="module")
def poc(tmp_path_factory):
    if not (NVFLARE / "nvflare").exists():
        pytest.skip("no environment with NVFlare: make e2e-nvflare")
    made = Poc(tmp_path_factory.mktemp("nvflare"))
    made.start()
    yield made
    made.kill("server", *SITES)
    shutil.rmtree(made.workspace, ignore_errors=True)


@pytest.fixture(scope="module")
def plain(poc):
    """The model of the same job in the clear."""
    folder, seconds, uploaded = poc.run(poc.export())
    model = np.load(next(folder.rglob("server.npy")))
    print(f"\nin the clear: {seconds:.1f} s, {uploaded} B uploaded, {model.size} values")
    return model


def distance(model, expected):
    return float(np.linalg.norm(model - expected) / np.linalg.norm(expected))


def opened(keys, run):
    return open_run(run, keys / "client-0.key")["numpy_key"]


@pytest.mark.parametrize("scheme", ["bfv", "flashe", "oneshot"])
def test_hello_numpy_ends_with_its_plaintext_model(scheme, poc, plain):
    keys, run = poc.keys(scheme), poc.folder / f"run-{scheme}"
    _, seconds, uploaded = poc.run(poc.export(keys, run))
    off = distance(opened(keys, run), plain)
    print(f"\n{scheme}: {seconds:.1f} s, {uploaded} B uploaded, distance {off:.2g} of the model")
    assert off < 0.002


def test_nvflares_own_encryption_beside_it(poc):
    if not list(NVFLARE.parent.rglob("tenseal/__init__.py")):
        pytest.skip("NVFlare's own encryption needs tenseal, which could not be installed")
    folder = poc.folder / "job-he"
    job = ROOT / "tests/e2e/nvflare_he/he_job.py"
    poc.check([NVFLARE / "python", str(job), str(folder)])
    _, seconds, uploaded = poc.run(folder / "hello")
    print(f"\nNVFlare's own encryption (CKKS): {seconds:.1f} s, {uploaded} B uploaded")


def server_log(poc, number):
    path = poc.kits / "server" / number / "log.txt"
    return path.read_text() if path.exists() else ""


def test_a_site_that_is_killed_costs_its_own_updates(poc):
    keys, run = poc.keys("flashe"), poc.folder / "run-killed"
    more = {"min_clients": 2, "num_rounds": 4, "deadline": 15.0}
    process, number = poc.submit(poc.export(keys, run, json.dumps(more)))
    log = poc.kits / "site-3" / number / "log.txt"
    poc.wait_for(lambda: log.exists() and "name=train" in log.read_text())
    poc.kill("site-3")
    # NVFlare keeps the job open for a quarter of an hour more, for the dead site's exit code.
    poc.wait_for(lambda: "all 4 rounds have an aggregate" in server_log(poc, number), 180)
    assert "round 4: sum of 2 encrypted updates, 1 left out" in server_log(poc, number)
    assert np.isfinite(opened(keys, run)).all()
    process.kill()
    poc.kill("server", *SITES)
    poc.start()


def test_a_server_that_is_killed_resumes_the_run(poc, plain):
    keys, run = poc.keys("bfv"), poc.folder / "run-resumed"
    process, number = poc.submit(poc.export(keys, run))
    poc.wait_for(lambda: "round 2: sum of" in server_log(poc, number))
    poc.kill("server")
    process.kill()
    time.sleep(5)
    poc.start("server")
    time.sleep(30)
    poc.run(poc.export(keys, run, json.dumps({"resume": True})))
    # Two rounds of the first process and one of the second.
    off = distance(opened(keys, run), plain)
    print(f"\nresumed: distance {off:.2g} of the model")
    assert off < 0.002
