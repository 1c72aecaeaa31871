# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The whole device at its buses, by cocotbext-axi's models: AXI4-Lite and AXI4-Stream with pauses at random."""

import itertools
import logging
import random
from collections.abc import Iterator

import cocotb
import device as d
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiResp,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
)
from model import PRIMES, N, T, a_beats, beats, e_beats, encrypt, masks, pack, result, times_secret, wide_beats


def pauses(seed: int, share: float) -> Iterator[bool]:
    rng = random.Random(seed)
    return (rng.random() < share for _ in itertools.count())


class Board:
    """fc_top with everything that is around it."""

    def __init__(self, dut, *, share: float = 0.0) -> None:
        self.dut = dut
        logging.getLogger("cocotb.fc_top").setLevel(logging.WARNING)  # a line an access hides what fails
        self.bus = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk)
        streams = [AxiStreamBus.from_prefix(dut, name) for name in ("s_a", "s_b", "s_mask", "m_mask", "m_out")]
        self.a, self.b, self.mask_in = (AxiStreamSource(bus, dut.clk, byte_lanes=16) for bus in streams[:3])
        self.mask_out = AxiStreamSink(streams[3], dut.clk, byte_lanes=16)
        self.out = AxiStreamSink(streams[4], dut.clk)  # it has TKEEP
        if share:
            for k, port in enumerate((self.a, self.b, self.mask_in, self.mask_out, self.out)):
                port.set_pause_generator(pauses(k, share))

    async def reset(self) -> None:
        self.dut.rst_n.value = 0
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst_n.value = 1
        await ClockCycles(self.dut.clk, 2)

    async def write(self, address: int, value: int) -> bool:
        """Whether the device took it."""
        answer = await self.bus.write(address, value.to_bytes(4, "little"))
        return answer.resp == AxiResp.OKAY

    async def read(self, address: int) -> int | None:
        answer = await self.bus.read(address, 4)
        value = int.from_bytes(answer.data, "little")
        if answer.resp == AxiResp.OKAY:
            return value
        assert value == 0, "a refused read carries data"
        return None

    async def wait(self, mask: int, value: int, cycles: int = 200_000) -> None:
        for _ in range(cycles // 64):
            if (await self.read(d.STATUS) or 0) & mask == value:
                return
            await ClockCycles(self.dut.clk, 50)
        raise TimeoutError(f"status {await self.read(d.STATUS):#x}, error {await self.read(d.ERROR)}")

    async def key(self, s: list[int]) -> None:
        await self.wait(d.BUSY, 0)
        assert await self.write(d.COMMAND, d.C_KEY)
        for k in range(0, N, 16):
            assert await self.write(d.KEY, sum((v & 3) << (2 * i) for i, v in enumerate(s[k : k + 16])))
        await self.wait(d.BUSY | d.KEY_THERE, d.KEY_THERE)


@cocotb.test()
async def there_and_back_with_pauses(dut) -> None:
    """One ciphertext through preparation, encryption and decryption, all streams pausing a third of the time."""
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    board = Board(dut, share=0.33)
    await board.reset()
    rng = random.Random(1)
    s = [rng.choice((0, 1, -1)) for _ in range(N)]
    await board.key(s)
    used = 1000
    a = [[rng.randrange(p) for _ in range(N)] for p in PRIMES]
    e = [rng.randrange(-21, 22) for _ in range(used)]
    m = [rng.choice((0, T - 1, rng.randrange(T))) for _ in range(used)]
    for register in (d.USED, d.USED_LAST):
        assert await board.write(register, used)
    await board.a.send(AxiStreamFrame(a_beats(*a)))
    await board.b.send(AxiStreamFrame(e_beats(e)))
    assert await board.write(d.COMMAND, d.C_PREPARE)
    mask = await board.mask_out.recv()
    want = masks(times_secret(a[0], a[1], s), e)
    assert bytes(mask.tdata) == wide_beats(want)
    await board.wait(d.BUSY | d.DONE, d.DONE)

    await board.mask_in.send(mask)
    await board.b.send(AxiStreamFrame(wide_beats(m)))
    assert await board.write(d.COMMAND, d.C_ENCRYPT)
    sent = await board.out.recv()
    c0 = pack(encrypt(want, m), 106)
    assert bytes(sent.tdata) == c0

    await board.wait(d.BUSY | d.DONE, d.DONE)
    await board.a.send(AxiStreamFrame(a_beats(*a)))
    await board.b.send(AxiStreamFrame(beats(c0)))
    assert await board.write(d.COMMAND, d.C_DECRYPT)
    opened = bytes((await board.out.recv()).tdata)
    words = [result(int.from_bytes(opened[16 * i : 16 * i + 16], "little")) for i in range(used)]
    assert words == list(zip(m, e, strict=True))
    await board.wait(d.BUSY | d.DONE, d.DONE)


@cocotb.test()
async def reset_in_mid_stream(dut) -> None:
    """Between any two beats: afterwards nothing is offered, the key is gone, and the device works again."""
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    board = Board(dut)
    await board.reset()
    rng = random.Random(2)
    s = [rng.choice((0, 1, -1)) for _ in range(N)]
    for beats_in in (1, 100, N - 1):
        await board.key(s)
        await board.a.send(AxiStreamFrame(bytes(16 * N)))
        assert await board.write(d.COMMAND, d.C_PREPARE)
        for _ in range(beats_in):
            await RisingEdge(dut.clk)
        await board.reset()
        board.a.clear()
        assert not (await board.read(d.STATUS) or 0) & (d.KEY_THERE | d.DONE | d.FAILED)
        await board.wait(d.BUSY, 0)
        assert await board.read(d.KEY) is None
        assert await board.read(d.ERROR) == d.E_KEY_READ
        assert await board.write(d.COMMAND, d.C_CLEAR)
        await board.wait(d.BUSY, 0)
        assert not await board.write(d.COMMAND, d.C_PREPARE)
        assert await board.read(d.ERROR) == d.E_NO_KEY
        assert await board.write(d.COMMAND, d.C_CLEAR)
        # What was on its way is not of the next command.
        assert board.out.empty() and board.mask_out.empty()


@cocotb.test()
async def words_that_are_not_whole(dut) -> None:
    """Bytes and unaligned words are refused, and change nothing."""
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    board = Board(dut)
    await board.reset()
    await board.wait(d.BUSY, 0)
    before = await board.read(d.COUNT)
    answer = await board.bus.write(d.COUNT, b"\x07")
    assert answer.resp == AxiResp.SLVERR
    answer = await board.bus.write(d.COUNT + 1, b"\x07\x07")
    assert answer.resp == AxiResp.SLVERR
    assert await board.read(d.COUNT) == before
