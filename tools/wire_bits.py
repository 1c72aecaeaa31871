"""Prints the tables of docs/reference/parameters.md: levels and lanes of few bits, and bits of a value under `bfv`."""

from __future__ import annotations

import re

import fedcipher
from fedcipher.codec import Codec, Levels


def main() -> None:
    """Print both tables."""
    print("| bits | clients | lane | values below zero | values of the bits alone |")
    print("|---|---|---|---|---|")
    for bits in (3, 4, 6, 8):
        for clients in (10, 100, 1000):
            made = fedcipher.scheme("flashe", clients=clients, codec=Codec(bits=bits))
            most, alone = made.levels.of(bits), Levels().of(bits)
            print(f"| {bits} | {clients} | {(clients * most).bit_length()} | {most // 2} | {alone // 2} |")
    print()
    print("| preset | bits | clients | fields | c0 bits up, down | bits a value up, down | over packed up, down |")
    print("|---|---|---|---|---|---|---|")
    for preset in ("compact", "fast", "fedbit-paper"):
        for bits in (3, 8, 12, 16):
            for clients in (10, 100, 1000):
                codec = Codec(bits=bits, clip=0.5)
                about = fedcipher.scheme("bfv", clients=clients, preset=preset, codec=codec).describe()
                count, width = (int(x) for x in re.findall(r"\d+", about[f"fields of {bits} bits"]))
                up, down = (int(about[f"wire bits {way}"]) for way in ("up", "down"))
                print(
                    f"| {preset} | {bits} | {clients} | {count} x {width} | {up}, {down} | {up / count:.2f}, "
                    f"{down / count:.2f} | {up / count / width:.3f}, {down / count / width:.3f} |"
                )


if __name__ == "__main__":
    main()
