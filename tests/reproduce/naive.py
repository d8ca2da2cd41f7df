"""A scheduler as it is often written: look, then act, then write the audit row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import psycopg
    import redis

TABLES = """
create schema if not exists naive;
create table if not exists naive.batch (id bigserial, sample text, state text default 'PENDING');
create table if not exists naive.assignment (batch bigint, worker text);
create table if not exists naive.audit (batch bigint, state text);
truncate naive.batch, naive.assignment, naive.audit;
"""


class NaiveScheduler:
    """Each statement commits on its own; uniqueness is a SELECT before the INSERT."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self.connection = connection

    def submit(self, sample: str) -> None:
        known = self.connection.execute(
            "select 1 from naive.batch where sample = %s", (sample.strip(),)
        ).fetchone()
        if known is None:
            self.connection.execute("insert into naive.batch (sample) values (%s)", (sample,))

    def claim(self, worker: str, window: threading.Barrier) -> None:
        row = self.connection.execute(
            "select id from naive.batch where state = 'PENDING' limit 1"
        ).fetchone()
        window.wait()
        if row is not None:
            self.assign(row[0], worker)

    def assign(
        self, batch: object, worker: str, before_audit: Callable[[], None] = lambda: None
    ) -> None:
        self.connection.execute("insert into naive.assignment values (%s, %s)", (batch, worker))
        self.connection.execute("update naive.batch set state = 'ASSIGNED' where id = %s", (batch,))
        before_audit()
        self.connection.execute("insert into naive.audit values (%s, 'ASSIGNED')", (batch,))

    def consume(self, client: redis.Redis, stream: str, consumer: str) -> list[bytes]:
        """Read new and abandoned messages and store each; the caller acknowledges."""
        taken = client.xautoclaim(stream, "naive", consumer, 0)[1]
        fresh = client.xreadgroup("naive", consumer, {stream: ">"}, count=10)
        entries = [*taken, *[entry for _, found in fresh for entry in found]]
        for _, fields in entries:
            self.connection.execute(
                "insert into naive.batch (sample) values (%s)", (fields[b"identity"].decode(),)
            )
        return [entry for entry, _ in entries]
