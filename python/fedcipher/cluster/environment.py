"""What the programs of a federation are given of the environment of the process that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["for_flower", "without_doors"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HARMLESS = ("FLWR_TELEMETRY_ENABLED", "FLWR_TELEMETRY_LOGGING", "FLWR_LOG_LEVEL", "FLWR_DISABLE_UPDATE_CHECK")


def without_doors(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without Flower's own variables, some of which open ports without a login on every address."""
    return {name: value for name, value in environment.items() if not name.startswith("FLWR_") or name in _HARMLESS}


def for_flower(flower_home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For Flower's programs on this machine: nothing of it goes through a proxy, and they find each other."""
    made = without_doors(environment)
    # gRPC looks at its own list alone where there is one.
    own = [name for name in ("no_grpc_proxy",) if name in made]
    for name in ("no_proxy", "NO_PROXY", *own):
        listed = [host.strip() for host in made.get(name, "").split(",") if host.strip()]
        made[name] = ",".join(dict.fromkeys([*listed, *_LOOPBACK]))
    made["FLWR_HOME"] = str(flower_home)
    # An app's list of packages is no reason to fetch and run them.
    made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    # Flower's programs start each other by name.
    made["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{made.get('PATH', '')}"
    return made
