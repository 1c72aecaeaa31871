"""`oneshot` on a SuperLink with twelve SuperNodes: `make e2e-oneshot`.

Three tenths of the uploads are lost, and a member's process dies each third round. The model must be, bit for bit, that
of `plain` with the same uploads lost. Minutes, so not part of the suite.
"""

import hashlib

import fedcipher
import pytest
from deployment_harness import Federation
from fedcipher import keys
from fedcipher.adapters.flower import open_run
from places import DATA, TESTS

CLIENTS, PER_ROUND, ROUNDS = 12, 4, 10
APP = TESTS / "e2e" / "committee_app"
# A round in which fewer than two uploads are left has no aggregate, under either scheme.
COMMON = {"clients": PER_ROUND, "min_contributions": 2, "codec": fedcipher.Codec(bits=12)}


def sha256(model):
    return hashlib.sha256(b"".join(values.tobytes() for values in model.values())).hexdigest()


def test_the_model_is_that_of_plain_with_the_same_survivors(tmp_path):
    if not (DATA / "mnist").is_dir():
        pytest.skip(f"no MNIST in {DATA}")
    federation = Federation(tmp_path, CLIENTS)
    try:
        found = {}
        for name, params in (("plain", {}), ("oneshot", {"corrupt_clients": 0, "corrupt_members": 0})):
            scheme = fedcipher.scheme(name, **COMMON, **params)
            folder = keys.save(scheme.keygen(CLIENTS), scheme, tmp_path / f"keys-{name}")
            config = {"fedcipher-keys": folder, "fedcipher-out": tmp_path / f"run-{name}", "data-dir": DATA / "mnist"}
            said = federation.run(APP, " ".join(f"{k}='{v}'" for k, v in config.items()), timeout=2400)
            assert said.count(": sum of ") >= ROUNDS // 2, said + federation.logs()
            model = open_run(tmp_path / f"run-{name}", folder / "client-11.key")
            found[name] = sha256(model), [line for line in said.splitlines() if line.startswith("round ")]
        print(found)
        assert found["plain"] == found["oneshot"], federation.logs()
    finally:
        federation.stop()
