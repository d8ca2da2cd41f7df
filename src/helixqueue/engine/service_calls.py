"""Calls that only the HTTP service makes: workers of one tenant, readiness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helixqueue.engine.revision import SchemaRevision
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.page import Page
from helixqueue.records.worker import WorkerRow

if TYPE_CHECKING:
    from datetime import datetime

_SQL = sql_texts("helixqueue.engine", "service_calls.sql")
WORKERS_SCANNED = 2_000  # rows that a page reads at most, before its filter


def worker_name(tenant: str, worker: str) -> str:
    """Return the name under which a worker is stored by a login that serves many tenants."""
    return f"{tenant}/{worker}"


def tenant_workers(
    *, tenant: str, since: datetime | None = None, after: str | None = None, limit: int = 50
) -> Call[Page[WorkerRow]]:
    """Read a page of a tenant's workers by name; `since` keeps those that reported since then."""
    args = {
        "tenant": tenant,
        "since": since or "-infinity",
        "after": after or "",
        "limit": limit + 1,  # the extra row shows whether there is another page
        "look": max(WORKERS_SCANNED, limit + 1),
    }

    def read(rows: list[Row]) -> Page[WorkerRow]:
        workers = [
            # Their login is the service's own.
            WorkerRow(name, None, json.loads(free), *rest)
            for _, name, _, free, *rest in rows
            if name is not None
        ]
        cursor = workers[limit - 1].name if len(workers) > limit else rows[0][0]
        return Page(tuple(workers[:limit]), cursor)

    return Call(_SQL["tenant_workers"], args, read)


def tenant_key(tenant: str) -> Call[bytes]:
    """Read the key with which the service hides numbers from the tenant's tokens."""
    return Call(_SQL["tenant_key"], (tenant,), lambda rows: bytes(rows[0][0]))


def can_serve() -> Call[bool]:
    """Whether this login is bound to tenants by setting only, so that row-level security holds."""
    return Call(_SQL["can_serve"], (), lambda rows: bool(rows[0][0]))


def read_schema_revision() -> Call[SchemaRevision | None]:
    """Read the revision of the database's schema; `revision.demand` judges it."""
    return Call(
        _SQL["schema_revision"], (), lambda rows: SchemaRevision(*rows[0]) if rows else None
    )
