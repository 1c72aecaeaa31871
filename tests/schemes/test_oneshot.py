"""Rounds without any shared key: what the parties of Flower's messages see, and what happens when some are away."""

import base64
import contextlib
import io
import itertools
import json
import re
import shutil
import struct
import subprocess
from dataclasses import replace

import fedcipher
import hybrid_reference
import numpy as np
import pytest
import wire_tools
import xwing_reference
from fedcipher import _native, cli, errors, keys
from fedcipher.adapters.flower import SecureStrategy, client_mod, open_run
from fedcipher.federation import messages as protocol
from fedcipher.federation.server import committee
from fedcipher.federation.server import polling as replies
from fedcipher.federation.server.journal import read_journal
from fedcipher.federation.server.model import ServerModel
from fedcipher.federation.server.run_folder import RunFolder
from fedcipher.frame import inspect
from fedcipher.keys.roster import add_joined, expected, fingerprint_of, join, look, make, new_identity, read_card
from fedcipher.schemes import base
from fedcipher.schemes.oneshot import Card, Party, roster
from flower_harness import LocalGrid, initial, make_app, record, reference_of, wire_record
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi
from places import ROOT

CLIENTS = 6
ALL = {"min_train_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS, "min_available_nodes": CLIENTS}
CODEC = fedcipher.Codec(bits=16, clip=2.0)
UPDATE = [np.array([0.5, -1.0, 0.25], np.float32), np.array(1.5, np.float32)]


def made(**params):
    return fedcipher.scheme("oneshot", clients=CLIENTS, preset="fast", codec=CODEC, **params)


class Federation:
    def __init__(self, folder, rng, tamper=None, inner=None, mods=None, **params):
        self.scheme = made(**params)
        self.keys = keys.save(self.scheme.keygen(CLIENTS), self.scheme, folder / "keys")
        self.goals = [[rng.normal(0, 0.3, a.shape).astype(np.float32) for a in initial()] for _ in range(CLIENTS)]
        app = make_app(self.goals, [10] * CLIENTS, **({} if mods is None else {"mods": mods}))
        self.grid = LocalGrid(app, CLIENTS, self.keys, tamper)
        out = {} if (self.scheme.committee and self.scheme.committee.reveals_to_server) else {"out": folder / "run"}
        self.strategy = SecureStrategy(inner or FedAvg(**ALL), self.keys, committee_timeout=5, may_lose=2, **out)

    def start(self, rounds, **options):
        return self.strategy.start(self.grid, record(initial()), num_rounds=rounds, **options)

    def key(self, party):
        return keys.load_client(self.keys / f"client-{party}.key")[1]

    def expected(self, senders):
        """The model after rounds of these clients, without encryption."""
        model = initial()
        for clients in senders:
            moved = [[0.5 * (a + t) for a, t in zip(model, self.goals[k], strict=True)] for k in clients]
            model = [np.mean([m[k] for m in moved], axis=0) for k in range(len(model))]
        return model


def close(got, want, rounds):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=rounds * 4 / 2**16)


def query(content):
    return Message(RecordDict(content), dst_node_id=1000, message_type="train")


def asks_member(sent):
    return "fedcipher.committee" in sent.content


def test_who_is_away_costs_its_own_update_only(tmp_path, rng):
    """Clients drop out at random after training, a member each third round; the sum is that of who is left."""
    state = {"round": 0}
    lost = [set(rng.choice(CLIENTS, 2, replace=False)) for _ in range(6)]

    def tamper(sent, reply, client):
        if asks_member(sent):
            return None if state["round"] % 3 == 0 and client == 1 else reply
        if sent.metadata.message_type == "train":
            state["round"] = sent.content["config"]["server-round"]
            return None if client in lost[state["round"] - 1] else reply
        return reply

    federation = Federation(tmp_path, rng, tamper)
    federation.start(6)
    assert [r.unfinished for r in federation.strategy.rounds] == [None] * 6
    senders = [[k for k in range(CLIENTS) if k not in away] for away in lost]
    opened = open_run(tmp_path / "run", federation.keys / "client-5.key")
    close(opened.values(), federation.expected(senders), 6)


def test_without_enough_members_the_round_has_no_aggregate_and_says_who_is_missing(tmp_path, rng):
    federation = Federation(
        tmp_path, rng, lambda sent, reply, client: None if asks_member(sent) and client in {0, 3} else reply
    )
    with pytest.raises(errors.StrategyError, match=r"3 of 5 members.*1 more must; missing: \[0, 3\]"):
        federation.start(1)


def test_the_server_opens_nothing_where_clients_read(tmp_path, rng):
    federation = Federation(tmp_path, rng)
    federation.start(1)
    _, server = keys.load_server(federation.keys)
    with pytest.raises(errors.UnsupportedError, match='reveal="server"'):
        federation.scheme.committee.server_decryptor(server)


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedYogi, FedAdagrad, FedAvgM])
def test_a_server_that_may_see_the_mean_optimises_it(tmp_path, rng, inner):
    """As in any Flower app: plaintext in evaluate_fn, in Result.arrays, and the strategy's own step."""
    own = {"server_momentum": 0.9} if inner is FedAvgM else {} if inner is FedAvg else {"tau": 0.1}
    federation = Federation(tmp_path, rng, inner=inner(**ALL, **own), reveal="server")
    seen = []
    result = federation.start(3, evaluate_fn=lambda number, arrays: seen.append(arrays.to_numpy_ndarrays()))
    clear = inner(**ALL, **own)
    grid = LocalGrid(make_app(federation.goals, [10] * CLIENTS, mods=()), CLIENTS, federation.keys)
    wanted = clear.start(grid, record(initial()), num_rounds=3)
    for got, want in zip(result.arrays.to_numpy_ndarrays(), wanted.arrays.to_numpy_ndarrays(), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-3)
    assert len(seen) == 4
    np.testing.assert_array_equal(seen[-1][0], result.arrays.to_numpy_ndarrays()[0])


def test_strategies_that_look_at_single_updates_are_refused_by_name(tmp_path, rng):
    with pytest.raises(errors.StrategyError, match="FedMedian"):
        Federation(tmp_path, rng, inner=FedMedian(**ALL), reveal="server").start(1)


def test_a_node_is_sent_its_own_keys_and_not_all_readers(tmp_path, rng):
    federation = Federation(tmp_path, rng)
    federation.start(2)
    brought = [a for _, c in federation.grid.sent if "arrays" in c for k, a in c["arrays"].items() if "aggregate" in k]
    frame = federation.strategy.run.model.folder.step(1)[0]
    # Five members' keys for five other readers, each of more than a kilobyte.
    assert brought and max(len(array.data) for array in brought) < len(frame) - 5 * 5 * 1024


def test_a_member_answers_nothing_but_requests(tmp_path, rng, caplog):
    federation = Federation(tmp_path, rng)
    federation.start(1)
    context = federation.grid.contexts[1000]
    for content in (
        {},
        {"fedcipher.committee": ArrayRecord({"x": Array(np.zeros(3))})},
        {"fedcipher.committee": wire_record({"fedcipher.request": b"FEDC"})},
        {"arrays": record(initial())},
    ):
        reply = federation.grid.app(query(content), context)
        assert reference_of(reply) is not None, content
    reply = federation.grid.app(query({"fedcipher.committee": ConfigRecord({"who": 1})}), context)
    told = dict(reply.content["fedcipher.committee"])
    assert told.pop("party") == 0 and set(told) == {"prekey"}
    aggregator = federation.scheme.aggregator(keys.load_server(federation.keys)[1])
    assert aggregator.committee.take_prekeys([told["prekey"]]) == []


def test_parties_of_a_roster_make_a_round_without_anybody_holding_all_keys():
    """Three clients, three outside members, one auditor that only reads."""
    scheme = fedcipher.scheme(
        "oneshot",
        clients=3,
        members=3,
        threshold=2,
        corrupt_clients=0,
        corrupt_members=0,
        min_contributions=2,
        codec=CODEC,
        preset="fast",
    )
    parties = [Party(k, f"hospital-{k}", reader=False) for k in range(3)]
    parties += [Party(10 + k, f"notary-{k}", client=False, member=True, reader=False) for k in range(3)]
    parties += [Party(20, "auditor", client=False)]
    identities = {party.id: _native.Identity.generate() for party in parties}
    listed = roster([Card.of(identities[party.id], party) for party in parties])
    assert _native.Roster.from_bytes(listed.to_bytes()).parties() == listed.parties()
    key = {party: scheme.committee.join(listed, identity) for party, identity in identities.items()}
    assert {k.client for k in key.values()} == set(identities)
    all_keys = base.KeySet({k.client: k for k in key.values()}, scheme.committee.roster_key(listed))
    aggregator = scheme.aggregator(all_keys.server(), round=1)
    for client in range(3):
        aggregator.add(wire_tools.encryptor(scheme, all_keys, client).encrypt(UPDATE, round=1))
    for member, request in itertools.islice(aggregator.committee.requests().items(), 2):
        assert aggregator.committee.answer(scheme.committee.member(key[member]).answer(request)) == member
    (values, scalar) = scheme.decryptor(key[20]).decrypt(aggregator.finish(), round=1)
    np.testing.assert_allclose(values, UPDATE[0], atol=1e-3)
    assert scalar.shape == ()
    for role, party in (("client", 10), ("reader", 0), ("member", 20)):
        make = {"client": scheme.encryptor, "reader": scheme.decryptor, "member": scheme.committee.member}[role]
        with pytest.raises(errors.KeyFormatError, match=f"party {party} of the roster is not a {role}"):
            make(key[party])
    with pytest.raises(errors.ParameterError, match="this identity is not in it"):
        scheme.committee.join(listed, _native.Identity.generate())


def test_rosters_that_cannot_be_are_refused_by_name():
    identities = [_native.Identity.generate() for _ in range(2)]
    cards = [Card.of(identity, Party(k, "same")) for k, identity in enumerate(identities)]
    with pytest.raises(errors.ParameterError, match='two parties are called "same"'):
        roster(cards)
    with pytest.raises(errors.ParameterError, match="number 0 is given to two parties"):
        roster([Card.of(i, Party(0, name)) for i, name in zip(identities, "ab", strict=True)])
    with pytest.raises(errors.ParameterError, match="has the keys of another party"):
        roster([Card.of(identities[0], Party(k, name)) for k, name in enumerate("ab")])
    (verify, sealing), (other, others) = (identity.public() for identity in identities)
    for short in (b"short", verify[:-1], verify[-32:], verify + b"\0"):
        with pytest.raises(errors.ParameterError, match='"a" has no key to check signatures with'):
            roster([Card(Party(0, "a"), short, sealing)])
    with pytest.raises(errors.KeyFormatError):
        roster([Card(Party(0, "a"), verify, b"short")])
    # Either half of what signs is enough, and what is sealed to.
    for keys_of_b in ((verify[:-32] + other[-32:], others), (other[:-32] + verify[-32:], others), (other, sealing)):
        with pytest.raises(errors.ParameterError, match='"b" has the keys of another party'):
            roster([Card(Party(0, "a"), verify, sealing), Card(Party(1, "b"), *keys_of_b)])
    with pytest.raises(errors.ParameterError, match=r"2 members, the scheme 5"):
        made().committee.roster_key(
            roster([Card.of(i, Party(k, str(k), member=True)) for k, i in enumerate(identities)])
        )
    for damaged in (b"", b"FEDROST3", roster([cards[0]]).to_bytes()[:-1], roster([cards[0]]).to_bytes() + b"x"):
        with pytest.raises(errors.ParameterError):
            _native.Roster.from_bytes(damaged)


def test_an_older_key_set_of_the_same_identities_is_another_roster(rng):
    scheme = made()
    sets = [scheme.keygen(CLIENTS) for _ in range(2)]
    aggregator = scheme.aggregator(sets[0].server(), round=1)
    with pytest.raises(errors.WrongEpochError):
        aggregator.add(wire_tools.encryptor(scheme, sets[1], 0).encrypt(UPDATE, round=1))


def run(*arguments, capsys, status=0):
    assert cli.main([str(a) for a in arguments]) == status
    said = capsys.readouterr()
    return said.out if status == 0 else said.err


def test_from_identities_to_a_round_with_commands(tmp_path, capsys):
    """Each party on its own machine: only cards and the roster are passed on."""
    for name in ("ada", "bob", "cid", "dot"):
        run("identity", name, "--out", tmp_path / name, capsys=capsys)
    cards = [tmp_path / name / f"{name}.card" for name in ("ada", "bob", "cid", "dot")]
    out = tmp_path / "server.key"
    members = [part for name in ("ada", "bob", "cid") for part in ("--member", name)]
    options = [
        "--equal",
        *members,
        "--no-updates",
        "dot",
        "--set",
        "corrupt_clients=0",
        "--set",
        "corrupt_members=0",
        "--set",
        "min_contributions=2",
    ]
    said = run("roster", *cards, *options, "--bits", 16, "--clip", 2, "--out", out, capsys=capsys)
    fingerprint = said.rpartition("fingerprint ")[2].strip()
    for name in ("ada", "bob", "cid", "dot"):
        own, key = tmp_path / name / f"{name}.identity", tmp_path / name / "my.key"
        joined = run("join", own, out, "--out", key, "--expect", fingerprint, capsys=capsys)
        assert f"the key of {name}" in joined and fingerprint in joined
    for name in ("ada", "bob", "cid"):
        said = run("joined", tmp_path / name / "my.key", *tmp_path.glob("*/*.joined"), capsys=capsys)
        assert said.startswith("4 of 4 parties have joined") and "no party encrypts" not in said
    run("roster", "--check", out, "--joined", *tmp_path.glob("*/*.joined"), capsys=capsys)
    key = {name: keys.load_client(tmp_path / name / "my.key") for name in ("ada", "bob", "cid", "dot")}
    scheme, server = keys.load_server(out)
    all_keys = base.KeySet({k.client: k for _, k in key.values()}, server)
    aggregator = scheme.aggregator(server, round=1)
    for name in ("ada", "bob", "cid"):
        own, mine = key[name]
        aggregator.add(wire_tools.encryptor(own, all_keys, mine.client).encrypt(UPDATE, round=1))
    for member, request in aggregator.committee.requests().items():
        (holder,) = [k for _, k in key.values() if k.client == member]
        aggregator.committee.answer(scheme.committee.member(holder).answer(request))
    (values, _) = key["dot"][0].decryptor(key["dot"][1]).decrypt(aggregator.finish(), round=1)
    np.testing.assert_allclose(values, UPDATE[0], atol=1e-3)
    # An identity that has signed a roster signs no other by accident.
    own, second = tmp_path / "ada" / "ada.identity", tmp_path / "ada" / "second.key"
    said = run("join", own, out, "--out", second, "--expect", fingerprint, capsys=capsys, status=2)
    assert "ada.joined exists" in said and not second.exists()


def test_what_goes_wrong_with_identities_is_said(tmp_path, capsys):
    run("identity", "ada", "--out", tmp_path, capsys=capsys)
    assert (tmp_path / "ada.identity").stat().st_mode & 0o077 == 0
    assert "ada.identity exists" in run("identity", "ada", "--out", tmp_path, capsys=capsys, status=2)
    assert "not a name for a party" in run("identity", "a/b", "--out", tmp_path, capsys=capsys, status=2)
    options = [
        "--equal",
        "--per-round",
        3,
        "--set",
        "members=1",
        "--set",
        "corrupt_clients=0",
        "--set",
        "corrupt_members=0",
        "--out",
        tmp_path / "k",
    ]
    cards = [tmp_path / "ada.card", *cards_of(("bob", "cid"), tmp_path)]
    refused = run("roster", tmp_path / "ada.identity", *cards[1:], *options, capsys=capsys, status=2)
    assert "keep NAME.identity" in refused
    refused = run("roster", *cards, "--member", "eve", *options, capsys=capsys, status=2)
    assert "no card of eve" in refused
    shared = fedcipher.scheme("flashe", clients=3)
    made = keys.save(shared.keygen(3), shared, tmp_path / "shared")
    command = ["join", tmp_path / "ada.identity", made / "server.key", "--out", tmp_path / "x.key"]
    assert "holds no roster" in run(*command, capsys=capsys, status=2)
    (tmp_path / "ada.identity").chmod(0o644)
    assert "chmod 600" in run(*command, capsys=capsys, status=2)


def cards_of(names, folder):
    """Files of their identities in ``folder``."""
    return [new_identity(name, folder)[1] for name in names]


def a_roster(cards, folder, corrupt_members=1, **options):
    """Of these cards, with the first three as the committee; its file and who is in it."""
    few = fedcipher.scheme(
        "oneshot",
        clients=len(cards),
        members=3,
        corrupt_clients=1,
        corrupt_members=corrupt_members,
        min_contributions=3,
        codec=CODEC,
        preset="fast",
    )
    members = [read_card(card)[0] for card in cards[:3]]
    folder.mkdir()
    return make(cards, few, folder / "server.key", members=members, **options)


NAMES = ("ada", "bob", "cid", "dot")


def test_attack_27_who_joins_is_shown_every_party_and_accepts_the_list(tmp_path, capsys, monkeypatch):
    """A made-up party is in the list; without a look, or another's fingerprint, nobody joins."""
    cards = cards_of((*NAMES, "mallory"), tmp_path)
    out, listed = a_roster(cards, tmp_path / "r")
    command = ["join", tmp_path / "dot.identity", out, "--out", tmp_path / "dot.key"]
    said = run(*command, capsys=capsys, status=2)
    assert "are not confirmed" in said and f"--expect {listed.fingerprint}" in said
    for answer in ("", "y\n", "4\n"):
        monkeypatch.setattr("sys.stdin", Typed(answer))
        assert "not confirmed" in run(*command, capsys=capsys, status=2)
    assert not (tmp_path / "dot.key").exists()
    monkeypatch.setattr("sys.stdin", Typed("5\n"))
    said = run(*command, capsys=capsys)
    assert "5 parties: 5 clients, 3 members, 5 readers" in said
    assert f"4: mallory (client, reader), keys {fingerprint_of(*read_card(cards[4])[1:])}" in said
    assert f"0: ada (client, member, reader), keys {fingerprint_of(*read_card(cards[0])[1:])}" in said
    assert look(tmp_path / "dot.key") == look(out) == listed
    assert look(tmp_path / "dot.key").joined == {3}


class Typed(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self):
        return True


def test_attack_27_a_roster_with_an_exchanged_member_has_another_fingerprint(tmp_path, capsys):
    """The server passes on a roster with a member's keys, a role, or a parameter of its own."""
    cards = cards_of(NAMES, tmp_path)
    _, listed = a_roster(cards, tmp_path / "r")
    evil = cards_of(["cid"], tmp_path / "evil")
    others = [
        a_roster([*cards[:2], *evil, cards[3]], tmp_path / "exchanged"),
        a_roster(cards, tmp_path / "blind", no_decrypt=["ada"]),
        a_roster(cards, tmp_path / "epoch", epoch=2),
        a_roster(cards, tmp_path / "again"),
    ]
    assert len({shown.fingerprint for _, shown in others} | {listed.fingerprint}) == 5
    for path, shown in others:
        command = ["join", tmp_path / "dot.identity", path, "--out", tmp_path / "dot.key", "--expect"]
        refused = run(*command, listed.fingerprint, capsys=capsys, status=2)
        assert shown.fingerprint in refused and listed.fingerprint in refused
        with pytest.raises(errors.WrongRosterError):
            join(tmp_path / "dot.identity", path, tmp_path / "dot.key", accept=expected(listed.fingerprint))
    assert not (tmp_path / "dot.key").exists()


def test_a_fingerprint_is_taken_whole_with_or_without_separators(tmp_path):
    _, listed = a_roster(cards_of(NAMES, tmp_path), tmp_path / "r")
    whole = listed.fingerprint
    assert len(whole.replace("-", "")) == 64
    for same in (whole, whole.replace("-", ""), whole.replace("-", " ").upper(), whole.replace("-", ":")):
        listed.expect(same)
    for no in (whole[:-1], whole[:32], "", f"{whole}0", "g" * 64):
        with pytest.raises(errors.ParameterError, match="is not a fingerprint"):
            listed.expect(no)


def test_rosters_that_nobody_should_join_are_named(tmp_path):
    for names, why in (
        (("ada", "bob", "cid", "Ada"), "name looks like"),
        (("ada", "bob", "cid", "ada "), "not a name that people can read"),
        (("ada", "bob", "cid"), ""),
    ):
        cards = cards_of(names, tmp_path / why)
        if why:
            with pytest.raises(errors.ParameterError, match=why):
                a_roster(cards, tmp_path / why / "r")
        else:
            with pytest.raises(errors.ParameterError, match="2 clients, and a sum needs 3"):
                a_roster(cards, tmp_path / "r", no_updates=["ada"])


def test_a_roster_is_checked_by_everybody_who_has_it(tmp_path, capsys):
    """By the server's file, and by a party's own key file; what is wrong is said, and the status is not 0."""
    cards = cards_of(NAMES, tmp_path)
    out, listed = a_roster(cards, tmp_path / "r")
    accept = expected(listed.fingerprint)
    join(tmp_path / "ada.identity", out, tmp_path / "ada.key", accept=accept, trusts_maker=True)
    for file in (out, out.parent, tmp_path / "ada.key"):
        assert run("roster", "--check", file, capsys=capsys).splitlines() == listed.lines()
        run("roster", "--check", file, "--expect", listed.fingerprint, capsys=capsys)
        refused = run("roster", "--check", file, "--expect", "0" * 64, capsys=capsys, status=2)
        assert listed.fingerprint in refused and "0000-0000" in refused
    assert "does not make one" in run("roster", *cards, "--check", out, capsys=capsys, status=2)
    assert "give cards" in run("roster", "--out", tmp_path / "x", capsys=capsys, status=2)
    assert "not a key file" in run("roster", "--check", cards[0], capsys=capsys, status=2)
    # The roster of another maker, in the file of this one.
    whole, other = out.read_bytes(), a_roster(cards, tmp_path / "other")[0].read_bytes()
    for damaged in (whole[:-1], whole.partition(b"\n")[0] + b"\n" + other.partition(b"\n")[2][:-9], b"", b"\0" * 99):
        (tmp_path / "damaged").write_bytes(damaged)
        run("roster", "--check", tmp_path / "damaged", capsys=capsys, status=2)


def test_what_a_maker_of_its_own_program_puts_into_a_roster_is_found(tmp_path, capsys):
    """Names that forge lines or look alike, and too few clients: listed, refused, and escaped."""
    own = [_native.Identity.generate() for _ in range(4)]
    for names, silent, why in (
        (("ada", "bob", "cid", "d\u202eto"), (), "not a name that people can read"),
        (("ada", "bob", "cid", "\uff41da"), (), "name looks like"),
        (NAMES, (0, 1), "2 clients, and a sum needs 3"),
    ):
        parties = [Party(k, name, client=k not in silent, member=k < 3) for k, name in enumerate(names)]
        listed = roster([Card.of(i, party) for i, party in zip(own, parties, strict=True)])
        few = fedcipher.scheme("oneshot", clients=4, members=3, min_contributions=3, codec=CODEC, preset="fast")
        path = tmp_path / f"{why}.key"
        keys.store.save_server(few.committee.roster_key(listed), few, path)
        assert cli.main(["roster", "--check", str(path)]) == 1
        said = capsys.readouterr()
        assert why in said.err and "\u202e" not in said.out + said.err
        secret = tmp_path / f"{why}.identity"
        secret.write_bytes(b'{"fedcipher": 1, "role": "identity", "name": "ada"}\n' + own[0].to_bytes())
        secret.chmod(0o600)
        with pytest.raises(errors.WrongRosterError, match="do not join this roster"):
            join(secret, path, tmp_path / "never.key", accept=lambda listed: None)


def all_join(names, path, listed, folder):
    """Key file and signature of each."""
    folder.mkdir()
    accept = expected(listed.fingerprint)
    made = {}
    for name in names:
        identity = folder.parent / f"{name}.identity"
        made[name] = join(identity, path, folder / f"{name}.key", accept=accept)[:2]
    return made


def encrypts(key_file):
    scheme, key = keys.load_client(key_file)
    encryptor = scheme.encryptor(key)
    members = [keys.load_client(key_file.parent / f"site-{k}.key")[1] for k in range(3)]
    wire_tools.take_prekeys(encryptor, [scheme.committee.member(member).prekey() for member in members])
    return len(encryptor.encrypt(UPDATE, round=1)) > 0


def test_attack_27_two_rosters_of_one_maker_get_nobody_to_encrypt(tmp_path):
    """Half of the clients are in each, beside the same committee, one member of which signs both."""
    names = [f"site-{k}" for k in range(8)]
    cards = cards_of(names, tmp_path)
    halves, made = (names[:4], names[4:]), []
    for k, half in enumerate(halves):
        # Other epochs, so that both list all eight.
        path, listed = a_roster(cards, tmp_path / f"r{k}", epoch=k + 1)
        made.append(all_join([*half, *(["site-0"] if k else [])], path, listed, tmp_path / f"k{k}"))
    for mine, other in (made, reversed(made)):
        files = [signed for _, signed in mine.values()]
        for key_file, _ in mine.values():
            with pytest.raises(errors.NotJoinedError):
                encrypts(key_file)
            listed = add_joined(key_file, files)
            assert listed.lacking(listed.joined)
            with pytest.raises(errors.NotJoinedError, match=r"clients where 5 must|without members"):
                encrypts(key_file)
            with pytest.raises(errors.WrongRosterError, match="ask the party which roster"):
                add_joined(key_file, [signed for _, signed in other.values()])


def test_corrupt_is_two_parameters_and_says_so():
    with pytest.raises(errors.ParameterError, match=r"no parameter corrupt: give corrupt_clients .* corrupt_members"):
        made(corrupt=1)
    assert made().params()["corrupt_clients"] == made().params()["corrupt_members"] == 1
    # Five members, of which two may lie, need four; six clients, of which two may lie, too.
    assert made(corrupt_members=2).params()["threshold"] == 4
    assert made(corrupt_members=2).min_contributions == 3
    assert made(corrupt_clients=2).min_contributions == 4
    with pytest.raises(errors.ParameterError, match=r"min_contributions.*3 with corrupt_clients=2 .*take 4"):
        made(corrupt_clients=2, corrupt_members=0, min_contributions=3)
    with pytest.raises(
        errors.ParameterError, match=r"3 of 5 members with corrupt_members=1 .*take members=5, threshold=4"
    ):
        made(corrupt_clients=0, threshold=3)


def test_how_many_clients_must_join_follows_from_the_clients_that_may_lie(tmp_path):
    """Of five clients with one that may lie: four. No member may lie, with which it would be three."""
    names = [f"site-{k}" for k in range(5)]
    path, listed = a_roster(cards_of(names, tmp_path), tmp_path / "r", corrupt_members=0)
    made = all_join(names, path, listed, tmp_path / "k")
    signed = [file for _, file in made.values()]
    key = made["site-0"][0]
    add_joined(key, signed[:3])
    assert look(path).lacking({0, 1, 2}) == "1 more clients"
    with pytest.raises(errors.NotJoinedError, match='3 of 5 clients where 4 must, without "site-3", "site-4"'):
        encrypts(key)
    add_joined(key, signed[3:4])
    assert encrypts(key)


def test_a_party_encrypts_when_all_members_and_most_clients_have_joined(tmp_path, capsys):
    """Of six clients with one corrupt: four, and each of the three members; what is lacking is said by name."""
    names = [f"site-{k}" for k in range(6)]
    path, listed = a_roster(cards_of(names, tmp_path), tmp_path / "r")
    made = all_join(names, path, listed, tmp_path / "k")
    signed = {name: file for name, (_, file) in made.items()}
    key = made["site-5"][0]
    with pytest.raises(errors.NotJoinedError, match='without members "site-0", "site-1", "site-2"; 1 of 6 clients'):
        encrypts(key)
    add_joined(key, [signed[name] for name in names[1:]])
    with pytest.raises(errors.NotJoinedError, match='without members "site-0"; get their'):
        encrypts(key)
    check = ["roster", "--check", path, "--joined"]
    assert cli.main([*map(str, [*check, *list(signed.values())[1:]])]) == 1
    assert "no party encrypts before these have joined: members site-0" in capsys.readouterr().err
    add_joined(key, [signed["site-0"]])
    assert encrypts(key)
    # All members, and three of six clients; then four.
    key = made["site-2"][0]
    said = run("joined", key, signed["site-0"], signed["site-1"], capsys=capsys)
    assert "no party encrypts before these have joined: 1 more clients" in said
    with pytest.raises(errors.NotJoinedError, match='3 of 6 clients where 4 must, without "site-3", "site-4"'):
        encrypts(key)
    run("joined", key, signed["site-4"], capsys=capsys)
    assert encrypts(key)
    # The same key still, whose ledger knows the round.
    run("joined", key, signed["site-5"], capsys=capsys)
    with pytest.raises(errors.NonceReuseError):
        encrypts(key)
    run(*check, *signed.values(), capsys=capsys)
    assert "5 of 6 parties have joined" in run("roster", "--check", key, capsys=capsys)
    with pytest.raises(errors.KeyFormatError, match="has already joined a roster"):
        join(tmp_path / "site-1.identity", path, tmp_path / "k" / "again.key", accept=lambda listed: None)
    assert not (tmp_path / "k" / "again.key").exists()


def test_signatures_of_others_and_of_other_purposes_are_refused(tmp_path):
    path, listed = a_roster(cards_of(NAMES, tmp_path), tmp_path / "r")
    made = all_join(NAMES, path, listed, tmp_path / "k")
    key, signed = made["dot"]
    before, whole = key.read_bytes(), json.loads(signed.read_text())
    charter = _native.Identity.from_bytes((tmp_path / "dot.identity").read_bytes().partition(b"\n")[2])
    other = base64.b64encode(charter.sign_charter(listed.digest)).decode()
    wrong = tmp_path / "wrong.joined"
    for change, error in (
        ({"party": 0}, errors.SignatureError),
        ({"party": 9}, errors.SignatureError),
        ({"signature": other}, errors.SignatureError),
        ({"roster": "0" * 64}, errors.WrongRosterError),
        ({"roster": 3}, errors.KeyFormatError),
        ({"party": True}, errors.KeyFormatError),
        ({"party": 1 << 40}, errors.KeyFormatError),
        ({"signature": "AAAA"}, errors.KeyFormatError),
        ({"role": "card"}, errors.KeyFormatError),
    ):
        wrong.write_text(json.dumps({**whole, **change}))
        with pytest.raises(error):
            add_joined(key, [made["ada"][1], wrong])
    assert key.read_bytes() == before


def test_parties_sign_as_a_second_implementation_does():
    """By the bytes of an identity: its public key, and what it signs; either half of another's is refused."""
    identity, other = (_native.Identity.generate() for _ in range(2))
    public, digest, domain = identity.public()[0], bytes(range(32)), b"fedcipher charter 1\0"
    key = hybrid_reference.SigningKey(identity.to_bytes()[:32])
    assert key.public == public and len(public) == 1984
    for signature in (identity.sign_charter(digest), key.sign(domain, digest)):
        assert len(signature) == 3373 and hybrid_reference.holds(public, domain, digest, signature)
        assert _native.charter_signature_holds(public, digest, signature)
        foreign = other.sign_charter(digest)
        for mixed in (signature[:3309] + foreign[3309:], foreign[:3309] + signature[3309:]):
            assert not hybrid_reference.holds(public, domain, digest, mixed)
            assert not _native.charter_signature_holds(public, digest, mixed)


def test_go_opens_what_is_sealed_to_a_party():
    """A second implementation (tools/hpke.go) opens the secret of a roster, which ends each party's entry."""
    go = shutil.which("go")
    found = re.search(r"go1\.(\d+)", subprocess.check_output([go, "version"], text=True)) if go else None
    if not found or int(found[1]) < 26:
        pytest.skip("needs Go 1.26")
    own = [_native.Identity.generate() for _ in range(3)]
    cards = [(k, f"site-{k}", (True, True, True), *identity.public()) for k, identity in enumerate(own)]
    sealed = _native.Roster(cards).to_bytes()[-(32 + 1120 + 16) :]
    words = [own[2].to_bytes()[32:], b"fedcipher oneshot v1 root" + (2).to_bytes(4, "little"), sealed]
    tool = ROOT / "tools" / "hpke.go"
    opened = subprocess.run([go, "run", tool, *(w.hex() for w in words)], capture_output=True, text=True, check=False)
    assert len(opened.stdout.strip()) == 64, opened.stderr


class AdversaryC:
    """The server, and the keys of some parties: it forgets what ledgers remember, and asks whom it likes for what."""

    def __init__(self, corrupt, pack=1):
        self.scheme = made(corrupt_clients=2, corrupt_members=2, threshold=4, min_contributions=4, pack=pack)
        self.keys = self.scheme.keygen(CLIENTS)
        self.corrupt, self.forgetful = set(corrupt), set(corrupt)
        self.honest = [m for m in range(5) if m not in self.corrupt]
        # Client 5 is the victim: no member, and honest.
        self.number = 0

    def member(self, member):
        make = wire_tools.forgetful if member in self.forgetful else type(self.scheme.committee).member
        return make(self.scheme.committee, self.keys.client(member))

    def aggregate(self, updates, members):
        """What the product's server makes of these updates and the answers it gets; None where these are too few."""
        aggregator = self.scheme.aggregator(self.keys.server(), round=self.number)
        for update in updates:
            aggregator.add(update)
        for member, request in aggregator.committee.requests().items():
            with contextlib.suppress(errors.ReplayError):
                if member in members:
                    aggregator.committee.answer(self.member(member).answer(request))
        with contextlib.suppress(errors.CommitteeError):
            return aggregator.finish()
        return None

    def opened(self, frame):
        """The integer sums, for any corrupt party that can read them."""
        for party in self.corrupt:
            reader = base.KernelDecryptor(self.scheme._native.decryptor(self.keys.client(party), None), CODEC)
            with contextlib.suppress(errors.FedcipherError):
                return reader.sums(frame).astype(np.int64)
        return None

    def round(self):
        """A round's uploads, recorded by the server, and what the victim's holds."""
        self.number += 1
        encryptors = [wire_tools.encryptor(self.scheme, self.keys, k) for k in range(CLIENTS)]
        updates = [
            made.encrypt([(0.1 * (k + 1)) * x for x in UPDATE], round=self.number) for k, made in enumerate(encryptors)
        ]
        own = [(0.6 * x).astype(np.float32).ravel() for x in UPDATE]
        victim, _ = CODEC.layout(UPDATE).quantise(own, levels=self.scheme.levels)
        return updates, victim.astype(np.int64)

    def splits(self):
        """The honest members shared out in every way between the whole set and the set without the victim."""
        for side in itertools.product([True, False], repeat=len(self.honest)):
            first = self.corrupt | {m for m, whole in zip(self.honest, side, strict=True) if whole}
            yield first, self.corrupt | (set(self.honest) - first)

    def reads_the_victim(self):
        for first, second in self.splits():
            updates, victim = self.round()
            # An upload under the name of an aggregate, and the victim's update as a round of its own.
            assert self.opened(updates[5]) is None
            with contextlib.suppress(errors.TooFewContributionsError):
                assert self.aggregate(updates[5:], set(range(5))) is None
            whole, without = self.aggregate(updates, first), self.aggregate(updates[:5], second)
            sums = [self.opened(frame) if frame else None for frame in (whole, without)]
            if all(s is not None for s in sums) and (sums[0] - sums[1] == victim).all():
                return True
        return False


@pytest.mark.parametrize("pack", [1, 2])
@pytest.mark.parametrize("corrupt", [{0}, {0, 1}, {2, 4}])
def test_adversary_c_reads_nobody(corrupt, pack):
    """Up to two corrupt parties, members and readers at once, with everything that the server has recorded."""
    assert not AdversaryC(corrupt, pack).reads_the_victim()


def test_adversary_c_with_one_more_than_was_agreed_reads_the_victim():
    """So the test above can fail: three corrupt members, and one honest one on either side."""
    assert AdversaryC({0, 1, 2}).reads_the_victim()


@pytest.mark.parametrize("damage", ["forgets", "none"])
def test_adversary_c_reads_the_victim_where_members_forget(damage, monkeypatch):
    """One answer a round is what it rests on: honest members that keep no ledger give the victim away."""
    adversary = AdversaryC({0, 1})
    if damage == "forgets":
        adversary.forgetful = set(range(5))
        monkeypatch.setattr(adversary, "splits", lambda: iter([(set(range(5)), set(range(5)))]))
    assert adversary.reads_the_victim() == (damage == "forgets")


def test_a_member_that_is_away_is_not_waited_for_to_the_end(tmp_path, rng, monkeypatch):
    """With enough answers a round waits as long again as those took, and not for all of the committee's time."""
    federation = Federation(tmp_path, rng, lambda sent, reply, k: None if asks_member(sent) and k == 3 else reply)
    federation.strategy.run.sums._committee._patience, federation.grid.kept_silent = 10_000, True
    clock = {"now": 0.0}
    monkeypatch.setattr(replies.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(replies.time, "sleep", lambda seconds: clock.update(now=clock["now"] + seconds))
    federation.start(2)
    assert [r.unfinished for r in federation.strategy.rounds] == [None, None]
    # Prekeys are asked for, and the committee agrees on each sum of updates and of evaluations, and answers, and the
    # end is told: a wait each, as long as the least is.
    waits = 3 * 2 * 2 + 1
    sent = [k for k, content in federation.grid.sent if k == 1 and "fedcipher.committee" in content]
    # A member that is there is asked for its prekey once, and told of the end.
    assert len(sent) == 1 + 2 * 2 * 2 + 1 and clock["now"] < waits * 1.5 * committee._MIN_SECONDS


def test_a_stranger_that_says_nothing_does_not_use_up_the_members_time(tmp_path, rng, monkeypatch):
    """A member's node is looked for among nodes whose party is not known, one of which never answers."""

    def tamper(sent, reply, client):
        if asks_member(sent):
            return None if client == 5 else reply
        return Message(Error(code=2, reason="broken"), reply_to=sent) if client == 0 else reply

    federation = Federation(tmp_path, rng, tamper)
    federation.strategy.run.sums._committee._patience, federation.grid.kept_silent = 10_000, True
    clock = {"now": 0.0}
    monkeypatch.setattr(replies.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(replies.time, "sleep", lambda seconds: clock.update(now=clock["now"] + seconds))
    federation.start(1)
    assert federation.strategy.rounds[0].unfinished is None
    assert [c for c, reply in federation.grid.received if reply.has_content() and asks_member(reply)].count(0) == 6
    # It agrees and answers, for updates and for evaluations; it was looked for once, and told of the end.
    assert clock["now"] < 2 * 2 * 2 * committee._MIN_SECONDS


def lied(scheme, held, liar, folder, monkeypatch):
    """An aggregator with all updates, one of them, a member's answer, and its answer for others of the same clients."""
    aggregator, other = (scheme.aggregator(held.server(), round=1) for _ in range(2))
    clients = range(scheme.params()["clients"])
    for number in clients:
        frame = wire_tools.encryptor(scheme, held, number).encrypt(UPDATE, round=1)
        aggregator.add(frame)
    with monkeypatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(folder))
        for number in clients:
            other.add(wire_tools.encryptor(scheme, held, number).encrypt(UPDATE, round=1))
        lie = scheme.committee.member(held.client(liar)).answer(other.committee.requests()[liar])
    return (
        aggregator,
        frame,
        scheme.committee.member(held.client(liar)).answer(aggregator.committee.requests()[liar]),
        lie,
    )


def answered_beside(aggregator, scheme, held, liar, lie):
    """The aggregate where all answer, one of them so; and of how many members it has answers."""
    for member, request in aggregator.committee.requests().items():
        aggregator.committee.answer(
            lie if member == liar else scheme.committee.member(held.client(member)).answer(request)
        )
    assert not aggregator.committee.missing
    accused, total = aggregator.committee.accused, aggregator.finish()
    return accused, total, struct.unpack_from("<I", wire_tools.payload(total), 4)[0]


def test_a_false_answer_is_left_out_by_who_opens_and_its_member_named(tmp_path, monkeypatch, caplog):
    """Five answers where three are needed: whose sum is another one's, with combinations that are right, is found."""
    scheme, liar = made(threshold=3, corrupt_clients=0, corrupt_members=0), 3
    held, sharing = scheme.keygen(CLIENTS), wire_tools.Sharing(scheme)
    aggregator, frame, *answers = lied(scheme, held, liar, tmp_path / "of-liars", monkeypatch)
    honest, lie = (wire_tools.OneshotAnswer.read(answer, sharing) for answer in answers)
    assert lie.combined != honest.combined and lie.sum != honest.sum
    context = wire_tools.OneshotUpdate(frame, held.server(), range(5), sharing).context
    # A liar's sum beside what it should have combined, under its own signature.
    lie = replace(lie, combined=honest.combined).signed(wire_tools.signing_key(held.client(liar)), context)
    accused, total, answers = answered_beside(aggregator, scheme, held, liar, lie.to_bytes())
    assert not accused and answers == 5
    opened = scheme.decryptor(held.client(5)).open(total, round=1)
    assert opened.false_members == [3] and "members [3] of the committee gave false answers" in caplog.text
    np.testing.assert_allclose(opened.arrays[0], UPDATE[0], atol=1e-3)


def test_an_answer_over_other_shares_is_left_out_by_the_server(tmp_path, monkeypatch, caplog):
    """Seven answers where five are needed and one member may lie: its combinations fit nobody's."""
    scheme, liar = fedcipher.scheme("oneshot", clients=7, members=7, threshold=5, preset="fast", codec=CODEC), 3
    held = scheme.keygen(7)
    aggregator, _, _, lie = lied(scheme, held, liar, tmp_path / "of-liars", monkeypatch)
    accused, total, answers = answered_beside(aggregator, scheme, held, liar, lie)
    # The clients have done nothing.
    assert not accused and answers == 6
    opened = scheme.decryptor(held.client(5)).open(total, round=1)
    assert not opened.false_members and "false answers" not in caplog.text
    np.testing.assert_allclose(opened.arrays[0], UPDATE[0], atol=1e-3)


@pytest.mark.parametrize("lie", ["no keys", "a key that does not open"])
@pytest.mark.parametrize("away", [0, 2, 3])
def test_an_answer_that_cannot_be_read_is_left_out_while_others_are_enough(lie, away):
    """Of five where three are needed: its sum may be right, and its keys for readers are under no signature."""
    scheme = made(threshold=3, corrupt_clients=0, corrupt_members=0)
    held = scheme.keygen(CLIENTS)
    aggregator = scheme.aggregator(held.server(), round=1)
    for number in range(CLIENTS):
        aggregator.add(wire_tools.encryptor(scheme, held, number).encrypt(UPDATE, round=1))
    answers = {m: scheme.committee.member(held.client(m)).answer(r) for m, r in aggregator.committee.requests().items()}
    answer = wire_tools.OneshotAnswer.read(answers[3], wire_tools.Sharing(scheme))
    assert answer.to_bytes() == answers[3] and [reader for reader, _ in answer.wraps] == list(range(CLIENTS))
    spoilt = {5: lambda key: key[:96] + bytes([key[96] ^ 1]) + key[97:]}
    wraps = [(reader, spoilt.get(reader, bytes)(key)) for reader, key in answer.wraps]
    answers[3] = replace(answer, wraps=() if lie == "no keys" else wraps).to_bytes()
    for member in sorted(answers, key=lambda m: m != 3)[: 5 - away]:
        aggregator.committee.answer(answers[member])
    if away == 3:
        with pytest.raises(errors.CommitteeError):
            aggregator.finish()
        return
    total = aggregator.finish()
    for reader in (4, 5):
        whole = reader == 4 and lie != "no keys"
        if away == 2 and not whole:
            with pytest.raises(errors.DecryptError, match="member 3 has not answered this reader"):
                scheme.decryptor(held.client(reader)).open(total, round=1)
            continue
        opened = scheme.decryptor(held.client(reader)).open(total, round=1)
        np.testing.assert_allclose(opened.arrays[0], UPDATE[0], atol=1e-3)
        assert opened.false_members == ([] if whole else [3])


class Liar:
    """Sends, under its own signature, a ciphertext of another secret than the one it has shared: nobody can tell."""

    def __init__(self, folder, party):
        self.scheme, self.key = keys.load_client(folder / f"client-{party}.key")
        _, self.server = keys.load_server(folder)
        self.signing = wire_tools.signing_key(self.key)
        self.members = sorted(self.scheme.committee.members(self.server))
        self.sharing = wire_tools.Sharing(self.scheme)

    def resealed(self, update, share, ciphertexts):
        """Its own share, which a liar knows: here it is read with the member's key."""
        records = {}
        for path in base.state_dir().glob(f"*-{share.member}.prekeys"):
            records |= wire_tools.prekey_records(path)
        x = xwing_reference.decapsulated(records[share.number][-1], share.encapped, update.info(share))
        known = xwing_reference.opened(x, update.data(update.ciphertexts), share.sealed)
        return replace(share, sealed=xwing_reference.sealed(x, update.data(ciphertexts), known))

    def changed(self, frame):
        update = wire_tools.OneshotUpdate(frame, self.server, self.members, self.sharing)
        other = bytearray(update.ciphertexts)
        other[len(other) // 2] ^= 0x20
        return self.signed(update, other, [self.resealed(update, share, other) for share in update.shares])

    def garbled(self, frame):
        """The update with shares that none of the first two members can open."""
        update = wire_tools.OneshotUpdate(frame, self.server, self.members, self.sharing)
        shares = [
            replace(share, sealed=share.sealed[::-1]) if place < 2 else share
            for place, share in enumerate(update.shares)
        ]
        return self.signed(update, update.ciphertexts, shares)

    def signed(self, update, ciphertexts, shares):
        signature = self.signing.sign(b"fedcipher update 1\0", update.said(ciphertexts, shares))
        sealed = b"".join(share.bytes for share in shares)
        return wire_tools.with_payload(update.frame, bytes(ciphertexts) + sealed + update.tag + signature)


def test_a_client_whose_shares_do_not_open_is_named_in_its_round_and_costs_that_round_only(tmp_path, rng, caplog):
    """Two members complain, of which one may lie; every later sum is that of the other clients."""
    liar = 2

    def tamper(sent, reply, client):
        if client == liar and sent.metadata.message_type == "train" and not asks_member(sent) and not reply.has_error():
            frame = protocol.frame_bytes(reply.content["arrays"][protocol.UPDATE])
            reply.content["arrays"] = wire_record({protocol.UPDATE: Liar(tmp_path / "keys", liar).garbled(frame)})
        return reply

    federation = Federation(
        tmp_path, rng, tamper, FedAvg(fraction_evaluate=0.0, **ALL), corrupt_clients=1, corrupt_members=1
    )
    federation.start(4)
    rounds, honest = read_journal(tmp_path / "run").rounds, sorted(set(range(CLIENTS)) - {liar})
    assert federation.strategy.run.nodes.sent_false_shares == {liar} and not federation.strategy.run.search.found
    assert f"clients [{liar}] have sent false shares" in rounds[0].unfinished
    assert [record.unfinished for record in rounds[1:]] == [None] * 3
    assert f"round 1: clients [{liar}] have sent false shares" in caplog.text
    senders = [[c.client for c in record.clients if c.left_out is None] for record in rounds[1:]]
    # The first sum was to have all six, so that one of all but the liar would show its update: two more sit out.
    sat_out = [client for client in rounds[1].clients if client.unsummed]
    assert len(sat_out) == 2 and all("too few clients" in client.left_out for client in sat_out)
    assert sorted([*senders[0], *(client.client for client in sat_out)]) == honest
    assert [sorted(clients) for clients in senders[1:]] == [honest] * 2 and rounds[1].accepted == 3
    got = open_run(tmp_path / "run", federation.keys / "client-0.key").values()
    close(got, federation.expected(senders), 3)


def test_attack_36_a_second_run_from_a_later_model_shows_one_client(tmp_path, rng):
    """It succeeds. The first sums of both runs share a memory and are of the same clients; the second sum does not."""
    victim, models = 4, {}

    def away(sent, reply, client):
        first = not asks_member(sent) and sent.content["config"]["server-round"] == 1
        return None if client == victim and first else reply

    some = {name: CLIENTS - 1 for name in ALL}
    federation = Federation(
        tmp_path, rng, away, FedAvg(fraction_evaluate=0.0, **ALL), reveal="server", corrupt_clients=1, corrupt_members=1
    )
    federation.start(2, evaluate_fn=lambda number, arrays: models.update({number: arrays.to_numpy_ndarrays()}))
    assert [round.accepted for round in federation.strategy.rounds] == [CLIENTS - 1, CLIENTS]

    del federation.grid.contexts[1000 + victim]
    again = SecureStrategy(FedAvg(fraction_evaluate=0.0, **some), federation.keys, committee_timeout=5)
    without = again.start(federation.grid, record(models[1]), num_rounds=1).arrays.to_numpy_ndarrays()
    assert again.rounds[0].accepted == CLIENTS - 1

    shown = [CLIENTS * a - (CLIENTS - 1) * b for a, b in zip(models[2], without, strict=True)]
    own = [0.5 * (a + goal) for a, goal in zip(models[1], federation.goals[victim], strict=True)]
    close(shown, own, CLIENTS)


@pytest.mark.parametrize("reveal", ["clients", "server"])
def test_a_client_that_spoils_sums_is_found_and_nothing_wrong_is_kept(tmp_path, rng, reveal):
    """The rounds that it spoils have no aggregate, it is left out of the others, and the model is the honest ones'."""
    liar = 2

    def tamper(sent, reply, client):
        if client == liar and sent.metadata.message_type == "train" and not asks_member(sent) and not reply.has_error():
            frame = protocol.frame_bytes(reply.content["arrays"][protocol.UPDATE])
            changed = Liar(tmp_path / "keys", liar).changed(frame)
            reply.content["arrays"] = wire_record({protocol.UPDATE: changed})
        return reply

    federation = Federation(
        tmp_path, rng, tamper, FedAvg(fraction_evaluate=0.0, **ALL), reveal=reveal, corrupt_clients=1, corrupt_members=1
    )
    result = federation.start(16)
    strategy = federation.strategy
    honest = sorted(set(range(CLIENTS)) - {liar})
    assert set(strategy.run.search.found) == {liar} and not strategy.run.search.active(honest)
    good = [record for record in strategy.rounds if record.unfinished is None]
    # The first sum, and the round in which it was refused.
    assert [record.round for record in good] == list(range(3, 17))
    folder = strategy.run.model.folder
    groups = [[inspect(f).clients for f in folder.step(n)] for n in range(1, folder.count + 1)]
    assert len(groups) == len(good) and any(liar in clients for step in groups for clients in step)
    # Of a step only the sums without the liar count.
    senders = [[c for clients in step if liar not in clients for c in clients] for step in groups]
    assert all(len(clients) >= 3 for clients in senders) and sorted(senders[-1]) == honest
    assert [c.client for c in good[-1].clients if c.left_out is None and c.client == liar] == []
    spoilt = [record.unfinished for record in strategy.rounds if record.unfinished and "withdrawn" in record.unfinished]
    assert spoilt and all(str(liar) in why for why in spoilt)
    if strategy.run.journal is not None:
        # As a server that goes on with the run would read it.
        kept = read_journal(strategy.run.model.folder.folder).rounds
        assert [record.unfinished for record in kept] == [record.unfinished for record in strategy.rounds]
    if reveal == "server":
        got = result.arrays.to_numpy_ndarrays()
        # A server that goes on with the run opens what the clients did.
        stored = RunFolder.reopen(folder.folder, federation.scheme, folder.count, folder.rounds)
        again = ServerModel(stored, federation.scheme, strategy.setup.opener)
        assert all(np.array_equal(a, b) for a, b in zip(again.arrays, got, strict=True))
    else:
        got = open_run(tmp_path / "run", federation.keys / "client-0.key").values()
    close(got, federation.expected(senders), len(senders))


def test_a_round_in_which_everybodys_app_fails_takes_no_sum_back_and_accuses_nobody(tmp_path, rng):
    """Frames of zeros that count nothing: the sum opens, the model stays, and the search has nothing to look for."""
    failing = 3

    def app_fails(msg, ctxt, call_next):
        if msg.content["config"]["server-round"] == failing:
            raise RuntimeError("no data today")
        return call_next(msg, ctxt)

    federation = Federation(tmp_path, rng, None, FedAvg(fraction_evaluate=0.0, **ALL), mods=(client_mod, app_fails))
    federation.start(8)
    rounds = federation.strategy.rounds
    assert [record.unfinished for record in rounds] == [None] * 8
    assert [record.accepted for record in rounds] == [CLIENTS] * 8 and not federation.strategy.run.search.found
    senders = [range(CLIENTS)] * 7
    close(open_run(tmp_path / "run", federation.keys / "client-1.key").values(), federation.expected(senders), 7)


def test_a_sum_that_nobody_goes_on_with_is_taken_back_and_costs_rounds_and_not_the_run(tmp_path, rng):
    """Everybody refuses the round after: to the server that looks as if nobody could open the sum before it."""
    refused = {"round": 3}

    def refuses(msg, ctxt, call_next):
        if not asks_member(msg) and msg.content["config"]["server-round"] == refused["round"]:
            msg.content["more"] = ConfigRecord({"what": "the charter does not name"})
        return call_next(msg, ctxt)

    federation = Federation(tmp_path, rng, None, FedAvg(fraction_evaluate=0.0, **ALL), mods=(refuses, client_mod))
    federation.start(8)
    rounds = federation.strategy.rounds
    assert "withdrawn" in rounds[1].unfinished and "0 usable updates" in rounds[2].unfinished
    good = [record for record in rounds if record.unfinished is None]
    assert [record.round for record in good] == [1, 4, 5, 6, 7, 8] and not federation.strategy.run.search.found
    senders = [[c.client for c in record.clients if c.left_out is None] for record in good]
    assert sorted(senders[-1]) == list(range(CLIENTS))
    close(
        open_run(tmp_path / "run", federation.keys / "client-1.key").values(), federation.expected(senders), len(good)
    )
