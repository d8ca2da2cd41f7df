"""Checks and replays of a tenant's rows, over HTTP: as JSON, which people are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from helixqueue.transport.http.call import HttpCall, at, get

CHECK_SECONDS = 60.0  # that the service takes for it
VIOLATIONS_MAX = 1_000  # of one answer


def check(*only: str) -> HttpCall[dict[str, Any]]:
    """Every invariant, or those that are named."""
    query = [("invariant", name) for name in only]
    return replace(get(at("check"), dict[str, Any], query), seconds=CHECK_SECONDS)


def replay(*, behind: int, limit: int) -> HttpCall[dict[str, Any]]:
    """One stretch; `next` is where the following one begins."""
    query = [("behind", str(behind)), ("limit", str(min(limit, VIOLATIONS_MAX)))]
    return get(at("replay"), dict[str, Any], query)
