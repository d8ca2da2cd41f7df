"""Where a service is, as URLs have it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{shown(host)}:{port}"


def shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
