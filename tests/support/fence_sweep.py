"""The housekeeping of fences, which one claim in a thousand runs, as a call of its own."""

from __future__ import annotations

from typing import NamedTuple

from helixqueue.postgres.call import Call

SWEEP = "select doubted, released, emptied, forgotten from helix.sweep_fences_v1(%s::text, %s::int)"


class FenceSweep(NamedTuple):
    """How many fences a sweep moved or deleted."""

    doubted: int
    released: int
    emptied: int
    forgotten: int


def sweep_fences(*, actor=None, limit=1_000):
    """End expired leases, answers and tombstones."""
    return Call(SWEEP, (actor, limit), lambda rows: FenceSweep(*rows[0]))
