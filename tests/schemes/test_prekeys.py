"""Prekeys, which members of a committee publish and delete: what of a recorded run opens later, and who says what."""

import hashlib

import fedcipher
import pytest
import wire_tools
import xwing_reference
from attack_harness import Federation as Attacked
from attack_harness import masked, says_nothing
from fedcipher import errors, keys
from fedcipher.adapters.flower import client_mod
from fedcipher.federation import messages as protocol
from fedcipher.federation.client import key_holder
from fedcipher.frame import inspect
from fedcipher.schemes.base import KeySet, state_dir
from flower_harness import LocalGrid, wire_record
from flwr.app import ConfigRecord, Message, RecordDict
from test_oneshot import CLIENTS, UPDATE, Federation, asks_member, made, run

COMMITTEE = "fedcipher.committee"
MEMBERS = range(5)


def members_files(member="*"):
    return sorted(state_dir().glob(f"*-{member}.prekeys"))


def updates_of(reply):
    """The frame in a reply, if it holds one."""
    records = [] if reply.has_error() else reply.content.array_records.values()
    return [protocol.frame_bytes(held[protocol.UPDATE]) for held in records if protocol.UPDATE in held]


class Recorder:
    """Whoever records all messages; and, for control, each secret that was in a member's file in the run."""

    def __init__(self, loses=lambda sent, client: False):
        self.frames, self.secrets, self.loses = [], {}, loses

    def __call__(self, sent, reply, client):
        for path in members_files():
            member = int(path.stem.rpartition("-")[2])
            for number, (*_, secret) in wire_tools.prekey_records(path).items():
                if any(secret):
                    self.secrets[member, number] = secret
        found = updates_of(reply)
        self.frames += found
        return None if found and self.loses(sent, client) else reply

    def shares(self, federation):
        """Every share that was ever sealed, with its update."""
        server = keys.load_server(federation.keys)[1]
        for frame in self.frames:
            update = wire_tools.OneshotUpdate(frame, server, MEMBERS, wire_tools.Sharing(federation.scheme))
            yield from ((update, share) for share in update.shares)


def opens(secret, update, share):
    """Whether this X-Wing secret opens the share."""
    x = xwing_reference.decapsulated(secret, share.encapped, update.info(share))
    committed = hashlib.sha256(b"fedcipher oneshot v1 committed" + x).digest() == share.committed
    found = xwing_reference.opened(x, update.data(update.ciphertexts), share.sealed)
    assert committed == (found is not None)
    return committed


def test_attack_22_a_recorded_run_opens_with_no_file_of_any_party(tmp_path, rng):
    """Three rounds, an upload in no sum; then every file of everybody: keys, state, the run's folder and journal."""

    def loses(sent, client):
        return (sent.metadata.message_type, sent.content["config"]["server-round"], client) == ("train", 2, 3)

    recorder = Recorder(loses)
    federation = Federation(tmp_path, rng, recorder)
    federation.start(3)
    assert [record.accepted for record in federation.strategy.rounds] == [6, 5, 6]
    shares = list(recorder.shares(federation))
    assert len(shares) == 3 * 2 * CLIENTS * len(MEMBERS)
    # So there is something to find: each opens with the secret that its member had.
    assert all(opens(recorder.secrets[share.member, share.number], update, share) for update, share in shares)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {".prekeys", ".key", ".db", ".fedc"} <= {path.suffix for path in files}
    for path, content in files.items():
        assert not [which for which, secret in recorder.secrets.items() if secret in content], path
    for path in members_files():
        assert not any(any(secret) for *_, secret in wire_tools.prekey_records(path).values())
    identities = [wire_tools.payload(federation.key(k).to_bytes())[64:96] for k in range(CLIENTS)]
    assert all(any(secret in content for content in files.values()) for secret in identities)
    assert not any(opens(secret, update, share) for secret in identities for update, share in shares)


def test_members_that_are_started_anew_at_every_message_go_on(tmp_path, rng):
    """What a member has published, it knows from its file."""

    def tamper(sent, reply, client):
        key_holder._holders.clear()
        return reply

    federation = Federation(tmp_path, rng, tamper)
    federation.start(3)
    assert [record.unfinished for record in federation.strategy.rounds] == [None] * 3


def test_a_member_that_is_away_for_a_round_has_a_share_of_the_next(tmp_path, rng):
    """It gives a prekey and is silent in round 2. Whoever asks for prekeys of round 3 hears it again."""
    recorder, state = Recorder(), (0, "")

    def tamper(sent, reply, client):
        nonlocal state
        if asks_member(sent):
            back = state == (2, "evaluate") and "who" in sent.content[COMMITTEE]
            return None if client == 1 and state[0] == 2 and not back else reply
        state = sent.content["config"]["server-round"], sent.metadata.message_type
        return recorder(sent, reply, client)

    federation = Federation(tmp_path, rng, tamper)
    federation.start(4)
    assert [record.unfinished for record in federation.strategy.rounds] == [None] * 4
    of_one = [share.number for _, share in recorder.shares(federation) if share.member == 1]
    numbers = [set(of_one[at : at + CLIENTS]) for at in range(0, len(of_one), CLIENTS)]
    # Of each training and each evaluation. Nobody seals to a member that has given nothing.
    assert [len(found) for found in numbers] == [1] * 8 and numbers[3] == {0}
    # The one that it did not use goes on.
    assert 0 < min(numbers[0]) < min(numbers[2]) == min(numbers[4]) < min(numbers[7])


def test_a_server_that_says_in_a_round_that_the_run_has_ended_costs_that_round(tmp_path, rng):
    uploads = []

    def tamper(sent, reply, client):
        if not asks_member(sent) and sent.content["config"]["server-round"] == 2 and updates_of(reply):
            uploads.append(client)
            if len(uploads) == CLIENTS:
                for member in MEMBERS:
                    told(federation.grid, member, {"end": 1})
        return reply

    federation = Federation(tmp_path, rng, tamper)
    federation.start(4)
    lost = [record.round for record in federation.strategy.rounds if record.unfinished]
    assert lost == [2] and "members of the committee have answered" in federation.strategy.rounds[1].unfinished


def told(grid, member, record):
    """What a member replies to a record of the server's own choice."""
    content = RecordDict({COMMITTEE: record if isinstance(record, RecordDict) else ConfigRecord(record)})
    message = Message(content, dst_node_id=1000 + member, message_type="train")
    return grid.app(message, grid.contexts[1000 + member])


class Giving(LocalGrid):
    """A server that gives clients other prekeys: ``given`` makes them of a round's, by what the round is."""

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            settings = message.content.get(protocol.CONFIG)
            if settings is not None and "prekeys" in settings:
                settings["prekeys"] = self.given(settings["index"], list(settings["prekeys"]))
        return super().push_messages(messages)


def member_of(prekey):
    return inspect(prekey).clients[0]


def test_an_old_prekey_is_refused_and_the_round_goes_on_with_the_others(tmp_path, rng, caplog):
    """Whoever has an old copy of a member's file has its server give the prekey of then; clients know its number."""
    recorder = Recorder()
    federation = Federation(tmp_path, rng, recorder)
    grid, kept = federation.grid, []
    grid.__class__ = Giving
    meet = federation.strategy.run.sums._committee.collect_prekeys

    def given(index, prekeys):
        if index == 1:
            kept.extend(prekey for prekey in prekeys if member_of(prekey) == 2 and not kept)
            return prekeys
        # As in a new process: what they have seen is in their files.
        key_holder._holders.clear()
        return [*prekeys, *kept]

    def without(*asked):
        found = meet(*asked)
        return found if federation.strategy.rounds[-1].round == 1 else [p for p in found if member_of(p) != 2]

    grid.given, federation.strategy.run.sums._committee.collect_prekeys = given, without
    federation.start(2)
    assert [record.unfinished for record in federation.strategy.rounds] == [None] * 2
    assert "member 2 of the committee has published prekey" in caplog.text and "it is old" in caplog.text
    numbers = {share.number for _, share in list(recorder.shares(federation))[2 * CLIENTS * len(MEMBERS) :]}
    assert 0 in numbers and len(numbers) > 2


@pytest.mark.parametrize("lie", ["no prekey", "another's"])
def test_a_node_that_says_to_be_a_member_costs_nothing(tmp_path, rng, caplog, lie):
    """It answers first."""
    claimed = []

    def tamper(sent, reply, client):
        if asks_member(sent) and client == 0 and "who" in sent.content[COMMITTEE]:
            others = told(federation.grid, 1, {"who": 1}).content[COMMITTEE]["prekey"]
            claimed.append(others if lie == "another's" else b"none")
            record = ConfigRecord({"party": 2, "prekey": claimed[-1]})
            return Message(RecordDict({COMMITTEE: record}), reply_to=sent)
        return reply

    federation = Federation(tmp_path, rng, tamper)
    federation.start(2)
    assert [record.unfinished for record in federation.strategy.rounds] == [None] * 2
    assert claimed and "a prekey of member 2 is not used" in caplog.text
    given = [list(c[protocol.CONFIG]["prekeys"]) for _, c in federation.grid.sent if protocol.CONFIG in c]
    assert all(2 in map(member_of, prekeys) for prekeys in given)


def test_a_member_that_gives_an_old_prekey_of_its_own_costs_itself(tmp_path, rng, caplog):
    own = []

    def tamper(sent, reply, client):
        if asks_member(sent) and client == 2 and not reply.has_error() and "party" not in reply.content[COMMITTEE]:
            frames = {key: protocol.frame_bytes(value) for key, value in reply.content[COMMITTEE].items()}
            own.append(frames["prekey"])
            # As it should at first, and then that of its first answer.
            reply.content[COMMITTEE] = wire_record({**frames, "prekey": own[0] if len(own) > 4 else own[-1]})
        return reply

    federation = Federation(tmp_path, rng, tamper)
    federation.start(4)
    assert [record.unfinished for record in federation.strategy.rounds] == [None] * 4
    assert len(own) > 4 and "a prekey of member 2 is not used" in caplog.text


def test_without_enough_prekeys_the_app_is_not_called(tmp_path, rng):
    """None, too few, those of one member again and again, of another roster, or of another shape: one refusal."""
    called = []

    def app_is_called(msg, ctxt, call_next):
        called.append(msg)
        return call_next(msg, ctxt)

    federation = Attacked(tmp_path, "oneshot", rng, mods=(client_mod, app_is_called), preset="fast")
    _, server = keys.load_server(federation.folder)
    own = {k: keys.load_client(federation.folder / f"client-{k}.key")[1] for k in MEMBERS}
    good = federation.scheme.committee.prekeys(KeySet(own, server))
    foreign = federation.scheme.committee.prekeys(federation.scheme.keygen(5))
    changed = [wire_tools.with_flip(prekey, 200, 1) for prekey in good]
    wrong = [
        None,
        good[:3],
        good[:1] * 5,
        foreign,
        [*good[:3], *foreign[3:]],
        [*good[:3], *changed[3:]],
        [bytes(10_000_000)] * 5,
        good * 13,
        ["text"],
        [1, 2, 3, 4, 5],
        good[0],
        b"",
        True,
    ]
    refusals = []
    for prekeys in wrong:
        reply = federation.send(federation.content(federation.settings(prekeys=prekeys)))
        assert says_nothing(reply), str(prekeys)[:80]
        refusals.append(masked(reply))
    assert not called and len(set(refusals)) == 1 and 5 * 13 > 64
    assert updates_of(federation.send(federation.content(federation.settings(prekeys=good)))) and called


def test_a_question_to_a_member_that_is_two_or_none_is_refused_and_deletes_nothing(tmp_path, rng):
    federation = Attacked(tmp_path, "oneshot", rng, preset="fast")

    def published():
        """Number and key; what it publishes again has another signature."""
        frame = told(federation.grid, 0, {"who": 1}).content[COMMITTEE]["prekey"]
        return wire_tools.payload(frame)[: -wire_tools.HYBRID_LEN]

    before, refusals = published(), set()
    assert len(before) == 8 + 1216
    shapes = ({"who": 1, "end": 1}, {}, {"End": 1}, {"who": True}, {"end": True}, {"end": 1, "": 1})
    for record in (*shapes, {"prekey": bytes(10_000_000)}):
        reply = told(federation.grid, 0, record)
        assert says_nothing(reply), str(record)[:80]
        refusals.add(masked(reply))
    assert len(refusals) == 1
    assert published() == before
    # Nobody's prekey is told to, or by, a party that is no member; and an end there is an end of nothing.
    scheme = fedcipher.scheme("oneshot", clients=6, members=3, preset="fast", codec=federation.scheme.codec)
    assert dict(told(federation.grid, 0, {"end": 1}).content[COMMITTEE]) == {"party": 0}
    assert published() != before
    assert scheme.committee.needed == 3


def test_a_member_forgets_by_command_and_nothing_sealed_to_it_opens(tmp_path, capsys):
    scheme = made()
    held = scheme.keygen(CLIENTS)
    folder = keys.save(held, scheme, tmp_path / "keys")
    files = [folder / f"client-{k}.key" for k in MEMBERS]
    assert "no prekeys in" in run("forget", files[0], capsys=capsys, status=2)
    aggregator = scheme.aggregator(held.server(), round=1)
    for client in range(CLIENTS):
        aggregator.add(wire_tools.encryptor(scheme, held, client).encrypt(UPDATE, round=1))
    requests = aggregator.committee.requests()
    # One that is none of a member's is found before anything is deleted.
    shared = fedcipher.scheme("flashe", clients=3)
    other = keys.save(shared.keygen(3), shared, tmp_path / "shared") / "client-0.key"
    assert "no committee" in run("forget", *files, other, capsys=capsys, status=2)
    refused = run("forget", files[4], folder / "client-5.key", capsys=capsys, status=2)
    assert "party 5, which is not a member" in refused
    aggregator.committee.answer(scheme.committee.member(held.client(4)).answer(requests[4]))
    said = run("forget", *files[:4], capsys=capsys)
    assert said.count("everything sealed to this member so far can no longer be opened") == 4
    for member in range(4):
        with pytest.raises(errors.PrekeyError, match="deleted prekeys"):
            scheme.committee.member(held.client(member)).answer(requests[member])
    # It goes on with new ones.
    again = scheme.aggregator(held.server(), round=2)
    for client in range(CLIENTS):
        again.add(wire_tools.encryptor(scheme, held, client).encrypt(UPDATE, round=2))
    wire_tools.answered(again, lambda member: scheme.committee.member(held.client(member)))
    assert not again.committee.missing
