"""docs/reference/protocol.md, "`oneshot` in bytes".

The product and a second implementation of the page take part together.

Parties of one round are some of the one and some of the other. Vectors of the second are read by the product.
"""

import base64
import json
import struct
import subprocess
import sys
import time
from collections import Counter

import fedcipher
import numpy as np
import pytest
import wire_tools
from fedcipher import _native, errors
from fedcipher.schemes.base import state_dir
from places import ROOT

pytest.importorskip("cryptography.hazmat.primitives.asymmetric.mldsa", reason="no ML-DSA")
import oneshot_bytes
import oneshot_reference as second

CLIENTS, ROUND, MODEL, BOUND = 6, 7, b"the model", b"the bound"
ROLES = [7, 7, 3, 7, 7, 5]
TERMS = {"model": MODEL, "bound": BOUND}


class Mixed:
    """Parties of one roster, made by the second implementation; each can be of either."""

    def __init__(self, **params):
        params = {"clients": CLIENTS, "max_weight": 3, "preset": "fast", **params}
        codec, more = params.pop("codec", fedcipher.Codec(bits=16, clip=2.0)), params.pop("values", 0)
        self.scheme = fedcipher.scheme("oneshot", codec=codec, **params)
        self.params = oneshot_bytes.Params.of(self.scheme.spec())
        chance = oneshot_bytes.Chance()
        self.identities = [oneshot_bytes.Identity(chance.bytes(64)) for _ in ROLES]
        parties = [
            oneshot_bytes.Member(k, f"party {k}", role, own.verify, own.seal.public)
            for k, (role, own) in enumerate(zip(ROLES, self.identities, strict=True))
        ]
        self.place = second.Place(self.params, oneshot_bytes.Roster.make(chance, parties))
        self.roster = _native.Roster.from_bytes(self.place.roster.content)
        natives = [_native.Identity.from_bytes(own.content) for own in self.identities]
        self.keys = [self.scheme.committee.join(self.roster, own) for own in natives]
        self.server_key = self.scheme.committee.roster_key(self.roster)
        self.native = self.scheme._native
        widths = [(1, bits, 1.0, [20, 15 + 2 * k]) for k, bits in enumerate(self.params.bits)]
        tensors = [*widths, (1, 16, 1.0, [more, 3]), (12, 2, 1.0, [400]), (12, self.scheme.lane_bits[1], 1.0, [5])]
        self.layout = _native.Layout(tensors)
        self.as_second = oneshot_bytes.Layout(tuple((*t[:3], tuple(t[3])) for t in tensors))

    def member(self, number, of_second):
        return second.CommitteeMember(self.place, self.identities[number]) if of_second else self._member(number)

    def _member(self, number):
        return self.native.member(self.keys[number], state_dir())

    def prekeys(self, members):
        now = int(time.time())
        each = members.values()
        return [m.prekey(now) if isinstance(m, second.CommitteeMember) else m.prekey() for m in each]

    def values(self, client, rng):
        arrays = [rng.normal(0, 0.4, int(np.prod(shape))).astype(np.float32) for *_, shape in self.layout.tensors]
        return arrays, self.layout.quantise(arrays, False, self.scheme.levels)[0]

    def update(self, client, of_second, values, prekeys, memory=b"", spoilt=()):
        """A frame, and what it adds to the sum."""
        (arrays, integers), weight = values, 1 + client % 3
        if of_second:
            sender = second.Client(self.place, self.identities[client])
            sender.take_prekeys(prekeys)
            terms = {"weight": weight, "memory": memory, "spoilt": spoilt, **TERMS}
            frame = sender.encrypt(self.as_second, integers, ROUND, **terms)
        else:
            sender = self.native.encryptor(self.keys[client], state_dir())
            assert sender.take_prekeys(prekeys) == []
            frame = sender.encrypt(self.layout, arrays, ROUND, weight, b"", MODEL, memory, BOUND, False)[0]
        return frame, weight * integers.astype(np.uint64)

    def server(self, of_second):
        return second.Server(self.place, ROUND) if of_second else self.native.aggregator(self.server_key, ROUND)

    def product_opens(self, frame, memory=b""):
        """By party 3; or by the server, where it may."""
        return self.native.decryptor(self.keys[3], state_dir()).decrypt_sums(frame, memory, BOUND)[1]

    def second_opens(self, frame, memory=b""):
        reader = second.ReadingParty(self.place, self.identities[0])
        of, sums, wrong = reader.open(frame, ROUND, MODEL, memory, BOUND)
        assert wrong == []
        return np.array(sums, np.uint64)


def ask(server, members, asked=None):
    """Members agree, where there is a memory, and answer."""
    for _ in range(4):
        requests, agreeing = dict(server.requests()), server.agreeing
        for number, request in requests.items():
            if asked is None or number in asked:
                server.answer(members[number].answer(request))
        if not agreeing:
            return


def aggregate(mixed, clients, members, of_second, memory=b"", rng=None, asked=None):
    """(Aggregate, the sum of what was sent): the sets are of those that are of the second implementation."""
    committee = {k: mixed.member(k, k in members) for k in range(5)}
    prekeys = mixed.prekeys(committee)
    server, total = mixed.server(of_second), 0
    server.take_prekeys(prekeys)
    for client in range(CLIENTS):
        frame, added = mixed.update(client, client in clients, mixed.values(client, rng), prekeys, memory)
        server.add(frame)
        total = total + added
    ask(server, committee, asked)
    return server.finish(), total


MIXES = {
    "its clients are of the second": (set(range(CLIENTS)), set(), False),
    "its members are of the second": (set(), set(range(5)), False),
    "its server is of the second": (set(), set(), True),
    "half of its parties are of the second": ({0, 2, 5}, {1, 3}, True),
    "the other half of its parties are of the second": ({1, 3, 4}, {0, 2, 4}, False),
    "all but its readers are of the second": (set(range(CLIENTS)), set(range(5)), True),
}


@pytest.mark.parametrize("memory", [b"", b"\1a memory", b"a memory"], ids=["no memory", "pinned", "a memory"])
@pytest.mark.parametrize(("clients", "members", "server"), MIXES.values(), ids=MIXES)
def test_a_round_of_both_implementations_has_the_sum_of_what_was_sent(rng, clients, members, server, memory):
    mixed = Mixed()
    frame, total = aggregate(mixed, clients, members, server, memory, rng)
    assert (mixed.product_opens(frame, memory) == total).all()
    assert (mixed.second_opens(frame, memory) == total).all()


@pytest.mark.parametrize("of_second", [False, True], ids=["the product's server", "the second's"])
@pytest.mark.parametrize(
    "params",
    [
        {"pack": 2},
        # Several ciphertexts, the first cut where a whole group of words ends.
        {"values": 3000, "codec": fedcipher.Codec(bits=[8, 16])},
        {"preset": "compact"},
        {"preset": "compact", "pack": 2, "corrupt_members": 0},
        {"codec": fedcipher.Codec(bits=[16, 8, 16, 3])},
        {"codec": fedcipher.Codec(bits=[8, 20]), "preset": "compact", "max_weight": 100},
    ],
)
def test_other_parameters_are_read_alike(rng, params, of_second):
    mixed = Mixed(**params)
    frame, total = aggregate(mixed, {0, 1}, {0, 4}, of_second, b"here", rng)
    assert (mixed.product_opens(frame, b"here") == total).all()
    assert (mixed.second_opens(frame, b"here") == total).all()


@pytest.mark.parametrize("of_second", [False, True], ids=["the product's server", "the second's"])
def test_a_server_that_may_see_the_sum_opens_it(rng, of_second):
    mixed = Mixed(reveal="server")
    frame, total = aggregate(mixed, {1, 2}, {1, 2}, of_second, b"", rng)
    assert (mixed.native.server_decryptor(mixed.server_key).decrypt_sums(frame, b"", BOUND)[1] == total).all()
    assert (np.array(second.ReadingParty(mixed.place).open(frame, ROUND)[1], np.uint64) == total).all()
    assert (mixed.product_opens(frame) == total).all()
    assert (mixed.second_opens(frame) == total).all()


def test_members_that_remember_more_are_heard_by_both_servers(rng):
    """Two of five know a set of half of the clients: without them too few sign, until all others have learned of it."""
    for of_second, members, early in ((False, {0, 1, 2}, (0, 3)), (True, {3, 4}, (2, 3))):
        mixed = Mixed()
        committee = {k: mixed.member(k, k in members) for k in range(5)}
        prekeys = mixed.prekeys(committee)
        clients = [mixed.update(k, k % 2 == 0, mixed.values(k, rng), prekeys, b"here") for k in range(CLIENTS)]
        before, server = mixed.server(not of_second), mixed.server(of_second)
        for frame, _ in clients[:3]:
            before.add(frame)
        for number in early:
            committee[number].answer(dict(before.requests())[number])
        for frame, _ in clients:
            server.add(frame)
        ask(server, committee)
        frame, total = server.finish(), sum(added for _, added in clients)
        assert (mixed.product_opens(frame, b"here") == total).all()
        assert (mixed.second_opens(frame, b"here") == total).all()


@pytest.mark.parametrize("number", [1, 2, 3], ids=["second's member", "product's member", "another"])
@pytest.mark.parametrize("of_second", [False, True], ids=["the product's server", "the second's"])
def test_a_share_that_is_none_is_proven_to_both_servers(rng, of_second, number):
    mixed = Mixed()
    committee = {k: mixed.member(k, k in {0, 1, 4}) for k in range(5)}
    prekeys = mixed.prekeys(committee)
    server = mixed.server(of_second)
    for client in range(CLIENTS):
        spoilt = {"spoilt": (1, 2, 3)} if client == 4 else {}
        server.add(mixed.update(client, True, mixed.values(client, rng), prekeys, **spoilt)[0])
    complaint = committee[number].answer(dict(server.requests())[number])
    if of_second:
        server.answer(complaint)
        assert server.proven == {4}
    else:
        with pytest.raises(errors.FalseShareError):
            server.answer(complaint)
        assert server.accused == [4]


def test_the_rule_of_sets_is_the_same_in_both(rng):
    refused = 0
    for _ in range(150):
        product, other = _native.SetMemory(1), second.Sets()
        for _ in range(6):
            least = int(rng.integers(1, 4))
            chosen = [k for k in range(9) if rng.random() < 0.5] or [0]
            product = _native.SetMemory.from_bytes(product.to_bytes(), least)
            try:
                other, taken = other.admit(chosen, least), True
            except oneshot_bytes.Refused:
                taken = False
            if taken:
                product.admit(chosen)
            else:
                refused += 1
                with pytest.raises(errors.SetRuleError):
                    product.admit(chosen)
            said = struct.pack("<QI", least, 0) + second.write_sets(other.listed())
            assert product.to_bytes() == said
    assert 100 < refused < 800


def test_rosters_and_keys_are_the_same_bytes_in_both():
    mixed = Mixed()
    assert mixed.place.roster.fingerprint(mixed.params, 1) == mixed.scheme.committee.roster_fingerprint(
        mixed.roster, epoch=1
    )
    assert mixed.place.server_key() == mixed.server_key.to_bytes()
    for own, key in zip(mixed.identities, mixed.keys, strict=True):
        assert mixed.place.client_key(own) == key.to_bytes()
    signatures = [(k, mixed.place.joined_signature(own)) for k, own in enumerate(mixed.identities)]
    mixed.scheme.committee.with_joined(mixed.keys[0], signatures)
    native = _native.Identity.from_bytes(mixed.identities[2].content)
    fingerprint = mixed.place.roster.fingerprint(mixed.params, 1)
    signed = native.sign_roster(fingerprint)
    assert oneshot_bytes.holds(mixed.identities[2].verify, "roster", fingerprint, signed)
    cards = [(k, f"party {k}", (True, k < 5, True), *_native.Identity.generate().public()) for k in range(6)]
    made = _native.Roster(cards)
    found = oneshot_bytes.Roster(made.to_bytes()).fingerprint(mixed.params, 3)
    assert found == mixed.scheme.committee.roster_fingerprint(made, epoch=3)


# Vectors


def vectors():
    return json.loads((ROOT / "tests" / "vectors" / "oneshot.json").read_text())


def raw(text):
    return base64.b64decode(text)


class Kept:
    """What the vectors say, and parties of both implementations that have read so much of it as their part needs."""

    def __init__(self):
        self.said = said = vectors()
        self.frames = {}
        for one in said["frames"]:
            self.frames.setdefault(one["what"], {})[one["party"]] = raw(one["frame"])
        params = said["spec"]["params"]
        self.scheme = fedcipher.scheme("oneshot", codec=fedcipher.Codec(bits=12), **params)
        self.native = self.scheme._native
        self.server_key = _native.ServerKey.from_bytes(self.frames["server key"][0])
        self.roster = _native.Roster.from_bytes(self.server_key.public)
        self.params = oneshot_bytes.Params.of(self.scheme.spec())
        self.place = second.Place.of_server_key(self.params, self.frames["server key"][0])
        self.identities = {int(n): raw(content) for n, content in said["identities"].items()}
        self.keys = {
            n: self.scheme.committee.join(self.roster, _native.Identity.from_bytes(c))
            for n, c in self.identities.items()
        }
        self.prekeys = {int(n): raw(secret) for n, secret in said["prekeys"].items()}

    def of_second(self, number):
        return oneshot_bytes.Identity(self.identities[number])

    def product_member(self, number, agreed=True):
        """With the prekey of the vectors in its file."""
        member = self.native.member(self.keys[number], state_dir())
        member.prekey()
        (path,) = state_dir().glob(f"*-{number}.prekeys")
        made = struct.pack("<4Q", 1000 + number, int(time.time()), 0, 0) + self.prekeys[number]
        path.write_bytes(wire_tools.sealed(made.ljust(wire_tools.RECORD - 8, b"\0")))
        if agreed:
            assert len(member.answer(self.frames["proposal"][10])) == len(self.frames["agreement"][number])
        return member

    def second_member(self, number, agreed=True):
        member = second.CommitteeMember(self.place, self.of_second(number))
        member.prekeys[1000 + number] = (oneshot_bytes.Seal(self.prekeys[number]), [])
        if agreed:
            member.answer(self.frames["proposal"][10])
        return member

    def servers(self, upto="update", last="update"):
        """Of both, with the updates, and with what comes after them as far as ``upto``."""
        made = [self.native.aggregator(self.server_key, 9), second.Server(self.place, 9)]
        for server in made:
            server.take_prekeys(list(self.frames["prekey"].values()))
            updates = dict(self.frames["update"])
            updates.update(self.frames[last])
            for frame in updates.values() if upto != "nothing" else ():
                server.add(frame)
            if upto in ("agreement", "answer"):
                server.requests()
                for frame in self.frames["agreement"].values():
                    server.answer(frame)
                server.requests()
            if upto == "answer":
                for frame in self.frames["answer"].values():
                    server.answer(frame)
        return made


@pytest.fixture(scope="module")
def kept():
    return Kept()


def test_the_vectors_are_what_their_seeds_give():
    pytest.importorskip("kyber_py", reason="no kyber-py, which makes vectors")
    pytest.importorskip("dilithium_py", reason="no dilithium-py, which makes vectors")
    command = [sys.executable, ROOT / "tools" / "protocol_vectors.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_product_says_of_the_vectors_roster_what_they_say(kept):
    said = kept.said
    assert kept.scheme.committee.roster_fingerprint(kept.roster, epoch=1) == raw(said["roster"]["fingerprint"])
    assert kept.server_key.to_bytes() == kept.frames["server key"][0]
    assert kept.keys[20].to_bytes() == kept.frames["client key"][20]
    assert kept.frames["update"][10][24:40] == raw(said["parameters"])
    signatures = [(one["party"], raw(one["signature"])) for one in said["signed"] if "signature" in one]
    assert len(signatures) == 5
    kept.scheme.committee.with_joined(kept.keys[20], signatures)


def test_the_product_takes_every_frame_of_the_vectors_and_makes_the_servers_alike(kept):
    """Its server's proposals, requests and aggregate are those of the vectors to the byte."""
    server = kept.servers()[0]
    assert dict(server.requests())[10] == kept.frames["proposal"][10]
    for frame in kept.frames["agreement"].values():
        server.answer(frame)
    requests = dict(server.requests())
    assert {n: requests[n] for n in kept.frames["request"]} == kept.frames["request"]
    for number, frame in kept.frames["answer"].items():
        assert server.answer(frame) == number
    assert server.finish() == kept.frames["aggregate"][0]
    client = kept.native.encryptor(kept.keys[30], state_dir())
    assert client.take_prekeys(list(kept.frames["prekey"].values())) == []


def test_the_products_members_open_the_shares_of_the_vectors(kept):
    """Their sums and combinations are those of the vectors: an answer has the vector's up to its random parts."""
    for number, request in kept.frames["request"].items():
        answer = kept.product_member(number).answer(request)
        size = 3 * kept.params.combination_len
        assert answer[-8 - size : -8] == kept.frames["answer"][number][-8 - size : -8]


def test_the_products_reader_opens_the_aggregate_of_the_vectors(kept):
    for reader in (20, 50):
        opened = kept.native.decryptor(kept.keys[reader], state_dir())
        _, sums = opened.decrypt_sums(kept.frames["aggregate"][0], b"\1the memory", b"the bound")
        assert sums.tolist() == kept.said["sums"]
    assert kept.said["sums"] == [
        sum((1 + c // 10 % 2) * kept.said["values"][str(c)][k] for c in (10, 20, 30))
        for k in range(len(kept.said["sums"]))
    ]


def test_the_product_takes_the_vectors_complaint_as_proven(kept):
    server = kept.servers("agreement", "spoilt update")[0]
    with pytest.raises(errors.FalseShareError):
        server.answer(kept.frames["complaint"][20])
    assert server.accused == [30]


def test_every_kind_of_frame_and_every_purpose_of_a_signature_has_a_vector(kept):
    kinds = {frame[wire_tools.KIND] for each in kept.frames.values() for frame in each.values()}
    assert kinds == set(range(1, 11))
    purposes = Counter(one["purpose"] for one in kept.said["signed"])
    assert set(purposes) == {"update", "answer", "complaint", "sets", "roster", "prekey"}


# A byte changed, and the checksum made right again. What nothing binds is in the page under "Bytes that nothing binds".

ELEMENTS = range(72, 80)
HEADS = {
    "request": [*ELEMENTS],
    "proposal": [*ELEMENTS, *range(152, 164)],
}


def wraps(kept, what):
    """Where the keys for readers are."""
    size, params = 4 + 32 + 1120 + 16, kept.params
    one = 4 + params.sum_len + 32 + oneshot_bytes.SIGNATURE + 4
    start = 4 + 4 if what == "aggregate" else 0
    begins = [start + k * (one + 2 * size) for k in range(4 if what == "aggregate" else 1)]
    return [at for begin in begins for at in range(begin + one, begin + one + 2 * size)]


def unbound(kept, what, frame):
    """Positions of bytes that nothing binds."""
    made = set(HEADS.get(what, []))
    if what in ("answer", "aggregate"):
        made |= {wire_tools.payload_start(frame) + at for at in wraps(kept, what)}
    if what == "client key":
        made |= {wire_tools.payload_start(frame) + at for at in range(32)}
    return made


def readers(kept, what, party):
    """Of the product and of the second: what raises where a frame is refused."""

    def no_refusals(said):
        oneshot_bytes.check(said == [], said)

    if what == "server key":
        return (
            lambda f: kept.native.aggregator(_native.ServerKey.from_bytes(f), 9),
            lambda f: second.Place.of_server_key(kept.params, f),
        )
    if what == "client key":
        return (
            lambda f: kept.scheme.committee.roster_of(_native.ClientKey.from_bytes(f)),
            lambda f: second.Place.of_client_key(kept.params, f),
        )
    if what == "aggregate":
        return (
            lambda f: kept.native.decryptor(kept.keys[20]).decrypt_sums(f, b"\1the memory", b"the bound"),
            lambda f: second.ReadingParty(kept.place, kept.of_second(20)).open(
                f, 9, b"the model", b"\1the memory", b"the bound"
            ),
        )
    if what in ("request", "proposal"):
        agreed = what == "request"
        return kept.product_member(party, agreed).answer, kept.second_member(party, agreed).answer
    if what == "prekey":
        server = kept.servers("nothing")[0]
        return lambda f: no_refusals(server.take_prekeys([f])), kept.place.read_prekey
    if what == "update":
        return tuple(server.add for server in kept.servers("nothing"))
    last = "spoilt update" if what == "complaint" else "update"
    upto = {"agreement": "update"}.get(what, "agreement")
    servers = kept.servers(upto, last)
    for server in servers:
        server.requests()
    return tuple(server.answer for server in servers)


KINDS = ["client key", "server key", "prekey", "update", "proposal", "agreement", "request", "answer", "complaint"]


@pytest.mark.parametrize("what", [*KINDS, "aggregate"])
def test_a_vector_of_which_one_byte_was_changed_is_refused_by_both(kept, what):
    party, frame = next(iter(kept.frames[what].items()))
    read, start = readers(kept, what, party), wire_tools.payload_start(frame)
    places = [*range(start), *range(start, len(frame) - 8, 449), *range(len(frame) - 80, len(frame) - 8, 9)]
    tried = [at for at in places if at not in unbound(kept, what, frame)]
    for at in tried:
        changed = wire_tools.with_flip(frame, at, 1 << at % 8)
        for reads in read:
            with pytest.raises((ValueError, errors.FedcipherError)) as raised:
                reads(changed)
            assert not isinstance(raised.value, errors.FalseShareError), at
    for reads in read:
        with pytest.raises((ValueError, errors.FedcipherError)):
            reads(frame[:-1] + bytes([frame[-1] ^ 1]))
    assert len(tried) > 100
    # And the vector itself is taken.
    for reads in read:
        if what == "complaint" and reads is read[0]:
            with pytest.raises(errors.FalseShareError):
                reads(frame)
        else:
            reads(frame)


@pytest.mark.parametrize("what", ["proposal", "request", "answer", "aggregate"])
def test_bytes_that_nothing_binds_are_those_that_the_page_names(kept, what):
    """Whoever carries a frame can change these, and both take it all the same: of an aggregate, without its member."""
    party, frame = next(iter(kept.frames[what].items()))
    places = sorted(unbound(kept, what, frame))
    # Another weight of a client that is not asked for its statement; the sealed key for the last reader.
    tried = {"proposal": [72, 157], "request": [72]}.get(what, [places[-5]])
    for at in tried:
        assert at in places
        for reads in readers(kept, what, party):
            reads(wire_tools.with_flip(frame, at, 1))
