"""Counts the rows that a read touches, for tests that pages are bounded."""

from __future__ import annotations

from tests.support.lab import new_database

ROWS_SCANNED = 40  # what pages may scan in these tests, so that a few hundred batches are many
LIMIT = 4
# What a page of LIMIT may read: its scan twice (for pending batches), five tables for each of its
# rows, and the small tables. Reading everything would be thousands.
ROWS_READ_MAX = 3 * ROWS_SCANNED + 6 * (LIMIT + 1) + 60
READ = """
  select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int
  from pg_stat_xact_user_tables where schemaname = 'helix'
"""


def database_without_autovacuum(server, template, pooler):
    """A database in which only the tests analyze: plans must not change while they run."""
    for database in new_database(server, template, pooler):
        with database.connect("helix_bootstrap") as connection:
            for (table,) in database.rows(
                "select oid::regclass::text from pg_class "
                "where relnamespace = 'helix'::regnamespace and relkind = 'r'"
            ):
                connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
        yield database


def rows_read(lab, call) -> int:
    """Return how many rows of tables a call reads, by the server's own count."""
    with lab.store.connection.transaction(force_rollback=True):
        [(before,)] = lab.rows_as_client(READ)
        lab.run(call)
        [(after,)] = lab.rows_as_client(READ)
        return after - before
