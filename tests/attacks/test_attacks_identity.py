"""Attack 18: one client of the cohort, which has the cohort's secret, sends under others' numbers to an honest server.

A client's number is its signature's: nobody is displaced, and one key fills no sum.
"""

import base64
import functools
import re
import struct
from dataclasses import dataclass, replace
from hashlib import sha256

import blake3
import ed25519_reference as ed
import fedcipher
import hybrid_reference
import numpy as np
import pytest
import wire_tools
from attack_harness import ALL, CLIENTS, Federation
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fedcipher import _native, errors, keys
from fedcipher.adapters.flower import SecureStrategy
from fedcipher.federation import messages as protocol
from fedcipher.federation.policy import Policy
from fedcipher.federation.server.round_sums import RoundSums
from fedcipher.frame import Kind, inspect
from fedcipher.schemes import base
from flower_harness import initial, record, wire_record
from flwr.serverapp.strategy import FedAvg
from places import ROOT
from scheme_lists import schemes_that

THIEF = 1000
"""The node of client 0, whose key file the thief has; it is asked first."""


@pytest.fixture(params=schemes_that())
def thief(request, tmp_path, rng, monkeypatch):
    codec = fedcipher.Codec(bits=10, clip=2.0, target="weights")
    return Thief(Federation(tmp_path, request.param, rng, codec=codec), monkeypatch, tmp_path)


class Thief:
    """A round of honest clients, and frames made with one client's key file."""

    def __init__(self, federation, monkeypatch, folder):
        self.federation, self.monkeypatch, self.folder = federation, monkeypatch, folder
        self.scheme, self.key = keys.load_client(federation.folder / "client-0.key")
        self.told, self.made = [], 0
        real = base.KernelEncryptor.encrypt

        def encrypt(this, update, **given):
            self.told.append(given)
            return real(this, update, **given)

        monkeypatch.setattr(base.KernelEncryptor, "encrypt", encrypt)
        # Replies come in the order of Flower's sample.
        monkeypatch.setattr("random.sample", lambda nodes, count: sorted(nodes)[:count])
        # Made before the run begins: a ledger refuses rounds that were begun before it.
        self.ready = {client: [self.encryptor(client) for _ in range(2)] for client in range(CLIENTS + 1)}

    def encryptor(self, client):
        """Client 0's under the number ``client``, which encrypts and tags as that client where it can.

        It has a machine of its own, where nobody has encrypted any round.
        """
        self.made += 1
        committee = self.scheme.info.committee
        key = self.key if committee else type(self.key).from_bytes(wire_tools.with_client(self.key.to_bytes(), client))
        with self.monkeypatch.context() as patch:
            patch.setenv("FEDCIPHER_STATE_DIR", str(self.folder / f"thief-{self.made}"))
            return self.scheme.encryptor(key)

    def frame(self, client):
        """Client 0's update of the first round under the number ``client``."""
        encryptor = self.ready[client].pop()
        settings = next(
            content[protocol.CONFIG] for _, content in self.federation.grid.sent if protocol.CONFIG in content
        )
        wire_tools.take_prekeys(encryptor, list(settings.get("prekeys", [])))
        frame = encryptor.encrypt(initial(), **self.told[0])
        return wire_tools.with_client(frame, client)

    def start(self, tamper, rounds=1, resume=False):
        """Rounds in which ``tamper(client, frame)`` says what comes of a client's frame."""

        def changed(sent, reply, client):
            if sent.metadata.message_type != "train" or "fedcipher.committee" in sent.content:
                return reply
            (place,) = reply.content.array_records
            frame = tamper(client, protocol.frame_bytes(reply.content[place][protocol.UPDATE]))
            if frame is None:
                return None
            reply.content[place] = wire_record({protocol.UPDATE: frame})
            return reply

        grid = self.federation.grid
        grid.tamper = changed
        inner = FedAvg(**ALL, fraction_evaluate=0.0)
        strategy = SecureStrategy(inner, self.federation.folder, out=self.folder / "run", resume=resume)
        try:
            strategy.start(grid, record(initial()), num_rounds=rounds)
        except errors.StrategyError:
            assert strategy.rounds[0].unfinished
        return strategy


def test_attack_18_who_sends_anothers_number_first_is_not_that_client(thief, caplog):
    strategy = thief.start(lambda client, frame: thief.frame(2) if client == 0 else frame)
    (made,) = strategy.rounds
    assert [(c.node, c.client) for c in made.clients if not c.left_out] == [(1000 + k, k) for k in range(1, CLIENTS)]
    (refused,) = [c for c in made.clients if c.left_out]
    assert refused.node == THIEF
    assert refused.left_out.startswith("SignatureError")
    assert strategy.run.nodes.node_of == {k: 1000 + k for k in range(1, CLIENTS)}
    assert THIEF not in strategy.run.nodes.client_of
    (aggregate,) = (thief.folder / "run").rglob("aggregate-*.fedc")
    assert inspect(aggregate.read_bytes()).clients == [1, 2, 3, 4]
    assert f"node {THIEF} is left out of round 1: SignatureError: a message in the name of party 2 lacks" in caplog.text


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 0, 0), (3, 4, 0)], ids=str)
def test_attack_18_one_key_file_on_three_nodes_fills_no_sum_of_three(thief, numbers):
    own = []

    def tamper(client, frame):
        own.append(frame)
        if client >= 3:
            return None
        return own[0] if numbers[client] == 0 else thief.frame(numbers[client])

    strategy = thief.start(tamper)
    (made,) = strategy.rounds
    assert made.accepted == 1
    assert "1 usable updates" in made.unfinished
    assert set(strategy.run.nodes.node_of) == {0}
    assert not made.aggregate_bytes


def test_attack_18_a_frame_that_is_refused_binds_and_frees_nobody(thief):
    """A key file's holder cannot take a client's place either once that has shown itself, or become two clients."""
    scheme, server = keys.load_server(thief.federation.folder)
    frames = {}
    thief.start(lambda client, frame: frames.setdefault(client, frame))
    aggregator = scheme.aggregator(server)
    for client in (1, 2, 3):
        with pytest.raises(errors.SignatureError):
            aggregator.add(thief.frame(client))
        aggregator.add(frames[client])
    with pytest.raises(errors.UnknownClientError):
        aggregator.add(thief.frame(CLIENTS))
    assert aggregator.add(frames[0]).client == 0


def test_attack_18_nodes_are_known_again_after_a_restart(tmp_path, rng, monkeypatch, caplog):
    """A node that has been client 2 brings a genuine update of client 0, whose node is silent."""
    thief = Thief(Federation(tmp_path, "flashe", rng), monkeypatch, tmp_path)
    thief.start(lambda client, frame: frame)
    frames = {}

    def tamper(client, frame):
        frames[client] = frame
        return {0: None, 2: frames[0]}.get(client, frame)

    again = thief.start(tamper, rounds=2, resume=True)
    assert again.run.nodes.node_of == {k: 1000 + k for k in range(CLIENTS)}
    assert [c.client for c in again.rounds[-1].clients if not c.left_out] == [1, 3, 4]
    assert "node 1002 (client 2) is left out of round 2: UnknownClientError" in caplog.text


def test_attack_18_one_client_takes_up_one_kind_of_sum(tmp_path, rng, monkeypatch):
    """A client with several nodes could send of each kind one, until there is no room for what the others send."""
    thief = Thief(Federation(tmp_path, "flashe", rng), monkeypatch, tmp_path)
    scheme, server = keys.load_server(thief.federation.folder)
    frames = {}
    thief.start(lambda client, frame: frames.setdefault(client, frame))
    sums = RoundSums(lambda: scheme.aggregator(server))
    sums.add(frames[0], None, [0], "told")
    for told in ("told something else", "told a third thing"):
        with pytest.raises(errors.DuplicateClientError, match="client 0 has sent another frame"):
            sums.add(thief.frame(0), None, [0], told)
    for client in range(1, CLIENTS):
        sums.add(frames[client], None, [client], "told")
    assert len(sums.largest()[1]) == CLIENTS


def signed(frame, number):
    """What an update's signature covers, under a common key in round ``number``: docs/reference/protocol.md."""
    start = wire_tools.payload_start(frame)
    (layout_len,) = struct.unpack_from("<I", frame, wire_tools.LAYOUT)
    scheme_params_key, epoch_round_elements = frame[8:56], frame[56 : wire_tools.MODEL]
    model_memory, layout = frame[wire_tools.MODEL : wire_tools.CLIENTS], frame[start - layout_len : start]
    common = scheme_params_key + model_memory + epoch_round_elements + struct.pack("<Q", layout_len) + layout
    own, payload = frame[wire_tools.FIXED : start - layout_len], wire_tools.payload(frame)
    body, tag = payload[:-80], payload[-80:-64]
    said = b"fedcipher update 1\0" + bytes(32) + struct.pack("<Q", number) + model_memory + sha256(common).digest()
    return said + own + tag + blake3.blake3(body).digest()


def test_an_updates_signature_is_what_the_protocol_page_says():
    """By another library, from the bytes of docs/reference/protocol.md and the key in the server's file."""
    scheme = fedcipher.scheme("flashe", clients=CLIENTS)
    made = scheme.keygen(CLIENTS)
    frame = scheme.encryptor(made.client(3)).encrypt(initial(), round=7, model=b"a model", memory=b"a memory")
    said, signature = signed(frame, 7), wire_tools.payload(frame)[-64:]
    key = wire_tools.payload(made.server().to_bytes())[3 * 32 : 4 * 32]
    Ed25519PublicKey.from_public_bytes(key).verify(signature, said)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, said[:-1] + b"x")


def test_a_partys_signature_is_what_the_protocol_page_says():
    """By a second implementation, from the bytes of docs/reference/protocol.md and the key in the roster."""
    scheme = fedcipher.scheme("oneshot", clients=CLIENTS, preset="fast")
    made = scheme.keygen(CLIENTS)
    frame = wire_tools.encryptor(scheme, made, 3).encrypt(initial(), round=7, model=b"a model", memory=b"a memory")
    update = wire_tools.OneshotUpdate(frame, made.server(), range(5), wire_tools.Sharing(scheme))
    said, signature = update.said(update.ciphertexts, update.shares), wire_tools.payload(frame)[-3373:]
    key = wire_tools.signing_key(made.client(3)).public
    assert made.server().public.count(key) == 1
    assert hybrid_reference.holds(key, b"fedcipher update 1\0", said, signature)
    assert not hybrid_reference.holds(key, b"fedcipher update 1\0", said[:-1] + b"x", signature)


# --- edge cases of Ed25519 ----------------------------------------------------------------------

VECTORS = ROOT / "crates" / "fedcipher-core" / "tests" / "speccheck.in"
"""The published vectors, with whether ZIP 215 takes each and whether its key is one."""
NOT_CANONICAL = (ed.P + 1).to_bytes(32, "little")
"""The neutral element, not as RFC 8032 encodes it."""


@dataclass(frozen=True)
class Odd:
    """A signature R = rB + torsion, S = r + ka under the key A = aB + torsion, made as the published ones are."""

    a: int = 77
    r: int = 5
    torsion: tuple[int, int] = (0, 0)
    """Multiples of a point of order 8 in A and in R."""
    encoded: tuple[bytes | None, bytes | None] = (None, None)
    """A and R in place of their own encodings."""
    orders: int = 0
    """How often the order is added to S."""

    @property
    def key(self) -> bytes:
        return self.encoded[0] or self._point(self.a, self.torsion[0])

    def sign(self, message: bytes) -> bytes:
        r = self.encoded[1] or self._point(self.r, self.torsion[1])
        s = (self.r + ed.challenge(r, self.key, message) * self.a) % ed.L + self.orders * ed.L
        return r + s.to_bytes(32, "little")

    @staticmethod
    def _point(scalar: int, torsion: int) -> bytes:
        return ed.encoded(ed.add(ed.times(scalar, ed.BASE), ed.times(torsion, ed.EIGHT)))


ODD = {
    "plain": (Odd(), True),
    "mixed A": (Odd(torsion=(1, 0)), True),
    "mixed R": (Odd(torsion=(0, 3)), True),
    "mixed A and R": (Odd(torsion=(5, 2)), True),
    "small R": (Odd(r=0, torsion=(0, 1)), True),
    "small R and mixed A": (Odd(r=0, torsion=(7, 1)), True),
    "R not canonical": (Odd(r=0, encoded=(None, NOT_CANONICAL)), True),
    "small A": (Odd(a=0, torsion=(1, 0)), False),
    "small A and R": (Odd(a=0, r=0, torsion=(1, 1)), False),
    "neutral A": (Odd(a=0), False),
    "A not canonical": (Odd(a=0, encoded=(NOT_CANONICAL, None)), False),
    "S beyond the order": (Odd(orders=1), False),
    "S far beyond the order": (Odd(orders=8), False),
}


@functools.cache
def beside():
    """Whose halves of ML-DSA-65 stand before odd halves of Ed25519."""
    return hybrid_reference.SigningKey(bytes(range(32)))


def with_half(key):
    """The public key of a party whose half of Ed25519 is ``key``."""
    return beside().public[:-32] + key


def signed_beside(odd, domain, message):
    """A party's signature: a good half of ML-DSA-65, and an odd one."""
    return beside().lattice(domain, message) + odd.sign(hybrid_reference.representative(domain, message))


@pytest.fixture(scope="module")
def charter(tmp_path_factory):
    """Of a client that asks its policy whether a coordinator has signed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        federation = Federation(tmp_path_factory.mktemp("charter"), "plain", np.random.default_rng(1))
        return federation.make_charter()


def client_takes(odd, charter):
    """Whether a client takes the signature for its coordinator's."""
    key, domain = with_half(odd.key), b"fedcipher charter 1\0"
    signature = signed_beside(odd, domain, charter.digest)
    vouched = Policy(coordinators=(base64.b64encode(key).decode(),)).vouched(charter, signature)
    assert _native.charter_signature_holds(key, charter.digest, signature) is vouched
    assert (hybrid_reference.is_key(key) and hybrid_reference.holds(key, domain, charter.digest, signature)) is vouched
    return vouched


def server_takes(odd):
    """Whether an aggregator takes the signature for its client 3's; none takes it whose keys are refused."""
    scheme = fedcipher.scheme("plain", clients=CLIENTS)
    made = scheme.keygen(CLIENTS)
    frame = scheme.encryptor(made.client(3)).encrypt(initial(), round=7)
    payload = wire_tools.payload(frame)
    frame = wire_tools.with_payload(frame, payload[:-64] + odd.sign(signed(frame, 7)))
    key = made.server().to_bytes()
    cohort = wire_tools.payload(key)
    changed = wire_tools.with_payload(key, cohort[: 3 * 32] + odd.key + cohort[4 * 32 :])
    try:
        server = _native.ServerKey.from_bytes(changed)
    except errors.KeyFormatError:
        assert not ed.is_key(odd.key)
        return False
    try:
        return scheme.aggregator(server, round=7).add(frame).client == 3
    except errors.SignatureError:
        return False


class Committee:
    """Of three members, and a client that signs with an odd key beside them: party 3."""

    UPDATE = b"fedcipher update 1\0"

    def __init__(self, odd):
        self.scheme = fedcipher.scheme(
            "oneshot",
            clients=4,
            members=3,
            threshold=2,
            corrupt_clients=0,
            corrupt_members=0,
            min_contributions=2,
            preset="fast",
        )
        identities = [_native.Identity.generate() for _ in range(3)]
        listed = rostered(with_half(odd.key), identities)
        joined = {k: self.scheme.committee.join(listed, identity) for k, identity in enumerate(identities)}
        self.keys = base.KeySet(joined, self.scheme.committee.roster_key(listed))

    def update(self, client):
        return wire_tools.encryptor(self.scheme, self.keys, client).encrypt(initial(), round=7)

    def parsed(self, frame):
        return wire_tools.OneshotUpdate(frame, self.keys.server(), range(3), wire_tools.Sharing(self.scheme))

    def odd_update(self, odd, frame):
        """Party 3's, and its signature. A member that takes it complains of the shares, which are another's."""
        update = self.parsed(frame)
        signature = signed_beside(odd, self.UPDATE, update.said(update.ciphertexts, update.shares))
        return wire_tools.with_payload(frame, wire_tools.body(frame) + signature), signature

    def taken(self, odd):
        """Whether the server takes it, and whether a member does from a server that has."""
        frame, signature = self.odd_update(odd, wire_tools.with_client(self.update(2), 3))
        aggregator = self.scheme.aggregator(self.keys.server(), round=7)
        try:
            by_server = aggregator.add(frame).client == 3
        except errors.SignatureError:
            by_server = False
            # So that there is a request: the odd one is put in the place of one that holds.
            held, good = self.odd_update(replace(odd, orders=0), frame)
            aggregator.add(held)
        for client in range(2):
            aggregator.add(self.update(client))
        request = aggregator.committee.requests()[0]
        if not by_server:
            assert request.count(good) == 1
            request = wire_tools.sealed(request.replace(good, signature)[:-8])
        try:
            answer = self.scheme.committee.member(self.keys.client(0)).answer(request)
        except errors.SignatureError:
            return by_server, False
        assert inspect(answer).kind == Kind.COMPLAINT
        return by_server, True


def rostered(key, identities):
    """A roster with a client more, which checks with ``key``."""
    cards = [(k, f"party-{k}", (True, True, True), *identity.public()) for k, identity in enumerate(identities)]
    number, sealing = len(cards), _native.Identity.generate().public()[1]
    return _native.Roster([*cards, (number, f"party-{number}", (True, False, True), key, sealing)])


def committee_takes(odd):
    """Whether a server and a committee's members take the signature for a client's; none has a key that is refused."""
    if not is_in_a_roster(odd.key):
        return False
    by_server, by_member = Committee(odd).taken(odd)
    assert by_server is by_member
    return by_server


def is_in_a_roster(half):
    """Whether parties make a roster of a key with this half, by which a committee's members check."""
    try:
        return bool(rostered(with_half(half), [_native.Identity.generate() for _ in range(2)]))
    except errors.ParameterError as error:
        assert "no key to check signatures with" in str(error)
        return False


@pytest.mark.parametrize("name", ODD)
def test_an_odd_signature_is_the_same_to_client_server_and_a_second_implementation(name, charter):
    odd, taken = ODD[name]
    by_reference = ed.is_key(odd.key) and ed.holds(odd.key, b"any message", odd.sign(b"any message"))
    assert [by_reference, client_takes(odd, charter), server_takes(odd), committee_takes(odd)] == [taken] * 4
    assert is_in_a_roster(odd.key) is ed.is_key(odd.key)


def test_the_published_edge_cases_are_those_of_a_second_implementation():
    """Rust's tests check them alone and in batches; a key that is refused vouches for nothing."""
    vector = r'"([0-9a-f]*)",\s*"([0-9a-f]{64})",\s*"([0-9a-f]{128})",\s*(true|false),\s*(true|false)'
    found = re.findall(vector, VECTORS.read_text())
    assert len(found) == 15
    for message, key, signature, *expected in found:
        message, key, signature = map(bytes.fromhex, (message, key, signature))
        held = [ed.holds(key, message, signature), ed.is_key(key)]
        assert held == [said == "true" for said in expected], key.hex()
        assert is_in_a_roster(key) is held[1], key.hex()
        # Under some keys of small order one signature would hold for every message.
        first = beside().lattice(b"fedcipher charter 1\0", message)
        assert not _native.charter_signature_holds(with_half(key), message, first + signature)


def test_no_roster_has_a_key_that_is_not_canonical_or_of_small_order():
    """Each y from p on, with either sign, and the eight points of small order: one party would have two keys."""
    beyond = [((ed.P + y) | sign << 255).to_bytes(32, "little") for y in range(19) for sign in (0, 1)]
    small = [ed.encoded(ed.times(number, ed.EIGHT)) for number in range(8)]
    assert sum(ed.decoded(key) is not None for key in beyond) > 8
    assert not any(ed.is_key(key) or is_in_a_roster(key) for key in [*beyond, *small])
    assert ed.is_key(ed.encoded(ed.BASE)) and is_in_a_roster(ed.encoded(ed.BASE))
