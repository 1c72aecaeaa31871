"""The program of an app: its command line and its environment, in a jail and in a container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["APP_PORT", "app_arguments", "app_environment"]

APP_PORT = 9094
"""The port of the Runtime API beside an app. Each app has a network of its own, so all can have the same port."""
_PROGRAM = "from flwr.supernode.cli import flwr_clientapp; flwr_clientapp()"


def app_arguments(token: Path) -> list[str]:
    """The command line of an app whose token is in the file ``token``."""
    return [
        *(sys.executable, "-c", _PROGRAM, "--insecure", "--token-file", str(token)),
        *("--runtime-api-address", f"127.0.0.1:{APP_PORT}"),
    ]


def app_environment(folder: Path) -> dict[str, str]:
    """The environment of an app that writes to ``folder``."""
    return {
        "HOME": str(folder),
        "FLWR_HOME": str(folder / "flwr"),
        "PATH": os.defpath,
        # Otherwise the app's start waits for the network, which it does not have.
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
