"""`make bench-lora`: what the LoRA adapters of a 7 B model cost a client; fills the table of docs/evidence/lora.md.

Adapters of rank 32 on the query and value projections of 32 layers with 4096 hidden units and grouped keys of 1024,
as in Mistral 7B: 13,631,488 values. Twenty clients, equal weights, deltas. Bytes are of whole frames. Seconds are
medians over rounds on this machine's cores, quantising included: `encrypt` with nothing prepared, `prepared` where
what does not depend on the update was done while the client trained (the round's claim, and BFV's polynomials),
`decrypt` opens the sum of all twenty. Processor time is of all threads: what a busy machine does not stretch.
"""

from __future__ import annotations

import datetime
import itertools
import os
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np
from fedcipher import Codec, scheme
from measure import ROOT, Times, machine, median_seconds
from report import ms

LAYERS, HIDDEN, GROUPED, RANK = 32, 4096, 1024, 32
CLIENTS = 20
REPEATS = 5
CASES = [("flashe", 16), ("flashe", 12), ("flashe", 8), ("bfv", 16), ("bfv", 12), ("bfv", 8)]
MOST_UP, MOST_SECONDS = 36e6, 0.100
PAGE = ROOT / "docs" / "evidence" / "lora.md"
BEGIN, END = "<!-- lora -->", "<!-- /lora -->"


@dataclass
class Cost:
    """Bytes both ways and medians of seconds, with the least, of one scheme at one width."""

    name: str
    bits: int
    up: int
    down: int
    encrypt: Times
    prepared: Times
    decrypt: Times
    worked: float

    @property
    def seconds(self) -> Times:
        return self.encrypt + self.decrypt


def shapes() -> list[tuple[int, int]]:
    """The shapes of all adapters: down and up projections for queries and values of each layer."""
    return [(RANK, HIDDEN), (HIDDEN, RANK), (RANK, HIDDEN), (GROUPED, RANK)] * LAYERS


def cost(name: str, bits: int) -> Cost:
    """Encrypt, add up and open a round, then time client 0 ``REPEATS`` times."""
    made = scheme(name, clients=CLIENTS, codec=Codec(bits=bits, target="delta"))
    keys = made.keygen(CLIENTS)
    random = np.random.default_rng(1)
    update = [random.normal(0, 1e-3, shape).astype(np.float32) for shape in shapes()]
    encryptors = [made.encryptor(keys.client(k)) for k in range(CLIENTS)]
    decryptor = made.decryptor(keys.client(0))
    reference = update
    aggregator = made.aggregator(keys.server(), round=1)
    up = 0
    for encryptor in encryptors:
        frame = encryptor.encrypt(update, round=1, reference=reference)
        aggregator.add(frame)
        up = len(frame)
    total = aggregator.finish()
    mean = decryptor.decrypt(total, reference=reference)
    ranges = [alpha for _, _, alpha, _ in made.codec.layout(update, reference).tensors]
    step = 2 * max(ranges) / made.levels.of(bits)
    if max(float(np.abs(a - b).max()) for a, b in zip(mean, update, strict=True)) > 0.51 * step:
        sys.exit(f"{name} at {bits} bits: what was opened is not the mean")
    before = time.process_time()
    decrypt = median_seconds(lambda: decryptor.decrypt(total, reference=reference), repeats=REPEATS)
    opening = (time.process_time() - before) / (REPEATS + 1)
    rounds = itertools.count(2)

    def encrypted() -> None:
        encryptors[0].encrypt(update, round=next(rounds), reference=reference)

    ahead = itertools.count(2 + REPEATS + 1)

    def prepare() -> None:
        encryptors[0].precompute(update, round=next(ahead), reference=reference)

    before = time.process_time()
    encrypt = median_seconds(encrypted, repeats=REPEATS)
    worked = (time.process_time() - before) / (REPEATS + 1) + opening
    prepared = median_seconds(encrypted, repeats=REPEATS, setup=prepare)
    return Cost(name, bits, up, len(total), encrypt, prepared, decrypt, worked)


def main() -> None:
    """Measure, print, and write the table into the page."""
    values = sum(rows * columns for rows, columns in shapes())
    lines = [
        "| scheme | bits | up, MB | down, MB | encrypt | prepared | decrypt | encrypt and decrypt "
        "| of processor time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as state:
        os.environ["FEDCIPHER_STATE_DIR"] = state
        for name, bits in CASES:
            it = cost(name, bits)
            times = " | ".join(ms(x, 0) for x in (it.encrypt, it.prepared, it.decrypt, it.seconds, it.worked))
            lines.append(f"| `{name}` | {bits} | {it.up / 1e6:.1f} | {it.down / 1e6:.1f} | {times} |")
            print(lines[-1], flush=True)
            if (name, bits) == CASES[0]:
                reached = [
                    f"at most {MOST_UP / 1e6:.0f} MB up: {'reached' if it.up <= MOST_UP else 'missed'}",
                    f"at most {1000 * MOST_SECONDS:.0f} ms of client cryptography: "
                    f"{'reached' if it.seconds <= MOST_SECONDS else 'missed'}",
                ]
    today = datetime.datetime.now(datetime.timezone.utc).date()
    load = f", load average {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    head = (
        f"{values:,} values, {CLIENTS} clients. {machine()}{load}; {today}. `flashe` at 16 bits: {'; '.join(reached)}."
    )
    print(head)
    page = PAGE.read_text()
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + "\n" + head + "\n\n" + "\n".join(lines) + "\n" + page[stop:])


if __name__ == "__main__":
    main()
