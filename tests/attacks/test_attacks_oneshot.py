"""A server that is not honest, and the committee of `oneshot`: through Flower's messages, to the real mod.

`FEDCIPHER_ATTACK_TRIES` sets how many requests the randomised server makes.
"""

import logging
import struct
import time

import fedcipher
import wire_tools
from attack_harness import CLIENTS, TRIES, Federation, in_parts, masked
from fedcipher import errors
from fedcipher.federation import messages as protocol
from fedcipher.frame import inspect
from fedcipher.schemes.base import KeySet
from flower_harness import initial, reference_of, wire_record
from flwr.app import Message, RecordDict
from hypothesis import HealthCheck, given, settings, strategies

ANSWER = 6
COMMITTEE = "fedcipher.committee"


def set_of(frame):
    kind, _, _, number, contributions, *_ = inspect(frame)
    return kind, number, tuple(contributions)


class Server:
    """A server with every update of many rounds, which asks members for whatever it likes."""

    def __init__(self, federation):
        self.federation, self.scheme = federation, federation.scheme
        self.issued = fedcipher.keys.load_server(federation.folder)[1]
        own = [fedcipher.keys.load_client(federation.folder / f"client-{k}.key")[1] for k in range(CLIENTS)]
        self.encryptors = [self.scheme.encryptor(key) for key in own]
        self.keys = KeySet(dict(enumerate(own)), self.issued)
        # Now: a ledger takes no round that was begun before it was made.
        self.round, self.updates = (int(time.time()) << 20) + 100, {}

    def begin(self):
        """All clients upload in one round more."""
        self.round += 1
        prekeys = self.scheme.committee.prekeys(self.keys)
        for encryptor in self.encryptors:
            wire_tools.take_prekeys(encryptor, prekeys)
        self.updates[self.round] = [e.encrypt(initial(), round=self.round) for e in self.encryptors]

    def request(self, number, clients, member):
        """An honest request for a set of the server's choice, or nothing where the aggregator itself refuses it."""
        aggregator = self.scheme.aggregator(self.issued, round=number)
        for client in clients:
            aggregator.add(self.updates[number][client])
        try:
            return aggregator.committee.requests()[member]
        except errors.TooFewContributionsError:
            return None

    def ask(self, frame, member):
        content = RecordDict({COMMITTEE: wire_record({"fedcipher.request": frame})})
        sent = Message(content, dst_node_id=1000 + member, message_type="train")
        return self.federation.app(sent, self.federation.grid.contexts[1000 + member])


def spliced(one, other):
    """The clients' parts of one request behind the header of another."""
    return wire_tools.sealed(one[: wire_tools.payload_start(one)] + wire_tools.payload(other))


def without_the_last(frame, lengths):
    """One client fewer, in header and payload, as an honest server would have left it out."""
    clients, layout = struct.unpack_from("<II", frame, wire_tools.CLIENTS)
    start, end = wire_tools.FIXED + 12 * (clients - 1), wire_tools.payload_start(frame)
    head = bytearray(frame[:start] + frame[start + 12 : end])
    struct.pack_into("<I", head, wire_tools.CLIENTS, clients - 1)
    left = wire_tools.payload(frame)[:-lengths]
    struct.pack_into("<Q", head, wire_tools.PAYLOAD, len(left))
    return wire_tools.sealed(bytes(head) + left)


@in_parts
def test_attack_any_randomised_server_gets_one_set_a_round_of_a_member(tmp_path, rng, part, caplog):
    """Not of two sets, whose difference is somebody; not of too few; not of what no client has signed."""
    # Put back by pytest, however this ends.
    caplog.set_level(logging.CRITICAL, "fedcipher.federation")
    federation = Federation(tmp_path, "oneshot", rng, preset="fast")
    server = Server(federation)
    server.begin()
    least, answered = federation.scheme.min_contributions, {}
    members = list(range(federation.scheme.params()["members"]))
    tally, constant, tries = {"answer": 0, "refusal": 0}, {}, [0]
    everyone = server.request(server.round, range(CLIENTS), 0)
    one_fewer = server.request(server.round, range(CLIENTS - 1), 0)
    part = len(wire_tools.payload(everyone)) - len(wire_tools.payload(one_fewer))
    assert without_the_last(everyone, part) == one_fewer

    @settings(max_examples=TRIES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        clients=strategies.sets(strategies.integers(0, CLIENTS - 1), min_size=1),
        back=strategies.sampled_from([0, 0, 0, 1, 2]),
        member=strategies.sampled_from(members),
        for_member=strategies.sampled_from([None, None, None, *members]),
        bend=strategies.sampled_from(
            ["", "", "", "kind", "round", "client", "weight", "flip", "cut", "splice", "fewer"]
        ),
        by=strategies.integers(0, 10**6),
    )
    def attack(clients, back, member, for_member, bend, by):
        tries[0] += 1
        if tries[0] % 20 == 0:
            server.begin()
        number = max(server.round - back, min(server.updates))
        frame = server.request(number, clients, member if for_member is None else for_member)
        if frame is None:
            # The aggregator is the server's own: it cuts down a request for all.
            frame = server.request(number, range(CLIENTS), member)
            for _ in range(CLIENTS - len(clients)):
                frame = without_the_last(frame, part)
        if bend == "kind":
            frame = wire_tools.with_kind(frame, by % 9)
        elif bend == "round":
            frame = wire_tools.with_round(frame, number + by % 5 - 2)
        elif bend == "client":
            frame = wire_tools.with_client(frame, by % (CLIENTS + 2))
        elif bend == "weight":
            frame = wire_tools.with_weight(frame, [0, 1, 2, 2**40, 2**64 - 1][by % 5])
        elif bend == "flip":
            frame = wire_tools.with_flip(frame, by, 1 + by % 255)
        elif bend == "cut":
            frame = frame[: by % len(frame)]
        elif bend == "splice":
            others = server.request(max(number - 1, min(server.updates)), range(CLIENTS), member)
            frame = spliced(others, frame)
        elif bend == "fewer":
            frame = without_the_last(frame, part)
        reply = server.ask(frame, member)
        if reply.has_error():
            assert reference_of(reply) and masked(reply) == constant.setdefault(member, masked(reply))
            tally["refusal"] += 1
            return
        answer, _ = (reply.content[COMMITTEE][name] for name in ("fedcipher.answer", "prekey"))
        assert len(reply.content[COMMITTEE]) == 2
        kind, about, contributions = set_of(protocol.frame_bytes(answer))
        assert kind == ANSWER
        assert len({client for client, _ in contributions}) == len(contributions) >= least
        assert all(weight == 1 and client in range(CLIENTS) for client, weight in contributions)
        assert answered.setdefault((member, about), contributions) == contributions, "two sets of one round"
        tally["answer"] += 1

    attack()
    assert min(tally.values()) > TRIES // 100, tally
