"""Long commands ended by signals at random moments: `make e2e-signals`.

None may lose the signal, go on deaf to it, leave a process or a folder, or end its output with a library's traceback.
The numbers are FEDCIPHER_TRAININGS and FEDCIPHER_OTHERS. An hour and more on two cores, so not part of the suite.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

TRAININGS = int(os.environ.get("FEDCIPHER_TRAININGS", "200"))
OTHERS = int(os.environ.get("FEDCIPHER_OTHERS", "50"))
MARK = "FEDCIPHER_TEST_MARK"

# Each takes longer than the latest moment at which it is told to end: seconds after its start.
COMMANDS = {
    "train": (TRAININGS, 30, ["train", "--clients", "3", "--rounds", "2000", "--out", "out"]),
    "keygen": (OTHERS, 5, ["keygen", "--clients", "200000", "--equal", "--out", "keys"]),
    "bench": (OTHERS, 8, ["bench", "round", "--runs", "400", "--out", "out"]),
    "serve": (OTHERS, 4, ["bench", "serve", "--listen", "127.0.0.1:0"]),
    "cluster": (OTHERS, 10, ["cluster", "up", "--clients", "20", "--folder", "cluster"]),
    "dashboard": (OTHERS, 4, ["dashboard", "run", "--listen", "127.0.0.1:0"]),
    "advise": (OTHERS, 8, ["advise", "--values", "1000000", "--clients", "50", "--seconds", "600"]),
}


def marked(mark):
    """Command lines of the processes that have inherited ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def none_left(find, what):
    end = time.monotonic() + 30
    while left := find():
        assert time.monotonic() < end, f"{what}: {left}"
        time.sleep(0.2)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are looked for in /proc")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_a_random_moment_ends_a_command_and_leaves_nothing(name, tmp_path):
    count, latest, arguments = COMMANDS[name]
    draw = random.Random(os.environ.get("FEDCIPHER_SEED", name))
    if name == "dashboard":
        of = ["--clients", "3", "--rounds", "1", "--resume", "--out", str(tmp_path / "watched")]
        subprocess.run([sys.executable, "-m", "fedcipher.cli", "train", *of], check=True, capture_output=True)
    for k in range(count):
        folder, mark = tmp_path / str(k), uuid.uuid4().hex
        scratch = folder / "tmp"
        scratch.mkdir(parents=True)
        if name == "dashboard":
            (folder / "run").symlink_to(tmp_path / "watched" / "run")
        # Ray's sockets need a short path. The signal also reaches what it has started, as in a terminal.
        ours = {"TMPDIR": str(scratch), "RAY_TMPDIR": "/tmp", "FEDCIPHER_STATE_DIR": str(folder / "state"), MARK: mark}
        how, after = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]), draw.uniform(0, latest)
        case = f"{name} {k}, {how.name} after {after:.2f} s"
        process = subprocess.Popen(
            [sys.executable, "-m", "fedcipher.cli", *arguments],
            cwd=folder,
            env={**os.environ, **ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        time.sleep(after)
        assert process.poll() is None, f"{case}: it had ended by itself: {process.communicate()[0]}"
        (os.killpg if how == signal.SIGINT else os.kill)(process.pid, how)
        try:
            said = process.communicate(timeout=90)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{case}: it is deaf: {process.communicate()[0][-2000:]}")
        # Below 0: before there was anything to clean up.
        assert process.returncode in (128 + how, -how), f"{case}: status {process.returncode}: {said[-2000:]}"
        assert "Traceback" not in "\n".join(said.splitlines()[-10:]), f"{case}: {said[-4000:]}"
        none_left(lambda mark=mark: marked(mark), f"{case}: processes")
        none_left(lambda scratch=scratch: list(scratch.iterdir()), f"{case}: folders")
        assert not list(folder.glob(".*")), f"{case}: drafts"
        print(f"{case}: ended", flush=True)
