"""The lab of `helixq up --demo`: sheets come in, workers die and freeze, nothing is done twice.

Run with HELIX_DSN until a signal ends it; ends with 1 if anything was done twice or not at all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sheet import BASECALL, BROKEN, TENANT
from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.ledger.replay import replay
from helixqueue.postgres.database import Database
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from collections.abc import Iterator

SHEET_SECONDS = 1.0
SHEET_ROWS = 6
LINE_SECONDS = 4.0
TROUBLE_SECONDS = 5.0
# Batches go when they are five minutes old: what runs for days stays small.
KEEP_SECONDS = 300.0
SLEEPER = "bo"  # a plain script that looks at no clock, as people write them
NAMES = ("ada", "cem", "dita", "eli", "fay", "gus")
HANDS = 3


class Standing(NamedTuple):
    """How the lab stands, as the database has it."""

    completed: int
    retired: int
    refused: int
    wrong: int  # samples with another number of effects than one

    def line(self, seen: Seen, *, clean: bool) -> str:
        done = self.completed + self.retired
        once = "each once" if not self.wrong else f"{self.wrong} NOT ONCE"
        return (
            f"submitted {seen.rows}, deduplicated {seen.duplicates}, bad names {seen.refused} | "
            f"completed {done}, {once} | killed {seen.killed}, late writes refused "
            f"{self.refused} | replay {'ok' if clean else 'BROKEN'}"
        )


@dataclass
class Seen:
    """What this run saw."""

    rows: int = 0
    duplicates: int = 0
    refused: int = 0
    killed: int = 0


def main() -> int:
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    dsn = os.environ["HELIX_DSN"]
    seen = Seen()
    with HelixQueue(dsn, TENANT, actor="sheet") as helix:
        helix.know(BASECALL)
        with Database.connect(dsn) as database:
            queue = BASECALL.name
            database.run(
                calls.set_queue(tenant=TENANT, queue=queue, keep_completed_seconds=KEEP_SECONDS)
            )
        with _hands(dsn) as hands:
            trouble = threading.Thread(target=_make_trouble, args=(dsn, hands, seen, stop))
            trouble.start()
            _go_on(helix, dsn, seen, stop)
            trouble.join()
        return 0 if _tell(dsn, seen) else 1


def _go_on(helix: HelixQueue, dsn: str, seen: Seen, stop: threading.Event) -> None:
    """Sheets and lines, each in its time; a database that is away for a while is waited for."""
    run = f"{time.time():.0f}"[-6:]
    number = 0
    next_line = time.monotonic() + LINE_SECONDS
    while not stop.wait(SHEET_SECONDS):
        try:
            number = _submit(helix, seen, run, number)
            if time.monotonic() >= next_line:
                _tell(dsn, seen)
                next_line += LINE_SECONDS
        except (HelixError, psycopg.Error) as error:
            _say(f"the lab waits: {str(error).strip()}")


def _submit(helix: HelixQueue, seen: Seen, run: str, number: int) -> int:
    """A sheet as people send it: new samples, one of them in two spellings, and some of before."""
    fresh = [f"S\u00e4mple-{run}-{n:04}" for n in range(number, number + SHEET_ROWS)]
    twin = fresh[0].replace("\u00e4", "a\u0308")
    before = [f"S\u00e4mple-{run}-{number - 1:04}"] if number else []
    broken = [BROKEN] if number % (5 * SHEET_ROWS) == 0 else []
    rows = [*fresh, twin, *before, *broken]
    answers = helix.submit_many(
        BASECALL, [{"identity": name, "payload": {"pod5": _file(name)}} for name in rows]
    )
    decisions = [answer.decision for answer in answers]
    seen.rows += len(rows)
    seen.duplicates += decisions.count("duplicate")
    seen.refused += decisions.count("refused")
    return number + SHEET_ROWS


def _file(name: str) -> str:
    return f"{name[-11:-5]}/{name[-4:]}.pod5"


class Hands:
    """The workers: `HANDS` of the usual kind, and the sleeper."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._started = 0
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.sleeper = self._run("helixqueue.demo.worker", dsn, SLEEPER)
        for _ in range(HANDS):
            self.start()

    def start(self) -> None:
        name = f"{NAMES[self._started % len(NAMES)]}{self._started // len(NAMES) or ''}"
        self._started += 1
        self.workers[name] = self._run("helixqueue.demo.live_worker", name)

    def _run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "helixqueue.parent_watch", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HELIX_DSN": self._dsn},
        )

    def stop(self) -> None:
        self.sleeper.kill()
        for worker in self.workers.values():
            worker.terminate()
        for worker in [self.sleeper, *self.workers.values()]:
            worker.communicate()


@contextmanager
def _hands(dsn: str) -> Iterator[Hands]:
    hands = Hands(dsn)
    try:
        yield hands
    finally:
        hands.stop()


def _make_trouble(dsn: str, hands: Hands, seen: Seen, stop: threading.Event) -> None:
    """Kill a worker in the middle of a batch; freeze the sleeper until its batch is done; again."""
    while not stop.wait(TROUBLE_SECONDS):
        try:
            with Database.connect(dsn) as database:
                _kill(database, hands, seen, stop)
                if not stop.wait(TROUBLE_SECONDS):
                    _freeze(database, hands, stop)
        except (HelixError, psycopg.Error) as error:
            _say(f"the lab waits: {str(error).strip()}")


def _kill(database: Database, hands: Hands, seen: Seen, stop: threading.Event) -> None:
    found = _await(database, stop, "running_beside", SLEEPER)
    if found is None:
        return
    name = str(found[0]).rpartition("-")[0]
    worker = hands.workers.pop(name)
    worker.kill()
    worker.communicate()
    seen.killed += 1
    hands.start()
    _say(f"killed worker {name} in the middle of {found[1]}, and started another one")


def _freeze(database: Database, hands: Hands, stop: threading.Event) -> None:
    found = _await(database, stop, "running_by", SLEEPER)
    if found is None:
        return
    hands.sleeper.send_signal(signal.SIGSTOP)
    try:
        done = _await(database, stop, "completed", found[0])
    finally:
        hands.sleeper.send_signal(signal.SIGCONT)
    if done is not None and _await(database, stop, "refused", found[0]) is not None:
        heir = str(done[0]).rpartition("-")[0]
        _say(f"froze {SLEEPER} with {found[1]}; {heir} did it, and what {SLEEPER} wrote "
             "afterwards was refused")  # fmt: skip


def _await(
    database: Database, stop: threading.Event, statement: str, *args: object
) -> tuple[Any, ...] | None:
    """The first answer; None when it is time to stop."""
    while not stop.wait(0.02):
        row = database.connection.execute(_sql(statement), args).fetchone()
        if row is not None:
            return tuple(row)
    return None


def _tell(dsn: str, seen: Seen) -> bool:
    """The line that shows it: what came in, what was done, and that the ledger says the same."""
    with Database.connect(dsn) as database:
        connection = database.connection
        connection.execute(_sql("old_effects"))
        replayed = replay(connection)
        mine = {"tenant": TENANT, "queue": BASECALL.name}
        row = connection.execute(_sql("lab"), mine).fetchone()
    standing = Standing(*(row or ()))
    _say(standing.line(seen, clean=replayed.clean))
    return replayed.clean and not standing.wrong


def _say(message: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {message}\n")
    sys.stderr.flush()


def _sql(name: str) -> str:
    return statements("helixqueue.demo", "demo.sql")[name].sql


if __name__ == "__main__":
    sys.exit(main())
