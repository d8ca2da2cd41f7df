"""The data for benchmarks.reads: batches in every state, of a thousand tenants, one of them large.

Everything goes through the engine's own calls, by several processes at once. Half of the batches
are the large tenant's. The queue of a batch determines its state: most stay pending, a third is
completed, the rest fails, waits, or is cancelled; some leases stay held.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue as queues
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from benchmarks.arena import EVERYTHING, TENANTS, requirement, tenant
from benchmarks.workload import PROFILE, payload
from helixqueue.engine import calls, fences, reads
from helixqueue.identity import canonical_text, identity_texts
from helixqueue.postgres.database import Database
from helixqueue.records.lease import LeaseRef, LeaseRow, Settlement, Token
from helixqueue.records.submission import SubmissionRow
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.arena import Arena

LARGE = tenant(0)
SINGLE = tenant(TENANTS - 1)  # a tenant with one batch
# The queues, and how many of a hundred chunks go there.
SHARES = {"bench": 65, "align": 30, "qc": 2, "later": 1, "paused": 1, "limited": 1}
RARE_WORKER = "seldom"  # finished three of the large tenant's, long ago
LEASES = 5_000
LEASE_S = 86_400.0
FENCES = 50_000
DRAINED = ["align", "qc"]
_ROUND = 500
_ROUNDS_A_WORKER = 20
_WORDS = [name for name, share in SHARES.items() for _ in range(share)]
_processes = multiprocessing.get_context("spawn")
if TYPE_CHECKING:
    Progress = multiprocessing.Queue[int]
    Work = Callable[[str, int, int, int, Progress], None]


@dataclass(frozen=True)
class Chunk:
    """A thousand submissions of one tenant to one queue, or a hundred where there are few."""

    number: int
    tenant: str
    queue: str
    rows: int


def chunks(batches: int) -> Iterator[Chunk]:
    """Tenants in rotation, every second chunk the large tenant's; all have several queues."""
    rows = 1_000 if batches >= 1_000_000 else 100
    for number in range(batches // rows):
        half, turn = divmod(number, 2)
        around, place = divmod(half, TENANTS - 2)
        word = _WORDS[(half * 7 + around * 31) % 100]
        yield Chunk(number, LARGE if turn == 0 else tenant(1 + place), word, rows)


def to_finish(batches: int) -> int:
    """Number of batches that the drain finishes."""
    return sum(item.rows for item in chunks(batches) if item.queue in DRAINED)


def identity(number: int) -> str:
    """Every tenth identity has a letter with two spellings, submitted in NFD."""
    return f"Sa\u0308mple-{number:09}" if number % 10 == 0 else f"RUN-2031/{number:09}"


def _submissions(chunk: Chunk) -> list[SubmissionRow]:
    due = datetime.now(UTC) + timedelta(days=365) if chunk.queue == "later" else None
    rows = []
    for number in range(chunk.number * chunk.rows, (chunk.number + 1) * chunk.rows):
        text, raw = identity_texts(identity(number), PROFILE)
        rows.append(
            SubmissionRow(
                text,
                canonical_text(payload(number)),
                raw,
                revision="2" if number % 50 == 0 else "",
                run_at=due,
                limit_key=f"device-{number % 20}" if chunk.queue == "limited" else None,
                requires=requirement(number % 4),
            )
        )
    return rows


def load(arena: Arena, database: str, batches: int, tick: Callable[[str, int], None]) -> None:
    """Load the batches. `tick` receives the step and the number of batches done."""
    dsn = arena.dsn(database)
    with Database.connect(dsn) as store:
        for where in range(TENANTS):
            for name in SHARES:
                store.run(
                    calls.set_queue(
                        tenant=tenant(where),
                        queue=name,
                        paused=name == "paused",
                        max_attempts=3,
                        backoff_seconds=0.0,
                        lease_seconds=LEASE_S,
                    )
                )
    _in_processes(_submit, dsn, batches, lambda done: tick("submitted", done))
    with Database.connect(dsn) as store:
        first = replace(next(iter(chunks(batches))), tenant=SINGLE, queue="bench", rows=1)
        store.run(
            calls.submit(tenant=SINGLE, queue="bench", profile=PROFILE, rows=_submissions(first))
        )
    with arena.admin(database) as connection:
        connection.execute("analyze")
    with Database.connect(dsn) as store:
        _rare(store)
        _refused(store)
    _in_processes(_drain, dsn, batches, lambda done: tick("finished", done))
    with Database.connect(dsn) as store:
        _cancel(store, batches)
        _fence(store, min(FENCES, batches // 100))
    with arena.admin(database) as connection:
        # As autovacuum does in a database that grew over weeks.
        connection.execute("vacuum (analyze)")


def lease(arena: Arena, database: str) -> None:
    """Create assigned and running leases up to the expected number."""
    with arena.admin(database) as connection:
        row = connection.execute(
            "select count(*) from helix.work where state in ('ASSIGNED', 'RUNNING')"
        ).fetchone()
    with Database.connect(arena.dsn(database)) as store:
        for number in range(0, LEASES - (row[0] if row else 0), 25):
            worker = f"gpu-{number // 25 % 200:03}"
            _claimed(store, worker, ["bench", "limited"], 25, start=number % 100 != 0)


def _submit(dsn: str, batches: int, part: int, parts: int, progress: Progress) -> None:
    with Database.connect(dsn) as store:
        for chunk in itertools.islice(chunks(batches), part, None, parts):
            rows = _submissions(chunk)
            answers = store.run(
                calls.submit(tenant=chunk.tenant, queue=chunk.queue, profile=PROFILE, rows=rows)
            )
            if any(answer.decision != "new" for answer in answers):
                raise RuntimeError(f"expected new batches only, got {answers[0]}")
            progress.put(len(rows))


def _drain(dsn: str, _batches: int, part: int, parts: int, progress: Progress) -> None:
    """All of `align` is completed; of `qc` all fails, most at once, some after three attempts."""
    with Database.connect(dsn) as store:
        for number in itertools.count(part, parts):
            done = _turn(store, f"gpu-{number % 200:03}", progress)
            if not done:
                return


def _turn(store: Database, worker: str, progress: Progress) -> int:
    """Rounds of one worker, each settling the previous claim; returns the number finished."""
    ended = 0
    held: tuple[LeaseRow, ...] = ()
    for _ in range(_ROUNDS_A_WORKER):
        held, before = _claimed(store, worker, DRAINED, _ROUND, held), held
        progress.put(len(before))
        ended += len(before)
        if not held:
            return ended
    store.run(calls.settle(worker=worker, settlements=[_end(item) for item in held]))
    progress.put(len(held))
    return ended + len(held)


def _claimed(
    store: Database,
    worker: str,
    queues: list[str],
    count: int,
    settle: tuple[LeaseRow, ...] = (),
    *,
    start: bool = True,
) -> tuple[LeaseRow, ...]:
    call = calls.claim(
        worker=worker,
        request=uuid.uuid4(),
        queues=queues,
        count=count,
        free=dict(EVERYTHING),
        start=start,
        lease_seconds=LEASE_S,
        settle=[_end(item) for item in settle],
    )
    return store.run(call).leases


def _end(lease: LeaseRow) -> Settlement:
    if lease.queue == "qc":
        return Settlement(
            lease.batch,
            lease.token,
            "failed",
            failure="Contaminated",
            detail="phiX above 5 %",
            permanent=lease.batch % 10 != 0,
            after_seconds=0.0,
        )
    return Settlement(lease.batch, lease.token, "completed", result='{"reads":1234567}')


def _rare(store: Database) -> None:
    """A worker that finished a few of the large tenant's before all others did."""
    mine: list[LeaseRow] = []
    while len(mine) < 3:
        leases = _claimed(store, RARE_WORKER, ["align"], 100)
        mine += [item for item in leases if item.tenant == LARGE][: 3 - len(mine)]
        ends = [_end(item) for item in leases]
        store.run(calls.settle(worker=RARE_WORKER, settlements=ends))


def _refused(store: Database) -> None:
    """Released and claimed again many times, each former holder trying to write."""
    for number in range(20):
        first = _claimed(store, f"frozen-{number:02}", ["align"], 20)
        held = [LeaseRef(item.batch, item.token) for item in first]
        store.run(calls.release(worker=f"frozen-{number:02}", leases=held))
        store.run(calls.renew(worker=f"frozen-{number:02}", leases=held))
        ends = [_end(item) for item in first]
        store.run(calls.settle(worker=f"frozen-{number:02}", settlements=ends))


def _cancel(store: Database, batches: int) -> None:
    for where in (LARGE, tenant(1)):
        page = store.run(
            reads.batches(tenant=where, queue="bench", state=State.PENDING, limit=1_000)
        )
        ids = [row.batch_id for row in page.rows[: max(1, batches // 10_000)]]
        store.run(calls.cancel(ids=ids, reason="the plate was dropped", actor="ann"))


def _fence(store: Database, count: int) -> None:
    """Effects of three names, most sealed, some in doubt; two thirds the large tenant's."""
    with store.connection.transaction():
        for number in range(count):
            whose = LARGE if number % 3 else tenant(1 + number % (TENANTS - 2))
            claim = store.run(
                fences.claim(
                    tenant=whose,
                    name=("refund", "invoice", "mail")[number % 3],
                    identity=f"order-{number}",
                    request="{}",
                    actor="shop",
                    nonce=number,
                    start=True,
                    times=fences.Times(),
                    alone=False,
                )
            )
            if claim.epoch is None or claim.number is None:
                raise RuntimeError(f"expected to hold a new fence, got {claim}")
            hold = fences.FenceLease(claim.key, Token(claim.epoch, number, claim.number))
            if number % 100:
                answer = fences.FenceResult("json", b"{}", effect=f"re_{number}")
                store.run(fences.seal(hold, answer, fences.Times(), actor="shop"))
            else:
                store.run(fences.doubt(hold, actor="shop", detail="timed out"))


def _in_processes(work: Work, dsn: str, batches: int, tick: Callable[[int], None]) -> None:
    """Run `work` in one process per core; each reports the number of batches done."""
    parts = os.cpu_count() or 1
    progress: multiprocessing.Queue[int] = _processes.Queue()
    processes = [
        _processes.Process(target=work, args=(dsn, batches, part, parts, progress), daemon=True)
        for part in range(parts)
    ]
    for item in processes:
        item.start()
    while any(item.is_alive() for item in processes) or not progress.empty():
        try:
            tick(progress.get(timeout=0.5))
        except queues.Empty:
            continue
    if any(item.exitcode for item in processes):
        raise RuntimeError("a loading process failed; its error is above")
