"""The navigation, and the numbers in it of what waits for a person.

They are read once per tenant every few seconds, however many pages are open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from helixqueue.fence import operations as fences
from helixqueue.operations import letters
from helixqueue.records.queue import BoundedCount
from helixqueue.service.derived_routes import run_operation
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.service.principal import Principal

SECONDS: Final = 3.0
TENANTS_MAX: Final = 1_000
COUNTED: Final = 99


class Counts(NamedTuple):
    in_doubt: BoundedCount
    letters: BoundedCount


NOTHING: Final = Counts(BoundedCount(0), BoundedCount(0))


class Navigation:
    def __init__(self) -> None:
        self._counts: dict[tuple[str, frozenset[str] | None], tuple[float, Counts]] = {}

    async def counts(self, principal: Principal | None) -> Counts:
        """What waits for a person, at most `SECONDS` old; nothing without the right to read."""
        if principal is None or "read" not in principal.grant.scopes:
            return NOTHING
        key = (principal.tenant, principal.grant.queues)
        read_at, counts = self._counts.get(key, (float("-inf"), NOTHING))
        if time.monotonic() - read_at < SECONDS:
            return counts
        if len(self._counts) >= TENANTS_MAX:
            self._counts.clear()
        # Other requests show the numbers of before until these are read.
        self._counts[key] = (time.monotonic(), counts)
        doubts = await run_operation(
            fences.list_fences, {"state": FenceState.IN_DOUBT, "limit": COUNTED + 1}, principal
        )
        waiting = await run_operation(letters.list_letters, {"limit": COUNTED + 1}, principal)
        counts = Counts(*(_bounded(len(page.rows)) for page in (doubts, waiting)))
        self._counts[key] = (time.monotonic(), counts)
        return counts


def _bounded(rows: int) -> BoundedCount:
    return BoundedCount(min(rows, COUNTED), more=rows > COUNTED)


class NavigationEntry(NamedTuple):
    title: str
    path: str
    scope: str = "read"

    def holds(self, path: str) -> bool:
        """Whether a page belongs to this entry."""
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


class NavigationSection(NamedTuple):
    title: str
    entries: tuple[NavigationEntry, ...]


SECTIONS: Final = (
    NavigationSection(
        "",
        (
            NavigationEntry("Overview", "/"),
            NavigationEntry("Queues", "/queues"),
            NavigationEntry("Batches", "/batches"),
            NavigationEntry("Runs", "/runs"),
            NavigationEntry("Workers", "/workers"),
        ),
    ),
    NavigationSection(
        "Evidence",
        (
            NavigationEntry("Proof", "/proof"),
            NavigationEntry("Refusals", "/refusals"),
            NavigationEntry("Identities", "/identities"),
            NavigationEntry("Fences", "/fences"),
            NavigationEntry("Ledgers", "/ledgers"),
            NavigationEntry("Feeds", "/feeds"),
        ),
    ),
    NavigationSection(
        "Arriving",
        (
            NavigationEntry("Intakes", "/intakes"),
            NavigationEntry("Webhooks", "/webhooks"),
            NavigationEntry("Dead letters", "/letters"),
        ),
    ),
    NavigationSection(
        "People",
        (
            NavigationEntry("Activity", "/activity"),
            NavigationEntry("Tokens", "/tokens", "admin"),
            NavigationEntry("HTTP API", "/docs"),
        ),
    ),
)
