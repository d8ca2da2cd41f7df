"""Many copies of the finished batches of a loaded database, written set-based.

The engine writes about 8,000 batches a second; ten million of them with their steps would take an
hour. So the base goes through the engine, and its finished batches are copied with their steps,
results and refusals, under new identities and keys, an hour earlier each time. Guards and triggers
of these tables are off while that happens, and the hashes of copied ledger entries are those of
their originals: such a database serves reads, and `check` would rightly report it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.postgres.statements import sql_texts

if TYPE_CHECKING:
    import psycopg

    from benchmarks.arena import Arena

TABLES = ("batch", "work", "entry", "result", "ended", "refusal")
# Written once at the end: random inserts into them would take most of the time.
_INDEXES = """
select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) from pg_index i
where i.indrelid = any (%s::regclass[]) and not i.indisprimary
"""
_SQL = sql_texts("benchmarks", "multiply.sql")


def multiply(arena: Arena, database: str, batches: int, queues: list[str]) -> None:
    """Copy the finished batches of `queues` until there are about `batches`."""
    with arena.admin(database) as connection:
        connection.execute("set maintenance_work_mem = '1GB'")
        connection.execute("set work_mem = '256MB'")
        connection.execute("set synchronous_commit = off")
        connection.execute(_SQL["base"].encode(), {"queues": queues})
        connection.execute(_SQL["entries"].encode())
        connection.execute("analyze public.copied, public.copied_entry")
        there, each, last_batch, last_entry = _counts(connection)
        indexes = connection.execute(_INDEXES, ([f"helix.{name}" for name in TABLES],)).fetchall()
        for name, _ in indexes:
            connection.execute(f"drop index {name}".encode())
        _triggers(connection, "disable trigger")
        number = 0
        while there < batches and each:
            number += 1
            values = {
                "batch": number * last_batch,
                "entry": number * last_entry,
                "earlier": f"{number} hours",
                "suffix": f"-{number}",
            }
            with connection.transaction():
                for table in TABLES:
                    connection.execute(_SQL[f"copy_{table}"].encode(), values)
            there += each
        for _, statement in indexes:
            connection.execute(statement.encode())
        for name, last in (("batch_id", last_batch), ("entry_id", last_entry)):
            connection.execute("select setval(%s, %s)", (f"helix.{name}", (number + 1) * last))
        _triggers(connection, "enable always trigger")
        connection.execute("drop table public.copied, public.copied_entry")
        connection.execute("vacuum (analyze)")


def _counts(connection: psycopg.Connection[Any]) -> tuple[int, int, int, int]:
    row = connection.execute(
        "select (select count(*) from helix.batch), (select count(*) from public.copied),"
        " (select max(id) from helix.batch), (select max(id) from helix.entry)"
    ).fetchone()
    if row is None:
        raise RuntimeError("expected counts of the base")
    return row  # type: ignore[return-value]


def _triggers(connection: psycopg.Connection[Any], action: str) -> None:
    rows = connection.execute(
        "select tgrelid::regclass::text, tgname from pg_trigger"
        " where tgrelid = any (%s::regclass[]) and not tgisinternal",
        ([f"helix.{name}" for name in TABLES],),
    ).fetchall()
    for table, trigger in rows:
        connection.execute(f'alter table {table} {action} "{trigger}"'.encode())
