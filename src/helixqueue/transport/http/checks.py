"""Checks, replays, seals and keys of a service, as the JSON that commands show."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from helixqueue.transport.http.call import HttpCall, at, get, post

if TYPE_CHECKING:
    from helixqueue.records.seal import SealHead

CHECK_SECONDS = 60.0  # time limit of the service for a check
VIOLATIONS_MAX = 1_000  # per response


def check(*only: str) -> HttpCall[dict[str, Any]]:
    """Check every invariant, or only these."""
    query = [("invariant", name) for name in only]
    return replace(get(at("check"), dict[str, Any], query), seconds=CHECK_SECONDS)


def seal(previous: SealHead | None) -> HttpCall[dict[str, Any]]:
    """Make a seal of all tenants, signed by the service."""
    after = None if previous is None else asdict(previous)
    return post(at("seals"), {"after": after}, dict[str, Any], seconds=CHECK_SECONDS)


def keys() -> HttpCall[dict[str, Any]]:
    """Read the public keys of the service."""
    return get(at("keys"), dict[str, Any], [])


def replay(*, after: str | None, limit: int) -> HttpCall[dict[str, Any]]:
    """Replay one range; `next` is the cursor of the following one."""
    query = [("limit", str(min(limit, VIOLATIONS_MAX)))]
    query += [] if after is None else [("after", after)]
    return get(at("replay"), dict[str, Any], query)
