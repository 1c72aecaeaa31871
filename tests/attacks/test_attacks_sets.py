"""Attacks 32 and 33: sums of nearly the same clients, whose differences would speak of few of them.

`FEDCIPHER_ATTACK_TRIES` sets how many requests the randomised server makes to each kind of party.
"""

import itertools
import random
import struct
import time

import fedcipher
import numpy as np
import pytest
import wire_tools
from attack_harness import TRIES, Federation, in_parts
from engine_harness import flashe
from fedcipher import Codec, _native, errors, keys
from fedcipher.engine import connect
from fedcipher.federation.chain import Chain
from fedcipher.federation.query import Query
from fedcipher.schemes import SetMemory
from fedcipher.schemes.oneshot import Card, Party, roster
from flower_harness import initial
from scheme_lists import adds, hides, in_core, one_key, one_of_each_kind_of_key, params_of, schemes_that
from test_fault_finder import supports
from test_ledger import engine
from wire_tools import answered

CLIENTS = 8
ROUNDS = 8
MEMORY, OTHER = b"\1first positions", b"\1queries"
CODEC = Codec(bits=8, clip=1.0, target="weights")


class World:
    """Clients that send an update of their own every round, and a server that sums whichever it likes."""

    def __init__(self, name):
        self.scheme = fedcipher.scheme(name, clients=CLIENTS, min_contributions=3, codec=CODEC, **params_of(name))
        self.issued = self.scheme.keygen(CLIENTS)
        self.encryptors = [self.scheme.encryptor(self.issued.client(k)) for k in range(CLIENTS)]
        self.frames = {}

    def decryptor(self):
        """As in a new process."""
        return self.scheme.decryptor(self.issued.client(0))

    def asked(self, number, clients, memory=MEMORY):
        """An aggregator of their updates."""
        aggregator = self.scheme.aggregator(self.issued.server(), round=number)
        prekeys = wire_tools.prekeys(self.scheme, self.issued)
        for k in clients:
            if (number, k) not in self.frames:
                update = [np.full(3, k / 10, np.float32)]
                wire_tools.take_prekeys(self.encryptors[k], prekeys)
                self.frames[number, k] = self.encryptors[k].encrypt(update, round=number, memory=memory)
            aggregator.add(self.frames[number, k])
        return aggregator

    def total(self, number, clients, memory=MEMORY):
        aggregator = self.asked(number, clients, memory)
        # Members that remember nothing: what is tried is who opens.
        answered(aggregator, lambda member: wire_tools.forgetful(self.scheme, self.issued.client(member)))
        return aggregator.finish()

    def open(self, number, clients, memory=MEMORY):
        opened = self.decryptor().decrypt(self.total(number, clients, memory), round=number, memory=memory)
        np.testing.assert_allclose(opened[0], np.mean(list(clients)) / 10, atol=0.01)


@pytest.fixture(params=schemes_that(hides, adds))
def world(request):
    return World(request.param)


def test_attack_32_sets_that_set_few_clients_apart_are_not_opened(world):
    world.open(1, range(1, 7))
    for number, clients in enumerate((range(1, 6), (1, 2, 3, 4, 5, 7), range(1, 8)), 2):
        with pytest.raises(errors.SetRuleError, match="at least 3"):
            world.open(number, clients)
    # A refusal has spent nothing; sets of one round are disjoint.
    world.open(4, (4, 5, 6))
    with pytest.raises(errors.ReplayError):
        world.open(4, (3, 4, 5))
    # No pair of sets differs by fewer than three, and the three of them give client 7.
    with pytest.raises(errors.SetRuleError):
        world.open(5, (1, 2, 3, 7))
    world.open(5, (1, 2, 3))
    world.open(6, (1, 2, 3, 7), OTHER)


def test_attack_32_sets_of_one_round_without_a_memory_stay_one(world):
    world.open(1, (1, 2, 3), b"")
    with pytest.raises(errors.ReplayError):
        world.open(1, (4, 5, 6), b"")


def test_attack_33_sums_over_changing_sets_give_no_client(world):
    """What stays the same over rounds, such as a number of examples, from sums that are opened in one memory."""
    random, sets = np.random.default_rng(33), []
    for number in range(1, ROUNDS + 1):
        clients = [k for k in range(CLIENTS) if random.random() < 0.8]
        try:
            world.open(number, clients)
            sets.append(np.isin(range(CLIENTS), clients))
        except (errors.SetRuleError, errors.TooFewContributionsError):
            pass
    assert sets
    rank = np.linalg.matrix_rank(sets)
    for k in range(CLIENTS):
        alone = np.arange(CLIENTS) == k
        assert np.linalg.matrix_rank([*sets, alone]) == rank + 1, f"client {k} follows from {len(sets)} sums"


def test_attack_32_sets_are_refused_by_members():
    world = World("oneshot")

    def member(number):
        """As in a new process."""
        return world.scheme.committee.member(world.issued.client(number))

    def asked(number, clients, memory=MEMORY):
        """What member 1 is asked once all have agreed on the set."""
        aggregator = world.asked(number, clients, memory)
        members = {k: member(k) for k in range(3)}
        for k, request in aggregator.committee.requests().items():
            aggregator.committee.answer(members[k].answer(request))
        return aggregator.committee.requests()[1]

    def answered(*of):
        return member(1).answer(asked(*of))

    request = asked(1, range(1, 7))
    first = member(1).answer(request)
    assert member(1).answer(request) == first, "the same request gets the same bytes"
    assert answered(1, range(1, 7)) == first, "what has been agreed on anew has other signatures, and is the same sum"
    with pytest.raises(errors.ReplayError):
        answered(1, (1, 2, 3))
    for number in (1, 2):
        with pytest.raises(errors.SetRuleError):
            answered(number, range(1, 6))
    requests = asked(2, (1, 2, 3)), asked(2, (4, 5, 6))
    halves = [member(1).answer(request) for request in requests]
    assert halves == [member(1).answer(request) for request in requests]
    # A client that was in a sum of this round, and a set that would set clients apart: either is reason enough.
    with pytest.raises((errors.ReplayError, errors.SetRuleError)):
        answered(2, (0, 6, 7))
    with pytest.raises(errors.SetRuleError):
        answered(3, (1, 2, 3, 7))
    answered(4, (1, 2, 3, 7), OTHER)


@pytest.mark.parametrize("name", schemes_that(hides, one_key, adds, in_core))
def test_attack_32_sets_are_refused_by_engines(name, tmp_path):
    world = World(name)
    folder = keys.save(world.issued, world.scheme, tmp_path / "keys")

    def opened(number, clients, memory=MEMORY):
        # An engine each: it begins anew and has the same state folder.
        with engine(tmp_path, folder / "client-0.key", "engine") as running:
            decryptor = connect(running.address, device="client-0").decryptor()
            return decryptor.decrypt(world.total(number, clients, memory), round=number, memory=memory)

    opened(1, range(1, 7))
    with pytest.raises(errors.SetRuleError):
        opened(2, range(1, 6))
    opened(2, (1, 2, 3))
    opened(2, (4, 5, 6))
    with pytest.raises(errors.ReplayError):
        opened(2, (0, 6, 7))
    with pytest.raises(errors.SetRuleError):
        opened(3, (1, 2, 3, 7))
    # In another memory, and so in frames of another round.
    opened(4, (1, 2, 3, 7), OTHER)


def test_openings_with_a_memory_that_nobody_names_count_in_it():
    """A decryptor that is not told which memory a sum counts in goes by the header's tag."""
    made = flashe(CLIENTS, min_contributions=3)
    issued = made.keygen(CLIENTS)
    encryptors = [made.encryptor(issued.client(k)) for k in range(CLIENTS)]
    for number, clients in enumerate((range(6), range(5)), 1):
        aggregator = made.aggregator(issued.server())
        for k in clients:
            aggregator.add(encryptors[k].encrypt([np.zeros(3, np.float32)], round=number, memory=MEMORY))
        frame = aggregator.finish()
        if number == 1:
            made.decryptor(issued.client(0)).decrypt(frame)
            continue
        for told in (None, MEMORY):
            with pytest.raises(errors.SetRuleError):
                made.decryptor(issued.client(0)).decrypt(frame, memory=told)


class Five:
    """A committee of five, of which three answer; clients send what the server asks for."""

    def __init__(self, corrupt_clients=0, corrupt_members=0, clients=CLIENTS):
        self.scheme = fedcipher.scheme(
            "oneshot",
            clients=clients,
            min_contributions=3,
            members=5,
            corrupt_clients=corrupt_clients,
            corrupt_members=corrupt_members,
            preset="fast",
            codec=CODEC,
        )
        self.issued = self.scheme.keygen(clients)
        self.encryptors = [self.scheme.encryptor(self.issued.client(k)) for k in range(clients)]

    def member(self, number):
        """As in a new process."""
        return self.scheme.committee.member(self.issued.client(number))

    def asking(self, number, clients, memory=MEMORY):
        aggregator = self.scheme.aggregator(self.issued.server(), round=number)
        prekeys = wire_tools.prekeys(self.scheme, self.issued)
        for k in clients:
            wire_tools.take_prekeys(self.encryptors[k], prekeys)
            aggregator.add(self.encryptors[k].encrypt([np.full(3, k / 10, np.float32)], round=number, memory=memory))
        return aggregator

    def proposed(self, number, clients, asked, memory=MEMORY):
        """An aggregator whose set these members have agreed on, or not."""
        aggregator = self.asking(number, clients, memory)
        for k, request in aggregator.committee.requests().items():
            if k in asked:
                aggregator.committee.answer(self.member(k).answer(request))
        return aggregator

    def answered(self, number, clients, asked=range(5), memory=MEMORY):
        aggregator = self.asking(number, clients, memory)
        answered(aggregator, self.member, asked)
        assert not aggregator.committee.missing and not aggregator.committee.agreeing
        opened = self.scheme.decryptor(self.issued.client(0), in_memory=True).decrypt(aggregator.finish())
        np.testing.assert_allclose(opened[0], np.mean(list(clients)) / 10, atol=0.01)


def test_attack_34_sums_of_different_members_set_no_client_apart():
    """Of five members three answer: the first three for seven clients, others for two parts of three each."""
    five = Five()
    five.answered(1, range(7), (0, 1, 2))
    five.answered(2, (0, 1, 2), (2, 3, 4))
    # The first less the second and this one is client 6.
    with pytest.raises(errors.SetRuleError):
        five.answered(3, (3, 4, 5), (0, 1, 3))


def test_attack_34_what_one_member_remembers_binds_all_that_answer():
    five = Five()
    five.answered(1, range(6), (0, 1, 2))
    # Member 2 alone knows of the first set: the others learn of it, and three answer.
    five.answered(2, (0, 1, 2), (2, 3, 4))
    five.answered(3, (3, 4, 5), (0, 3, 4))
    # To members 3 and 4 it is the first set that has clients 6 and 7.
    with pytest.raises(errors.SetRuleError):
        five.answered(4, (0, 1, 2, 6), (3, 4, 1))


def test_attack_34_a_member_answers_for_no_set_that_too_few_have_agreed_on():
    """Without proposals, with signatures of too few, of one member twice, of another set, round or memory."""
    five = Five()
    plain = five.asking(1, range(3), b"")
    asked = plain.committee.requests()
    assert not plain.committee.agreeing and asked, "a sum that counts in no memory is the only one of its round"
    few = five.proposed(2, range(3), (0, 1))
    assert few.committee.missing == 1 and few.committee.agreeing
    with pytest.raises(errors.CommitteeError):
        few.finish()
    agreed = five.proposed(3, range(3), range(5))
    request = agreed.committee.requests()[0]
    assert not agreed.committee.agreeing
    begin, count = wire_tools.payload_start(request) + 32, struct.Struct("<I")
    assert count.unpack_from(request, begin) == (5,)
    one = 4 + wire_tools.HYBRID_LEN
    rest = request[begin + 4 + 5 * one : -8]
    signed = [request[begin + 4 + k * one :][:one] for k in range(5)]

    def sent(signatures):
        body = request[:begin] + count.pack(len(signatures)) + b"".join(signatures) + rest
        size = len(body) - wire_tools.payload_start(request)
        return wire_tools.sealed(body[: wire_tools.PAYLOAD] + struct.pack("<Q", size) + body[wire_tools.PAYLOAD + 8 :])

    assert sent(signed) == request
    other = five.proposed(4, range(3), range(5)).committee.requests()[0]
    elsewhere = five.proposed(5, range(3), range(5), OTHER).committee.requests()[0]
    wrong = [[], signed[:2], [signed[0]] * 3, signed[::-1], [*signed[:2], signed[2][:4] + signed[3][4:]]]
    for foreign in (other, elsewhere):
        at = wire_tools.payload_start(foreign) + 36
        wrong.append([foreign[at + k * one :][:one] for k in range(5)])
    for signatures in wrong:
        with pytest.raises((errors.CommitteeError, errors.SignatureError, errors.FrameError)):
            five.member(0).answer(sent(signatures))
    answer = five.member(1).answer(agreed.committee.requests()[1])
    # What it has agreed to since is another division, which nobody has signed.
    five.proposed(6, range(3, 6), range(5))
    with pytest.raises((errors.CommitteeError, errors.SignatureError)):
        five.member(0).answer(sent(signed))
    assert five.member(1).answer(agreed.committee.requests()[1]) == answer, "an answer that was lost is given again"


def test_a_server_that_was_killed_while_members_agreed_goes_on():
    """Two members remember a set that nobody else was told of; a third another one."""
    five = Five()
    five.proposed(1, range(6), (0, 1))
    five.proposed(2, (0, 1, 2), (4,))
    five.answered(3, range(6))
    five.answered(4, (3, 4, 5))
    with pytest.raises(errors.SetRuleError):
        five.answered(5, (2, 3, 4))


def test_a_member_that_says_it_remembers_what_is_not_so_stops_nobody():
    """Others are told of its sets only where without it too few agree."""
    five = Five(corrupt_members=1)
    first = five.asking(1, (0, 1, 2)).committee.requests()[4]
    liar = wire_tools.forgetful(five.scheme, five.issued.client(4))
    liar.answer(first)
    made = five.asking(2, (5, 6, 7))
    answered(made, lambda k: liar if k == 4 else five.member(k))
    assert not made.committee.missing
    # No honest member has heard of the first set, which this one breaks.
    five.member(0).answer(five.asking(3, (0, 1, 3)).committee.requests()[0])


def test_a_set_that_no_more_members_say_than_may_lie_is_passed_on_only_where_it_has_to_be():
    """Two honest members remember one set, a liar another one. The first is enough for all to agree."""
    five = Five(corrupt_members=1, clients=10)
    liar = five.scheme._native.member(five.issued.client(4), None)
    five.proposed(1, (5, 6, 7), (0, 1))
    liar.answer(five.asking(2, (0, 1, 8)).committee.requests()[4])
    made = five.asking(3, range(2, 8))
    answered(made, lambda k: liar if k == 4 else five.member(k))
    assert not made.committee.missing
    # With the liar's set, 0 and 1 would be a group of two.
    five.member(0).answer(five.asking(4, (0, 1, 9)).committee.requests()[0])


def test_a_proposal_shows_the_updates_of_one_client_more_than_may_lie():
    """Members that may lie have no part in it."""
    sizes = {}
    for clients, members in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        five = Five(corrupt_clients=clients, corrupt_members=members)
        proposal = five.asking(1, range(4)).committee.requests()[0]
        sizes[clients, members] = len(proposal)
        five.member(0).answer(proposal)
    assert sizes[0, 0] == sizes[0, 1] < sizes[1, 0] == sizes[1, 1]


def test_proposals_are_of_updates_that_clients_have_signed():
    """Else whoever knows the root fills a member's memory with sets of its own."""
    five = Five()
    frame = bytearray(five.asking(1, range(3)).committee.requests()[0])
    for at in range(wire_tools.payload_start(frame), len(frame) - 12, 7):
        changed = bytearray(frame)
        changed[at] ^= 1
        with pytest.raises(errors.FedcipherError):
            five.member(0).answer(wire_tools.sealed(changed[:-8]))


# --- the randomised server: whatever it asks for, and whatever happens between its requests -----------------------

LEAST = 3
HISTORY = 16
"""Requests to one party, which are about few memories."""


class Runs:
    """The memories that sums of real charters count in, by what they must be one memory for."""

    def __init__(self, folder, rng):
        self._made = Federation(folder, "flashe", rng)
        self.number = self._made.run

    def memories(self):
        """Of the present run, by name: names of other runs are of other memories, the others outlive them."""
        first = {purpose: self._memory(purpose, sets_models=False) for purpose in ("train", "evaluate")}
        return {**first, "queries": Query.memory(), f"run {self.number}": self._memory("train", sets_models=True)}

    def _memory(self, purpose, **changes):
        charter = self._made.make_charter(run=self.number, **changes)
        return Chain(charter, self._made.scheme, b"", first=initial()).memory(purpose)


class Identities:
    """The parties of a committee scheme, whose rosters and epochs change; or the clients of one cohort key.

    Clients are told by what they sign with: another roster may give them other numbers.
    """

    def __init__(self, name, draw):
        self._name, self.draw, self.epoch, self._own = name, draw, 1, None
        self.make_scheme(LEAST)
        self.numbers = list(range(CLIENTS))
        if name == "oneshot":
            self._own = [_native.Identity.generate() for _ in range(CLIENTS)]
            self.new_roster()
        else:
            issued = self.scheme.keygen(CLIENTS)
            self.server, self.clients = issued.server(), [issued.client(k) for k in range(CLIENTS)]
            self._begin()

    def make_scheme(self, least):
        self.least = least
        more = params_of(self._name)
        self.scheme = fedcipher.scheme(self._name, clients=CLIENTS, min_contributions=least, codec=CODEC, **more)

    def new_roster(self, least=LEAST):
        self.make_scheme(least)
        self.draw.shuffle(self.numbers)
        parties = [Party(number, f"site-{k}", member=k < 3) for k, number in enumerate(self.numbers)]
        cards = [Card.of(own, party) for own, party in zip(self._own, parties, strict=True)]
        self._listed = roster(cards)
        self.join()

    def new_epoch(self):
        self.epoch += 1
        self.join()

    def join(self):
        self.server = self.scheme.committee.roster_key(self._listed, epoch=self.epoch)
        self.clients = [self.scheme.committee.join(self._listed, own, epoch=self.epoch) for own in self._own]
        self._begin()

    def _begin(self):
        self._encryptors = [self.scheme.encryptor(key) for key in self.clients]
        self._frames = {}

    def asked(self, number, clients, memory):
        aggregator = self.scheme.aggregator(self.server, round=number)
        members = self.clients[:3] if self._own else []
        prekeys = [self.scheme.committee.member(key).prekey() for key in members]
        for k in clients:
            if (number, k) not in self._frames:
                update = [np.full(3, k / 10, np.float32)]
                wire_tools.take_prekeys(self._encryptors[k], prekeys)
                self._frames[number, k] = self._encryptors[k].encrypt(update, round=number, memory=memory)
            aggregator.add(self._frames[number, k])
        return aggregator

    def total(self, number, clients, memory):
        aggregator = self.asked(number, clients, memory)
        # Members that remember nothing: what is tried is who opens.
        key = {number: self.clients[place] for place, number in enumerate(self.numbers)}
        answered(aggregator, lambda member: wire_tools.forgetful(self.scheme, key[member]))
        return aggregator.finish()


class Asked:
    """One party with its folder of state, and what it has taken of a server's requests."""

    def __init__(self, identities, runs, draw, between):
        self.parties, self.runs, self.draw, self.between = identities, runs, draw, between
        self.taken, self.served, self.refused = {}, {}, 0
        self.number = 0
        self.open()

    def happens(self):
        """What happens between two requests."""
        event = self.draw.choice(["nothing", "restart", *self.between])
        if event == "run":
            self.runs.number += 1
        elif event == "epoch":
            self.parties.new_epoch()
        elif event == "roster":
            self.parties.new_roster(self.draw.choice([LEAST - 1, LEAST, LEAST + 1]))
        if event != "nothing":
            self.open()
        return event

    def request(self, name, memory, clients):
        try:
            self.ask(clients, memory)
        except (errors.SetRuleError, errors.ReplayError, errors.TooFewContributionsError):
            self.refused += 1
            return
        self.taken.setdefault(name, []).append((frozenset(clients), self.parties.least))
        self.served.setdefault(name, SetMemory(1)).admit(clients)

    def wanted(self, name):
        """Any clients, or nearly those of a sum that there is, or of its groups but for one client."""
        near = self.taken.get(name)
        if near and self.draw.random() < 0.3:
            groups = self.served[name].groups()
            return sorted(itertools.chain(*self.draw.sample(groups, self.draw.randint(1, len(groups)))))
        changed = {self.draw.randrange(CLIENTS) for _ in range(self.draw.randrange(4))}
        if near and self.draw.random() < 0.7:
            return sorted(self.draw.choice(near)[0] ^ changed)
        return [client for client in range(CLIENTS) if self.draw.random() < 0.7]

    def history(self):
        """`HISTORY` requests; what happened, for a failure's message."""
        said, before = [], None
        for _ in range(HISTORY):
            said.append(self.happens())
            memories = self.runs.memories()
            name = self.draw.choice(["train", "train", *memories])
            # A round's frames are of one memory. Else it is over.
            if before != (name, self.runs.number) or "nothing" not in said[-1:] or self.draw.random() < 0.7:
                # Its time is in its number: a new ledger takes no round that was begun before.
                self.number = max(self.number + 1, (int(time.time()) + 10) << 20)
            before = name, self.runs.number
            clients = self.wanted(name)
            if clients:
                self.request(name, memories[name], clients)
                said.append((name, clients))
        return said


class AskedMember(Asked):
    """Member 1 of a committee. What it answers for is opened: the readers work with the server."""

    def open(self):
        self.member = self.parties.scheme.committee.member(self.parties.clients[1])

    def ask(self, clients, memory):
        aggregator = self.parties.asked(self.number, clients, memory)
        own, other = self.parties.numbers[1], self.parties.numbers[0]
        # Two have to answer, and the other one works with the server.
        forgetful = wire_tools.forgetful(self.parties.scheme, self.parties.clients[0])
        answered(aggregator, lambda number: self.member if number == own else forgetful, (own, other))
        assert not aggregator.committee.missing


class AskedOpener(Asked):
    """Whose key opens: a client, or the opener that the server was given."""

    def open(self):
        self.decryptor = self.parties.scheme.decryptor(self.parties.clients[0])

    def ask(self, clients, memory):
        self.decryptor.open(self.parties.total(self.number, clients, memory), round=self.number, memory=memory)


def too_few(taken):
    """Clients that a combination of the sums tells of alone, though one of them has been promised more.

    ``taken``: of each sum its clients, and how many its roster has promised.
    """
    sets = list(dict.fromkeys(clients for clients, _ in taken))
    cells = {}
    for client in frozenset().union(*sets):
        cells.setdefault(tuple(n for n, clients in enumerate(sets) if client in clients), set()).add(client)
    promised = {cell: max(least for clients, least in taken if mine <= clients) for cell, mine in cells.items()}
    columns = tuple(sorted(cells))
    for support in supports(columns):
        told = [column for column, there in zip(columns, support, strict=True) if there]
        clients = frozenset().union(*(cells[column] for column in told))
        if any(len(clients) < promised[column] for column in told):
            return sorted(clients)
    return None


def no_few_follow(kind, name, between, folder, rng, monkeypatch):
    """Nothing that follows from one party's sums of one memory is of fewer clients than one of them was promised."""
    runs, seed, tally = Runs(folder, rng), random.SystemRandom().randrange(2**32), [0, 0]
    for number in range(-(-TRIES // HISTORY)):
        # An identity of its own each, so that none is asked for ever.
        monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(folder / f"state-{number}"))
        draw = random.Random(f"{seed} {number}")
        asked = kind(Identities(name, draw), runs, draw, between)
        said = asked.history()
        for memory, sets in asked.taken.items():
            assert too_few(sets) is None, (seed, number, memory, sets, said)
        tally[0] += sum(map(len, asked.taken.values()))
        tally[1] += asked.refused
    assert min(tally) > TRIES // 10, tally


@pytest.mark.parametrize("kind", ["member", "opener"])
def test_attack_32_a_later_roster_with_a_smaller_minimum_sets_nobody_apart(tmp_path, rng, monkeypatch, kind):
    """Three were promised to six clients; a roster of the same identities that promises two is held to it."""
    monkeypatch.setenv("FEDCIPHER_STATE_DIR", str(tmp_path / "state"))
    parties, draw = Identities("oneshot", random.Random(7)), random.Random(8)
    asked = (AskedMember if kind == "member" else AskedOpener)(parties, Runs(tmp_path, rng), draw, [])

    def ask(clients):
        asked.number = max(asked.number + 1, (int(time.time()) + 10) << 20)
        asked.ask(clients, MEMORY)

    ask(range(6))
    parties.new_roster(2)
    asked.open()
    for few in ((0, 1, 2, 3), (0, 1), (0, 1, 2, 3, 6, 7), range(5)):
        with pytest.raises(errors.SetRuleError, match="at least 3"):
            ask(few)
    ask((6, 7))
    ask((0, 1, 2, 6, 7))


@in_parts
def test_attack_32_a_randomised_server_gets_nothing_of_few_clients_of_a_member(tmp_path, rng, part, monkeypatch):
    no_few_follow(AskedMember, "oneshot", ["run", "epoch", "roster"], tmp_path, rng, monkeypatch)


@in_parts
@pytest.mark.parametrize("name", one_of_each_kind_of_key())
def test_attack_32_a_randomised_server_gets_nothing_of_few_clients_of_an_opener(tmp_path, rng, name, part, monkeypatch):
    # The memories of a cohort's key end with it.
    between = ["run", "epoch", "roster"] if name == "oneshot" else ["run"]
    no_few_follow(AskedOpener, name, between, tmp_path, rng, monkeypatch)
