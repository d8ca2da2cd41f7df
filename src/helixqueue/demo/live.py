"""The workload of `helixq up --demo`: sheets arrive, workers die and freeze, nothing runs twice.

Runs with HELIX_DSN until a signal ends it. Exits with 1 if a sample took effect more than once or
not at all. Tenant and queue belong to the demo; it judges nothing else in the database.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psycopg

from helixqueue.client.backend import backend_of
from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sample_sheet import BASECALL, INVALID, QUEUE, TENANT
from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.ledger.replay import replay
from helixqueue.log.lines import message_line
from helixqueue.postgres.database import Database
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from helixqueue.intake.producer import Producer

SHEET_SECONDS = 1.0
SHEET_ROWS = 6
STREAM_SHARE = 3  # one sample of three goes through the stream
REPORT_SECONDS = 4.0
FAULT_SECONDS = 5.0
# Completed batches are deleted after five minutes, so that a demo that runs for days stays small.
KEEP_SECONDS = 300.0
FROZEN = "bo"  # runs `demo.worker`, which does not watch its deadline
NAMES = ("ada", "cem", "dita", "eli", "fay", "gus")
WORKERS = 3
BREAK = " | "  # where a terminal begins the second line of a report
MINE = {"tenant": TENANT, "queue": QUEUE}


@dataclass
class DemoCounts:
    """What this process did since its start, and the newest batch before that."""

    after: int = 0
    submitted: int = 0
    by_stream: int = 0  # of those, messages that were added to the stream
    duplicates: int = 0
    refused: int = 0
    killed: int = 0
    refused_writes: int = 0
    stored_refusals: int = 0  # at the last report; retention deletes them

    def add_refusals(self, stored: int) -> None:
        self.refused_writes += max(0, stored - self.stored_refusals)
        self.stored_refusals = stored


class DemoStatus(NamedTuple):
    """The demo's batches as the database records them."""

    completed: int
    retired: int
    refused_writes: int
    wrong: int  # samples whose number of effects is not one
    stream_duplicates: int  # messages for known samples, as the intake last reported

    def line(self, counts: DemoCounts, *, replay_ok: bool) -> str:
        effects = "each once" if not self.wrong else f"{self.wrong} NOT ONCE"
        return (
            f"submitted {counts.submitted} ({counts.by_stream} by XADD), duplicates "
            f"{counts.duplicates + self.stream_duplicates}, invalid "
            f"{counts.refused}{BREAK}completed {self.completed + self.retired}, {effects} | "
            f"killed {counts.killed}, late writes {counts.refused_writes} | "
            f"replay {'ok' if replay_ok else 'FAILED'}"
        )


class DemoWorkers:
    """`WORKERS` processes that may be killed, and one that may be frozen."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._started = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.frozen = self._run_frozen()
        for _ in range(WORKERS):
            self.start()

    def restart_dead(self) -> None:
        """Replace workers that ended by themselves, as after an outage of the database."""
        if self.frozen.poll() is not None:
            self.frozen.communicate()
            self.frozen = self._run_frozen()
        for name in [name for name, dead in self.processes.items() if dead.poll() is not None]:
            self.kill(name)
            self.start()

    def start(self) -> None:
        name = f"{NAMES[self._started % len(NAMES)]}{self._started // len(NAMES) or ''}"
        self._started += 1
        self.processes[name] = self._run("helixqueue.demo.live_worker", name)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.communicate()

    def _run_frozen(self) -> subprocess.Popen[bytes]:
        return self._run("helixqueue.demo.worker", self._dsn, FROZEN)

    def _run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "helixqueue.parent_watch", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HELIX_DSN": self._dsn},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.frozen.kill()
        for process in self.processes.values():
            process.terminate()
        for process in [self.frozen, *self.processes.values()]:
            process.communicate()


def main() -> int:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    dsn = os.environ["HELIX_DSN"]
    counts = DemoCounts()
    with HelixQueue(dsn, TENANT, actor="sheet") as helix:
        backend_of(helix).declare(BASECALL)
        with Database.connect(dsn) as database:
            database.run(
                calls.set_queue(tenant=TENANT, queue=QUEUE, keep_completed_seconds=KEEP_SECONDS)
            )
            [counts.after] = database.connection.execute(_sql("newest_batch")).fetchone() or (0,)
        with DemoWorkers(dsn) as workers:
            faults = threading.Thread(target=_inject_faults, args=(dsn, workers, counts, stop))
            faults.start()
            with _producer() as producer:
                _submit_and_report(helix, producer, dsn, counts, stop)
            faults.join()
        return 0 if _report(dsn, counts) else 1


def _producer() -> AbstractContextManager[Producer | None]:
    """The producer of the stream that the intake of `helixq up` reads; None if it runs none."""
    url = os.environ.get("HELIX_DEMO_REDIS")
    if url is None:
        return nullcontext()
    from helixqueue.producer import Producer  # noqa: PLC0415 - needs the extra `intake`

    return Producer(url, os.environ["HELIX_DEMO_STREAM"])


def _submit_and_report(
    helix: HelixQueue,
    producer: Producer | None,
    dsn: str,
    counts: DemoCounts,
    stop: threading.Event,
) -> None:
    """Submit a sheet per second and print a status line every few; retries while errors last."""
    run = f"{time.time():.0f}"[-6:]
    first = 0
    next_report = time.monotonic() + REPORT_SECONDS
    while not stop.wait(SHEET_SECONDS):
        try:
            _submit(helix, producer, counts, run, first)
            first += SHEET_ROWS
            if time.monotonic() >= next_report:
                _report(dsn, counts)
                next_report += REPORT_SECONDS
        except (HelixError, psycopg.Error) as error:
            _print(f"the demo waits for its servers: {str(error).strip()}")


def _submit(
    helix: HelixQueue, producer: Producer | None, counts: DemoCounts, run: str, first: int
) -> None:
    """Submit new samples, one of them in two spellings, one old sample, at times an invalid one.

    Every third sample goes through the stream, the first of them twice: once in each spelling, as
    by a producer that lost a reply.
    """
    new = [f"S\u00e4mple-{run}-{number:04}" for number in range(first, first + SHEET_ROWS)]
    twin = new[0].replace("\u00e4", "a\u0308")
    repeated = [f"S\u00e4mple-{run}-{first - 1:04}"] if first else []
    invalid = [INVALID] if first % (5 * SHEET_ROWS) == 0 else []
    if producer is not None:
        messages = [*new[::STREAM_SHARE], twin]
        for identity in messages:
            producer.send(identity, {"pod5": _file(identity)}, queue=QUEUE)
        counts.submitted += len(messages)
        counts.by_stream += len(messages)
        new = [identity for number, identity in enumerate(new) if number % STREAM_SHARE]
        twin = new[0].replace("\u00e4", "a\u0308")
    identities = [*new, twin, *repeated, *invalid]
    answers = helix.submit_many(
        BASECALL,
        [{"identity": identity, "payload": {"pod5": _file(identity)}} for identity in identities],
    )
    decisions = [answer.decision for answer in answers]
    counts.submitted += len(identities)
    counts.duplicates += decisions.count("duplicate")
    counts.refused += decisions.count("refused")


def _file(identity: str) -> str:
    return f"{identity[-11:-5]}/{identity[-4:]}.pod5"


def _inject_faults(
    dsn: str, workers: DemoWorkers, counts: DemoCounts, stop: threading.Event
) -> None:
    """Kill a worker in the middle of a batch, then freeze another until its batch is completed."""
    while not stop.wait(FAULT_SECONDS):
        workers.restart_dead()
        try:
            with Database.connect(dsn) as database:
                _kill(database, workers, counts, stop)
                if not stop.wait(FAULT_SECONDS):
                    _freeze(database, workers, stop)
        except (HelixError, psycopg.Error) as error:
            _print(f"the demo waits for the database: {str(error).strip()}")


def _kill(
    database: Database, workers: DemoWorkers, counts: DemoCounts, stop: threading.Event
) -> None:
    row = _await_row(database, stop, "running_beside", worker=FROZEN)
    if row is None:
        return
    worker, sample = row
    name = worker.rpartition("-")[0]  # without the suffix of its process
    if name not in workers.processes:  # of an earlier run on this directory
        return
    workers.kill(name)
    counts.killed += 1
    workers.start()
    _print(f"killed worker {worker} while it ran {sample}; started a replacement")


def _freeze(database: Database, workers: DemoWorkers, stop: threading.Event) -> None:
    row = _await_row(database, stop, "running_by", worker=FROZEN)
    if row is None:
        return
    batch, sample = row
    workers.frozen.send_signal(signal.SIGSTOP)
    try:
        completed = _await_row(database, stop, "completed", batch=batch)
    finally:
        workers.frozen.send_signal(signal.SIGCONT)
    if completed is None or _await_row(database, stop, "refused", batch=batch) is None:
        return
    _print(
        f"froze worker {FROZEN} while it ran {sample}; {completed[0]} completed it, "
        f"and the late write of {FROZEN} was refused"
    )


def _await_row(
    database: Database, stop: threading.Event, statement: str, **arguments: object
) -> tuple[Any, ...] | None:
    """The first row that the statement returns; None when the demo stops."""
    while not stop.wait(0.02):
        row = database.connection.execute(_sql(statement), MINE | arguments).fetchone()
        if row is not None:
            return tuple(row)
    return None


def _report(dsn: str, counts: DemoCounts) -> bool:
    """Print one status line; True when every sample took effect once and the ledger replays."""
    with Database.connect(dsn) as database:
        connection = database.connection
        connection.execute(_sql("delete_old_effects"))
        replayed = replay(connection)
        batches = [violation.batch for violation in replayed.violations]
        row = connection.execute(_sql("status"), MINE | {"after": counts.after}).fetchone()
        mine = connection.execute(_sql("own_batches"), MINE | {"batches": batches}).fetchall()
    status = DemoStatus(*(row or ()))
    counts.add_refusals(status.refused_writes)
    _print(status.line(counts, replay_ok=not mine))
    return not mine and not status.wrong


def _print(message: str) -> None:
    if os.environ.get("HELIX_LOG") == "json":
        text = message_line(logging.INFO, message)
    else:
        text = f"{time.strftime('%H:%M:%S')}  {message}"
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            indent = " " * 10
            first, *rest = text.split(BREAK, 1) if len(text) > width else [text]
            lines = [first, *(f"{indent}{part}" for part in rest)]
            text = "\n".join(textwrap.fill(part, width, subsequent_indent=indent) for part in lines)
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _sql(name: str) -> str:
    return statements("helixqueue.demo", "demo.sql")[name].sql


if __name__ == "__main__":
    sys.exit(main())
