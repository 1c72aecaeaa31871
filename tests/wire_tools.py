"""Frames as an attacker makes them: any byte changed, the public checksum made right again."""

import struct

import anycrc

_CRC = anycrc.Model("CRC64-NVME")
KIND, ROUND, MODEL, MEMORY, CLIENTS, LAYOUT, PAYLOAD, FIXED = 5, 64, 80, 96, 112, 116, 120, 128
UPDATE, AGGREGATE = 1, 2


def sealed(body):
    return bytes(body) + struct.pack("<Q", _CRC.calc(bytes(body)))


def payload_start(frame):
    clients, layout = struct.unpack_from("<II", frame, CLIENTS)
    return FIXED + 12 * clients + layout


def payload(frame):
    return frame[payload_start(frame) : -8]


def with_kind(frame, kind):
    return sealed(frame[:KIND] + bytes([kind]) + frame[KIND + 1 : -8])


def with_round(frame, number):
    return sealed(frame[:ROUND] + struct.pack("<Q", number) + frame[ROUND + 8 : -8])


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
