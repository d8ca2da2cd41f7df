"""What only a superuser with DDL can do: write past the guards, and put them back in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from tests.database import Database


def one(database: Database, statement: str) -> str:
    """Replace {STATE} by a batch that stands there; completed ones were never erased or failed."""
    for state in ("COMPLETED", "FAILED", "RUNNING", "ASSIGNED", "PENDING"):
        if f"{{{state}}}" in statement:
            batch = database.value(
                "select min(s.batch) from helix.standing s join helix.batch b on b.id = s.batch "
                "where s.state = %s::helix.state and b.payload is not null "
                "and (s.state <> 'FAILED' or exists (select from helix.event e "
                "where e.batch = s.batch and e.version = 4 and e.detail is not null)) "
                "and (s.state <> 'COMPLETED' or s.version = 4) "
                "and (s.state <> 'PENDING' or s.place = 'ready')",
                state,
            )
            assert batch is not None, f"the traffic left no {state} batch"
            statement = statement.replace(f"{{{state}}}", str(batch))
    return statement


def damaged(database: Database, *statements: str) -> None:
    """Run statements with every trigger off; afterwards all are ENABLE ALWAYS again."""
    with database.connect("helix_bootstrap", autocommit=False) as connection:
        tables = [
            sql.SQL(row[0])
            for row in connection.execute(
                "select c.oid::regclass::text from pg_class c "
                "where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')"
            )
        ]
        for table in tables:
            connection.execute(sql.SQL("alter table {} disable trigger all").format(table))
        for statement in statements:
            assert connection.execute(statement.encode()).rowcount != 0, statement
        # ALTER TABLE refuses while deferred trigger events are pending; there are none here.
        for table in tables:
            for (name,) in connection.execute(
                "select tgname from pg_trigger where tgrelid = %s::regclass and not tgisinternal",
                (table.as_string(connection),),
            ).fetchall():
                connection.execute(
                    sql.SQL("alter table {} enable always trigger {}").format(
                        table, sql.Identifier(name)
                    )
                )
