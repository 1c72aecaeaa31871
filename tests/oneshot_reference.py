"""A second implementation of `oneshot`, from docs/reference/protocol.md: its parties. Slow, and for tests only.

Whoever refuses raises `Refused`. Chance comes from the operating system, or from a seed for vectors.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256

import blake3
import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from oneshot_bytes import (
    AGGREGATE,
    AGREEMENT,
    ANSWER,
    CLIENT_KEY,
    COMPLAINT,
    ENCAPPED,
    GCM,
    PREKEY,
    PROPOSAL,
    REQUEST,
    SEAL_KEY,
    SERVER_KEY,
    SIGNATURE,
    TAGS,
    UPDATE,
    Asked,
    Context,
    Head,
    Identity,
    Layout,
    Mac,
    Reader,
    Refused,
    Roster,
    Seal,
    Share,
    at,
    check,
    element,
    encapsulated,
    exported,
    half,
    holds,
    noise_tag,
    numbers,
    packed,
    packed_len,
    parse,
    product,
    public_polynomial,
    read_share,
    sealed_to,
    share_key,
    split,
    stream_bytes,
    u32,
    u64,
    unpacked,
    words_tag,
)

# Prekeys


@dataclass(frozen=True)
class Prekey:
    member: int
    number: int
    public: bytes


# Sets


class Sets:
    """The groups that the sets of one memory make: (the least that a group may have, its clients)."""

    def __init__(self, groups=()):
        self.groups = list(groups)

    def admit(self, clients, least):
        """With one more set; refuses what makes a group too small."""
        new, made = frozenset(clients) - frozenset().union(*(g for _, g in self.groups)), []
        for before, group in self.groups:
            inside, outside = group & frozenset(clients), group - frozenset(clients)
            raised = max(before, least)
            check(not (inside and outside) or len(outside) >= before, "a group that is too small")
            check(
                not inside or (not outside and raised == before) or len(inside) >= raised, "a group that is too small"
            )
            made += [(raised, inside)] * bool(inside) + [(before, outside)] * bool(outside)
        check(not new or len(new) >= least, "a group that is too small")
        return Sets(made + [(least, new)] * bool(new))

    def listed(self):
        return [(least, sorted(group)) for least, group in sorted(self.groups, key=lambda g: min(g[1]))]

    def digest(self):
        return sha256(u64(1) + u32(0) + write_sets(self.listed())).digest()


def write_sets(sets):
    each = (u64(least) + u32(len(names)) + b"".join(map(element, names)) for least, names in sets)
    return u32(len(sets)) + b"".join(each)


def read_sets(r):
    sets = []
    for _ in range(r.number(4)):
        least, count = r.number(8), r.number(4)
        check(
            least and count and sum(len(names) for _, names in sets) + count <= 1 << 20, "sets of nobody, or too large"
        )
        sets.append((least, [r.number(16) for _ in range(count)]))
    return sets


def name(party):
    check(party and party.client, "no client of the roster")
    digest = blake3.blake3(party.verify[1952:], derive_key_context="fedcipher v1 name of a client").digest()
    return int.from_bytes(digest[:16], "little")


class Remembered:
    """What a party has answered or opened, and the sets of each memory."""

    def __init__(self):
        self.round, self.done, self.memories = -1, [], {}

    def again(self, round, digest):
        return next((answer for d, _, _, answer in self.done if round == self.round and d == digest), None)

    def groups(self, memory):
        return self.memories.get(memory, Sets())

    def claim(self, round, memory, names, least, digest, answer=b""):
        check(round >= self.round, "an older round")
        others = self.done if round == self.round else []
        check(memory or not others, "the round has had its sum")
        check(all(m and not s & set(names) for _, m, s, _ in others), "a client is in another sum of the round")
        if memory:
            self.memories[memory] = self.groups(memory).admit(names, least)
        self.round, self.done = round, [*others, (digest, memory, set(names), answer)]


# Parties


class Place:
    """A roster under parameters and an epoch."""

    def __init__(self, params, roster, epoch=1):
        check(len(roster.members()) == params.members, "another committee")
        check(params.reveal == "server" or roster.readers(), "no reader")
        self.params, self.roster, self.epoch = params, roster, epoch
        self.digest = roster.digest(params, epoch)

    def head(self, kind, **more):
        return Head(kind, b"oneshot".ljust(16, b"\0"), self.params.digest(), self.digest[:16], self.epoch, **more)

    def check_key(self, head):
        check(head.key() == self.head(head.kind).key(), "of another key set")

    def server_key(self):
        clients = [p for p in self.roster.parties if p.client]
        keys = b"".join(p.verify[1952:] for p in clients)
        return self.head(SERVER_KEY, of=tuple((p.id, 1) for p in clients)).frame(keys + self.roster.content)

    @staticmethod
    def of_server_key(params, frame):
        head, payload = parse(frame)
        made = Place(params, Roster(payload[32 * len(head.of) :]), head.epoch)
        check(made.server_key() == frame, "no server's key to this roster")
        return made

    @staticmethod
    def of_client_key(params, frame):
        """(Place, identity) of a key that names nobody who has joined."""
        head, payload = parse(frame)
        made, identity = Place(params, Roster(payload[96:]), head.epoch), Identity(payload[32:96])
        check(made.client_key(identity) == frame, "no key of a party of this roster")
        return made, identity

    def check_sum(self, head, kind):
        """The head of a sum, its layout apart."""
        check(head.kind == kind, "another kind")
        self.check_key(head)
        check(self.params.min_contributions <= len(head.of) <= self.params.clients, "too few clients, or too many")
        right = all(1 <= weight <= self.params.max_weight for _, weight in head.of)
        check(right or kind == PROPOSAL, "a weight")

    def layout(self, head, payload):
        layout = Layout.of(head.layout)
        check(layout.elements() == head.elements and layout.elements() <= 4 * len(payload), "elements")
        return layout

    def read_prekey(self, frame):
        head, payload = parse(frame)
        check(head.kind == PREKEY and len(head.of) == 1, "no prekey")
        self.check_key(head)
        check(head == self.head(PREKEY, of=((head.of[0][0], 1),)), "a head that says more")
        r = Reader(payload)
        found = Prekey(head.of[0][0], r.number(8), r.take(SEAL_KEY))
        signature = r.take(SIGNATURE)
        r.end()
        party = self.roster.get(found.member)
        check(party and party.member and found.number, "no member, or no number")
        check(holds(party.verify, "prekey", self.prekey_message(found), signature), "a prekey's signature")
        return found

    def prekey_message(self, prekey):
        return self.digest + u32(prekey.member) + u64(prekey.number) + prekey.public

    def own(self, identity):
        """(Number, keys for tags) of a party."""
        number, root = self.roster.joined(identity)
        return number, root, Mac(root)

    def client_key(self, identity):
        number, root, _ = self.own(identity)
        return self.head(CLIENT_KEY, of=((number, 1),)).frame(root + identity.content + self.roster.content)

    def joined_signature(self, identity):
        return identity.sign("roster", self.roster.fingerprint(self.params, self.epoch))

    def answer_of(self, content, context, of):
        """A member's answer off ``content``, checked."""
        found = Answer.read(self.params, content)
        party = self.roster.get(found.member)
        check(party and party.member, "no member")
        message = context.answer(of, found.member, found.sum) + found.combined
        check(holds(party.verify, "answer", message, found.signature), "an answer's signature")
        return found


@dataclass(frozen=True)
class Answer:
    member: int
    sum: bytes
    combined: bytes
    signature: bytes
    wraps: tuple

    @staticmethod
    def read(params, r):
        member, total, combined, signature = r.number(4), r.take(params.sum_len), r.take(32), r.take(SIGNATURE)
        wraps = tuple((r.number(4), r.take(32 + ENCAPPED + GCM)) for _ in range(r.number(4)))
        return Answer(member, total, combined, signature, wraps)

    def to_bytes(self):
        wraps = b"".join(u32(reader) + sealed for reader, sealed in self.wraps)
        return u32(self.member) + self.sum + self.combined + self.signature + u32(len(self.wraps)) + wraps


class Client:
    def __init__(self, place, identity, chance=None):
        self.place, self.identity, self.chance = place, identity, chance or identity.chance
        self.number, _, self.mac = place.own(identity)
        self.seen, self.prekeys, self.round = {}, {}, -1

    def take_prekeys(self, frames):
        """Raises where too few are good."""
        self.prekeys = {}
        for frame in frames:
            try:
                found = self.place.read_prekey(frame)
                check(found.number >= self.seen.get(found.member, 0), "an older prekey")
            except Refused:
                continue
            self.seen[found.member], self.prekeys[found.member] = found.number, found
        check(len(self.prekeys) >= self.place.params.needed, "too few prekeys")

    def encrypt(self, layout, values, round, weight=1, model=b"", memory=b"", bound=b"", spoilt=()):
        """The frame of an update; ``spoilt``: places of members that get what is no share."""
        check(round > self.round, "a round that is used")
        self.round, params, one = round, self.place.params, (self.number, weight)
        head = self.place.head(
            UPDATE, round=round, elements=layout.elements(), model=self.mac.model(model),
            memory=self.mac.memory(memory), of=(one,), layout=layout.to_bytes(),
        )  # fmt: skip
        context = Context.of(self.place.digest, head)
        secret, pad = self.chance.binomial(params.n), self.chance.below(TAGS)
        words, noise, own_pad = self.mac.round(head, bound)
        ciphertexts, tag = self._ciphertexts(layout, [int(v) for v in values], weight, context.seed(), secret, noise)
        tag = (tag + weight * words_tag(params, layout, words, values) + own_pad(one) + pad) % TAGS
        digest = blake3.blake3(ciphertexts).digest()
        shares = split(params, self.chance, secret, pad)
        shares = [b"\xff" * len(share) if k in spoilt else share for k, share in enumerate(shares)]
        data = context.share_data(one, tag, digest)
        sealed = [
            self._sealed(context, m.id, s, data) for m, s in zip(self.place.roster.members(), shares, strict=True)
        ]
        digests = digest + b"".join(sha256(s).digest() for s in sealed)
        signature = self.identity.sign("update", context.update(one, tag, digests))
        return head.frame(ciphertexts + b"".join(sealed) + element(tag) + signature)

    def _ciphertexts(self, layout, values, weight, seed, secret, r):
        params, made, tag = self.place.params, [], 0
        for index, block in enumerate(params.shape(layout)):
            covered = product(params, public_polynomial(params, seed, index), secret)
            words = []
            for part in block:
                packing, errors = part.packing, self.chance.binomial(part.used)
                sent = []
                for k in range(part.used):
                    some = values[part.start : part.start + part.len][k * packing.count : (k + 1) * packing.count]
                    plain = sum(v * weight << i * packing.width for i, v in enumerate(some))
                    c0 = (covered[part.first + k] + int(errors[k]) + packing.delta * plain) % params.q
                    sent.append(c0 + half(packing.drop) >> packing.drop)
                    words.append(packing.noise + int(errors[k]) + (sent[-1] << packing.drop) - c0)
                made.append(packed(sent, packing.up))
            tag += noise_tag(params, r, index, words)
        return b"".join(made), tag

    def _sealed(self, context, member, share, data):
        prekey = self.prekeys.get(member)
        if not prekey:
            return bytes(8)
        shared, sent = encapsulated(self.chance, prekey.public)
        x = exported(shared, context.share_info(self.number, member, prekey.number))
        committed = sha256(b"fedcipher oneshot v1 committed" + x).digest()
        return u64(prekey.number) + committed + sent + AESGCM(share_key(x)).encrypt(bytes(12), share, data)


class CommitteeMember:
    def __init__(self, place, identity, chance=None):
        self.place, self.identity, self.chance = place, identity, chance or identity.chance
        self.number, _, self.mac = place.own(identity)
        self.index = [m.id for m in place.roster.members()].index(self.number)
        self.prekeys, self.remembered, self.last = {}, Remembered(), {}

    def prekey(self, number):
        """The frame of a new prekey."""
        seal = Seal(self.chance.bytes(32))
        self.prekeys[number] = (seal, [])
        prekey = Prekey(self.number, number, seal.public)
        signature = self.identity.sign("prekey", self.place.prekey_message(prekey))
        return self.place.head(PREKEY, of=((self.number, 1),)).frame(u64(number) + seal.public + signature)

    def answer(self, frame):
        head, payload = parse(frame)
        if head.kind == PROPOSAL:
            return self._agree(head, payload)
        self.place.check_sum(head, REQUEST)
        check(not head.layout, "a layout")
        context, signed, given = self._read(head, payload)
        memory, names = self._set(head)
        digest = blake3.blake3(frame).digest()
        before = self.remembered.again(head.round, digest)
        if before is not None:
            return before
        if memory:
            self._check_agreed(context, memory, names, signed)
        made = self._answer(head, context, given)
        if made.startswith(head.to_bytes(0)[:5] + bytes([COMPLAINT])):
            return made
        self.remembered.claim(head.round, memory, names, self.place.params.min_contributions, digest, made)
        return made

    def _set(self, head):
        return self.mac.read_memory(head.memory), [name(self.place.roster.get(client)) for client, _ in head.of]

    def _read(self, head, payload):
        """(Context, signatures under the groups, what each client has signed with its share for this member)."""
        params, r = self.place.params, Reader(payload)
        context = Context.of(self.place.digest, head, r.take(32))
        signed = read_signed(params, r)
        given = []
        for one in head.of:
            asked = Asked.read(params, one, r)
            share = Share(r, params.share_len(self.index))
            check(
                asked.digests[32 * (1 + self.index) :][:32] == share.digest(), "a share that its client has not signed"
            )
            given.append((asked, share))
        r.end()
        for asked, _ in given:
            asked.check(self.place.roster, context)
        return context, signed, given

    def _agree(self, head, payload):
        params, r = self.place.params, Reader(payload)
        self.place.check_sum(head, PROPOSAL)
        check(not head.layout, "a layout")
        context = Context.of(self.place.digest, head, r.take(32))
        asked = [Asked.read(params, one, r) for one in head.of[: params.corrupt_clients + 1]]
        others = read_sets(r)
        r.end()
        for one in asked:
            one.check(self.place.roster, context)
        memory, names = self._set(head)
        check(memory, "a proposal in no memory")
        groups = self.remembered.groups(memory)
        for least, clients in [*others, (params.min_contributions, names)]:
            groups = groups.admit(clients, least)
        self.remembered.memories[memory] = groups
        signature = self.identity.sign("sets", context.member(self.number, groups.digest()))
        sets = groups.listed()
        sets = [] if len(sets) == 1 and sets[0][0] == params.min_contributions else sets
        return replace(head, kind=AGREEMENT).frame(u32(self.number) + groups.digest() + signature + write_sets(sets))

    def _check_agreed(self, context, memory, names, signed):
        groups, params = self.remembered.groups(memory), self.place.params
        check(
            groups.admit(names, params.min_contributions).digest() == groups.digest(), "nobody has agreed on this set"
        )
        for member, signature in signed:
            party = self.place.roster.get(member)
            check(party and party.member, "no member")
            check(
                holds(party.verify, "sets", context.member(member, groups.digest()), signature), "a signature of groups"
            )
        check(len(signed) >= params.needed, "too few have agreed")

    def _serve(self, round, numbers):
        """Prekeys that shares of a round were sealed to; those that have served are deleted first."""
        life, oldest = self.place.params.prekey_rounds, min(numbers)
        over = [n for n, (_, used) in self.prekeys.items() if n < oldest or (len(used) >= life and used[-1] != round)]
        for number in over:
            del self.prekeys[number]
        for number, (_, used) in self.prekeys.items():
            if used[-1] != round if used else number in numbers:
                used.append(round)
        check(numbers <= set(self.prekeys), "a prekey that is gone")
        return {number: self.prekeys[number][0] for number in numbers}

    def _answer(self, head, context, given):
        params = self.place.params
        seals = self._serve(head.round, {share.number for _, share in given})
        total, pads = np.zeros(params.shared, object), 0
        combinations, accused = b"", b""
        for asked, share in given:
            client, x = asked.one[0], None
            try:
                info = context.share_info(client, self.number, share.number)
                found = exported(seals[share.number].shared(share.encapped), info)
                check(share.is_of(found), "another X than the client has signed")
                x = found
                data = context.share_data(asked.one, asked.tag, asked.digests[:32])
                secrets, pad, mask = read_share(params, self.index, share.opened(x, data))
            except Refused:
                accused += u32(client) + bytes([x is not None]) + (x or bytes(32))
                continue
            total, pads = (total + secrets[: params.shared]) % params.p, (pads + pad) % TAGS
            rows, factor = context.combinations(params, asked)
            values = (secrets[params.shared :] + rows @ secrets[: params.shared]) % params.p
            combinations += packed(values, params.p_bits) + element((mask + factor * pad) % TAGS)
        if accused:
            signature = self.identity.sign("complaint", context.member(self.number, accused))
            return replace(head, kind=COMPLAINT).frame(u32(self.number) + signature + accused)
        return replace(head, kind=ANSWER).frame(self._sum(head, context, total, pads, combinations) + combinations)

    def _sum(self, head, context, total, pads, combinations):
        secrets, wraps = packed(total, self.place.params.p_bits), ()
        said = secrets + element((pads + self.mac.veil(context.answer(head.of, self.number, secrets))) % TAGS)
        if self.place.params.reveal == "clients":
            key = self.chance.bytes(32)
            said = xor(said, stream_bytes(key, bytes(12), len(said)))
            info = context.key_info
            readers = self.place.roster.readers()
            wraps = tuple((p.id, sealed_to(self.chance, p.sealing, info(self.number, p.id), key)) for p in readers)
        combined = sha256(combinations).digest()
        signature = self.identity.sign("answer", context.answer(head.of, self.number, said) + combined)
        return Answer(self.number, said, combined, signature, wraps).to_bytes()


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def read_signed(params, r):
    count = r.number(4)
    check(count <= params.members, "more signatures than members")
    signed = [(r.number(4), r.take(SIGNATURE)) for _ in range(count)]
    check(all(a[0] < b[0] for a, b in itertools.pairwise(signed)), "members out of order")
    return signed


@dataclass
class Kept:
    asked: Asked
    shares: list


class Server:
    def __init__(self, place, round=None):
        self.place, self.round, self.given = place, round, None
        self.kept, self.common, self.sums, self.tag, self.layout = {}, None, [], 0, None
        self.agreed, self.said, self.others, self.answers, self.asked = (), {}, [], {}, False
        self.liars, self.accused, self.proven, self.odd = set(), {}, set(), set()

    def take_prekeys(self, frames):
        found = [self.place.read_prekey(frame) for frame in frames]
        self.given = {prekey.member: prekey.number for prekey in found}

    def add(self, frame):
        head, payload = parse(frame)
        params, place = self.place.params, self.place
        check(head.kind == UPDATE and len(head.of) == 1 and not self.asked, "no update, or too late")
        place.check_key(head)
        check(self.round in (None, head.round), "another round")
        one = head.of[0]
        check(one[0] not in self.kept and 1 <= one[1] <= params.max_weight, "a client twice, or its weight")
        check(len(self.kept) < params.clients, "too many clients")
        layout = place.layout(head, payload)
        check(self.common in (None, head.common()), "not of the same sum")
        body, (tag, signature) = payload[: -16 - SIGNATURE], self._end(payload)
        parts = [part for block in params.shape(layout) for part in block]
        length = sum(packed_len(part.used, part.packing.up) for part in parts)
        r = Reader(body)
        ciphertexts = r.take(length)
        shares = [Share(r, params.share_len(k)) for k in range(params.members)]
        r.end()
        digests = blake3.blake3(ciphertexts).digest() + b"".join(share.digest() for share in shares)
        asked = Asked(one, signature, tag, digests)
        asked.check(place.roster, Context.of(place.digest, head))
        if self.given is not None:
            members = place.roster.members()
            wanted = [self.given.get(member.id, 0) for member in members]
            check(wanted == [share.number for share in shares], "sealed to a prekey that it was not given")
        self._sum(parts, ciphertexts)
        self.kept[one[0]] = Kept(asked, shares)
        self.round, self.common, self.layout, self.head = head.round, head.common(), layout, head
        self.tag = (self.tag + tag) % TAGS
        return one

    def _end(self, payload):
        r = Reader(payload[-16 - SIGNATURE :])
        check(len(payload) >= 16 + SIGNATURE, "no end")
        return r.element(), r.rest()

    def _sum(self, parts, ciphertexts):
        r, q, new = Reader(ciphertexts), self.place.params.q, []
        for part in parts:
            packing = part.packing
            sent = unpacked(r.take(packed_len(part.used, packing.up)), packing.up, part.used)
            most = q - 1 + half(packing.drop) >> packing.drop
            check(max(sent) <= most, "not below q")
            whole = packing.down < q.bit_length()
            new.append([x if whole else (x << packing.drop) % q for x in sent])
        self.sums = self.sums or [[0] * len(row) for row in new]
        for part, row, more in zip(parts, self.sums, new, strict=True):
            whole = part.packing.down < q.bit_length()
            row[:] = [x + y if whole else (x + y) % q for x, y in zip(row, more, strict=True)]
        self.parts = parts

    def _aggregate(self):
        check(len(self.kept) >= self.place.params.min_contributions, "too few clients")
        of = tuple(self.kept[client].asked.one for client in sorted(self.kept))
        return replace(self.head, kind=AGGREGATE, of=of)

    def _context(self):
        return Context.of(self.place.digest, self.head)

    @property
    def agreeing(self):
        return self.asked and self.head.memory != bytes(16) and not self.requested

    requested = False

    def requests(self):
        """(What is sent to) each member, by its number."""
        head = replace(self._aggregate(), layout=b"")
        self.asked, params, members = True, self.place.params, self.place.roster.members()
        common, kept = sha256(self.common).digest(), [self.kept[client] for client in sorted(self.kept)]
        if head.memory != bytes(16) and not self.agreed:
            said = b"".join(one.asked.to_bytes() for one in kept[: params.corrupt_clients + 1])
            frame = replace(head, kind=PROPOSAL).frame(common + said + write_sets(self._again()))
            return {member.id: frame for member in members}
        self.requested = True
        signed = u32(len(self.agreed)) + b"".join(u32(m) + s for m, s in self.agreed)
        made = {}
        for place, member in enumerate(members):
            shares = [one.shares[place] for one in kept]
            if all(s.number for s in shares) and (not self.agreed or member.id in dict(self.agreed)):
                each = b"".join(one.asked.to_bytes() + s.content for one, s in zip(kept, shares, strict=True))
                made[member.id] = replace(head, kind=REQUEST).frame(common + signed + each)
        return made

    def _again(self):
        """Sets to propose beside the round's own: what members that did not agree have said."""
        claims = Counter((least, tuple(names)) for _, _, sets in self.said.values() for least, names in sets)
        new = {s: count for s, count in claims.items() if s not in self.others}
        sure = sorted(s for s, count in new.items() if count > self.place.params.corrupt_members)
        self.others += sure or sorted(new)
        self.said = {}
        return self.others

    def answer(self, frame):
        """Whose answer it is; for a complaint None, and then see ``proven`` and ``accused``."""
        head, payload = parse(frame)
        own = replace(self._aggregate(), layout=b"")
        check(self.asked and replace(head, kind=AGGREGATE) == own, "an answer to what nobody has asked")
        r, context = Reader(payload), self._context()
        if head.kind == AGREEMENT:
            return self._agreement(r, context)
        if head.kind == COMPLAINT:
            return self._complaint(r, context)
        check(head.kind == ANSWER, "another kind")
        found = self.place.answer_of(r, context, head.of)
        content = r.rest()
        check(sha256(content).digest() == found.combined, "combinations that the member has not signed")
        params = self.place.params
        size = params.combination_len
        check(len(content) == size * len(self.kept), "combinations of other clients")
        each = [content[k : k + size] for k in range(0, len(content), size)]
        said = [(numbers(params, c[:-16], params.masks), Reader(c[-16:]).element()) for c in each]
        self.answers.setdefault(found.member, (found, said))
        self._judge()
        return found.member

    def _agreement(self, r, context):
        member, digest, signature, sets = r.number(4), r.take(32), r.take(SIGNATURE), read_sets(r)
        r.end()
        party = self.place.roster.get(member)
        check(party and party.member, "no member")
        check(holds(party.verify, "sets", context.member(member, digest), signature), "a signature of groups")
        self.said[member] = (digest, signature, sets)
        if not self.requested:
            common = Counter(d for d, _, _ in self.said.values()).most_common(1)[0][0]
            signed = sorted((m, s) for m, (d, s, _) in self.said.items() if d == common)
            self.agreed = signed if len(signed) >= self.place.params.needed else self.agreed
        return member

    def _complaint(self, r, context):
        member, signature, content = r.number(4), r.take(SIGNATURE), r.rest()
        party, places = self.place.roster.get(member), [m.id for m in self.place.roster.members()]
        check(party and party.member and content and len(content) % 37 == 0, "no complaint")
        rows = [content[k : k + 37] for k in range(0, len(content), 37)]
        # One encoding: without proof the secret is zeros.
        rows = [row if row[4] == 1 else row[:4] + bytes(33) for row in rows]
        check(holds(party.verify, "complaint", context.member(member, b"".join(rows)), signature), "its signature")
        clients = [int.from_bytes(row[:4], "little") for row in rows]
        check(all(a < b for a, b in itertools.pairwise(clients)), "clients out of order")
        place, params, proven = places.index(member), self.place.params, set()
        for client, row in zip(clients, rows, strict=True):
            check(client in self.kept, "of whom the member was not asked")
            kept, x = self.kept[client], row[5:]
            share, asked = kept.shares[place], kept.asked
            if row[4] and share.is_of(x):
                try:
                    data = context.share_data(asked.one, asked.tag, asked.digests[:32])
                    read_share(params, place, share.opened(x, data))
                except Refused:
                    proven.add(client)
                    continue
                raise Refused("it accuses a client of a good share")
        for client in clients:
            self.accused.setdefault(client, set()).add(member)
        self.proven |= proven

    def _judge(self):
        """Whose shares do not fit, once so many have answered that all who may lie are found."""
        params = self.place.params
        found = (len(self.answers) - params.needed) // 2 if len(self.answers) >= params.needed else 0
        self.liars, self.odd = set(), set()
        if found < params.corrupt_members:
            return
        ids = [m.id for m in self.place.roster.members() if m.id in self.answers]
        places = [k + 1 for k, m in enumerate(self.place.roster.members()) if m.id in self.answers]
        for k, client in enumerate(sorted(self.kept)):
            said = [self.answers[id][1][k] for id in ids]
            rows = [([s[1] for s in said], TAGS)] + [([s[0][j] for s in said], params.p) for j in range(params.masks)]
            off = [which_are_off(places, row, params.needed, found, p) for row, p in rows]
            odd = None if None in off else set().union(*off)
            if odd is None or len(odd) > params.corrupt_members:
                self.liars.add(client)
            self.odd |= {ids[at] for at in odd or ()}

    def finish(self):
        answers = [self.answers[id][0].to_bytes() for id in sorted(self.answers) if id not in self.odd]
        check(len(answers) >= self.place.params.needed, "too few answers")
        body = u32(len(answers)) + b"".join(answers)
        sums = [packed(row, part.packing.down) for part, row in zip(self.parts, self.sums, strict=True)]
        return self._aggregate().frame(u32(len(body)) + body + b"".join(sums) + element(self.tag))


def fits(places, values, needed, p):
    base = list(places[:needed])
    rest = list(zip(places, values, strict=True))[needed:]
    return all(at(base, values[:needed], x, p) == v for x, v in rest)


def which_are_off(places, values, needed, most, p):
    """The values, at most so many, without which all others lie on one polynomial; None where there are none such."""
    for count in range(most + 1):
        for off in itertools.combinations(range(len(places)), count):
            kept = [k for k in range(len(places)) if k not in off]
            if fits([places[k] for k in kept], [values[k] for k in kept], needed, p):
                return set(off)
    return None


class ReadingParty:
    """A reader; with ``identity`` none, the server where it may see sums."""

    def __init__(self, place, identity=None):
        self.place, self.identity, self.remembered, self.mac = place, identity, Remembered(), None
        if identity:
            self.number, _, self.mac = place.own(identity)

    def open(self, frame, round=None, model=None, memory=None, bound=b""):
        """(Contributions, sums, members whose answers are false)."""
        head, payload = parse(frame)
        place, params = self.place, self.place.params
        place.check_sum(head, AGGREGATE)
        check(round in (None, head.round), "another round")
        layout = place.layout(head, payload)
        if self.mac:
            check(model is None or self.mac.model(model) == head.model, "another model")
            check(memory is None or self.mac.memory(memory) == head.memory, "another memory")
        tag = Reader(payload[-16:]).element()
        r = Reader(payload[:-16])
        answers, behind = self._answers(r), r.content[r.at :]
        if self.mac:
            names = [name(place.roster.get(client)) for client, _ in head.of]
            digest = blake3.blake3(head.to_bytes(0) + behind + element(tag)).digest()
            if self.remembered.again(head.round, digest) is None:
                least, memory_id = params.min_contributions, self.mac.read_memory(head.memory)
                self.remembered.claim(head.round, memory_id, names, least, digest)
        context = Context.of(place.digest, head)
        secret, pads, wrong = self._secret(head, context, answers)
        sums, noise = self._sums(head, layout, context.seed(), secret, r)
        if self.mac:
            self._check_tag(head, layout, bound, (sums, noise), pads, tag)
        return list(head.of), sums, wrong

    def _answers(self, r):
        body = Reader(r.take(r.number(4)))
        count = body.number(4)
        check(count <= self.place.params.members, "more answers than members")
        made = [Answer.read(self.place.params, body) for _ in range(count)]
        body.end()
        check(all(a.member < b.member for a, b in itertools.pairwise(made)), "members out of order")
        return made

    def _secret(self, head, context, answers):
        """(The sum of secrets, that of pads, members whose answers are false)."""
        params, read, unread = self.place.params, [], []
        by_member = {answer.member: answer for answer in answers}
        for place, member in enumerate(self.place.roster.members(), start=1):
            if member.id not in by_member:
                continue
            self.place.answer_of(Reader(by_member[member.id].to_bytes()), context, head.of)
            try:
                read.append((place, member.id, *self._sum(by_member[member.id], context, head.of)))
            except Refused:
                unread.append(member.id)
        spare = len(read) - params.needed
        check(spare >= 0, "too few answers")
        for wrong in range(spare // 2 + 1):
            for off in itertools.combinations(range(len(read)), wrong):
                kept = [one for k, one in enumerate(read) if k not in off]
                points = [one[0] for one in kept]
                if self._agree(points, [one[2] for one in kept], [one[3] for one in kept]):
                    return *self._joined(kept[: params.needed]), sorted([*unread, *(read[k][1] for k in off)])
        raise Refused("answers that do not agree")

    def _agree(self, points, secrets, pads):
        params, needed = self.place.params, self.place.params.needed
        if self.mac and not fits(points, pads, needed, TAGS):
            return False
        base, rows = points[:needed], secrets[:needed]
        more = zip(points[needed:], secrets[needed:], strict=True)
        return all((at(base, rows, x, params.p) == found).all() for x, found in more)

    def _joined(self, base):
        params, points = self.place.params, [one[0] for one in base]
        columns = [at(points, [one[2] for one in base], -k, params.p) for k in range(params.pack)]
        flat = [int(columns[k % params.pack][k // params.pack]) for k in range(params.n)]
        return [v - params.p if v > params.p // 2 else v for v in flat], at(points, [one[3] for one in base], 0, TAGS)

    def _sum(self, answer, context, of):
        params, said = self.place.params, answer.sum
        if params.reveal == "clients":
            sealed = dict(answer.wraps).get(self.number)
            check(sealed, "no key for this reader")
            key = self.identity.seal.open(context.key_info(answer.member, self.number), sealed)
            said = xor(said, stream_bytes(key, bytes(12), len(said)))
        secrets, pads = numbers(params, said[:-16], params.shared), Reader(said[-16:]).element()
        veil = self.mac.veil(context.answer(of, answer.member, said[:-16])) if self.mac else pads
        return secrets, (pads - veil) % TAGS

    def _sums(self, head, layout, seed, secret, r):
        """(Sums, words of noise by ciphertext)."""
        params, sums, noise = self.place.params, [], []
        total = sum(weight for _, weight in head.of)
        bits = {params.field_bits(b): b for b in (*params.bits, *params.lanes())}
        for index, block in enumerate(params.shape(layout)):
            covered, words = product(params, public_polynomial(params, seed, index), secret), []
            for part in block:
                packing = part.packing
                row = unpacked(r.take(packed_len(part.used, packing.down)), packing.down, part.used)
                whole = packing.down < params.q.bit_length()
                check(whole or max(row) < params.q, "not below q")
                row = [(x << packing.drop if whole else x) - covered[part.first + k] for k, x in enumerate(row)]
                found = [decoded(params, packing, x % params.q, len(head.of)) for x in row]
                words += [word for _, word in found]
                fields = [
                    m >> i * packing.width & (1 << packing.width) - 1 for m, _ in found for i in range(packing.count)
                ]
                check(all(m >> packing.count * packing.width == 0 for m, _ in found), "bits above the fields")
                check(not any(fields[part.len :]), "bits behind the last field")
                check(max(fields) <= total * params.largest(bits[packing.width]), "a sum that is too large")
                sums += fields[: part.len]
            noise.append(words)
        r.end()
        return sums, noise

    def _check_tag(self, head, layout, bound, found, pads, tag):
        (sums, noise), params = found, self.place.params
        words, r, pad = self.mac.round(head, bound)
        made = words_tag(params, layout, words, sums) + pads + sum(pad(one) for one in head.of)
        made += sum(noise_tag(params, r, index, row) for index, row in enumerate(noise))
        check(made % TAGS == tag, "not the sum of what these clients sent")


def decoded(params, packing, x, terms):
    """(Plaintext, word of noise) of a coefficient."""
    m, rest = divmod(x + packing.delta // 2, packing.delta)
    noise = rest - packing.delta // 2
    if m >= packing.t:
        check(x >= params.q - packing.delta // 2, "outside of the plaintext space")
        m, noise = 0, x - params.q
    check(abs(noise) <= terms * packing.noise, "more noise than its clients'")
    return m, noise + terms * packing.noise
