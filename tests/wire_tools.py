"""Frames as an attacker makes them: any byte changed, the public checksum made right again."""

import struct

import anycrc

_CRC = anycrc.Model("CRC64-NVME")
KIND, ROUND, MODEL, MEMORY, CLIENTS, LAYOUT, PAYLOAD, FIXED = 5, 64, 80, 96, 112, 116, 120, 128
UPDATE, AGGREGATE = 1, 2
SIGNATURE_LEN = 64


def sealed(body):
    return bytes(body) + struct.pack("<Q", _CRC.calc(bytes(body)))


def payload_start(frame):
    clients, layout = struct.unpack_from("<II", frame, CLIENTS)
    return FIXED + 12 * clients + layout


def payload(frame):
    return frame[payload_start(frame) : -8]


def body(frame):
    """The payload without the signature, which only an update has."""
    whole = payload(frame)
    return whole[:-SIGNATURE_LEN] if frame[KIND] == UPDATE else whole


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


def with_flip(frame, position, mask):
    body = bytearray(frame[:-8])
    body[position % len(body)] ^= mask
    return sealed(body)


def answered(aggregator, member_of, asked=None):
    """The committee's part: members agree on the set, and answer. ``asked``: those of them that are there."""
    members = {}
    for _ in range(4):
        requests = aggregator.requests()
        agreeing = aggregator.agreeing
        for number, request in requests.items():
            if asked is None or number in asked:
                members.setdefault(number, member_of(number))
                aggregator.answer(members[number].answer(request))
        if not agreeing:
            return
