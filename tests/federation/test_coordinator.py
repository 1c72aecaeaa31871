"""A charter that the coordinator has signed is accepted whatever it says, and no other one is for its signature."""

import base64
import json
import tracemalloc
from dataclasses import replace

import pytest
from attack_harness import ALL, CLIENTS, Federation, says_nothing
from fedcipher import cli, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.errors import KeyFormatError, ParameterError, RunError, StrategyError
from fedcipher.federation.policy import Policy
from fedcipher.federation.server.run_folder import read_run
from fedcipher.keys.roster import coordinator_of, look, new_identity, read_identity
from flower_harness import LocalGrid, initial, make_app, record
from flwr.serverapp.strategy import FedAvg

STRICT = {"fedcipher_policy": 1, "only_listed": True}


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Writes the policy of all sites."""
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDCIPHER_POLICY", str(tmp_path / "policy.json"))

    def write(**lines):
        (tmp_path / "policy.json").write_text(json.dumps({**STRICT, **lines}))

    write()
    return write


@pytest.fixture
def identity(tmp_path):
    secret, card = new_identity("coordinator", tmp_path)
    return read_identity(secret), coordinator_of(card)


def test_only_the_coordinators_signature_of_this_charter_is_taken(tmp_path, rng, policy, identity):
    coordinator, named = identity
    policy(coordinators=[named])
    federation = Federation(tmp_path, "flashe", rng, sites=True)
    charter = replace(federation.charter, sets_models=True, reader="server")
    other = replace(charter, run=charter.run + 1)
    stranger = read_identity(new_identity("stranger", tmp_path)[0])
    good, foreign = (party.sign_charter(charter.digest) for party in (coordinator, stranger))
    # An Ed25519 signature ends it; either half may be forged.
    false = [
        *(None, b"x", good[:-1], good + b"\0", bytes(64), good[-64:], good[:-64], bytes(len(good))),
        *(bytes([good[0] ^ 1]) + good[1:], good[:-1] + bytes([good[-1] ^ 1])),
        *(good[:-64] + foreign[-64:], foreign[:-64] + good[-64:]),
        *(coordinator.sign_charter(other.digest), foreign),
    ]
    for signature in false:
        settings = federation.settings(charter=charter, signature=signature, steps=0, last=None)
        assert says_nothing(federation.send(federation.content(settings)))
    reply = federation.send(federation.content(federation.settings(charter=charter, signature=good)))
    assert not reply.has_error()


@pytest.mark.parametrize("where", ["policy", "key"])
def test_a_run_waits_for_its_coordinator_and_then_goes_on(tmp_path, rng, policy, identity, where):
    coordinator, named = identity
    federation = Federation(tmp_path, "flashe", rng)
    folder = federation.folder
    if where == "policy":
        policy(coordinators=[named])
    else:
        made = federation.scheme.keygen(CLIENTS)
        folder = keys.save(made, federation.scheme, tmp_path / "signed", coordinator=named)
    grid = LocalGrid(make_app(federation.goals, [10] * CLIENTS, mods=(client_mod,)), CLIENTS, folder, sites=True)

    def start():
        strategy = SecureStrategy(FedAvg(**ALL), folder, out=tmp_path / "run", resume=True, signed_charter=True)
        strategy.start(grid, record(initial()), num_rounds=2)

    with pytest.raises(StrategyError, match=r"the coordinator must sign the charter .*`fedcipher charter .*run --sign"):
        start()
    assert not grid.sent
    signs = ["charter", str(tmp_path / "run"), "--sign", str(tmp_path / "coordinator.identity")]
    # Not without a look, and not another charter than that which was looked at.
    assert cli.main(signs) == cli.main([*signs, "--digest", "0" * 64]) == 2
    assert not (tmp_path / "run" / "charter.signature").exists()
    assert cli.main([*signs, "--digest", read_run(tmp_path / "run").charter.digest.hex()]) == 0
    start()
    assert open_run(tmp_path / "run", folder / "client-0.key").keys() == dict(record(initial())).keys()


def test_a_run_without_a_signature_is_refused_where_only_signed_ones_are_accepted(tmp_path, rng, policy, identity):
    policy(coordinators=[identity[1]])
    federation = Federation(tmp_path, "flashe", rng, sites=True)
    with pytest.raises(StrategyError, match="none of 1 rounds"):
        SecureStrategy(FedAvg(**ALL), federation.folder, out=tmp_path / "run").start(
            federation.grid, record(initial()), num_rounds=1
        )


def test_signed_charters_are_not_counted_among_the_sites_runs(tmp_path, rng, policy, identity):
    policy(only_listed=False, runs=1, coordinators=[identity[1]])
    federation = Federation(tmp_path, "flashe", rng, sites=True)

    def send(run, *, signed):
        charter = replace(federation.charter, run=run)
        signature = identity[0].sign_charter(charter.digest) if signed else None
        federation.number = federation.run = run
        return federation.send(federation.content(federation.settings(charter=charter, signature=signature)))

    first = federation.run + 1
    assert not send(first, signed=True).has_error() and not send(first + 100, signed=True).has_error()
    assert not send(first + 200, signed=False).has_error()
    assert says_nothing(send(first + 300, signed=False))
    assert not send(first + 400, signed=True).has_error()


def test_commands_name_the_coordinator_in_keys(tmp_path, policy, capsys):
    assert cli.main(["identity", "boss", "--out", str(tmp_path)]) == 0
    card = tmp_path / "boss.card"
    made = ["keygen", "--clients", "3", "--equal", "--coordinator", str(card), "--out", str(tmp_path / "keys")]
    assert cli.main(made) == 0
    named = json.loads(card.read_text())["verify"]
    assert keys.load_coordinator(tmp_path / "keys" / "client-2.key") == named == coordinator_of(card)
    assert cli.main(["identity", "anna", "--out", str(tmp_path)]) == 0
    assert cli.main(["identity", "otto", "--out", str(tmp_path)]) == 0
    assert cli.main(["identity", "hana", "--out", str(tmp_path)]) == 0
    cards = [str(tmp_path / f"{name}.card") for name in ("anna", "otto", "hana")]
    members = [part for name in ("anna", "otto", "hana") for part in ("--member", name)]
    roster = [
        "roster",
        *cards,
        *members,
        "--equal",
        "--set",
        "min_contributions=2",
        "--set",
        "corrupt_clients=0",
        "--set",
        "corrupt_members=0",
    ]
    assert cli.main([*roster, "--out", str(tmp_path / "server.key")]) == 0, capsys.readouterr().err
    expect = ["--expect", look(tmp_path / "server.key").fingerprint]
    joined = ["join", str(tmp_path / "anna.identity"), str(tmp_path / "server.key"), *expect]
    joined += ["--out", str(tmp_path / "a.key")]
    assert cli.main([*joined, "--coordinator", str(card)]) == 0
    assert keys.load_coordinator(tmp_path / "a.key") == named
    # Without a card, and with a file that is not a card.
    (tmp_path / "anna.joined").unlink()
    assert cli.main([*joined[:-1], str(tmp_path / "b.key")]) == 0 and not keys.load_coordinator(tmp_path / "b.key")
    assert cli.main([*joined[:-1], str(tmp_path / "c.key"), "--coordinator", str(tmp_path / "a.key")]) == 2
    assert "is not a card" in capsys.readouterr().err


def test_what_is_no_coordinator_and_no_signature_is_named(tmp_path, rng, policy, identity):
    curve = base64.b64encode(base64.b64decode(identity[1])[-32:]).decode()
    for wrong in ("", "x", "AAAA", identity[1][:-4], curve, "\x1b[31m"):
        with pytest.raises(ParameterError, match="is not a coordinator's key: use `verify`"):
            Policy(coordinators=(wrong,))
    policy(only_listed=False)
    federation = Federation(tmp_path, "flashe", rng, rounds=1)
    run = read_run(tmp_path / "run")
    assert run.signature == b""
    for length in (63, 64, 3372, 3374):
        (tmp_path / "run" / "charter.signature").write_bytes(bytes(length))
        assert cli.main(["charter", str(tmp_path / "run")]) == 2
    # A file of 256 MiB in the place of a signature is refused before it is read.
    with open(tmp_path / "run" / "charter.signature", "wb") as file:
        file.truncate(256 << 20)
    tracemalloc.start()
    with pytest.raises(RunError):
        _ = read_run(tmp_path / "run").signature
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    run.sign(identity[0])
    assert Policy(coordinators=(identity[1],)).vouched(federation.charter, run.signature)
    with pytest.raises(KeyFormatError, match="is not an identity"):
        read_identity(federation.folder / "client-0.key")
