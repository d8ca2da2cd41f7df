"""Checks, seals, and replays of a tenant's rows, over HTTP: as JSON, which people are shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from helixqueue.transport.http.call import HttpCall, at, get, post, to_json

if TYPE_CHECKING:
    from helixqueue.records.seal import SealHead

CHECK_SECONDS = 60.0  # that the service takes for it
VIOLATIONS_MAX = 1_000  # of one answer


def check(*only: str) -> HttpCall[dict[str, Any]]:
    """Every invariant, or those that are named."""
    query = [("invariant", name) for name in only]
    return replace(get(at("check"), dict[str, Any], query), seconds=CHECK_SECONDS)


def seal(previous: SealHead | None) -> HttpCall[dict[str, Any]]:
    """A seal of all tenants, made and signed by the service."""
    after = None if previous is None else asdict(previous)
    call = post(at("seals"), to_json({"after": after}), dict[str, Any])
    return replace(call, seconds=CHECK_SECONDS)


def keys() -> HttpCall[dict[str, Any]]:
    """The public keys of the service."""
    return get(at("keys"), dict[str, Any], [])


def replay(*, behind: int | None, limit: int) -> HttpCall[dict[str, Any]]:
    """One stretch; `next` is where the following one begins."""
    query = [("limit", str(min(limit, VIOLATIONS_MAX)))]
    if behind is not None:
        query.append(("behind", str(behind)))
    return get(at("replay"), dict[str, Any], query)
