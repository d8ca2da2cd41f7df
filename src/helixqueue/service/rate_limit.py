"""Rate limits of tokens, and of addresses that send requests without a valid token.

An address that sends too many requests without a valid token gets 429 in place of 401. Requests
with a valid token are not counted, even from the same address, because a proxy may share it. The
lookups of guessed tokens are bounded elsewhere (principal.py).
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from helixqueue.service.address import client_address
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Scope
    from helixqueue.service.address import Network

ADDRESSES_MAX: Final = 10_000
PREFIX_BITS: Final = 64  # the IPv6 network of one customer of a provider


class RateLimit:
    """A token bucket."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._available = float(burst)
        self._updated_at = time.monotonic()

    def __str__(self) -> str:
        return f"{self._per_second:g} requests per second with bursts of {self._burst}"

    def take(self) -> float:
        """Take one request; returns 0, or the seconds until one is available."""
        now = time.monotonic()
        refill = (now - self._updated_at) * self._per_second
        self._available = min(self._burst, self._available + refill)
        self._updated_at = now
        if self._available < 1:
            return (1 - self._available) / self._per_second
        self._available -= 1
        return 0.0

    def give_back(self) -> None:
        self._available += 1


class AnonymousRateLimit:
    """One rate limit per client address."""

    def __init__(
        self, per_second: float, burst: int, trusted_proxies: Sequence[Network] = ()
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._trusted_proxies = trusted_proxies
        self._limits: OrderedDict[str, RateLimit] = OrderedDict()

    def count(self, scope: Scope) -> RateLimit:
        """Count a request of the client's address; raises `too-many-requests`."""
        network = _network(client_address(scope, self._trusted_proxies))
        limit = self._limits.setdefault(network, RateLimit(self._per_second, self._burst))
        self._limits.move_to_end(network)
        while len(self._limits) > ADDRESSES_MAX:
            self._limits.popitem(last=False)
        wait = limit.take()
        if wait:
            raise Problem(
                "too-many-requests",
                f"an address without a valid token is limited to {limit}",
                expected=f"a valid token, or at most {limit}",
                retry_after=wait,
            )
        return limit


def _network(host: str) -> str:
    """The IPv4 address, or the IPv6 network: its owner has every address in it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""  # a Unix socket
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_BITS), strict=False))
