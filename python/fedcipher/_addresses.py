"""Parses ``HOST:PORT`` for all commands, and opens listening sockets."""

from __future__ import annotations

import ipaddress
import socket

from fedcipher.errors import ParameterError

__all__ = ["host_and_port", "joined", "listening"]

_MAX_PORT = 65_535


def host_and_port(text: str, what: str = "") -> tuple[str, int]:
    """Split ``text`` into host and port; an IPv6 address loses its brackets. ``what`` is the option's name, for errors.

    Raises `ParameterError`.
    """
    host, _, port = text.rpartition(":")
    literal = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if literal else host
    fits = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    # Without brackets, the end of an IPv6 address cannot be distinguished from the port.
    if not (fits and (_is_ipv6(bare) if literal else bare and not set(bare) & set(":[]/ "))):
        raise ParameterError(
            f"{f'{what} ' if what else ''}{text!r} is not HOST:PORT, with a port up to {_MAX_PORT}; put an IPv6 "
            "address in brackets, such as [::1]:8080"
        )
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """Join host and port to ``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 means any free port. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Clients that connect before the server accepts wait instead of failing.
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
