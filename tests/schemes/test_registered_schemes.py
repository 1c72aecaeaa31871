"""A scheme of another package is one by being registered, and by nothing else."""

import importlib
import os
import subprocess
import sys

import fedcipher
import numpy as np
import page_code
import pytest
import wire_tools
from fedcipher import Codec, cli, errors, keys
from fedcipher.schemes import Scheme, SchemeInfo, register, registry, scheme_names
from fedcipher.schemes.base import NativeScheme
from fedcipher.schemes.bfv import Bfv
from fedcipher.schemes.flashe import Flashe
from fedcipher.schemes.oneshot import Oneshot
from fedcipher.schemes.pasta_bfv import PastaBfv
from fedcipher.schemes.plain import Plain

OURS = [cls.name for cls in (Plain, Flashe, Bfv, Oneshot, PastaBfv)]
BASELINES = ["paillier", "bfv-lib", "ckks", "tfhe"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A folder with the module `toy_scheme` of docs/contributor/add-a-scheme.md."""
    return page_code.written(page_code.SCHEME, tmp_path_factory.mktemp("page"))


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.delenv(registry.MODULES, raising=False)


@pytest.fixture
def toy(page, monkeypatch):
    """As in a program that imports the package of the scheme."""
    monkeypatch.syspath_prepend(page)
    return register(importlib.import_module("toy_scheme").Toy)


def test_the_product_has_its_own_schemes_and_no_baseline():
    assert scheme_names() == OURS
    for name in BASELINES:
        with pytest.raises(errors.ParameterError, match="set FEDCIPHER_SCHEMES to the module"):
            fedcipher.scheme(name, clients=3)


def test_what_is_installed_beside_it_is_no_scheme_by_that():
    """Where research is installed, `import fedcipher` and its command line load nothing of it."""
    code = "import sys, fedcipher, fedcipher.cli; fedcipher.cli.main(['schemes']); print([n for n in sys.modules if "
    code += "n.startswith(('fedcipher_research', 'tenseal', 'phe', 'gmpy2'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_registered_scheme_makes_rounds_from_key_files(toy, tmp_path):
    assert scheme_names() == [*OURS, "toy"] and register(toy) is toy
    scheme = fedcipher.scheme("toy", clients=3, codec=Codec(bits=12, clip=1.0))
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    again, server = keys.load_server(folder)
    aggregator = again.aggregator(server)
    for k in range(3):
        _, key = keys.load_client(folder / f"client-{k}.key")
        aggregator.add(again.encryptor(key).encrypt([np.full(4, 0.25 * k, np.float32)], round=1))
    aggregate = aggregator.finish()
    np.testing.assert_allclose(again.decryptor(key).decrypt(aggregate, round=1)[0], 0.25, atol=1e-3)
    # The first value's lowest bit, behind a nonce of each client.
    forged = wire_tools.with_flip(aggregate, wire_tools.payload_start(aggregate) + 3 * 16, 1)
    with pytest.raises(errors.ForgedAggregateError):
        again.decryptor(keys.load_client(folder / "client-0.key")[1]).decrypt(forged, round=1)


def test_its_keys_are_refused_where_nobody_registers_it(toy, tmp_path, monkeypatch):
    scheme = fedcipher.scheme("toy", clients=3)
    folder = keys.save(scheme.keygen(3), scheme, tmp_path / "keys")
    monkeypatch.setattr(registry, "_registered", {})
    for load, name in ((keys.load_server, "server.key"), (keys.load_client, "client-0.key")):
        with pytest.raises(errors.KeyFormatError, match=r"'toy', which is not known here; .*FEDCIPHER_SCHEMES"):
            load(folder / name)


def started(page, *line, **environment):
    path = os.pathsep.join([str(page), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, "-m", "fedcipher.cli", *map(str, line)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_variable_makes_it_known_to_a_program_and_to_those_that_it_starts(page, tmp_path):
    keygen = ["keygen", "--scheme", "toy", "--clients", 3, "--equal", "--out", tmp_path / "keys"]
    refused = started(page, *keygen)
    assert refused.returncode == 2 and "'toy' is not one of" in refused.stderr and "FEDCIPHER_SCHEMES" in refused.stderr
    assert started(page, *keygen, FEDCIPHER_SCHEMES="toy_scheme").returncode == 0
    few = ["--schemes", "toy", "--runs", 1, "--values", 100, "--clients", 3, "--out", tmp_path / "round"]
    measured = started(page, "bench", "round", *few, FEDCIPHER_SCHEMES="toy_scheme")
    assert measured.returncode == 0, measured.stderr


@pytest.mark.parametrize("named", ["no_such_module", ".relative", "toy_scheme;toy_scheme", "a b"])
def test_a_variable_that_names_no_module_is_said(named, monkeypatch, capsys):
    monkeypatch.setenv(registry.MODULES, named)
    assert cli.main(["schemes"]) == 2
    said = capsys.readouterr().err
    assert "FEDCIPHER_SCHEMES names" in said and said.count("\n") == 1


class Unnamed(NativeScheme):
    """Without what a scheme is chosen by."""


INFO = SchemeInfo("", "", "", "", "")


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (object, "not a concrete scheme class"),
        ("toy", "not a concrete scheme class"),
        (Scheme, "not a concrete scheme class"),
        (Unnamed, "needs a name"),
        (type("Loud", (Unnamed,), {"name": "LOUD", "info": INFO}), "needs a name"),
        (type("Long", (Unnamed,), {"name": "x" * 17, "info": INFO}), "needs a name"),
        (type("Silent", (Unnamed,), {"name": "silent", "info": "nothing"}), "needs a name"),
        (type("Other", (Unnamed,), {"name": "bfv", "info": INFO}), "another scheme has the name"),
    ],
)
def test_what_is_no_scheme_or_takes_anothers_name_is_not_registered(cls, said):
    with pytest.raises(errors.ParameterError, match=said):
        register(cls)
    assert scheme_names() == OURS
