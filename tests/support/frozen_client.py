"""A client that is stopped (SIGSTOP) inside a transaction of the product, with a row locked.

`python -m tests.support.frozen_client DSN POINT ROW` prints its server process, then stops:

- `idle`: between two statements;
- `page`: inside an answer of 16 MiB;
- `pipeline`: a statement has run, and the end of the pipeline was not sent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helixqueue.postgres.database import Database
from helixqueue.postgres.transaction_bounds import TransactionBound
from tests.support.lab import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Database as TestDatabase

WAITS = """
  select exists (select from pg_stat_activity where pid = %s and wait_event_type = 'Client'
                 and state_change < clock_timestamp() - make_interval(secs => %s))
"""
POINTS = ("idle", "page", "pipeline")
# As OWN, for tests that do not wait ten seconds.
BRIEF = TransactionBound(silent=1.0, total=2.0, lock=0.2)


@contextmanager
def frozen_client(dsn: str, point: str, row: int) -> Iterator[int]:
    """Yield the server process that serves the stopped client."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.frozen_client", dsn, point, str(row)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@contextmanager
def overdue_client(database: TestDatabase, role: str) -> Iterator[int]:
    """A frozen client of this login that is past its limit, and that no server setting ends."""
    with database.connect("helix_bootstrap") as superuser:
        superuser.execute("create table if not exists locked as select 0 as number")
        superuser.execute(f"grant all on locked to {role}")
    with frozen_client(database.dsn(role, direct=True), "page", 0) as process:
        wait_until(lambda: database.value(WAITS, process, BRIEF.silent))
        yield process


def is_served(database: TestDatabase, process: int) -> bool:
    """Whether the server process of a client still exists."""
    return bool(database.rows("select from pg_stat_activity where pid = %s", process))


def main(dsn: str, point: str, row: str) -> None:
    database = Database.connect(dsn, pooled=True)
    connection = database.connection
    connection.execute("begin")
    database.run(BRIEF.call())
    connection.execute("update locked set number = number where number = %s", (int(row),))
    [(backend,)] = connection.execute("select pg_backend_pid()").fetchall()
    if point == "page":
        connection.pgconn.send_query(b"select repeat('x', 16 * 1024 * 1024)")
    elif point == "pipeline":
        connection.pgconn.enter_pipeline_mode()
        connection.pgconn.send_query_params(b"select 1", None)
        connection.pgconn.send_flush_request()
    connection.pgconn.flush()
    sys.stdout.write(f"{backend}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main(*sys.argv[1:])
