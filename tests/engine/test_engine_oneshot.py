"""`oneshot` with identities in an engine: the authority certifies who they are and holds nothing that opens."""

import re
import sqlite3

import fedcipher
import numpy as np
import pytest
import wire_tools
from engine_harness import deployment, flashe, until, updates
from fedcipher import errors
from fedcipher.codec import Codec
from fedcipher.engine import connect
from fedcipher.keys.roster import look
from fedcipher.keys.store import save_server

CLIENTS = 5
MEMBERS = (0, 1, 2)
CODEC = Codec(bits=16, clip=1.0, target="weights")


def made(**params):
    more = {
        "members": 3,
        "corrupt_clients": 0,
        "corrupt_members": 0,
        "min_contributions": 2,
        "preset": "fast",
        "codec": CODEC,
        **params,
    }
    return fedcipher.scheme("oneshot", clients=CLIENTS, **more)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with deployment(made(), CLIENTS, tmp_path_factory.mktemp("oneshot")) as here:
        here.parties = [here.connect(k) for k in range(CLIENTS)]
        here.key = here.keys().current()
        yield here


def published(here, epoch=0, members=MEMBERS):
    """The newest prekeys of ``members``."""
    return [here.parties[k].member(epoch).prekey() for k in members]


def encryptor(here, k, prekeys, epoch=0):
    """Of a client that has been given ``prekeys``."""
    made = here.parties[k].encryptor(epoch)
    assert made.take_prekeys(prekeys) == []
    return made


def added(here, number, who=range(CLIENTS), key=None, members=MEMBERS):
    """An aggregator that has the updates of ``who`` in round ``number``, and their plaintext."""
    sent = updates(CLIENTS, seed=number)
    key = key or here.key
    # By its epoch: an engine hears of a new one a second later, or when it is asked for it.
    prekeys = published(here, key.epoch, members)
    aggregator = here.scheme.aggregator(key, round=number)
    assert aggregator.committee.take_prekeys(prekeys) == []
    for k in who:
        aggregator.add(encryptor(here, k, prekeys, key.epoch).encrypt(sent[k], round=number))
    return aggregator, [sent[k] for k in who]


def records(path):
    """Of a file of prekeys."""
    content = path.read_bytes()
    return [content[at : at + 128] for at in range(0, len(content), 128)]


def secrets(folder):
    """How many secrets of prekeys the files of an engine hold, by party."""
    files = folder.glob("*.prekeys")
    return {int(path.stem.split("-")[1]): sum(any(r[32:64]) for r in records(path)) for path in files}


def close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2**-14)


def test_a_round_whose_identities_never_leave_the_engine(running):
    aggregator, sent = added(running, 1, who=(0, 2, 3, 4))
    for member, request in aggregator.committee.requests().items():
        aggregator.committee.answer(running.parties[member].member().answer(request))
    frame = aggregator.finish()
    want = [np.clip(np.mean([np.clip(u[i], -1, 1) for u in sent], axis=0), -1, 1) for i in range(2)]
    for party in running.parties:
        close(party.decryptor().decrypt(frame, round=1), want)


def test_a_member_behind_a_host_answers_for_one_set_a_round(running):
    """Adversary D: two sets of clients in one round would show the difference of their sums."""
    prekeys = published(running)
    frames = [encryptor(running, k, prekeys).encrypt(u, round=2) for k, u in enumerate(updates(CLIENTS, seed=2))]
    asked = []
    for who in ((0, 1, 2, 3), (0, 1, 2, 3, 4)):
        aggregator = running.scheme.aggregator(running.key, round=2)
        for k in who:
            aggregator.add(frames[k])
        asked.append(aggregator.committee.requests()[0])
    member = running.parties[0].member()
    member.answer(asked[0])
    member.answer(asked[0])
    with pytest.raises(errors.ReplayError):
        member.answer(asked[1])
    for damaged in (b"", asked[0][:-5], frames[0]):
        with pytest.raises(errors.FrameError):
            member.answer(damaged)
    with pytest.raises(errors.AccessError, match="not a member"):
        running.parties[4].member().answer(asked[0])


def test_a_client_behind_an_engine_seals_to_the_newest_prekeys_whatever_its_host_gives(running):
    old = published(running)
    # What is published again has another signature.
    bare = [wire_tools.payload(frame)[: -wire_tools.HYBRID_LEN] for frame in old]
    assert [wire_tools.payload(f)[: -wire_tools.HYBRID_LEN] for f in published(running)] == bare, "not used yet"
    aggregator, _ = added(running, 10)
    for member, request in aggregator.committee.requests().items():
        aggregator.committee.answer(running.parties[member].member().answer(request))
    new = published(running)
    assert not set(new) & set(old)
    clients = [encryptor(running, k, new) for k in range(CLIENTS)]
    for client in clients:
        with pytest.raises(errors.PrekeyError) as refused:
            client.take_prekeys([*old, new[0][:-1], b""])
        assert (
            str(refused.value).count("it is old") == len(old) and str(refused.value).count("refused:") == len(old) + 2
        )
        (why,) = client.take_prekeys([*new, b""])
        assert "shorter than any frame" in why
    aggregator = running.scheme.aggregator(running.key, round=11)
    aggregator.committee.take_prekeys(new)
    for client, update in zip(clients, updates(CLIENTS, seed=11), strict=True):
        aggregator.add(client.encrypt(update, round=11))
    for member, request in aggregator.committee.requests().items():
        aggregator.committee.answer(running.parties[member].member().answer(request))
    aggregator.finish()


def test_more_prekeys_than_a_committee_has_are_refused_and_none_is_kept(tmp_path):
    with deployment(made(), CLIENTS, tmp_path) as here:
        here.key, here.parties = here.keys().current(), [here.connect(k) for k in range(CLIENTS)]
        prekeys, client = published(here, here.key.epoch), here.parties[4].encryptor(here.key.epoch)
        with pytest.raises(errors.EngineError, match="65 prekeys"):
            client.take_prekeys([*prekeys, *prekeys[:1] * 62])
        with pytest.raises(errors.EngineError, match="8193 bytes"):
            client.take_prekeys([*prekeys, bytes(8193)])
        with pytest.raises(errors.PrekeyError):
            client.encrypt(updates(1)[0], round=1)
        assert client.take_prekeys([*prekeys, *prekeys[:1] * 61]) == []
        client.encrypt(updates(1)[0], round=1)


def test_a_client_without_a_committee_asks_its_engine_nothing_about_prekeys(tmp_path):
    """Or an engine of before prekeys would end its rounds."""
    with deployment(flashe(1), 1, tmp_path) as here:
        client = here.connect(0).encryptor()
        here.local.engine.stop()
        assert client.take_prekeys([]) == client.take_prekeys([b"a prekey"]) == []
        with pytest.raises(errors.EngineUnavailableError):
            client.encrypt(updates(1)[0], round=1)


def test_a_member_behind_an_engine_that_has_forgotten_opens_nothing(running):
    """After the end of a run nothing that was recorded of it opens, with all files of the engine."""
    aggregator, _ = added(running, 12)
    requests, state = aggregator.committee.requests(), running.folder / "run" / "engine"
    assert secrets(state).keys() == set(MEMBERS) and all(secrets(state).values())
    for k in MEMBERS:
        running.parties[k].member().forget()
    assert secrets(state) == dict.fromkeys(MEMBERS, 0)
    with pytest.raises(errors.PrekeyError, match="begin a new round"):
        running.parties[0].member().answer(requests[0])
    for call in (running.parties[4].member().forget, running.parties[4].member().prekey):
        with pytest.raises(errors.AccessError, match="not a member"):
            call()


def test_the_authority_keeps_no_secret_of_a_device(running):
    """What it keeps of an epoch is public but for its own certificates: empty keys, the roster, the cards."""
    store = sqlite3.connect(f"file:{running.local.state / 'authority.db'}?mode=ro", uri=True)
    keys = store.execute("SELECT key FROM keys").fetchall()
    assert keys and {bytes(key) for (key,) in keys} == {b""}
    identities = list((running.folder / "run" / "engine").glob("*.identity"))
    assert len(identities) == CLIENTS
    everything = b"".join(path.read_bytes() for path in running.local.state.glob("authority.db*"))
    for path in identities:
        assert path.stat().st_mode & 0o077 == 0
        secret = path.read_bytes()
        assert len(secret) == 64 and secret[:32] not in everything and secret[32:] not in everything


def test_attack_27_an_engine_logs_every_party_of_the_roster_that_its_authority_has_made(running, tmp_path):
    """With the fingerprints that whoever made the keys has in the log, and that the commands print."""
    listed = look(save_server(running.key, running.scheme, tmp_path / "server.key"))
    log = (running.folder / "run" / "engine.log").read_text(encoding="utf-8")
    told = dict(re.findall(r'identity made.* device="(.*?)" keys="(.*?)"', log))
    shown = re.findall(rf'party of the roster epoch={running.key.epoch} number=(\d+) name="(.*?)" .*keys="(.*?)"', log)
    assert shown == [(str(party.number), party.name, party.keys) for party in listed.parties]
    assert {name: keys for _, name, keys in shown} == told and len(told) == CLIENTS
    assert log.count(f'parties={CLIENTS} roster="{listed.fingerprint}"') == CLIENTS


def test_a_device_has_one_identity_in_one_engine(running):
    """An identity in two state folders could answer for two sets; another identity under its name is another party."""
    credentials = running.folder / "run" / "client-1"
    with pytest.raises(errors.EngineError, match="has shown a different card before"):
        running.engine("other", "--credentials", credentials)
    state = running.folder / "copied"
    state.mkdir(mode=0o700)
    identity = running.folder / "run" / "engine" / "client-1.identity"
    (state / identity.name).write_bytes(identity.read_bytes())
    (state / identity.name).chmod(0o600)
    with pytest.raises(errors.EngineError, match="another engine"):
        running.engine("copied", "--credentials", credentials, state=state)
    audit = running.authority("status", "--audit")
    assert "client-1: refuse another card" in audit and "client-1: refuse second engine" in audit


def test_who_has_shown_no_card_is_in_no_roster_and_the_committee_can_be_named(tmp_path):
    with deployment(made(), CLIENTS, tmp_path) as here:
        here.enrol("late")
        first = here.keys().current()
        here.authority("rotate", "--members", "client-1,client-2,client-4")
        # Nobody has used the first epoch yet, or this would be refused.
        key = here.keys().current()
        assert key.epoch == first.epoch + 1
        here.parties = [here.connect(k) for k in range(CLIENTS)]
        aggregator, _ = added(here, 3, key=key, members=(1, 2, 4))
        assert list(aggregator.committee.requests()) == [1, 2, 4]
        for names, why in (("client-1,client-2", "2 members"), ("client-1,client-2,late", "late"), ("a,b,c", "a can")):
            with pytest.raises(errors.EngineError, match=why):
                here.authority("rotate", "--force", "--members", names)
        here.authority("revoke", "client-3", "--no-rotate")
        here.authority("rotate", "--force")
        later = here.keys()
        assert 3 in later.revoked()
        with pytest.raises(errors.FedcipherError):
            # Whether its engine has heard of it or not: its keys are gone, or its update is in no roster.
            alone = here.connect(3).encryptor()
            alone.take_prekeys(published(here, later.current().epoch))
            frame = alone.encrypt(updates(1)[0], round=4)
            here.scheme.aggregator(later.current(), round=4).add(frame)
        here.authority("revoke", "client-4", "--no-rotate")
        with pytest.raises(errors.EngineError, match="2 of the 3 members"):
            here.authority("rotate", "--force")


def crc64(data):
    """CRC-64/NVME."""
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ 2**64 - 1


def age(path, hours):
    """Makes the prekeys in a file so much older."""
    aged = records(path)
    for k, record in enumerate(aged):
        if any(record[32:64]):
            made = int.from_bytes(record[8:16], "little") - 3600 * hours
            content = record[:8] + made.to_bytes(8, "little") + record[16:120]
            aged[k] = content + crc64(content).to_bytes(8, "little")
    path.write_bytes(b"".join(aged))


def test_an_engine_deletes_prekeys_that_are_too_old_though_nobody_asks(tmp_path):
    with deployment(made(prekey_hours=3), CLIENTS, tmp_path) as here:
        here.key = here.keys().current()
        here.local.engine.stop()
        state = here.folder / "run" / "engine"
        folders = [part for k in range(CLIENTS) for part in ("--credentials", here.folder / "run" / f"client-{k}")]
        again = here.engine("again", *folders, "--expire", "1", state=state)
        here.parties = [connect(again.address, device=f"client-{k}") for k in range(CLIENTS)]
        published(here, here.key.epoch)
        assert secrets(state) == {0: 1, 1: 1, 2: 1}
        for k, hours in ((0, 3), (1, 2), (2, 30)):
            age(next(state.glob(f"*-{k}.prekeys")), hours)
        assert until(lambda: secrets(state) == {0: 0, 1: 1, 2: 0})
        # What is left works, and so does a new one in the place of each.
        aggregator, _ = added(here, 1)
        for member, request in aggregator.committee.requests().items():
            aggregator.committee.answer(here.parties[member].member().answer(request))
        aggregator.finish()


def test_identities_survive_the_engine(tmp_path):
    """A restart takes up the same identities, what they have answered, and the prekeys of the round under way."""
    with deployment(made(), CLIENTS, tmp_path) as here:
        here.parties, here.key = [here.connect(k) for k in range(CLIENTS)], here.keys().current()
        whole, _ = added(here, 5)
        request = whole.committee.requests()[0]
        here.parties[0].member().answer(request)
        part, _ = added(here, 6)
        here.local.engine.stop()
        folders = [part for k in range(CLIENTS) for part in ("--credentials", here.folder / "run" / f"client-{k}")]
        again = here.engine("again", *folders, state=here.folder / "run" / "engine")
        party = connect(again.address, device="client-0")
        party.member().answer(request)
        party.member().answer(part.committee.requests()[0])
        with pytest.raises(errors.FedcipherError):
            party.encryptor().encrypt(updates(1)[0], round=5)
