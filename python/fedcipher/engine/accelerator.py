"""FedBit's accelerator behind an engine: checks that it can be used, and reads its usage.

docs/explanation/accelerator.md explains the accelerator.
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
"""The simulated device that `make hardware-sim` builds, relative to the top of a checkout."""
CLOCK_MHZ = 125.0
"""The clock that converts cycles to seconds. It is an assumption: no board has run at this clock."""

_COUNTER = re.compile(
    r'^fedcipher_engine_accelerator_(?:total\{kind="(\w+)"\}|(\w+_seconds)_total) (\S+)$', re.MULTILINE
)
_SECONDS = 10.0


@dataclass(frozen=True)
class Accelerator:
    """A simulated device. An engine makes one for each key."""

    library: Path
    lanes: int
    """Butterflies per cycle."""

    @classmethod
    def simulated(cls, library: Path, scheme: Scheme) -> Accelerator:
        """The device in ``library``.

        Raises `AcceleratorError` if the library is missing, or if the scheme or the engine cannot use the device.
        """
        if scheme.name != "bfv":
            raise AcceleratorError(
                f"an accelerator does the arithmetic of bfv, not of {scheme.name}: give --scheme bfv"
            )
        if scheme.params().get("preset") == "fast":
            raise AcceleratorError(
                "the accelerator supports N = 4096 only, and the preset fast has N = 2048: give "
                "--set preset=fedbit-paper, or leave the preset out"
            )
        lanes = _lanes(library.absolute())
        program = find_program("fedcipher-engine")
        said = subprocess.run([program, "serve", "--help"], capture_output=True, text=True, check=False)
        if "--accelerator-library" not in said.stdout:
            raise AcceleratorError(f"{program} was built without accelerators: `make engine` builds one with them")
        return cls(library.absolute(), lanes)

    def arguments(self) -> list[str | Path]:
        """The options of ``fedcipher engine serve``; `usage` reads the metrics page."""
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
            f"{library} is not a simulated accelerator ({error}); `make hardware-sim` builds one"
        ) from error


def usage(address: str) -> dict[str, float]:
    """The work of an engine's accelerators since the engine started, from its metrics page.

    ``address`` is the page's ``host:port``. Returns cycles, ciphertexts, bytes and fallbacks by kind, and
    ``link_seconds`` (modelled), ``host_seconds`` and ``wait_seconds`` (measured). Raises `AcceleratorError` if the
    page cannot be read.
    """
    host, port = host_and_port(address)
    # A proxy cannot reach the page, which serves the local network.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{joined(host, port)}/metrics", timeout=_SECONDS) as page:
            text = page.read().decode()
    except (OSError, ValueError) as error:
        raise AcceleratorError(f"the usage of the engine's accelerators cannot be read: {error}") from error
    return {kind or timed: float(value) for kind, timed, value in _COUNTER.findall(text)}
