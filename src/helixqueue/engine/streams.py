"""Consumer groups of streams: what is known of them, what Redis says, and counts of entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts

_SQL = sql_texts("helixqueue.engine", "streams.sql")


class StreamGroup(NamedTuple):
    tenant: str
    stream: str
    group: str


def knows_group(group: StreamGroup) -> Call[bool]:
    """Whether an intake has read this group before."""
    return Call(_SQL["knows_group"], group, lambda rows: bool(rows[0][0]))


def count_entries(
    group: StreamGroup,
    *,
    deliveries: int | None = None,
    vanished: int | None = None,
    xack_failures: int | None = None,
) -> Call[None]:
    """Add to the counters, in the transaction that decides about the entries."""
    return Call(_SQL["count"], (*group, deliveries, vanished, xack_failures), lambda _: None)


def store_look(
    group: StreamGroup, *, seconds: float, figures: Mapping[str, Any], every_tenant: bool = False
) -> Call[None]:
    """Store what a look at Redis found `seconds` ago; a service looks for every tenant."""
    return Call(_SQL["look"], (*group, seconds, json.dumps(figures), every_tenant), lambda _: None)


def groups_to_look_at(*, seconds: float) -> Call[list[StreamGroup]]:
    """Groups of every tenant whose last look is so long ago, for a service."""
    return Call(_SQL["groups"], (seconds,), lambda rows: [StreamGroup(*row) for row in rows])
