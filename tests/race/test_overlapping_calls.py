"""Every call at once, on overlapping sets in any order: nobody deadlocks and no renewal starves.

The workers pin their tokens to a board, and whoever passes acts on some of them: so several
processes renew, settle and release the same leases at the same time, as no sane worker would.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from helixqueue.engine import calls
from helixqueue.records.lease import LeaseRef, Settlement, Token
from helixqueue.records.submission import SubmissionRow
from tests.support.engine_traffic import (
    PAYLOAD,
    RESULT,
    assert_consistent,
    claim,
    drain,
    open_queue,
    open_store,
    run_in_processes,
)

if TYPE_CHECKING:
    from uuid import UUID

    from helixqueue.postgres.database import Database as Store

SECONDS = 60.0 if os.environ.get("HELIX_PROOF") else 3.0
MIXERS, KEEPERS = 6, 2
# A heartbeat's pace. A renewal that is answered busy for half of the run starves; usual are two
# answers in a row, more when the machine stops a process in its transaction.
BEAT_S = 0.05
BUSY_IN_A_ROW = SECONDS / BEAT_S / 2
RUNS_MAX = 6
# Answers that occur only where calls met on the same leases, and the usual ones.
MEETINGS = {
    *("settle ok", "settle refused", "settle repeat", "renew ok", "renew refused", "start ok"),
    *("start repeat", "release ok", "cancel ok", "cancel illegal", "retry ok", "keep ok"),
}
# Nothing here may wait longer than for a few short transactions, even on a crowded machine.
CALL_S = 10.0

BOARD = """
create table board (batch bigint, epoch int, nonce bigint, number bigint, id uuid, kept boolean);
create index on board (number);
grant select, insert, update, delete on board to pool
"""
# Random places without reading the whole board.
SOME = """
select batch, epoch, nonce, number, id from board
where kept <= %s
  and number >= (select min(number) + (max(number) - min(number)) * random() from board)
order by number limit %s
"""


@dataclass
class Report:
    calls: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    slowest_s: Counter[str] = field(default_factory=Counter)
    completed: list[int] = field(default_factory=list)
    cancelled: list[UUID] = field(default_factory=list)
    busy_in_a_row: int = 0


class Mixer:
    """Makes one random call after the other."""

    def __init__(self, db: Store, number: int, *, limits: bool) -> None:
        self.db = db
        self.chance = random.Random(number)
        # One name for all: a repeat is a repeat only by the worker that did it.
        self.name = "w"
        self.prefix = f"s{number}"
        self.limits = limits
        self.submitted = 0
        self.ids: list[UUID] = []
        self.report = Report()
        self.verbs = {
            "claim": 6, "renew": 6, "settle": 4, "start": 2, "release": 2, "cancel": 1, "reap": 1,
            "submit": 2, "retry": 1, "promote": 1,
        }  # fmt: skip
        if limits:
            self.verbs["pause"] = 1

    def work(self, seconds: float) -> Report:
        finish = time.monotonic() + seconds
        while time.monotonic() < finish:
            [verb] = self.chance.choices(list(self.verbs), list(self.verbs.values()))
            getattr(self, verb)()
        return self.report

    def run(self, verb, call):
        began = time.monotonic()
        answer = self.db.run(call)
        took = time.monotonic() - began
        self.report.calls[verb] += 1
        self.report.slowest_s[verb] = max(self.report.slowest_s[verb], took)
        return answer

    def some(self, most: int = 12, *, kept: bool = True) -> list[tuple[LeaseRef, UUID]]:
        """Some leases from the board, in any order; `kept` includes those that keepers renew."""
        rows = self.db.connection.execute(SOME, (kept, self.chance.randint(1, most))).fetchall()
        self.chance.shuffle(rows)
        return [
            (LeaseRef(batch, Token(epoch, nonce, number)), batch_id)
            for batch, epoch, nonce, number, batch_id in rows
        ]

    def heard(self, verb, answers, leases) -> None:
        self.report.answers.update(f"{verb} {answer.answer}" for answer in answers)
        gone = {a.batch for a in answers if a.answer == "refused" or verb in ("settle", "release")}
        self.take_down([lease.token.number for lease in leases if lease.batch in gone])

    def take_down(self, numbers: list[int]) -> None:
        # What another is taking down is left to him: the board itself must not lock anybody up.
        self.db.connection.execute(
            "delete from board where ctid = any (array("
            "select ctid from board where number = any (%s) for update skip locked))",
            (numbers,),
        )

    def pin(self, leases) -> None:
        with self.db.connection.cursor() as cursor:
            cursor.executemany(
                "insert into board values (%s, %s, %s, %s, %s, %s)",
                [
                    (lease.batch, *lease.token, lease.batch_id, isinstance(self, Keeper))
                    for lease in leases
                ],
            )

    # The calls.

    def claim(self) -> None:
        began = time.monotonic()
        start = self.chance.random() < 0.6
        leases = claim(self.db, self.chance.randint(1, 10), self.name, start=start)
        self.report.calls["claim"] += len(leases)
        self.report.slowest_s["claim"] = max(
            self.report.slowest_s["claim"], time.monotonic() - began
        )
        self.pin(leases)

    def _act(self, verb, *, kept: bool = True) -> None:
        leases = [first for first, _ in self.some(kept=kept)]
        if leases:
            call = getattr(calls, verb)(worker=self.name, leases=leases)
            self.heard(verb, self.run(verb, call), leases)

    def renew(self) -> None:
        # Not what keepers renew: they would be told busy because we had renewed it.
        self._act("renew", kept=False)

    def start(self) -> None:
        self._act("start")

    def release(self) -> None:
        self._act("release")

    def settle(self) -> None:
        leases = [first for first, _ in self.some()]
        if not leases:
            return
        settlements = [
            Settlement(lease.batch, lease.token, "completed", RESULT)
            if self.chance.random() < 0.7
            else Settlement(
                lease.batch,
                lease.token,
                "failed",
                failure="Broken",
                permanent=self.chance.random() < 0.3,
                after_seconds=self.chance.choice([None, 0.05]),
            )
            for lease in leases
        ]
        answers = self.run("settle", calls.settle(worker=self.name, settlements=settlements))
        self.heard("settle", answers, leases)
        self.report.completed += [
            a.batch for a in answers if a.answer == "ok" and a.state == "COMPLETED"
        ]

    def cancel(self) -> None:
        ids = list({batch_id for _, batch_id in self.some(4)} | set(self._mine(4)))
        self.chance.shuffle(ids)
        verdicts = self.run("cancel", calls.cancel(ids=ids, reason="wrong tube", actor=self.name))
        self.report.answers.update(f"cancel {verdict.answer}" for verdict in verdicts)
        self.report.cancelled += [v.batch_id for v in verdicts if v.answer == "ok"]

    def retry(self) -> None:
        ids = self._mine(30)
        verdicts = self.run("retry", calls.retry(ids=ids, reason="new reagent", actor=self.name))
        self.report.answers.update(f"retry {verdict.answer}" for verdict in verdicts)

    def reap(self) -> None:
        self.run("reap", calls.reap(actor=self.name))

    def promote(self) -> None:
        self.run("promote", calls.promote())

    def pause(self) -> None:
        call = calls.set_queue(tenant="a", queue="q", paused=self.chance.random() < 0.3)
        self.run("pause", call)

    def submit(self) -> None:
        rows = [
            SubmissionRow(
                f"{self.prefix}-{self.submitted + number}",
                PAYLOAD,
                limit_key=f"gpu-{self.chance.randint(1, 4)}"
                if self.limits and self.chance.random() < 0.8
                else None,
            )
            for number in range(self.chance.randint(5, 20))
        ]
        self.submitted += len(rows)
        call = calls.submit(
            tenant=self.chance.choice(["a", "b"]), queue="q", profile="text-v1", rows=rows
        )
        self.ids += [item.receipt.batch_id for item in self.run("submit", call)]

    def _mine(self, most: int) -> list[UUID]:
        return self.chance.sample(self.ids, min(len(self.ids), self.chance.randint(1, most)))


class Keeper(Mixer):
    """Renews a few leases at a heart's pace while the others do to them what they like."""

    def work(self, seconds: float) -> Report:
        kept: dict[int, LeaseRef] = {}
        busy: dict[LeaseRef, int] = defaultdict(int)
        finish = time.monotonic() + seconds
        while time.monotonic() < finish:
            if len(kept) < 5:
                # A batch that comes a second time was lost in between: the newer token counts.
                leases = claim(self.db, 5 - len(kept), self.name)
                self.pin(leases)
                kept |= {lease.batch: LeaseRef(lease.batch, lease.token) for lease in leases}
            if kept:
                renewals = calls.renew(worker=self.name, leases=list(kept.values()))
                found = {answer.batch: answer.answer for answer in self.run("renew", renewals)}
                assert found.keys() == kept.keys()
                for batch, answer in found.items():
                    busy[kept[batch]] = busy[kept[batch]] + 1 if answer == "busy" else 0
                    self.report.busy_in_a_row = max(self.report.busy_in_a_row, busy[kept[batch]])
                    if answer == "refused":
                        del kept[batch]
                self.report.answers.update(f"keep {answer}" for answer in found.values())
            time.sleep(BEAT_S)
        return self.report


def make_calls(dsn: str, number: int, seconds: float, *, limits: bool) -> Report:
    kind = Keeper if number % (MIXERS + KEEPERS) < KEEPERS else Mixer
    with open_store(dsn) as db:
        return kind(db, number, limits=limits).work(seconds)


def plain(dsn: str, number: int, seconds: float) -> Report:
    return make_calls(dsn, number, seconds, limits=False)


def with_limits(dsn: str, number: int, seconds: float) -> Report:
    return make_calls(dsn, number, seconds, limits=True)


@pytest.mark.timeout(2 * RUNS_MAX * SECONDS + 60)
@pytest.mark.parametrize("work", [plain, with_limits], ids=["plain", "limits-and-pauses"])
def test_overlapping_calls_do_not_deadlock_and_renewals_do_not_starve(database, work):
    dsn = database.dsn("pool")
    with database.connect("helix_bootstrap") as connection:
        connection.execute(BOARD)
    with open_store(dsn) as db:
        open_queue(db, "a", "b", lease_seconds=0.5, max_attempts=1000, key_limit=2)
    # A deadlock would surface as Retryable, in the process and so here. A run proves something only
    # if each call was made often and met the calls of others; until then it is repeated.
    reports: list[Report] = []
    for first in range(0, RUNS_MAX * (MIXERS + KEEPERS), MIXERS + KEEPERS):
        numbers = range(first, first + MIXERS + KEEPERS)
        reports += run_in_processes(work, [(dsn, number, SECONDS) for number in numbers])
        made = sum((report.calls for report in reports), Counter())
        answers = sum((report.answers for report in reports), Counter())
        if min(made.values()) > 10 and set(answers) >= MEETINGS:
            break
    assert min(made.values()) > 10
    assert set(answers) >= MEETINGS

    slowest = Counter[str]()
    for report in reports:
        slowest |= report.slowest_s
    assert max(slowest.values()) < CALL_S
    assert max(report.busy_in_a_row for report in reports) < BUSY_IN_A_ROW
    deadlocks = "select deadlocks from pg_stat_database where datname = %s"
    assert database.value(deadlocks, database.name) == 0

    with open_store(dsn) as db:
        for tenant in ("a", "b"):
            db.run(calls.set_queue(tenant=tenant, queue="q", paused=False))
        drain(db)
    # What was acknowledged is what stands there.
    completed = [batch for report in reports for batch in report.completed]
    assert len(completed) == len(set(completed))
    ended = dict(
        database.rows(
            "select e.batch, w.state::text from helix.ended e"
            " join helix.work w on w.batch = e.batch and helix.ending(w.state) = e.ending"
        )
    )
    assert {ended[batch] for batch in completed} == {"COMPLETED"}
    cancelled = [item for report in reports for item in report.cancelled]
    assert len(cancelled) == len(set(cancelled))
    assert database.rows(
        "select distinct w.state::text from helix.locate(%s) l join helix.work w using (batch)",
        cancelled,
    ) == [("CANCELLED",)]
    assert database.value("select count(*) from helix.event where reason = 'lost'") > 0
    assert_consistent(database)
