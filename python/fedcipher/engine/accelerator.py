"""FedBit's accelerator behind an engine: whether it can be had, and what it has done.

docs/explanation/accelerator.md says how it works.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fedcipher._addresses import host_and_port, joined
from fedcipher.engine.local import find_program
from fedcipher.errors import AcceleratorError
from fedcipher.schemes import Scheme

__all__ = ["CLOCK_MHZ", "LIBRARY", "Accelerator", "usage"]

LIBRARY = Path("target/hardware/sim_p8/libfc_sim.so")
"""Where `make hardware-sim` puts the simulated device, from the top of a checkout."""
CLOCK_MHZ = 125.0
"""What cycles are counted in seconds at. Assumed: no board has run at it."""

_COUNTER = re.compile(
    r'^fedcipher_engine_accelerator_(?:total\{kind="(\w+)"\}|(\w+_seconds)_total) (\S+)$', re.MULTILINE
)
_SECONDS = 10.0


@dataclass(frozen=True)
class Accelerator:
    """A simulated device, which an engine makes one of for each key."""

    library: Path
    lanes: int
    """Butterflies a cycle."""

    @classmethod
    def simulated(cls, library: Path, scheme: Scheme) -> Accelerator:
        """The device in ``library``. Raises `AcceleratorError` where it, the scheme or the engine does not fit."""
        if scheme.name != "bfv":
            raise AcceleratorError(
                f"an accelerator does the arithmetic of bfv, not of {scheme.name}: give --scheme bfv"
            )
        if scheme.params().get("preset") == "fast":
            raise AcceleratorError(
                "the accelerator is made for N = 4096, the preset fast has N = 2048: give --set preset=fedbit-paper, "
                "or leave the preset out"
            )
        lanes = _lanes(library.absolute())
        program = find_program("fedcipher-engine")
        said = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, check=False)
        if "--accelerator-library" not in said.stdout:
            raise AcceleratorError(f"{program} was built without accelerators: `make engine` builds one with them")
        return cls(library.absolute(), lanes)

    def arguments(self) -> list[str | Path]:
        """Of ``fedcipher-engine serve``; the page is where `usage` reads."""
        return ["--accelerator", "sim", "--accelerator-library", self.library, "--metrics", "127.0.0.1:0"]


def _lanes(library: Path) -> int:
    if not library.is_file():
        raise AcceleratorError(
            f"no simulated accelerator in {library}: `make hardware-sim` builds it; --accelerator-library names another"
        )
    try:
        return int(ctypes.CDLL(str(library)).fc_sim_lanes())
    except (OSError, AttributeError) as error:
        raise AcceleratorError(
            f"{library} is no simulated accelerator ({error}); `make hardware-sim` builds one"
        ) from error


def usage(address: str) -> dict[str, float]:
    """What an engine's accelerators have done since it began, from its metrics page at ``address``, ``host:port``.

    Cycles, ciphertexts, bytes and fallbacks by kind; ``link_seconds`` (modelled), ``host_seconds`` and ``wait_seconds``
    (measured). Raises `AcceleratorError` where there is no such page.
    """
    host, port = host_and_port(address)
    # An engine's page is for its own machines: no proxy reaches it.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{joined(host, port)}/metrics", timeout=_SECONDS) as page:
            text = page.read().decode()
    except (OSError, ValueError) as error:
        raise AcceleratorError(f"the engine does not say what its accelerators have done: {error}") from error
    return {kind or timed: float(value) for kind, timed, value in _COUNTER.findall(text)}
