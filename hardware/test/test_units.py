# pyright: basic, reportMissingImports=false
"""Multiplication, butterflies, packing and unpacking, each against Python's integers."""

import os
import random
from collections import deque

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly
from model import PRIMES, pack

# The core's two, 54 and 55 bits of a q of 109 bits, and the preset `fast`.
ALL = (*PRIMES, 18_014_398_509_309_953, 36_028_797_018_652_673, 9_007_199_254_614_017)
OUTPUTS = (("r0", ALL[0]), ("r1", ALL[1]), ("r2", ALL[2]), ("r3", ALL[3]), ("r4", ALL[4]), ("r5", ALL[0]))
PRODUCTS = int(os.environ.get("FC_PRODUCTS", "3000"))
LATENCY, BUTTERFLY = 12, 16


async def begin(dut) -> None:
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    for name in ("a", "b", "op", "w", "start", "word_valid", "word_last", "word", "in_valid", "in_last", "in_data"):
        getattr(dut, name).value = 0
    dut.width.value, dut.packets.value, dut.count.value, dut.count_last.value, dut.room.value = 8, 1, 1, 1, 1
    dut.rst.value = 1
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.rst.value = 0


def edges(p: int) -> list[int]:
    """Where a fold or a carry that is wrong by one shows."""
    near = [0, 1, 2, p - 1, p - 2, p // 2, p // 2 + 1, 2**13 - 1, 2**13, 2**17, 2**26, 2**34, 2**52 - 1, 2**52]
    return [v for v in near if v < p] + [p - 2**k for k in range(1, 52, 5)]


@cocotb.test()
async def products(dut) -> None:
    """Edge values with each other, then random ones; every output every cycle."""
    await begin(dut)
    rng = random.Random(1)
    least = min(ALL)
    fixed = [(x, y) for x in edges(least) for y in edges(least)]
    waiting: deque[tuple[int, int]] = deque()
    for k in range(len(fixed) + PRODUCTS + LATENCY):
        # Below the smallest prime: all six take the same operands.
        pair = fixed[k] if k < len(fixed) else (rng.randrange(least), rng.randrange(least))
        dut.a.value, dut.b.value = pair
        waiting.append(pair)
        await FallingEdge(dut.clk)
        if len(waiting) == LATENCY:
            x, y = waiting.popleft()
            product = x * y
            for name, p in OUTPUTS:
                assert int(getattr(dut, name).value) == product % p, f"{x} * {y} mod {p} ({name})"


@cocotb.test()
async def butterflies(dut) -> None:
    """Each direction, operations mixed from cycle to cycle."""
    await begin(dut)
    rng = random.Random(2)
    p = PRIMES[0]
    some = edges(p)
    waiting: deque[tuple[int, int, int, int]] = deque()
    for k in range(3000):
        pick = (lambda: rng.choice(some)) if k < 1500 else (lambda: rng.randrange(p))
        op, a, b, w = rng.randrange(4), pick(), pick(), pick()
        dut.op.value, dut.a.value, dut.b.value, dut.w.value = op, a, b, w
        waiting.append((op, a, b, w))
        await FallingEdge(dut.clk)
        if len(waiting) == BUTTERFLY:
            op, a, b, w = waiting.popleft()
            x, y = int(dut.x.value), int(dut.y.value)
            if op == 0:
                assert (x, y) == ((a + b * w) % p, (a - b * w) % p)
            elif op == 1:
                assert (x, y) == ((a + b) % p, (b - a) * w % p)
            else:
                assert y == b * w % p


async def packed(dut, words: list[int], width: int, rng: random.Random) -> bytes:
    """What bit_packer makes of them, with pauses."""
    dut.width.value = width
    out, left, ended, quiet = bytearray(), deque(words), False, 0
    while quiet < 12:
        dut.word_valid.value = 0
        if left and rng.random() < 0.8:
            dut.word.value, dut.word_last.value, dut.word_valid.value = left.popleft(), int(not left), 1
        await FallingEdge(dut.clk)
        if dut.beat_valid.value:
            assert not ended, "a beat after the last"
            keep = int(dut.beat_keep.value)
            assert keep & (keep + 1) == 0
            out += int(dut.beat.value).to_bytes(16, "little")[: keep.bit_count()]
            ended = bool(dut.beat_last.value)
            assert ended or keep == 0xFFFF
        quiet = 0 if left else quiet + 1
    assert ended
    return bytes(out)


async def unpacked(
    dut, data: list[bytes], width: int, counts: list[int], rng: random.Random
) -> tuple[list[int], bool, bool]:
    """What bit_unpacker makes of packets; and whether it found a length or padding wrong."""
    dut.width.value, dut.packets.value = width, len(counts)
    dut.count.value, dut.count_last.value = counts[0], counts[-1]
    dut.start.value = 1
    await FallingEdge(dut.clk)
    dut.start.value = 0
    beats: deque[tuple[int, int]] = deque()
    for packet in data:
        whole = packet + bytes(-len(packet) % 16)
        n = len(whole) // 16
        beats += [(int.from_bytes(whole[16 * i : 16 * i + 16], "little"), int(i == n - 1)) for i in range(n)]
    words: list[int] = []
    length = padding = False
    quiet = 0
    while quiet < 40:
        offered = bool(beats) and rng.random() < 0.7
        dut.in_valid.value = int(offered)
        if offered:
            dut.in_data.value, dut.in_last.value = beats[0]
        dut.room.value = int(rng.random() < 0.8)
        # Ready is of this cycle's inputs.
        await ReadOnly()
        taken = offered and bool(dut.in_ready.value)
        await FallingEdge(dut.clk)
        if taken:
            beats.popleft()
        if dut.out_valid.value:
            words.append(int(dut.out_data.value))
        length |= bool(dut.wrong_length.value)
        padding |= bool(dut.wrong_padding.value)
        quiet = 0 if taken or dut.out_valid.value else quiet + 1
    dut.in_valid.value = 0
    return words, length, padding


@cocotb.test()
async def bits_in_a_row(dut) -> None:
    """Widths that fill beats and that do not; packets that end anywhere; and back."""
    await begin(dut)
    rng = random.Random(3)
    for width in (1, 7, 8, 31, 64, 105, 106, 107, 127, 128):
        counts = [40, 40, rng.randrange(1, 41)]
        # A packet of 40 words, twice, and a shorter last one.
        packets = [[rng.getrandbits(width) if rng.random() < 0.8 else 2**width - 1 for _ in range(n)] for n in counts]
        streams = [await packed(dut, words, width, rng) for words in packets]
        assert streams == [pack(words, width) for words in packets], f"width {width}"
        words, length, padding = await unpacked(dut, streams, width, counts, rng)
        assert words == [word for packet in packets for word in packet] and not length and not padding, f"width {width}"


@cocotb.test()
async def packets_of_another_shape(dut) -> None:
    """Too short, too long, and bits behind the last word: found, wherever the end falls in a beat."""
    await begin(dut)
    rng = random.Random(4)
    for width in (8, 106, 128):
        for count in (1, 2, 6, 7, 33):
            data = pack([rng.getrandbits(width) for _ in range(count)], width)
            whole = data + bytes(-len(data) % 16)
            _, length, _ = await unpacked(dut, [whole + bytes(16)], width, [count], rng)
            assert length, f"one beat too many, {count} words of {width}"
            if len(whole) > 16:
                _, length, _ = await unpacked(dut, [whole[:-16]], width, [count], rng)
                assert length, f"one beat short, {count} words of {width}"
            end = count * width
            for bit in {end, 8 * len(whole) - 1}:
                if bit < 8 * len(whole) and bit >= end:
                    spoiled = bytearray(whole)
                    spoiled[bit // 8] |= 1 << bit % 8
                    _, length, padding = await unpacked(dut, [bytes(spoiled)], width, [count], rng)
                    assert padding and not length, f"bit {bit} behind {count} words of {width}"
