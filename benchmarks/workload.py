"""The workload: submit and drain through the driver, without handlers.

Everything runs through `Database` and `calls`, as in the clients.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.arena import EVERYTHING, QUEUE, TENANTS, requirement, tenant
from helixqueue.engine import calls
from helixqueue.identity import canonical_text, identity_texts
from helixqueue.postgres.database import Database
from helixqueue.records.claim_hints import Hints
from helixqueue.records.lease import ClaimResult, LeaseRow, Settlement
from helixqueue.records.submission import SubmissionRow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.context import SpawnProcess

    from helixqueue.identity import Json
    from helixqueue.postgres.call import Call
    from helixqueue.records.claim_hints import Hint

PROFILE = "text-v1"
# Processes are started anew, not forked: a forked one would share the parent's connections.
_processes = multiprocessing.get_context("spawn")
_PATIENCE_S = 900.0


def identity(number: int) -> str:
    return f"RUN-2031/{number:09}"


def payload(number: int) -> Json:
    """About 75 bytes of JSON, the size of the peers' measurements."""
    return {"genome": "GRCh38", "lane": number % 8, "reads": f"s3://lab/{number:09}_R1.fastq.gz"}


def submission(number: int, *, classed: bool = False) -> SubmissionRow:
    """Prepare one row as a client does."""
    text, raw = identity_texts(identity(number), PROFILE)
    return SubmissionRow(
        text,
        canonical_text(payload(number)),
        raw,
        requires=requirement(number) if classed else None,
    )


def submit(database: Database, where: str, numbers: range, *, classed: bool = False) -> None:
    rows = [submission(number, classed=classed) for number in numbers]
    answers = database.run(calls.submit(tenant=where, queue=QUEUE, profile=PROFILE, rows=rows))
    if any(answer.decision != "new" for answer in answers):
        raise RuntimeError(f"expected new batches only, got {answers[0]}")


def load(
    dsn: str,
    each: int,
    *,
    first: int = 0,
    tenants: range = range(TENANTS),
    tick: Callable[[int], None] = lambda _: None,
) -> int:
    """Every tenant submits `each` rows of all classes, a thousand a call; returns how many."""
    with Database.connect(dsn) as database:
        for place in tenants:
            numbers = range(first + place * each, first + (place + 1) * each)
            for start in range(0, each, 1_000):
                submit(database, tenant(place), numbers[start : start + 1_000], classed=True)
                tick(len(numbers[start : start + 1_000]))
    return len(tenants) * each


class Client:
    """A worker's side of the drain: settle the last round, claim and start the next, one commit."""

    def __init__(self, database: Database, name: str) -> None:
        self.database = database
        self.name = name
        self.hints = Hints()
        self.held: tuple[LeaseRow, ...] = ()
        self._hinted = False  # the last claim used hints and may have missed earlier rows

    def claim(self, count: int, hints: Sequence[Hint] | None = None) -> Call[ClaimResult]:
        """The call of the next round; `hints` replace those of the client."""
        return calls.claim(
            worker=self.name,
            request=uuid.uuid4(),
            queues=[QUEUE],
            count=count,
            free=dict(EVERYTHING),
            start=True,
            hints=self.hints.now(time.monotonic()) if hints is None else hints,
            settle=[Settlement(item.batch, item.token, "completed") for item in self.held],
        )

    def round(self, count: int) -> int:
        """One round; returns how many batches it completed."""
        done = len(self.held)
        hints = self.hints.now(time.monotonic())
        answer = self.database.run(self.claim(count, hints))
        if any(item.answer != "ok" for item in answer.settled) or len(answer.settled) != done:
            raise RuntimeError(f"expected {done} settlements, got {answer.settled}")
        self.held = answer.leases
        self._hinted = bool(hints)
        self.hints.learn(answer.hints, short=len(self.held) < count and not answer.more)
        return done

    def drain(self, count: int, *, until: Callable[[int], bool] = lambda _: False) -> int:
        """Rounds until nothing is left, or `until` the number done is enough."""
        done = 0
        while True:
            done += self.round(count)
            if not (self.held or self._hinted) or until(done):
                return done


@dataclass(frozen=True)
class Drained:
    batches: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.batches / self.seconds


def drain_with_processes(dsn: str, *, processes: int, count: int, expected: int) -> Drained:
    """Drain in rounds of `count`; timed from the end of the warm-up to the last settlement."""
    answers: multiprocessing.Queue[tuple[int, int, float, float]] = _processes.Queue()
    gate = _processes.Barrier(processes)
    workers = [
        _processes.Process(target=_drain, args=(dsn, f"w{n}", count, gate, answers), daemon=True)
        for n in range(processes)
    ]
    for worker in workers:
        worker.start()
    output = [_answer(answers, workers) for _ in workers]
    for worker in workers:
        worker.join()
    batches = sum(warm + done for warm, done, _, _ in output)
    if batches != expected:
        raise RuntimeError(f"expected {expected} batches completed, got {batches}")
    # Monotonic time is one clock for all processes of a machine.
    seconds = max(end for *_, end in output) - min(begin for _, _, begin, _ in output)
    return Drained(sum(done for _, done, _, _ in output), seconds)


def _drain(dsn: str, name: str, count: int, gate: object, answers: object) -> None:
    with Database.connect(dsn) as database:
        client = Client(database, name)
        warm = client.drain(count, until=lambda done: done >= 3 * count)  # plans made, as elsewhere
        gate.wait()  # type: ignore[attr-defined]
        begin = time.monotonic()
        done = client.drain(count)
        answers.put((warm, done, begin, time.monotonic()))  # type: ignore[attr-defined]


def _answer(
    answers: multiprocessing.Queue[tuple[int, int, float, float]], workers: list[SpawnProcess]
) -> tuple[int, int, float, float]:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            if any(worker.exitcode not in (None, 0) for worker in workers):
                break
    raise RuntimeError("a draining process failed; its error is above")


def drain_one_by_one(dsn: str, *, batches: int) -> Drained:
    """One client, one batch a commit."""
    with Database.connect(dsn) as database:
        client = Client(database, "w0")
        client.drain(1, until=lambda done: done >= 20)  # statements prepared, plans made
        begin = time.monotonic()
        done = client.drain(1, until=lambda done: done >= batches)
        return Drained(done, time.monotonic() - begin)


def submit_in_bulk(dsn: str, *, calls_made: int, first: int, rows: int = 1_000) -> float:
    """Rows a second, from raw identifiers and payloads to receipts."""
    with Database.connect(dsn) as database:
        for n in range(3):
            submit(database, tenant(n), range(first + n * 10, first + n * 10 + 10))
        first += 1_000
        begin = time.monotonic()
        for n in range(calls_made):
            submit(database, tenant(n), range(first + n * rows, first + (n + 1) * rows))
        return calls_made * rows / (time.monotonic() - begin)


def submit_one_by_one(dsn: str, *, count: int, first: int) -> float:
    """Submissions a second, one a commit."""
    with Database.connect(dsn) as database:
        for n in range(first, first + 20):
            submit(database, tenant(n), range(n, n + 1))
        begin = time.monotonic()
        for n in range(first + 20, first + 20 + count):
            submit(database, tenant(n), range(n, n + 1))
        return count / (time.monotonic() - begin)
