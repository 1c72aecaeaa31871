"""The environment variables that a federation's programs inherit from the process that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["for_flower", "without_flower_settings"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HARMLESS = ("FLWR_TELEMETRY_ENABLED", "FLWR_TELEMETRY_LOGGING", "FLWR_LOG_LEVEL", "FLWR_DISABLE_UPDATE_CHECK")


def without_flower_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without Flower's variables: some of them open ports on every address without a login."""
    return {name: value for name, value in environment.items() if not name.startswith("FLWR_") or name in _HARMLESS}


def for_flower(flower_home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of Flower's programs on this machine.

    Local connections bypass proxies, and the programs find each other on the PATH.
    """
    made = without_flower_settings(environment)
    # gRPC ignores the other lists if it has its own.
    own = [name for name in ("no_grpc_proxy",) if name in made]
    for name in ("no_proxy", "NO_PROXY", *own):
        listed = [host.strip() for host in made.get(name, "").split(",") if host.strip()]
        made[name] = ",".join(dict.fromkeys([*listed, *_LOOPBACK]))
    made["FLWR_HOME"] = str(flower_home)
    # Flower must not download and run the packages that an app lists.
    made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    # Flower's programs start each other by name.
    made["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{made.get('PATH', '')}"
    return made
