"""Estimates the primal (uSVP) attack on each BFV parameter set: the figures of docs/security.md.

The estimate of Alkim et al. (New Hope, section 6.3) under the geometric series assumption: BKZ with
block size b finds the error when sigma * sqrt(b) <= delta(b)^(2b - d - 1) * q^(m / d), for the best
number of samples m, with the ternary secret scaled to the error's size. Cost of BKZ-b by sieving:
core-SVP 2^(0.292 b), and with the model of the HE standard 2^(0.292 b + 16.4) * 8 d.
"""

from __future__ import annotations

import math

SETS = {"compact, fedbit-paper": (4096, 109), "fast": (2048, 54)}
SIGMA = math.sqrt(21 / 2)
SECRET_DEVIATION = math.sqrt(2 / 3)


def root_hermite(b: float) -> float:
    """delta of BKZ-b (Chen 2013)."""
    return ((math.pi * b) ** (1 / b) * b / (2 * math.pi * math.e)) ** (1 / (2 * (b - 1)))


def log2_margin(n: int, log_q: float, b: int, m: int) -> float:
    """log2 of the right side over the left: the attack works from 0 on."""
    d = n + m + 1
    scale = n * math.log2(SIGMA / SECRET_DEVIATION)
    volume = (m * log_q + scale) / d
    return (2 * b - d - 1) * math.log2(root_hermite(b)) + volume - math.log2(SIGMA * math.sqrt(b))


def smallest_block(n: int, log_q: float) -> tuple[int, int]:
    """(block size, dimension) of the cheapest attack."""
    low, high = 60, 2000
    best_m = 0
    while low < high:
        b = (low + high) // 2
        best_m = max(range(n // 4, 2 * n, 16), key=lambda m: log2_margin(n, log_q, b, m))
        if log2_margin(n, log_q, b, best_m) >= 0:
            high = b
        else:
            low = b + 1
    return low, n + best_m + 1


def main() -> None:
    """Print the table."""
    print("| presets | N | log q | BKZ block | dimension | core-SVP bits | HE-standard model bits |")
    print("|---|---|---|---|---|---|---|")
    for name, (n, log_q) in SETS.items():
        b, d = smallest_block(n, log_q)
        core = 0.292 * b
        print(f"| {name} | {n} | {log_q} | {b} | {d} | {core:.0f} | {core + 16.4 + math.log2(8 * d):.0f} |")


if __name__ == "__main__":
    main()
