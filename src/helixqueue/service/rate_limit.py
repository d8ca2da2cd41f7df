"""How often somebody may ask: a token, and whoever has none that is good.

A stranger is told 429 in place of 401 when strangers from the same address came too often. Whether
somebody is one is known only when the token was looked up, so whoever has a good token is never
told so, even from behind the same proxy; that guesses do not flood the database is seen to where
tokens are looked up (principal.py).
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Scope

PLACES_MAX: Final = 10_000
PREFIX_BITS: Final = 64  # what one customer of a provider has of IPv6


class RateLimit:
    """So many requests a second, and so many at once after a pause."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._at = time.monotonic()

    def __str__(self) -> str:
        return f"{self._per_second:g} times a second, {self._burst} at once"

    def take(self) -> float:
        """0 if there was one left; else the seconds until there is."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._per_second
        self._left -= 1
        return 0.0

    def give_back(self) -> None:
        self._left += 1


class AnonymousRateLimit:
    """Who came without a good token lately, by where they came from."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._places: OrderedDict[str, RateLimit] = OrderedDict()

    def take(self, scope: Scope) -> RateLimit:
        """One request of what the address is allowed."""
        place = _place(scope)
        allowance = self._places.setdefault(place, RateLimit(self._per_second, self._burst))
        self._places.move_to_end(place)
        while len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)
        wait = allowance.take()
        if wait:
            raise Problem(
                "too-many-requests",
                f"without a good token an address may ask {allowance}",
                expected=f"a good token, or at most {allowance}",
                retry_after=wait,
            )
        return allowance


def _place(scope: Scope) -> str:
    """The address; of IPv6 the network, because its owner has all the addresses in it."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""  # a socket of this machine
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_BITS), strict=False))
