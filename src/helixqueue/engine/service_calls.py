"""Calls that only the HTTP service makes: keys of tenants, readiness."""

from __future__ import annotations

from helixqueue.engine.revision import SchemaRevision
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts

_SQL = sql_texts("helixqueue.engine", "service_calls.sql")


def worker_name(tenant: str, worker: str) -> str:
    """Return the name under which a login that serves many tenants registers a waiting worker."""
    return f"{tenant}/{worker}"


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
