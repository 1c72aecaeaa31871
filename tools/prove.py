"""Proves claims of `oneshot` and `bfv` by z3 (`make prove`): no split, sums fit, noise below half a step, no wrap.

The rule for committees is read from the Rust source, as an expression. Claims about a round's sums are proved for the
numbers that the code derives from its parameters (`describe()`). Every integer of every client, every error and every
rounding is free within its bound.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedcipher
import z3

CORE = Path(__file__).parents[1] / "crates/fedcipher-core/src"
NAMES = ("members", "threshold", "corrupt_members", "pack")
MAX_CLIENTS = 1 << 20


def source(file: str, pattern: str) -> str:
    """The text of the pattern's group in a file of the core. Fails unless the pattern occurs once."""
    (found,) = re.findall(pattern, (CORE / file).read_text(encoding="utf-8"), re.DOTALL)
    return found


def committee_rule() -> str:
    """The body of `committee::holds`, which must mean the same in Python and in Rust."""
    body = source("oneshot/committee.rs", r"pub fn holds\([^)]*\) -> bool \{\n(.*?)\n\}").strip()
    if not re.fullmatch(rf"(?:{'|'.join(NAMES)}|\d+|<=|[()<&+*\s-])+", body):
        raise ValueError(f"the rule must have only sums and comparisons: {body}")
    return body


def holds(rule: str, **of: Any) -> Any:
    """The value of the rule for these numbers, or for z3's variables."""
    return eval(rule, {"__builtins__": {}}, of)


def counterexample(*claims: Any) -> str | None:
    """A text with values that satisfy all claims at once; None if no values do."""
    solver = z3.Solver()
    solver.add(*claims)
    found = solver.check()
    if found == z3.unknown:
        raise TimeoutError(solver.reason_unknown())
    return str(solver.model()) if found == z3.sat else None


def split(rule: str) -> str | None:
    """A committee that the rule accepts although it opens two sets, or one client, or can never answer.

    A server asks `first` honest members for one set of clients, and `second` others for another set with a common
    client. An honest member refuses one of the two sets. Corrupt members add their shares to both.
    """
    of = {name: z3.Int(name) for name in NAMES}
    members, threshold, corrupt, pack = (of[name] for name in NAMES)
    first, second = z3.Ints("first second")
    max_members = int(source("oneshot/committee.rs", r"const MAX_MEMBERS: usize = (\d+);"))
    asked = z3.And(first >= 0, second >= 0, first + second <= members - corrupt)
    both = z3.And(first + corrupt >= threshold, second + corrupt >= threshold)
    one_client = corrupt >= threshold
    never = z3.Or(pack < 1, threshold + pack - 1 > members)
    whole = z3.And(members >= 1, members <= max_members, threshold >= 0, corrupt >= 0, pack >= 0)
    return counterexample(whole, holds(rule, **of), z3.Or(z3.And(asked, both), one_client, never))


def wrong_sum(about: dict[str, str], bits: int, clients: int, largest: int) -> str | None:
    """A sum of up to `clients` updates, of values up to `largest`, that these parameters do not decrypt correctly."""
    q, t, delta, error, drop = (int(about[k]) for k in ("q", "t", "delta", "largest error", "bits dropped"))
    up, down = (int(about[f"wire bits {way}"]) for way in ("up", "down"))
    count, width = (int(x) for x in re.findall(r"\d+", about[f"fields of {bits} bits"]))
    terms, total, noise, field, sent = z3.Ints("terms total noise field sent")
    rounding = (1 << drop) >> 1
    some = z3.And(terms >= 1, terms <= clients)
    noisy = z3.And(some, noise <= terms * (error + rounding), noise >= -terms * (error + rounding))
    plain = z3.And(total >= 0, total < 2 ** (count * width))
    # x is the value mod q in `decode` of rlwe/params.rs.
    x = (delta * total + noise) % q
    quotient = (x + delta // 2) / delta
    decoded = z3.If(quotient < t, quotient, z3.If(x >= q - delta // 2, 0, -1))
    wire = z3.And(some, sent >= 0, sent <= terms * (((q - 1) + rounding) >> drop))
    return (
        counterexample(some, field >= 0, field <= terms * largest, field >= 2**width)
        or counterexample(noisy, z3.Or(2 * noise >= delta, 2 * noise <= -delta))
        or counterexample(noisy, plain, decoded != total)
        # A tag's word, shifted so that it is not negative; the range of divisions of 128 bits; the range of sums sent.
        or counterexample(noisy, 2 * noise >= 2**64)
        or counterexample(z3.BoolVal(t * delta > q or q + delta > 2**127 or ((q - 1 + rounding) >> drop) >= 2**up))
        or (counterexample(wire, sent >= 2**down) if down < q.bit_length() else None)
    )


def wrong_share(p: int, error: int, clients: int) -> str | None:
    """A sum of secrets, or a product of shares, that field.rs does not compute correctly modulo p."""
    x, total = z3.Ints("x total")
    lifted = z3.If(total < 0, total + p, total)
    centred = z3.If(lifted > p // 2, lifted - p, lifted)
    # Barrett's reduction, and `once` twice.
    left = x - (x * ((1 << 62) // p)) / (1 << 62) * p
    once = z3.If(left >= p, left - p, left)
    twice = z3.If(once >= p, once - p, once)
    return (
        counterexample(total <= error * clients, total >= -error * clients, centred != total)
        or counterexample(x >= 0, x < 1 << 62, twice != x % p)
        or counterexample(z3.BoolVal((p - 1) ** 2 >= 1 << 62))
    )


RINGS = ("bfv", "oneshot")
"""The schemes of `crates/fedcipher-core/src/rlwe`, for which claims about sums are proved here."""


def parameter_sets() -> Iterator[tuple[str, dict[str, str], int, int, int]]:
    """(name, derived parameters, bits, clients, largest value) of each set."""
    for preset in ("compact", "fast"):
        for bits in (2, 3, 6, 8, 12, 16, 24):
            clients = [2, 3, 10, 100, 1000, *(1 << k for k in range(2, 21, 3)), MAX_CLIENTS]
            for many in sorted({max(3, n) for n in clients}):
                for name in RINGS:
                    codec = fedcipher.Codec(bits=bits, clip=0.5)
                    try:
                        made = fedcipher.scheme(name, clients=many, preset=preset, codec=codec)
                    except fedcipher.errors.ParameterError:
                        # The scheme refuses parameters that leave no room for so many clients.
                        continue
                    yield (
                        f"{name} {preset}, {bits} bits, {many} clients",
                        made.describe(),
                        bits,
                        many,
                        made.levels.of(bits),
                    )


def main() -> int:
    """Prove all claims and print a summary. Returns 1 if a claim is false."""
    begun, failed = time.monotonic(), 0

    def report(what: str, found: str | None) -> None:
        nonlocal failed
        if found is not None:
            failed += 1
            print(f"FALSE: {what}: {found}", file=sys.stderr)

    report("no accepted committee can be split", split(committee_rule()))
    sets = 0
    for what, about, bits, clients, largest in parameter_sets():
        report(what, wrong_sum(about, bits, clients, largest))
        if "shares modulo" in about:
            report(what, wrong_share(int(about["shares modulo"]), int(about["largest error"]), clients))
        sets += 1
    print(f"no split: all committees of up to 64; sums of {sets} sets; {time.monotonic() - begun:.1f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
