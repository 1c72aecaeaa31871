"""The numbers of the RTL that follow from the core's primes.

python hardware/tools/constants.py               writes rtl/fc_constants_pkg.sv
python hardware/tools/constants.py --check       fails where it is not what it would write
python hardware/tools/constants.py --tables DIR  the twiddles, a file for each lane of each P
"""

import argparse
import sys
from pathlib import Path

N = 4096
# crates/fedcipher-core/src/rlwe/params.rs: PRIMES_4096 and FEDBIT_T.
PRIMES = (9_007_199_254_429_697, 9_007_199_254_364_161)
T = 2_281_701_377
K, S = 53, 13
TARGET = Path(__file__).parents[1] / "rtl" / "fc_constants_pkg.sv"
# 2^DIVIDE / delta is what the division by delta multiplies by.
DIVIDE = 115
# Lanes that the tables are written for.
LANES = (2, 4, 8, 16)


def root(p: int, n: int = N) -> int:
    """An element of order 2n, the first that a small base gives."""
    for base in range(2, 1000):
        psi = pow(base, (p - 1) // (2 * n), p)
        if pow(psi, n, p) == p - 1:
            return psi
    raise ValueError(f"{p} has no root of order {2 * n}")


def reversed_bits(x: int, bits: int) -> int:
    return int(format(x, f"0{bits}b")[::-1], 2)


def twiddles(p: int, n: int = N) -> list[int]:
    """psi^(bits of i reversed): what the butterflies of stage s, group g take at i = 2^s + g."""
    psi, bits = root(p, n), n.bit_length() - 1
    return [pow(psi, reversed_bits(i, bits), p) for i in range(n)]


def table(name: str, values: list[int]) -> list[str]:
    words = ",\n".join(f"    53'h{v:014x}" for v in reversed(values))
    return [f"  localparam logic [{len(values)}*53-1:0] {name} = {{", words, "  };"]


def write_tables(folder: Path) -> None:
    """Lane l of P has every P-th word of the table from word l on."""
    folder.mkdir(parents=True, exist_ok=True)
    for limb, p in enumerate(PRIMES):
        words = [f"{v:014x}\n" for v in twiddles(p)]
        for lanes in LANES:
            for lane in range(lanes):
                # One hexadecimal digit each: the RTL makes the name of them.
                name = f"limb{limb}_p{lanes.bit_length() - 1:x}_lane{lane:x}.hex"
                (folder / name).write_text("".join(words[lane::lanes]))


def package() -> str:
    p0, p1 = PRIMES
    q = p0 * p1
    delta = q // T
    lines = [
        "// Written by hardware/tools/constants.py: do not edit.",
        "package fc_constants_pkg;",
        f"  localparam logic [52:0] P0 = 53'd{p0};",
        f"  localparam logic [52:0] P1 = 53'd{p1};",
        f"  localparam logic [105:0] Q = 106'd{q};",
        "  // P0^-1 mod P1, for the Chinese remainder theorem (Garner).",
        f"  localparam logic [52:0] GARNER = 53'd{pow(p0, -1, p1)};",
        "  // N^-1: what the inverse transform still has to be multiplied by; the key is.",
        f"  localparam logic [52:0] N_INV_0 = 53'd{pow(N, -1, p0)};",
        f"  localparam logic [52:0] N_INV_1 = 53'd{pow(N, -1, p1)};",
        "  // The plaintext modulus of the preset `fedbit-paper`, floor(q / t), and what its division multiplies by.",
        f"  localparam logic [31:0] T = 32'd{T};",
        f"  localparam logic [74:0] DELTA = 75'd{delta};",
        f"  localparam logic [40:0] DELTA_INV = 41'd{(1 << DIVIDE) // delta};",
        "  // The first twiddles: powers of a root of order 2N, exponents bit-reversed; index 0 is the lowest word.",
        *table("FIRST_0", twiddles(p0)[: max(LANES)]),
        *table("FIRST_1", twiddles(p1)[: max(LANES)]),
        "endpackage",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tables", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    text = package()
    if arguments.tables:
        write_tables(arguments.tables)
    elif not arguments.check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET.name} is not what the primes give; run hardware/tools/constants.py")


if __name__ == "__main__":
    main()
