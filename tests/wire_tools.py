"""Frames as an attacker makes them: any byte changed, the public checksum made right again."""

import itertools
import shutil
import struct
import tempfile
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import anycrc
import blake3
import hybrid_reference
from fedcipher.schemes.base import state_dir

_CRC = anycrc.Model("CRC64-NVME")
KIND, ROUND, MODEL, MEMORY, CLIENTS, LAYOUT, PAYLOAD, FIXED = 5, 64, 80, 96, 112, 116, 120, 128
UPDATE, AGGREGATE = 1, 2
SIGNATURE_LEN, HYBRID_LEN = 64, hybrid_reference.SIGNATURE_LEN


def sealed(body):
    return bytes(body) + struct.pack("<Q", _CRC.calc(bytes(body)))


def payload_start(frame):
    clients, layout = struct.unpack_from("<II", frame, CLIENTS)
    return FIXED + 12 * clients + layout


def payload(frame):
    return frame[payload_start(frame) : -8]


def signature_len(frame):
    """Of an update: parties of a roster sign with ML-DSA-65 too."""
    return HYBRID_LEN if frame[8:24].rstrip(b"\0") == b"oneshot" else SIGNATURE_LEN


def body(frame):
    """The payload without the signature, which only an update has."""
    whole = payload(frame)
    return whole[: -signature_len(frame)] if frame[KIND] == UPDATE else whole


def with_kind(frame, kind):
    """An update in the form of an aggregate is one without its signature: what is longer would not be looked at."""
    start, left = payload_start(frame), body(frame) if kind == AGGREGATE else payload(frame)
    head = bytearray(frame[:start])
    head[KIND] = kind
    struct.pack_into("<Q", head, PAYLOAD, len(left))
    return sealed(head + left)


def with_round(frame, number):
    return sealed(frame[:ROUND] + struct.pack("<Q", number) + frame[ROUND + 8 : -8])


def with_tags(frame, other):
    """What names a frame's position and its memory of sets, of another one."""
    tags = slice(MODEL, CLIENTS)
    return sealed(frame[: tags.start] + other[tags] + frame[tags.stop : -8])


def with_client(frame, client):
    return sealed(frame[:FIXED] + struct.pack("<I", client) + frame[FIXED + 4 : -8])


def with_weight(frame, weight):
    return sealed(frame[:FIXED] + frame[FIXED : FIXED + 4] + struct.pack("<Q", weight) + frame[FIXED + 12 : -8])


def with_payload(frame, payload):
    start = payload_start(frame)
    assert start + len(payload) + 8 == len(frame)
    return sealed(frame[:start] + payload)


def with_other_payload(frame, payload):
    """One of any length."""
    head = bytearray(frame[: payload_start(frame)])
    struct.pack_into("<Q", head, PAYLOAD, len(payload))
    return sealed(head + payload)


def with_flip(frame, position, mask):
    body = bytearray(frame[:-8])
    body[position % len(body)] ^= mask
    return sealed(body)


def encryptor(scheme, issued, client):
    """A client's; where shares go to a committee, it has taken the members' newest prekeys."""
    made = scheme.encryptor(issued.client(client))
    take_prekeys(made, prekeys(scheme, issued))
    return made


def prekeys(scheme, issued):
    """The newest of each member; none where the scheme has no committee."""
    return scheme.committee.prekeys(issued) if scheme.committee else []


def take_prekeys(encryptor, frames):
    """All of them, none of which is refused."""
    assert encryptor.take_prekeys(frames) == []


def forgetful(scheme, key):
    """A member that remembers nothing of what it has answered, and has the prekeys that it published all the same."""
    folder = Path(tempfile.mkdtemp(dir=state_dir()))
    for path in state_dir().glob(f"*-{key.client}.prekeys"):
        shutil.copy(path, folder)
    return scheme._native.member(key, folder)


def signing_key(key):
    """What a party of `oneshot` signs with, of its key."""
    return hybrid_reference.SigningKey(payload(key.to_bytes())[32:64])


RECORD, WORDS = 128, struct.Struct("<4Q")


def prekey_records(path):
    """Of a member's file: by number, (when it was made, its last round, rounds used, secret), with a secret or none."""
    content = path.read_bytes()
    records = {}
    for at in range(0, len(content), RECORD):
        number, *rest = WORDS.unpack_from(content, at)
        if number:
            records[number] = (*rest, content[at + WORDS.size : at + WORDS.size + 32])
    return records


@dataclass(frozen=True)
class SealedShare:
    """A share in an update: that of ``member`` under its prekey ``number``."""

    member: int
    number: int
    committed: bytes
    encapped: bytes
    sealed: bytes

    @property
    def bytes(self):
        return struct.pack("<Q", self.number) + self.committed + self.encapped + self.sealed


class Sharing:
    """How many bytes shares and sums of a `oneshot` committee have, for polynomials of ``ring`` numbers."""

    def __init__(self, scheme, ring=2048):
        params, pad = scheme.params(), 16
        bits = (2 * 42 * params["clients"] + 1).bit_length()
        elements, masks = -(-ring // params["pack"]), -(-80 // (bits - 1))
        seeds = params["threshold"] - 1
        drawn, packed = 32 + 2 * pad, self._packed(elements + masks, bits) + 2 * pad
        self.shares = [drawn] * seeds + [packed] * (params["members"] - seeds)
        self.sum = self._packed(elements, bits) + pad
        self.combination = self._packed(masks, bits) + pad

    @staticmethod
    def _packed(count, bits):
        return -(-count * bits // 8)


@dataclass(frozen=True)
class OneshotAnswer:
    """A member's answer as docs/reference/protocol.md lays it out."""

    frame: bytes
    member: int
    sum: bytes
    signature: bytes
    wraps: tuple[tuple[int, bytes], ...]
    """Each reader's number, and the key of the sum sealed to it."""
    combined: bytes
    """Each client's combinations."""

    @classmethod
    def read(cls, frame, sharing):
        content = payload(frame)
        parts = (4, sharing.sum, 32, HYBRID_LEN, 4)
        ends = list(itertools.accumulate(parts, initial=0))
        member, total, digest, signature, count = (content[a:b] for a, b in itertools.pairwise(ends))
        each, begin = 4 + 32 + 1136, ends[-1]
        end = begin + each * int.from_bytes(count, "little")
        wraps = [content[at : at + each] for at in range(begin, end, each)]
        keys = tuple((int.from_bytes(wrap[:4], "little"), wrap[4:]) for wrap in wraps)
        (clients,) = struct.unpack_from("<I", frame, CLIENTS)
        made = cls(frame, int.from_bytes(member, "little"), total, signature, keys, content[end:])
        assert made.digest == digest and len(made.combined) == clients * sharing.combination
        return made

    @property
    def digest(self):
        return sha256(self.combined).digest()

    def said(self, context):
        """What the member signs. ``context``: the round's, of an update."""
        start = payload_start(self.frame)
        words = struct.pack("<I", self.member) + sha256(self.frame[FIXED:start]).digest() + sha256(self.sum).digest()
        return context + words + self.digest

    def signed(self, key, context):
        """With the signature of the holder of ``key``."""
        return replace(self, signature=key.sign(b"fedcipher answer 1\0", self.said(context)))

    def to_bytes(self):
        words = [struct.pack("<I", self.member), self.sum, self.digest, self.signature]
        wraps = [struct.pack("<I", reader) + key for reader, key in self.wraps]
        parts = [*words, struct.pack("<I", len(wraps)), *wraps, self.combined]
        return with_other_payload(self.frame, b"".join(parts))


class OneshotUpdate:
    """An update of `oneshot` by docs/reference/protocol.md: ciphertexts, a sealed share a member, tag, signature."""

    def __init__(self, frame, server_key, members, sharing):
        self.frame, start = frame, payload_start(frame)
        self.round, (layout_len,) = frame[ROUND : ROUND + 8], struct.unpack_from("<I", frame, LAYOUT)
        names, params = frame[8:56], frame[24:40]
        epoch, elements, tags = frame[56:64], frame[72:80], frame[MODEL:CLIENTS]
        self.own, layout = frame[FIXED : start - layout_len], frame[start - layout_len : start]
        listed = epoch + server_key.public
        self.roster = sha256(b"fedcipher oneshot v1 roster" + params + listed).digest()
        parts = (names, tags, epoch, self.round, elements, struct.pack("<Q", layout_len), layout)
        common = sha256(b"".join(parts)).digest()
        self.context = self.roster + self.round + tags + common
        self.tag = frame[-8 - HYBRID_LEN - 16 : -8 - HYBRID_LEN]
        body = frame[start : -8 - HYBRID_LEN - 16]
        # Who has given no prekey has eight zero bytes.
        several = itertools.product([True, False], repeat=len(sharing.shares))
        found = (self._cut(body, members, sharing.shares, given) for given in several)
        self.ciphertexts, self.shares = next(filter(None, found))

    @staticmethod
    def _cut(body, members, shares, given):
        """(Ciphertexts, sealed shares); None where it is not just the members ``given`` that have one."""
        lengths = [8 + 32 + 1120 + length + 16 if there else 8 for length, there in zip(shares, given, strict=True)]
        ends = list(itertools.accumulate(lengths, initial=len(body) - sum(lengths)))
        if ends[0] <= 0:
            return None
        cut = []
        for member, begin, end in zip(members, ends, ends[1:], strict=False):
            part = body[begin:end]
            (number,) = struct.unpack_from("<Q", part)
            cut.append(SealedShare(member, number, part[8:40], part[40:1160], part[1160:]))
        # Numbers are seconds of a clock, or a few more.
        right = all((0 < share.number < 1 << 40) == there for share, there in zip(cut, given, strict=True))
        return (body[: ends[0]], cut) if right and all(share.number < 1 << 40 for share in cut) else None

    def info(self, share):
        """Where a share belongs, as its encapsulation has it."""
        words = self.own[:4] + struct.pack("<IQ", share.member, share.number)
        return b"fedcipher oneshot v2 share" + self.roster + self.round + words

    def data(self, ciphertexts):
        """Which update a share belongs to, as its encryption has it."""
        said = self.context + self.own + self.tag + blake3.blake3(ciphertexts).digest()
        return sha256(b"fedcipher oneshot v2 share of" + said).digest()

    def said(self, ciphertexts, shares):
        """What its client signs."""
        digests = b"".join(sha256(share.bytes).digest() for share in shares)
        return self.context + self.own + self.tag + blake3.blake3(ciphertexts).digest() + digests


def answered(aggregator, member_of, asked=None):
    """The committee's part: members agree on the set, and answer. ``asked``: those of them that are there."""
    members = {}
    if aggregator.committee is None:
        return
    for _ in range(4):
        requests = aggregator.committee.requests()
        agreeing = aggregator.committee.agreeing
        for number, request in requests.items():
            if asked is None or number in asked:
                members.setdefault(number, member_of(number))
                aggregator.committee.answer(members[number].answer(request))
        if not agreeing:
            return


EACH_ROUND = """
for round in rounds:
    try:
        if round == "wait":
            print("waiting", flush=True)
            sys.stdin.readline()
            continue
        encrypt(int(round))
        print("encrypted", round, flush=True)
    except FedcipherError as error:
        print(type(error).__name__, error, flush=True)
"""
"""The end of a client's program: what becomes of each of its ``rounds``, on a line."""
