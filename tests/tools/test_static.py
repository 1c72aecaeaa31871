"""The static builds of the engine run; the aarch64 one under user-mode emulation."""

import shutil
import subprocess

import fedcipher
import numpy as np
import pytest
from engine_harness import CODEC
from fedcipher.engine import connect
from fedcipher.engine.local import Service, await_address
from places import ROOT
from scheme_lists import adds, hides, in_core, one_key, schemes_that

TARGET = ROOT / "target"
BUILDS = {"x86_64-unknown-linux-musl": [], "aarch64-unknown-linux-musl": ["qemu-aarch64-static"]}


@pytest.mark.parametrize("triple", BUILDS)
@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds, in_core))
def test_a_static_engine_and_the_core_encrypt_and_decrypt_one_sum(triple, name, tmp_path, rng):
    program = TARGET / triple / "release" / "fedcipher-engine"
    emulator = [shutil.which(e) for e in BUILDS[triple]]
    if not program.exists():
        pytest.skip(f"no static build for {triple}; make engine-static")
    if None in emulator:
        pytest.skip(f"{BUILDS[triple][0]} is absent; install qemu-user-static")
    headers = subprocess.run(["readelf", "--program-headers", program], capture_output=True, text=True, check=True)
    assert "INTERP" not in headers.stdout, "it needs a dynamic loader"
    made = fedcipher.scheme(name, clients=2, codec=CODEC)
    issued = made.keygen(2)
    folder = fedcipher.keys.save(issued, made, tmp_path / "keys")
    command = [*emulator, program, "serve", "--listen", f"unix:{tmp_path / 'engine.sock'}", "--allow-swap"]
    command += ["--state", tmp_path / "state", "--key-file", folder / "client-0.key"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output, stderr=subprocess.STDOUT)
    service = Service(process, "", log)
    try:
        engine = connect(await_address(service))
        update = [rng.uniform(-1, 1, 70_000).astype(np.float32)]
        aggregator = made.aggregator(issued.server())
        other = [rng.uniform(-1, 1, 70_000).astype(np.float32)]
        aggregator.add(engine.encryptor().encrypt(update, round=1))
        aggregator.add(made.encryptor(issued.client(1)).encrypt(other, round=1))
        aggregate = aggregator.finish()
        ours = made.decryptor(issued.client(1)).decrypt(aggregate)
        theirs = engine.decryptor().decrypt(aggregate)
        assert np.array_equal(ours[0], theirs[0])
        assert np.abs(ours[0] - (update[0] + other[0]) / 2).max() < 1e-4
    finally:
        service.stop()
