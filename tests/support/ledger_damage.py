"""Damage that only a superuser can do with DDL: write past the guards and enable them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

if TYPE_CHECKING:
    from tests.support.database import Database


# A batch of each state with few entries; completed ones were never erased or failed.
_CHOICES = {
    "COMPLETED": "w.version = 4 and b.payload is not null and exists (select from helix.result r "
    "where r.batch = w.batch and r.result is not null)",
    "FAILED": "exists (select from helix.result r where r.batch = w.batch "
    "and r.version = w.version and r.detail is not null)",
    "RUNNING": "w.limit_key is null",
    "ASSIGNED": "true",
    "PENDING": "w.pending and w.version = 1",
}


def with_batch_ids(database: Database, statement: str) -> str:
    """Replace {STATE} by the id of a batch in this state."""
    for state, choice in _CHOICES.items():
        if f"{{{state}}}" in statement:
            batch = database.value(
                "select min(w.batch) from helix.work w join helix.batch b on b.id = w.batch "
                f"where w.state = %s::helix.state and {choice}",
                state,
            )
            assert batch is not None, f"the traffic left no {state} batch"
            statement = statement.replace(f"{{{state}}}", str(batch))
    return statement


def damage(database: Database, *statements: str) -> None:
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
