"""The rate of plain PostgreSQL on this machine: the reference of the ratios."""

from __future__ import annotations

import re
import subprocess
import time
from typing import TYPE_CHECKING

import psycopg

from benchmarks.arena import ADMIN
from benchmarks.workload import payload
from helixqueue.identity import canonical_text

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.arena import Arena

# The smallest table of a queue: one row per job, three states, an index on pending jobs.
SCHEMA = """
create table job (
  id      bigint generated always as identity primary key,
  payload text not null,
  state   smallint not null default 0,
  owner   integer,
  at      timestamptz not null default now()
) with (fillfactor = 70);
create index job_pending on job (id) where state = 0;
create table entry (id bigint generated always as identity primary key, payload text not null);
"""

# Two statements, and so two transactions: claimed work survives its claimer, done work is done.
CLAIM_THEN_DONE = """
with picked as (
  select id from job where state = 0 order by id limit {count} for update skip locked
), claimed as (
  update job set state = 1, owner = :client_id, at = now() from picked
  where job.id = picked.id returning job.id, job.payload
)
select coalesce(array_agg(id), '{{}}')::text as ids, count(payload) as taken from claimed \\gset
update job set state = 2, at = now() where id = any (:ids::bigint[]);
"""
CLAIM_ONE = """
with picked as (
  select id from job where state = 0 order by id limit 1 for update skip locked
), claimed as (
  update job set state = 1, owner = 1, at = now() from picked
  where job.id = picked.id returning job.id, job.payload
)
select id, payload from claimed
"""
DONE_ONE = "update job set state = 2, at = now() where id = %s"
INSERT_ONE = "insert into entry (payload) values ('{payload}');\n"


class Raw:
    """pgbench and plain psycopg on a table of their own."""

    def __init__(self, arena: Arena, database: str, scratch: Path) -> None:
        self._arena = arena
        self._database = database
        self._scratch = scratch
        with arena.admin(database) as connection:
            connection.execute(SCHEMA)

    def claim_then_done(self, *, count: int, clients: int, rounds: int) -> float:
        """Rows a second, claimed and done in two transactions; `rounds` for each client."""
        self._fill(count * clients * rounds)
        script = self._script(f"claim_{count}.sql", CLAIM_THEN_DONE.format(count=count))
        rate = self._pgbench(script, clients, ["-t", str(rounds)])
        with self._arena.admin(self._database) as connection:
            row = connection.execute("select count(*) from job where state = 2").fetchone()
        # A round may find rows locked and take fewer, so rows are counted.
        return rate * (row[0] if row else 0) / (clients * rounds)

    def claim_then_done_by_psycopg(self, *, rounds: int) -> float:
        """One row at a time from Python, through the driver that HelixQueue uses."""
        warm = 20
        self._fill(rounds + warm)
        with psycopg.connect(self._arena.dsn(self._database, ADMIN), autocommit=True) as connection:
            connection.prepare_threshold = 2
            for number in range(rounds + warm):
                if number == warm:
                    begin = time.monotonic()
                row = connection.execute(CLAIM_ONE, binary=True).fetchone()
                if row is None:
                    raise RuntimeError("expected a row to claim, got none")
                connection.execute(DONE_ONE, (row[0],))
            return rounds / (time.monotonic() - begin)

    def _fill(self, rows: int) -> None:
        with self._arena.admin(self._database) as connection:
            connection.execute("truncate job")
            connection.execute(
                "insert into job (payload) select %s from generate_series(1, %s)", (_text(), rows)
            )
            connection.execute("vacuum analyze job")

    def commits_by_pgbench(self, *, seconds: float) -> float:
        """One-row INSERT commits a second, 1 client: how fast this disk is right now."""
        script = self._script("insert.sql", INSERT_ONE.format(payload=_text()))
        return self._pgbench(script, 1, ["-T", str(max(1, round(seconds)))])

    def commits_by_psycopg(self, *, count: int) -> float:
        """The same from Python, through the driver that HelixQueue uses."""
        with psycopg.connect(self._arena.dsn(self._database, ADMIN), autocommit=True) as connection:
            connection.prepare_threshold = 2
            for number in range(20):
                connection.execute("insert into entry (payload) values (%s)", (_text(number),))
            begin = time.monotonic()
            for number in range(count):
                connection.execute("insert into entry (payload) values (%s)", (_text(number),))
            return count / (time.monotonic() - begin)

    def _script(self, name: str, text: str) -> Path:
        path = self._scratch / name
        path.write_text(text, encoding="utf-8")
        return path

    def _pgbench(self, script: Path, clients: int, length: list[str]) -> float:
        done = subprocess.run(
            [
                str(self._arena.server.program("pgbench")),
                *("-n", "-M", "prepared", "-f", str(script)),
                *("-c", str(clients), "-j", str(min(clients, 2))),
                *length,
                self._arena.dsn(self._database, ADMIN),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.search(r"tps = ([0-9.]+) \(without initial", done.stdout)
        if done.returncode != 0 or found is None:
            raise RuntimeError(f"pgbench failed:\n{done.stdout}{done.stderr}")
        return float(found[1])


def _text(number: int = 0) -> str:
    return canonical_text(payload(number))
