"""What an app may try to tell somebody what it has seen. Each try prints a line, for the site's own log."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

PATIENT = "patient 4711 has diagnosis X"


def attack(server_round, context, content, metrics):
    """Try to get out, then answer in a way that says something, another one in each round."""
    reach(filter(None, context.run_config["targets"].split("|")))
    if server_round == 1:
        raise ValueError(PATIENT)
    if server_round == 2:
        metrics[PATIENT] = [4711.0] * 4000
        content["patient 4711"] = ConfigRecord({PATIENT: PATIENT})
        content["arrays"] = ArrayRecord([np.full(4711, 4711.0)])
    if server_round == 3:
        print(PATIENT, file=sys.stderr, flush=True)
        os._exit(47)
    if server_round == 4:
        time.sleep(3600)


def reach(targets):
    """Try to reach each target, as ``connect=``, ``read=`` or ``write=`` and where, and what any app can name."""
    for target in targets:
        kind, _, where = target.partition("=")
        tried(f"{kind} {where}", {"connect": connect, "read": read, "write": write}[kind], where)
    for work in (udp, processes, child, token):
        tried(work.__name__, work)


def tried(name, work, *given):
    """Print what came of a try."""
    try:
        print(f"TRY {name}: got {work(*given)!r}", flush=True)
    except Exception as error:
        print(f"TRY {name}: refused {type(error).__name__}", flush=True)


def connect(where):
    """A TCP connection to a port of the machine."""
    host, _, port = where.rpartition(":")
    with socket.create_connection((host, int(port)), 3) as made:
        made.sendall(PATIENT.encode())
        return "connected"


def udp():
    """A packet to anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        return made.sendto(PATIENT.encode(), ("127.0.0.1", 53))


def read(where):
    """A file of the site."""
    return Path(where).read_bytes()[:20]


def write(where):
    """A file outside of the app's own folder."""
    Path(where).write_text(PATIENT)
    return "written"


def processes():
    """Other processes of the machine, as /proc shows them."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    found = [line for line in lines if b"flower-super" in line or b"guard\0run" in line]
    if not found:
        raise PermissionError("no other process is to be seen")
    return found


def child():
    """A child that outlives the app."""
    made = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(3600)  # hostile-child"], start_new_session=True
    )
    raise PermissionError(f"{made.pid} must not be there after the app's end")


def token():
    """The token of the SuperNode, in the app's environment or command line."""
    said = "\n".join([*os.environ.values(), *sys.argv])
    if "secret" in said:
        return said
    raise PermissionError("there is none")
