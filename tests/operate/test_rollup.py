"""The rollup of the ledger: every step counted once, whatever happens to the duty that keeps it."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.engine import duties
from helixqueue.records.series import BUCKETS_MAX, add_histograms, bucket_bounds, quantile
from tests.support.duties import make_due, run_duty
from tests.support.lab import Lab, end_minute, engine_function, time_control

FIGURES = (
    "submitted", "repeated", "completed", "failed", "cancelled", "lost", "refused", "pending",
)  # fmt: skip
# What the rollup must have, counted step by step.
COUNTED = """
with happened as (
  select e.tenant, q.name as queue, e.at, n.name, n.number
  from helix.event e join helix.queue q on q.id = e.queue
  cross join lateral (
    values ('submitted', (e.from_state is null)::int), ('lost', (e.reason = 'lost')::int),
           ('completed', (e.to_state = 'COMPLETED')::int), ('failed', (e.to_state = 'FAILED')::int),
           ('cancelled', (e.to_state = 'CANCELLED')::int),
           ('pending', (e.to_state = 'PENDING')::int
                       - coalesce((e.from_state = 'PENDING')::int, 0)),
           ('wait', (e.reason = 'claimed')::int),
           ('run', (e.reason in ('completed', 'failed'))::int)) as n (name, number)
  union all
  select d.tenant, d.queue, d.at, 'repeated', d.times
  from helix.decision d where d.kind = 'duplicate'
  union all
  select r.tenant, q.name, r.first_at, 'refused', 1
  from helix.refusal r join helix.batch b on b.id = r.batch join helix.queue q on q.id = b.queue
)
select h.tenant, h.queue, s.seconds, date_bin(make_interval(secs => s.seconds), h.at, 'epoch'),
       h.name, sum(h.number)
from happened h
cross join (values (60), (3600)) as s (seconds)
where h.queue not in (select q.name from helix.queue q
                      join helix.batch b on b.queue = q.id where b.retired_at is not null)
group by 1, 2, 3, 4, 5 having sum(h.number) <> 0
"""
KEPT = f"""
select r.tenant, r.queue, r.seconds, r.at, n.name, n.number
from helix.rollup r
cross join lateral (
  values {", ".join(f"('{name}', r.{name})" for name in FIGURES)},
         ('wait', (select sum(w) from unnest(r.waits) w)),
         ('run', (select sum(w) from unnest(r.runs) w))) as n (name, number)
where n.number <> 0
"""
# Rows for all queues of a tenant that differ from the sum of its queues.
WRONG_SUMS = """
select r.tenant, r.seconds, r.at from helix.rollup r
group by 1, 2, 3 having sum(case when r.queue = '' then 1 else -1 end
  * (r.submitted + r.repeated * 3 + r.completed * 5 + r.failed * 7 + r.cancelled * 11 + r.lost * 13
     + r.refused * 17 + r.pending * 19 + (select coalesce(sum(w), 0) from unnest(r.waits) w) * 23
     + (select coalesce(sum(w), 0) from unnest(r.runs) w) * 29)) <> 0
"""
# The durations of the steps of one queue, with the bucket of each.
BUCKETS = """
select helix.time_bucket(extract(epoch from e.at - p.at)::float8), count(*)::int
from helix.event e
join helix.event p on p.batch = e.batch and p.version = e.version - 1
join helix.queue q on q.id = e.queue
where q.tenant = 'a' and q.name = 'q' and e.reason = any (%s::helix.reason[]) group by 1 order by 1
"""
KEPT_BUCKETS = """
select u.bucket::int, sum(u.number)::int
from helix.rollup r cross join lateral unnest(r.{}) with ordinality as u (number, bucket)
where r.tenant = 'a' and r.queue = 'q' and r.seconds = 60 and u.number > 0 group by 1 order by 1
"""


def assert_exact(lab: Lab) -> None:
    counted = {row[:5]: int(row[5]) for row in lab.rows(COUNTED)}
    kept = {row[:5]: int(row[5]) for row in lab.rows(KEPT)}
    # Entries of retired batches may be archived, after they were counted.
    assert {key: kept[key] for key in kept if key[:2] in {row[:2] for row in counted}} == counted
    assert counted
    assert lab.rows(WRONG_SUMS) == []


def work_a_little(lab: Lab) -> None:
    """A repeat, a completion, a failure, a loss, a late write and a cancel."""
    lab.queue(max_attempts=1, backoff_seconds=0)
    prefix = str(uuid4())
    rows = lab.submit_many(4, prefix)
    lab.submit_many(2, prefix)
    completed, failed, lost = lab.claim(3)
    lab.complete(completed)
    lab.fail(failed, failure="OutOfMemory")
    lab.pass_time(lost.batch)
    lab.claim(1)
    lab.complete(lost)
    lab.complete(lost)
    lab.decide("cancel", *[row.receipt.batch_id for row in rows])


def test_rollup_equals_a_count_of_the_ledger(busy):
    with Lab(busy) as lab:
        assert run_duty(lab, "metrics") is None
        assert_exact(lab)
        assert lab.rows(KEPT_BUCKETS.format("waits")) == lab.rows(BUCKETS, ["claimed"])
        assert lab.rows(KEPT_BUCKETS.format("runs")) == lab.rows(BUCKETS, ["completed", "failed"])


@pytest.mark.module_database
def test_each_kind_of_event_is_counted_in_its_minute(database):
    with Lab(database) as lab:
        work_a_little(lab)
        end_minute(database)
        assert run_duty(lab, "metrics") is None
        work_a_little(lab)
        end_minute(database)
        assert run_duty(lab, "metrics") is None
        assert_exact(lab)
        figures = ", ".join(f"sum({name})::int" for name in FIGURES)
        [kept] = lab.rows(
            f"select {figures} from helix.rollup where queue = %s and seconds = 60", lab.q
        )
        assert kept == (8, 4, 2, 4, 2, 2, 2, 0)


@pytest.mark.module_database
def test_process_that_dies_during_the_duty_counts_nothing_twice(database):
    with Lab(database) as lab:
        work_a_little(lab)
        make_due(lab, "metrics")
        dying = database.connect("operator")
        dying.execute("begin")
        [(duty, did)] = dying.execute("select duty, did from helix.run_duty_v1('dying')").fetchall()
        assert (duty, did > 0) == ("metrics", True)
        lab.rows("select pg_terminate_backend(%s)", dying.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            dying.execute("commit")
        dying.close()
        assert run_duty(lab, "metrics") is None
        assert_exact(lab)


@pytest.mark.module_database
def test_processes_that_run_the_duty_at_once_count_each_step_once(database):
    with Lab(database, "operator") as operator:
        operator.rows_as_client("select helix.set_duty_v1('metrics', 0.05, 'test', 'often')")
    with Lab(database) as lab, ThreadPoolExecutor(4) as threads:
        working = [threads.submit(_complete_batches, database) for _ in range(2)]
        running = [threads.submit(_run_duties, database, working) for _ in range(2)]
        for future in [*working, *running]:
            future.result()
        assert run_duty(lab, "metrics") is None
        assert_exact(lab)


def _complete_batches(database) -> None:
    with Lab(database) as lab:
        lab.queue()
        for _ in range(30):
            lab.submit_many(3, str(uuid4()))
            lab.complete(*lab.claim(3))


def _run_duties(database, working) -> None:
    with Lab(database) as lab:
        while not all(future.done() for future in working):
            done = lab.run(duties.run_duty(actor="test", limit=1000))
            assert done is None or done.error is None


def test_rows_past_their_time_are_deleted(database):
    with time_control(database), Lab(database) as lab, engine_function(database) as execute:
        work_a_little(lab)
        assert run_duty(lab, "metrics") is None
        for seconds, age in ((60, "49 hours"), (3600, "401 days")):
            error = execute(
                "update helix.rollup set at = date_bin('1 hour', at, 'epoch') - interval "
                f"'{age}' - make_interval(mins => (random() * 1e6)::int) where seconds = {seconds}"
            )
            assert error is None
        assert run_duty(lab, "metrics") is None
        assert lab.rows("select * from helix.rollup") == []


@pytest.mark.parametrize("seconds", [0, 0.0005, 0.001, 0.9, 1.0, 37.5, 86_400, 1e9])
def test_python_and_the_database_agree_on_the_bucket(module_database, seconds):
    with Lab(module_database) as lab:
        bucket = lab.value("select helix.time_bucket(%s::float8)", seconds)
    lower, upper = bucket_bounds(bucket)
    assert lower <= seconds < upper or bucket == BUCKETS_MAX


@given(st.lists(st.floats(0.0015, 1e6), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantile_is_within_the_width_of_a_bucket(durations, share):
    histogram = [0] * BUCKETS_MAX
    for seconds in durations:
        place = next(n for n in range(1, BUCKETS_MAX + 1) if seconds < bucket_bounds(n)[1])
        histogram[place - 1] += 1
    exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
    assert exact / 1.42 <= quantile(histogram, share) <= exact * 1.42


def test_quantile_of_nothing_is_unknown():
    assert quantile([], 0.5) is None
    assert quantile([0, 0], 0.5) is None
    assert quantile(add_histograms([[0, 2], [], [0, 0, 2]]), 1.0) == bucket_bounds(3)[1]
