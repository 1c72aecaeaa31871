"""A ServerApp on a SuperLink, killed with SIGKILL fifty times at random: `make e2e-resume`.

Its rounds must go on in order, the model must be the mean of exactly the updates that each round's record names, and no
client may be asked for two updates under one number (its ledger would refuse, and the record say so). Half an hour on
two cores, so not part of the suite.
"""

import json
import os
import random
import subprocess
import time

import fedcipher
import numpy as np
import pytest
from deployment_harness import BIN, Federation
from fault_counts import counted
from fedcipher import errors, keys
from fedcipher.adapters.flower import open_run
from fedcipher.federation.server.journal import read_journal
from places import TESTS
from resume_app.resume_app.client_app import SHAPE, goal

CLIENTS, ROUNDS = 3, 40
KILLS = int(os.environ.get("FEDCIPHER_KILLS", "50"))
APP = TESTS / "e2e" / "resume_app"


def until(found, seconds, what):
    """The first true value of ``found()``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        made = found()
        if made:
            return made
        time.sleep(0.05)
    pytest.fail(f"{what} has not come in {seconds} s")


def test_fifty_kills(tmp_path):
    began = time.monotonic()
    # Whose ledgers refuse a number that has been used.
    name = "flashe"
    scheme = fedcipher.scheme(name, clients=CLIENTS, codec=fedcipher.Codec(bits=16, clip=10.0))
    folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / "keys")
    out, draw, kills = tmp_path / "run", random.Random(1), 0
    pid = out.with_suffix(".pid")
    federation = Federation(tmp_path, CLIENTS)
    config = f"fedcipher-keys='{folder}' fedcipher-out='{out}' rounds={ROUNDS} clients={CLIENTS}"
    flwr = str(BIN / "flwr")
    command = [flwr, "run", str(APP), "here", "--run-config", config, "--format", "json"]

    def said(*arguments):
        done = subprocess.run(arguments, env=federation.programs.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def past():
        try:
            return read_journal(out)
        except errors.RunError:
            return None

    def ended():
        made = past()
        return made is not None and any(r.round == ROUNDS and r.number in made.ended for r in made.rounds)

    def changes():
        made = past()
        return 0 if made is None else len(made.rounds) + len(made.ended)

    try:
        while not ended():
            pid.unlink(missing_ok=True)
            run = str(json.loads(said(*command))["run-id"])
            process = int(until(lambda: pid.exists() and pid.read_text(), 120, f"the ServerApp\n{federation.logs()}"))
            if kills < KILLS:
                # Some time after it has begun or ended another round or two, on whatever machine.
                reached = changes() + draw.choice((0, 1, 1, 2, 3))
                until(lambda reached=reached: changes() >= reached or ended(), 120, f"a round\n{federation.logs()}")
                time.sleep(draw.uniform(0, 3))
                if not ended():
                    os.kill(process, 9)
                    kills += 1
                    # Else nodes first do what the dead run has asked for.
                    said(flwr, "stop", run, "here")
                continue
            until(ended, 1200, f"the end of the run\n{federation.logs()}")
        made = past()
    finally:
        federation.stop()
    good = [record for record in made.rounds if record.unfinished is None]
    print(f"{name}: {kills} kills, {len(made.rounds)} rounds asked for, {len(good)} ended")
    assert kills == KILLS
    assert [record.round for record in good] == list(range(1, ROUNDS + 1))
    numbers = [record.number for record in made.rounds]
    assert numbers == sorted(set(numbers))
    # A node that is still at what a dead run has asked for may miss a round: nothing else leaves anybody out.
    assert {c.left_out for record in good for c in record.clients} <= {None, "no answer when the round closed"}
    want = np.zeros(SHAPE)
    for record in good:
        senders = [client.client for client in record.clients if client.left_out is None]
        assert len(senders) == len(set(senders)) >= 2
        want = np.mean([0.5 * (want + goal(k) * (record.round % 7)) for k in senders], axis=0)
    # Half of an error goes on to the next round; a step of the codec is 2 x 10 / 2^16.
    (got,) = open_run(out, folder / "client-0.key").values()
    np.testing.assert_allclose(got, want, atol=2 * 20 / 2**16)
    lost = sum(client.left_out is not None for record in good for client in record.clients)
    counted(f"e2e-resume: {name}", ["ServerApp"] * kills, len(numbers), len(good), lost, time.monotonic() - began)
