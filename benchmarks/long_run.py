"""The cost of a batch after many others have finished, and the time to check all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psycopg

from benchmarks import workload
from benchmarks.arena import tenant
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.operate.seal import make_seal
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.arena import Arena

# The run has steps: batches are submitted, then drained. The first and last tenth are compared.
STEPS = 40
TENTH = STEPS // 10
ROWS = 1_000  # of one submit call, at most
OWNER = "helix_migrator"  # the role that may read everything, as `helixq check` uses it


@dataclass(frozen=True)
class Cost:
    """What one batch cost, from submit to completed."""

    cpu_us: float  # of the sessions that submit and drain
    per_second: float


def run(
    arena: Arena, database: str, batches: int, tick: Callable[[int], None]
) -> tuple[Cost, Cost]:
    """Submit and drain `batches` in steps; the median step of the first tenth and of the last.

    The server's processor time is compared, not the rate: the disk of a machine changes more within
    a run than what is measured here. Autovacuum runs as it does elsewhere and is not counted.
    """
    dsn = arena.dsn(database)
    each = max(batches // STEPS, 1)
    costs = []
    with Database.connect(dsn) as submitter, Database.connect(dsn) as worker:
        client = workload.Client(worker, "w0")
        for step in range(STEPS):
            costs.append(_step(submitter, client, step * each, each))
            if step == 0:
                arena.analyze(database)  # what autovacuum does for a queue within a minute
            tick(each)
    first, last = costs[1 : TENTH + 1], costs[-TENTH:]
    return _median(first), _median(last)


def _step(submitter: Database, client: workload.Client, first: int, each: int) -> Cost:
    databases = (submitter, client.database)
    begin, cpu = time.monotonic(), sum(map(_cpu_seconds, databases))
    for start in range(first, first + each, ROWS):
        numbers = range(start, min(start + ROWS, first + each))
        workload.submit(submitter, tenant(start // ROWS), numbers, classed=True)
    done = client.drain(100)
    if done != each:
        raise RuntimeError(f"expected {each} batches completed, got {done}")
    cpu = sum(map(_cpu_seconds, databases)) - cpu
    return Cost(cpu / each * 1e6, each / (time.monotonic() - begin))


def _cpu_seconds(database: Database) -> float:
    """Processor time that the server process of this session has used."""
    pid = database.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(cost.cpu_us for cost in costs), median(cost.per_second for cost in costs))


def checked(arena: Arena, database: str) -> tuple[int, float]:
    """How many batches there are, and how many seconds all invariants took."""
    with psycopg.connect(arena.dsn(database, OWNER), autocommit=True) as connection:
        row = connection.execute("select count(*) from helix.batch").fetchone()
        begin = time.monotonic()
        results = check(connection)
        seconds = time.monotonic() - begin
    if wrong := [cost.name for cost in results if cost.count or cost.skipped]:
        raise RuntimeError(f"expected all invariants to hold, got {', '.join(wrong)}")
    return row[0] if row else 0, seconds


def sealed(arena: Arena, database: str) -> float:
    """How many seconds the first seal took, which covers every batch of the run."""
    with psycopg.connect(arena.dsn(database, OWNER), autocommit=True) as connection:
        begin = time.monotonic()
        make_seal(connection, Ed25519Signer.generate())
        return time.monotonic() - begin


def replayed(arena: Arena, database: str) -> tuple[int, float]:
    """How many steps there are on the ledger, and how many seconds folding them took."""
    with psycopg.connect(arena.dsn(database, OWNER), autocommit=True) as connection:
        begin = time.monotonic()
        found = replay(connection)
        seconds = time.monotonic() - begin
    if not found.clean:
        raise RuntimeError(f"expected a clean replay, got {found.violations[:3]}")
    return found.events, seconds
