"""Runs in the database: keys, pages, counts, tries, stop, cancel and retry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from helixqueue import HelixQueue
from helixqueue.errors import Conflict, HelixError, IllegalTransition, NoSuchRun
from tests.support.duties import make_all_due
from tests.support.lab import new_database, pass_time
from tests.support.runs import Runs, allow, datum
from tests.support.shift import proven


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def helix(database):
    with HelixQueue(database.dsn("pool"), tenant="a") as client:
        yield client


@pytest.fixture
def runs(database, helix):
    made = Runs(database, helix)
    with made.lab:
        yield made


def counts(run):
    return run.pending, run.running, run.completed, run.failed, run.cancelled


def test_run_ends_when_every_datum_completed(runs):
    run = runs.start("a", "b", "c")
    assert (run.state, counts(run)) == ("running", (3, 0, 0, 0, 0))
    first, *others = runs.lab.claim(3)
    assert {lease.run for lease in (first, *others)} == {run.run}
    runs.lab.complete(first)
    run = runs.advance(run)
    assert (run.state, counts(run), run.ended_at) == ("running", (0, 2, 1, 0, 0), None)
    runs.lab.complete(*others)
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("done", (0, 0, 3, 0, 0))
    assert run.ended_at is not None


def test_repeated_start_answers_the_same_run_and_another_one_conflicts(runs):
    values = runs.values("a", "b", key="mine")
    first, again = runs.helix.start_run(**values), runs.helix.start_run(**values)
    assert (first.is_new, again.is_new) == (True, False)
    assert (first.run, first.name) == (again.run, again.name)
    assert first.name.startswith("words-")
    for other in ({"digest": "0" * 64}, {"spec": '{"other":1}'}, {"egress": "memory://lab/else"}):
        with pytest.raises(Conflict, match="mine"):
            runs.helix.start_run(**{**values, **other})


def test_interrupted_start_resumes_after_the_last_page(runs):
    begun = runs.helix.start_run(**runs.values("a", "b", "c"))
    page = [datum("a"), datum("b")]
    assert runs.helix.append_run(begun.name, first=0, datums=page).appended == 2
    # The answer was lost: the same page, and the page before, change nothing.
    repeated = runs.helix.append_run(begun.name, first=0, datums=page)
    assert (repeated.is_new, repeated.appended) == (False, 2)
    with pytest.raises(HelixError, match="expected datums from number 2"):
        runs.helix.append_run(begun.name, first=1, datums=[datum("b"), datum("c")])
    with pytest.raises(HelixError, match="expected datums from number 2 to 2"):
        runs.helix.append_run(begun.name, first=2, datums=[datum("c"), datum("d")])
    last = runs.helix.append_run(begun.name, first=2, datums=[datum("c")])
    assert (last.state, last.appended) == ("running", 3)
    with pytest.raises(IllegalTransition):
        runs.helix.append_run(begun.name, first=3, datums=[datum("d")])
    assert counts(runs.helix.run(begun.name)) == (3, 0, 0, 0, 0)


def test_page_with_a_foreign_or_repeated_datum_is_refused_whole(runs):
    begun = runs.helix.start_run(**runs.values("a", "b"))
    for page in ([datum("a"), datum("a")], [datum("a"), datum("b", "memory://elsewhere/b")],
                 [datum("a"), datum("b", "memory://lab/in/../../b")]):  # fmt: skip
        with pytest.raises(HelixError):
            runs.helix.append_run(begun.name, first=0, datums=page)
    assert counts(runs.helix.run(begun.name)) == (0, 0, 0, 0, 0)
    assert runs.lab.claim(5) == []


def test_datum_tries_replaces_the_attempts_of_the_queue(runs):
    run = runs.start("a", "b", tries=2)
    for _ in range(2):
        first, second = runs.lab.claim(2)
        runs.lab.fail(first, failure="exit 3")
        runs.lab.fail(second, failure="exit 9")
    assert runs.lab.claim(2) == []
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("failed", (0, 0, 0, 2, 0))
    assert run.failures == {"exit 3": 2, "exit 9": 2}


def test_lost_worker_and_failed_command_are_counted_apart(runs, database):
    run = runs.start("a", "b", tries=3)
    lost, failed = runs.lab.claim(2)
    pass_time(database, lost.batch)
    runs.lab.fail(failed, failure="exit 3")
    again = runs.lab.claim(2)
    assert sorted(lease.attempt for lease in again) == [2, 2]
    assert runs.helix.run(run.name).failures == {"exit 3": 1, "lost": 1}


def test_retry_reopens_failed_datums_of_the_same_run_and_keeps_completed_ones(runs):
    run = runs.start("a", "b", tries=1)
    good, bad = runs.lab.claim(2)
    runs.lab.complete(good)
    runs.lab.fail(bad)
    run = runs.advance(run)
    assert run.state == "failed"
    again = runs.helix.retry_run(run.name, reason="fixed")
    assert (again.run, again.is_new) == (run.run, True)
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("running", (1, 0, 1, 0, 0))
    [lease] = runs.lab.claim(5)
    assert (lease.batch, lease.attempt) == (bad.batch, 1)
    runs.lab.complete(lease)
    assert runs.advance(run).state == "done"
    with pytest.raises(IllegalTransition, match="done"):
        runs.helix.retry_run(run.name, reason="again")


def test_run_past_its_timeout_stops_and_a_retry_continues_what_never_ran(runs):
    run = runs.start("a", "b", "c", timeout_seconds=1)
    done, stuck = runs.lab.claim(2)
    runs.lab.complete(done)
    runs.lab.superuser.execute("alter table helix.run disable trigger a_guard")
    runs.lab.superuser.execute("update helix.run set deadline = now() where id = %s", (run.run,))
    runs.lab.superuser.execute("alter table helix.run enable always trigger a_guard")
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("failed", (1, 0, 1, 1, 0))
    assert "job_timeout" in run.problem
    assert run.failures == {"JobTimeout": 1}
    [answer] = runs.lab.complete(stuck)
    assert answer.answer == "refused"
    assert runs.lab.claim(5) == []
    [held] = runs.helix.datums(run.name, state="PENDING")
    assert (held.identity, held.cause) == ((run.name, "c"), "held")
    runs.helix.retry_run(run.name, reason="more time")
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("running", (2, 0, 1, 0, 0))
    assert run.deadline is not None
    runs.lab.complete(*runs.lab.claim(5))
    assert runs.advance(run).state == "done"


def test_cancelled_run_ends_leases_and_starts_nothing_more(runs):
    run = runs.start("a", "b", "c")
    done, running = runs.lab.claim(2)
    runs.lab.complete(done)
    assert runs.helix.cancel_run(run.name, reason="wrong input").is_new
    assert runs.helix.cancel_run(run.name, reason="wrong input").is_new is False
    [answer] = runs.lab.complete(running)
    assert answer.answer == "refused"
    run = runs.advance(run)
    assert (run.state, counts(run), run.problem) == ("cancelled", (0, 0, 1, 0, 2), "wrong input")
    with pytest.raises(IllegalTransition, match="cancelled"):
        runs.helix.retry_run(run.name, reason="again")


def test_run_cancelled_during_expansion_takes_no_more_datums(runs):
    begun = runs.helix.start_run(**runs.values("a", "b"))
    runs.helix.append_run(begun.name, first=0, datums=[datum("a")])
    runs.helix.cancel_run(begun.name, reason="wrong input")
    with pytest.raises(IllegalTransition, match="cancel"):
        runs.helix.append_run(begun.name, first=1, datums=[datum("b")])
    assert counts(runs.advance(runs.helix.run(begun.name))) == (0, 0, 0, 0, 1)


def test_large_run_is_cancelled_page_by_page_while_workers_claim(runs):
    names = [f"d{number:04}" for number in range(2_500)]
    run = runs.start(*names)
    held = runs.lab.claim(7)
    runs.helix.cancel_run(run.name, reason="x")
    run = runs.advance(run)
    assert (run.state, counts(run)) == ("cancelled", (0, 0, 0, 0, 2_500))
    assert {answer.answer for answer in runs.lab.complete(*held)} == {"refused"}


def test_run_without_datums_is_done(runs):
    assert runs.advance(runs.start()).state == "done"


def test_single_retry_of_a_batch_lets_a_failed_run_run_again(runs):
    run = runs.start("a", tries=1)
    [lease] = runs.lab.claim()
    runs.lab.fail(lease)
    assert runs.advance(run).state == "failed"
    runs.helix.retry(lease.batch_id, reason="by hand")
    assert runs.advance(run).state == "running"
    runs.lab.complete(*runs.lab.claim())
    assert runs.advance(run).state == "done"


def test_tenant_does_not_see_runs_of_another(runs, database):
    run = runs.start("a")
    with HelixQueue(database.dsn("pool"), tenant="b") as other:
        assert run.name not in [row.name for row in other.runs()]
        with pytest.raises(NoSuchRun):
            other.run(run.name)


def test_egress_is_stored_where_the_root_says(runs, database):
    allow(database, "gs://bucket", stored_at="memory://lab/bucket")
    run = runs.start("a", egress="gs://bucket/words/")
    assert (run.egress, run.destination) == ("gs://bucket/words/", "memory://lab/bucket/words")
    run = runs.start("a", egress="gs://bucket/words", layout="run")
    assert run.destination == f"memory://lab/bucket/words/{run.name}"
    allow(database, "memory://reads", is_input=True)
    for egress in ("memory://reads/out", "s3://unknown/x", "gs://bucket/../x"):
        with pytest.raises(HelixError, match="below a root"):
            runs.start("a", egress=egress)


def test_ledger_and_counts_stay_consistent(runs, database):
    run = runs.start("a", "b", "c", tries=7)
    for lease in runs.lab.claim(3):
        runs.lab.fail(lease)
    runs.lab.complete(*runs.lab.claim(2))
    runs.helix.cancel_run(run.name, reason="x")
    runs.advance(run)
    make_all_due(runs.lab)
    proven(database)


def test_second_attempt_of_the_same_worker_has_another_token(runs, database):
    runs.start("a", tries=2)
    [first] = runs.lab.claim()
    pass_time(database, first.batch)
    [second] = runs.lab.claim()
    assert (second.batch, second.attempt) == (first.batch, 2)
    [late] = runs.lab.complete(first)
    assert late.answer == "refused"
    [answer] = runs.lab.complete(second)
    assert answer.answer == "ok"


def test_error_of_every_attempt_stays_on_record(runs):
    runs.start("a", tries=3)
    for number in (1, 2):
        [lease] = runs.lab.claim()
        runs.lab.fail(lease, failure="exit 3", detail=f"attempt {number} broke")
    [lease] = runs.lab.claim()
    runs.lab.complete(lease)
    batch = runs.helix.batch(lease.batch_id)
    details = [event.detail for event in batch.events if event.reason == "failed"]
    assert details == ["attempt 1 broke", "attempt 2 broke"]
    assert (str(batch.state), batch.failure) == ("COMPLETED", None)


def test_failed_datum_is_claimable_within_seconds(database, helix):
    settings = Runs(database, helix, backoff_seconds=2)
    with settings.lab as lab:
        run = settings.start("a", tries=2)
        lab.fail(*lab.claim(), failure="exit 1")
        [waiting] = helix.datums(run.name)
        assert waiting.cause == "delay"
        seconds = (waiting.due - datetime.now(UTC)).total_seconds()
        assert seconds <= 2


def test_concurrent_starts_with_one_key_make_one_run_with_every_datum_once(runs, database):
    names = [f"d{number:03}" for number in range(60)]
    values = runs.values(*names, key="twice")

    def start(_):
        with HelixQueue(database.dsn("pool"), tenant="a") as helix:
            begun = helix.start_run(**values)
            for first in range(0, len(names), 10):
                page = [datum(name) for name in names[first : first + 10]]
                helix.append_run(begun.name, first=first, datums=page)
            return begun

    with ThreadPoolExecutor(4) as pool:
        begun = list(pool.map(start, range(4)))
    assert len({answer.run for answer in begun}) == 1
    assert [answer.is_new for answer in begun].count(True) == 1
    run = runs.helix.run(begun[0].name)
    assert (run.state, run.appended, counts(run)) == ("running", 60, (60, 0, 0, 0, 0))
    assert len(runs.lab.claim(100)) == 60
