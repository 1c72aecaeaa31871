"""The simulated device by its C interface (hardware/sim/fc_sim.h), for tests that run whole commands."""

import ctypes
from pathlib import Path

ID, CONFIG, COMMAND, STATUS, ERROR, COUNT, USED, USED_LAST = 0x00, 0x04, 0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C
MODE, FORMAT, TIMEOUT, CYCLES, CYCLES_HIGH, STARVED, KEY = 0x20, 0x24, 0x28, 0x30, 0x34, 0x38, 0x80
C_KEY, C_PREPARE, C_ENCRYPT, C_DECRYPT, C_WIPE, C_CLEAR = range(1, 7)
BUSY, DONE, FAILED, KEY_THERE, KEYING, WIPING = 1, 2, 4, 8, 16, 32
(E_NONE, E_COMMAND, E_BUSY, E_ARGUMENT, E_NO_KEY, E_NO_MASK, E_FULL, E_LENGTH, E_PADDING, E_RESIDUE, E_VALUE,
 E_PLAINTEXT, E_KEY_VALUE, E_KEY_READ, E_KEY_STATE, E_ADDRESS, E_TIMEOUT, E_MASK_LENGTH) = range(18)  # fmt: skip


class Setup(ctypes.Structure):
    _fields_ = [
        ("memory_latency", ctypes.c_uint32),
        ("refresh_every", ctypes.c_uint32),
        ("refresh_for", ctypes.c_uint32),
        ("stall_in", ctypes.c_uint32),
        ("stall_out", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
    ]


class Refused(Exception):
    """The bus answered SLVERR."""


class Device:
    def __init__(self, library: Path, *, stall_in: int = 0, stall_out: int = 0, seed: int = 1) -> None:
        self.lib = ctypes.CDLL(str(library))
        self.lib.fc_sim_new.restype = ctypes.c_void_p
        self.lib.fc_sim_run.restype = ctypes.c_uint64
        self.lib.fc_sim_cycles.restype = ctypes.c_uint64
        self.lib.fc_sim_take.restype = ctypes.c_long
        self.lib.fc_sim_waiting.restype = ctypes.c_size_t
        setup = Setup(40, 975, 44, stall_in, stall_out, seed)
        self.sim = ctypes.c_void_p(self.lib.fc_sim_new(ctypes.byref(setup)))

    def close(self) -> None:
        self.lib.fc_sim_free(self.sim)

    def write(self, address: int, value: int) -> None:
        answer = self.lib.fc_sim_write(self.sim, ctypes.c_uint8(address), ctypes.c_uint32(value))
        if answer:
            raise Refused(f"write of {address:#x}: {answer}")

    def read(self, address: int) -> int:
        value = ctypes.c_uint32(0)
        answer = self.lib.fc_sim_read(self.sim, ctypes.c_uint8(address), ctypes.byref(value))
        if answer:
            raise Refused(f"read of {address:#x}: {answer}, {value.value:#x}")
        return value.value

    def feed(self, stream: int, data: bytes, *, last: bool = True) -> None:
        assert len(data) % 16 == 0
        self.lib.fc_sim_feed(self.sim, stream, data, ctypes.c_size_t(len(data) // 16), int(last))

    def drop(self) -> None:
        self.lib.fc_sim_drop(self.sim)

    def run(self, cycles: int) -> int:
        return self.lib.fc_sim_run(self.sim, ctypes.c_uint64(cycles))

    def reset(self, cycles: int = 4) -> None:
        self.lib.fc_sim_reset(self.sim, ctypes.c_uint32(cycles))

    def take(self, room: int = 1 << 17) -> tuple[bytes, bool] | None:
        buffer, aborted = ctypes.create_string_buffer(room), ctypes.c_int(0)
        length = self.lib.fc_sim_take(self.sim, buffer, ctypes.c_size_t(room), ctypes.byref(aborted))
        return None if length < 0 else (buffer.raw[:length], bool(aborted.value))

    def status(self) -> int:
        return self.read(STATUS)

    def masks(self) -> int:
        return self.status() >> 16

    def cycles(self) -> int:
        return self.read(CYCLES) | self.read(CYCLES_HIGH) << 32

    def wait_idle(self) -> None:
        for _ in range(100):
            if not self.status() & BUSY:
                return
            for _ in range(64):  # an irq ends a run at once
                self.run(64)
                self.read(ID)
        raise TimeoutError("the device stays busy")

    def load_key(self, s: list[int]) -> None:
        self.wait_idle()
        self.write(COMMAND, C_KEY)
        for k in range(0, len(s), 16):
            self.write(KEY, sum((v & 3) << (2 * i) for i, v in enumerate(s[k : k + 16])))
        self.wait_idle()

    def start(self, command: int, count: int, used: int = 4096, used_last: int | None = None, **kw: int) -> None:
        self.write(COUNT, count)
        self.write(USED, used)
        self.write(USED_LAST, used if used_last is None else used_last)
        self.write(MODE, kw.get("shift", 1) << 8 | int("shift" in kw))
        self.write(FORMAT, kw.get("wire_bits", 106) << 8 | kw.get("drop", 0))
        self.write(COMMAND, command)

    def finish(self, cycles: int = 1_000_000) -> int:
        """Until done or failed; the error's code."""
        self.run(cycles)
        status = self.status()
        assert status & (DONE | FAILED), f"the device hangs: status {status:#x}"
        return self.read(ERROR)
