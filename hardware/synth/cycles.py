"""Cycles of the simulated device over whole models: counted by its own register."""

import random
from pathlib import Path

from device import C_DECRYPT, C_ENCRYPT, C_PREPARE, DONE, ERROR, STATUS, Device
from model import PRIMES, N, T, a_beats, beats, e_beats, wide_beats

# Values of a LeNet-5 on 28 x 28 pixels, and how many of 12 bits fedbit-paper puts in a coefficient for 5 of 10 clients.
LENET = 61_706
FIELDS = 2


def measure(library: Path) -> dict[str, object]:
    """Preparation, encryption and decryption of one LeNet-5, with the modelled memory beside the device."""
    rng = random.Random(1)
    device = Device(library)
    lanes = 1 << (device.read(0x04) >> 8 & 0xFF)
    coefficients = -(-LENET // FIELDS)
    count = -(-coefficients // N)
    last = coefficients - (count - 1) * N
    device.load_key([rng.choice((0, 1, -1)) for _ in range(N)])
    device.wait_idle()
    used = [N] * (count - 1) + [last]
    a = [a_beats(*[[rng.randrange(p) for _ in range(N)] for p in PRIMES]) for _ in used]
    to_card = from_card = 0
    found: dict[str, object] = {"lanes": lanes, "ciphertexts": count, "coefficients": coefficients}

    def run(command: int, streams: list[list[bytes]]) -> int:
        nonlocal to_card
        for stream, packets in enumerate(streams):
            for packet in packets:
                device.feed(stream, packet)
                to_card += len(packet)
        device.start(command, count, N, last)
        device.run(10_000_000)
        if device.read(STATUS) & DONE == 0:
            raise RuntimeError(f"error {device.read(ERROR)}")
        return device.cycles()

    errors = [e_beats([rng.randrange(-21, 22) for _ in range(u)]) for u in used]
    plain = [wide_beats([rng.randrange(T) for _ in range(u)]) for u in used]
    found["prepare"] = run(C_PREPARE, [a, errors])
    found["prepare_bytes"], to_card = to_card, 0
    found["encrypt"] = run(C_ENCRYPT, [[], plain])
    c0 = [device.take() for _ in used]
    found["encrypt_bytes"], to_card = to_card, 0
    from_card = sum(len(packet[0]) for packet in c0 if packet)
    found["encrypt_bytes_back"] = from_card
    found["decrypt"] = run(C_DECRYPT, [a, [beats(packet[0]) for packet in c0 if packet]])
    found["decrypt_bytes"] = to_card
    found["decrypt_bytes_back"] = sum(len(packet[0]) for packet in (device.take() for _ in used) if packet)
    device.close()
    return found
