"""An embedded database set up: migrated, and its run-time role allowed to work and to operate.

The embedded default has one login role at run time. A process that can open its socket owns
the data files, so that role may work and operate for every tenant. It is no superuser: guards and
ledger apply to it as to every role. On a server of your own an administrator grants scopes such as
helix_submit to the application's role, helix_operator to a person's, and binds roles to tenants.

The role also has a schema with its own name. PostgreSQL's default search path begins with "$user",
so tables of the program go there without any setting, and no other role looks for names there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from helixqueue.engine.migrate import LOCK, migrate

if TYPE_CHECKING:
    from helixqueue.embedded import Postgres
    from helixqueue.engine.migrate import Migrated


def set_up(
    postgres: Postgres, say: Callable[[str], None] | None = None, *, wait_s: float = 120.0
) -> Migrated:
    """Bring the embedded PostgreSQL to this release's schema; doing it again changes nothing."""
    done = migrate(postgres.migrator_dsn, report=say, wait_s=wait_s)
    role = str(conninfo_to_dict(postgres.dsn)["user"])
    statements = (
        "grant helix_operator, helix_webhook to {}",
        # The owner is not `role`: only a member of a role may give it a schema.
        "create schema if not exists {}",
        "grant usage, create on schema {0} to {0}",
    )
    with psycopg.connect(postgres.migrator_dsn) as connection:
        # Concurrent grants would fail with "tuple concurrently updated".
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        for statement in statements:
            connection.execute(sql.SQL(statement).format(sql.Identifier(role)))
        connection.execute("select helix.bind_v1(%s, '*')", (role,))
    return done
