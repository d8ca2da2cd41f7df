"""An embedded database set up: migrated, and its run-time role allowed to work and to operate.

The embedded default has one login role at run time. A process that can open its socket owns
the data files, so that role may work and operate for every tenant. It is no superuser: guards and
ledger apply to it as to every role. On a server of your own an administrator grants
helix_client to the application's role, helix_operator to a person's, and binds roles to tenants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from helixqueue.engine.migrate import LOCK, migrate

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.embedded import Postgres
    from helixqueue.engine.migrate import Migrated


def set_up(
    postgres: Postgres, say: Callable[[str], None] | None = None, *, wait_s: float = 120.0
) -> Migrated:
    """Bring the embedded PostgreSQL to this release's schema; doing it again changes nothing."""
    done = migrate(postgres.migrator_dsn, report=say, wait_s=wait_s)
    role = str(conninfo_to_dict(postgres.dsn)["user"])
    grant = sql.SQL("grant helix_client, helix_operator to {}").format(sql.Identifier(role))
    with psycopg.connect(postgres.migrator_dsn) as connection:
        # Concurrent grants would fail with "tuple concurrently updated".
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(grant)
        connection.execute("select helix.bind_v1(%s, '*')", (role,))
    return done
