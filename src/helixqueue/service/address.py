"""Addresses: the URL of the service, the hosts it responds to, and the clients behind a proxy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from helixqueue.errors import Refused
from helixqueue.fence.http.asgi import header_values
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    import socket

    from helixqueue.fence.http.asgi import Scope

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# A name or an address, and a port.
_HOST: Final = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.IGNORECASE)
_HOST_NAME: Final = re.compile(r"(\*\.)?[a-z0-9._:-]+")
HEALTH_PATHS: Final = "/health/"


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{url_host(host)}:{port}"


def url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether traffic to this host stays on the machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_names(names: Iterable[str]) -> tuple[str, ...]:
    """The setting `allowed_hosts`: names or addresses without a port, or `*.` and a domain."""
    hosts = tuple(name.lower().strip("[]") for name in names)
    for host in hosts:
        if not _HOST_NAME.fullmatch(host):
            raise Refused(
                f"allowed host: expected a name such as helix.example.org or *.example.org, "
                f"got {ascii(host)[:80]}"
            )
    return hosts


def proxy_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The setting `trusted_proxies`: addresses or networks."""
    networks: list[Network] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise Refused(
                f"trusted proxy: expected an address or a network such as 10.0.0.0/8, "
                f"got {ascii(text)[:80]}"
            ) from None
    return tuple(networks)


def check_host(scope: Scope, allowed: Sequence[str]) -> None:
    """Require one Host header, and a name that is allowed; by default every name is.

    Two hosts, or none, are read differently by a proxy and by this service. Health checks use the
    address of a replica, so every name is allowed there.
    """
    hosts = header_values(scope["headers"], "host")
    if len(hosts) != 1:
        got = "none" if not hosts else f"{len(hosts)} of them"
        raise Problem("invalid-host", f"expected one Host header, got {got}", got=got)
    match = _HOST.fullmatch(hosts[0])
    if match is None:
        raise Problem("invalid-host", "the Host header is not a host name", got="other text")
    name = match[1].decode("ascii").lower().strip("[]")
    if allowed and not scope["path"].startswith(HEALTH_PATHS) and not _is_allowed(name, allowed):
        raise Problem("invalid-host", "the service has another name", got=name[:80])


def _is_allowed(name: str, allowed: Sequence[str]) -> bool:
    return any(
        name.endswith(host[1:]) if host.startswith("*.") else name == host for host in allowed
    )


def client_address(scope: Scope, trusted: Sequence[Network]) -> str:
    """The address of the client, or "" without one, as for a Unix socket.

    X-Forwarded-For counts only if a trusted proxy sent it. Each proxy appends the address that it
    sees, so the client is the last address that is not a trusted proxy; all before it is text of
    the client.
    """
    address: str = (scope.get("client") or ("",))[0]
    if not trusted or not _is_trusted(address, trusted):
        return address
    forwarded = b",".join(header_values(scope["headers"], "x-forwarded-for"))
    for part in reversed(forwarded.decode("latin-1").split(",")):
        try:
            hop = str(ipaddress.ip_address(part.strip()))
        except ValueError:
            break  # not an address: the last proxy is all that is known
        address = hop
        if not _is_trusted(hop, trusted):
            break
    return address


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in trusted)
