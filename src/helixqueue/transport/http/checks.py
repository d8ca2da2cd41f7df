"""Checks, replays, seals and keys of a service, as the JSON that commands show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from helixqueue.transport.http.call import HttpCall, at, get, post

CHECK_SECONDS = 60.0  # time limit of the service for a check
VIOLATIONS_MAX = 1_000  # per response


def check(*only: str) -> HttpCall[dict[str, Any]]:
    """Check every invariant, or only these."""
    query = [("invariant", name) for name in only]
    return replace(get(at("check"), dict[str, Any], query), seconds=CHECK_SECONDS)


def seal() -> HttpCall[dict[str, Any]]:
    """Make the next seal of all tenants, signed by the service."""
    return post(at("seals"), {}, dict[str, Any], seconds=CHECK_SECONDS)


def show_seal(number: int) -> HttpCall[dict[str, Any]]:
    """Read a seal that the service made, with its document."""
    return get(at("seals", str(number)), dict[str, Any], [])


def keys() -> HttpCall[dict[str, Any]]:
    """Read the public keys of the service."""
    return get(at("keys"), dict[str, Any], [])


def replay(*, after: str | None, limit: int) -> HttpCall[dict[str, Any]]:
    """Replay one range; `next` is the cursor of the following one."""
    query = [("limit", str(min(limit, VIOLATIONS_MAX)))]
    query += [] if after is None else [("after", after)]
    return get(at("replay"), dict[str, Any], query)
