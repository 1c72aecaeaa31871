"""``HOST:PORT`` as every command takes it, and the sockets that listen there."""

from __future__ import annotations

import ipaddress
import socket

from fedcipher.errors import ParameterError

__all__ = ["host_and_port", "joined", "listening"]

_MAX_PORT = 65_535


def host_and_port(text: str, what: str = "") -> tuple[str, int]:
    """Host and port; an address of IPv6 without its brackets. ``what`` names the option. Raises `ParameterError`."""
    host, _, port = text.rpartition(":")
    literal = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if literal else host
    fits = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    # Without brackets nobody knows where an address of IPv6 ends and the port begins.
    if not (fits and (_is_ipv6(bare) if literal else bare and not set(bare) & set(":[]/ "))):
        raise ParameterError(
            f"{f'{what} ' if what else ''}{text!r} is not HOST:PORT, with a port up to {_MAX_PORT}; an address of IPv6 "
            "is in brackets, as [::1]:8080"
        )
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """``HOST:PORT``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Who connects before the server serves waits, and is not refused.
        made.listen()
    except BaseException:
        made.close()
        raise
    return made


def _is_ipv6(text: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False
