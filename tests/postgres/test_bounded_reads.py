"""The rows that a read scans are bounded, however many there are and however rare a match is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from helixqueue.engine import reads
from helixqueue.states import State
from tests.support.bounded_reads import (
    LIMIT,
    ROWS_READ_MAX,
    ROWS_SCANNED,
    database_without_autovacuum,
    rows_read,
)
from tests.support.database import copy_of
from tests.support.lab import Lab, completion, failure

EACH = 600  # completed, and pending ones


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from database_without_autovacuum(server, template, pooler)


@pytest.fixture(scope="module")
def lab(database):
    """Many finished and pending batches, more that finished since, and few others."""
    with Lab(database, q="deep") as lab:
        lab.queue(max_attempts=1)
        lab.queue(tenant="b")
        lab.queue("calm")
        lab.submit("rare", queue="calm")
        lab.submit_many(3, prefix="torn")
        lab.settle(*[failure(lease, failure="Rare") for lease in lab.claim(3)])
        lab.submit_many(3 * ROWS_SCANNED, prefix="broken")
        lab.settle(*[failure(lease) for lease in lab.claim(3 * ROWS_SCANNED)])
        lab.submit_many(5, prefix="old")
        old = [completion(lease) for lease in lab.claim(5, worker="seldom")]
        lab.settle(*old, worker="seldom")
        lab.submit_many(EACH, prefix="done")
        lab.complete(*lab.claim(EACH))
        lab.submit("only", tenant="b")
        lab.submit("only", tenant="b", revision="2")
        lab.submit_many(EACH, prefix="wait", priority=9)
        for number in range(60):
            lab.submit("again", revision=str(number), priority=9)
        lab.submit_many(EACH, prefix="then", priority=0)
        lab.complete(*lab.claim(EACH + 2))  # and the two of b
        lab.claim(9, worker="holder")
        lab.set_run(7, "^(done|then|only)")
        lab.set_run(8, "^(old|rare)")
        # As autovacuum would: small tables without statistics are read whole.
        with database.connect("helix_bootstrap") as connection:
            connection.execute("analyze")
        yield lab


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(reads, "_ROWS_SCANNED", dict.fromkeys(reads._ROWS_SCANNED, ROWS_SCANNED))


def lists(lab) -> dict[str, dict[str, Any]]:
    now, middle = lab.rows(
        "select now(), coalesce(max(created_at), now()) from helix.overview "
        "where identity = 'wait00000' and tenant = 'a'"
    )[0]
    found: dict[str, dict[str, Any]] = {
        "all": {},
        "queue": {"queue": "deep"},
        "no such queue": {"queue": "nothing"},
        "since now": {"since": now},
        "time": {"until": middle},
        "worker": {"worker": "holder"},
        "nobody": {"worker": "nobody"},
        "identity": {"identity": "rare"},
        "revisions": {"identity": "again"},
        "revisions, state": {"identity": "again", "state": State.FAILED},
        "identity, state, time": {"identity": "rare", "state": State.FAILED, "until": middle},
        "identity, worker": {"identity": "old00001", "worker": "seldom"},
    }
    for state in State:
        found |= {
            f"{state}": {"state": state},
            f"{state} queue": {"state": state, "queue": "deep"},
            f"{state} calm": {"state": state, "queue": "calm"},
            f"{state} since now": {"state": state, "since": now},
            f"{state} before all": {"state": state, "until": now - timedelta(days=1)},
            f"{state} time": {"state": state, "until": middle},
        }
        if state is not State.PENDING:
            found |= {
                f"{state} worker": {"state": state, "worker": "seldom"},
                f"{state} nobody": {"state": state, "worker": "nobody"},
            }
    return found


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("tenant", ["a", "b", None])
def test_page_reads_no_more_than_it_may(lab, tenant, plans):
    with Lab(lab.database, q="deep") as fresh:
        fresh.rows_as_client("select set_config('plan_cache_mode', %s, false)", plans)
        read = {
            name: rows_read(fresh, reads.batches(tenant=tenant, limit=LIMIT, **filters))
            for name, filters in lists(fresh).items()
        }
    assert {name: count for name, count in read.items() if count > ROWS_READ_MAX} == {}


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("tenant", ["a", None])
@pytest.mark.parametrize("queue", ["deep", None])
@pytest.mark.parametrize("failure", [None, "Broken", "Rare", "none such"])
def test_failed_batches_are_listed_in_bounded_pages_without_gaps(
    lab, tenant, queue, failure, plans
):
    wanted = {None: 3 + 3 * ROWS_SCANNED, "Broken": 3 * ROWS_SCANNED, "Rare": 3}.get(failure, 0)
    value = {"tenant": tenant, "queue": queue, "failure": failure, "state": State.FAILED}
    with Lab(lab.database, q="deep") as fresh:
        fresh.rows_as_client("select set_config('plan_cache_mode', %s, false)", plans)
        found, after = [], None
        while True:
            call = reads.batches(limit=LIMIT, after=after, **value)
            assert rows_read(fresh, call) <= ROWS_READ_MAX
            page = fresh.run(call)
            found += [row.batch_id for row in page.rows]
            after = page.next
            if after is None:
                break
    assert len(found) == len(set(found)) == wanted


@pytest.mark.parametrize("state", [None, State.COMPLETED])
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_last_page_touches_no_more_than_the_first(lab, plans, state):
    """A walk begins where the page does: rows that an index steps over count as read nowhere."""
    oldest = lab.value(
        "select min(created_at) from helix.overview where tenant = 'a' and queue = 'deep'"
        if state is None
        else "select min(finished_at) from helix.overview where tenant = 'a' and queue = 'deep'"
    )
    behind = oldest + timedelta(microseconds=1)
    touched = []
    with lab.database.connect(cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(f"set plan_cache_mode = {plans}")
        for bounds in ({}, {"until": behind}, {"after": f"{behind.isoformat()}~0"}):
            call = reads.batches(tenant="a", queue="deep", state=state, limit=1, **bounds)
            for _ in range(2):  # the first time, catalogs are read as well
                [(answer,)] = connection.execute(
                    f"explain (analyze, buffers, format json) {call.sql}", call.args
                ).fetchall()
            touched.append(answer[0]["Plan"]["Shared Hit Blocks"])
    assert max(touched) <= touched[0] + 4


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
def test_counting_stops_at_its_bound(lab, plans):
    with Lab(lab.database, q="deep") as fresh:
        fresh.rows_as_client("select set_config('plan_cache_mode', %s, false)", plans)
        few = rows_read(fresh, reads.queues(tenant="a", queue="deep", bound=10))
        assert few <= ROWS_READ_MAX
        [sight] = fresh.run(reads.queues(tenant="a", queue="deep", bound=10)).rows
        assert (str(sight.counts.ready), sight.counts.running.number) == ("10+", 9)
        assert rows_read(fresh, reads.queues(tenant="b", queue="deep", bound=EACH)) <= ROWS_READ_MAX


def test_plan_made_while_tables_were_empty_reads_no_more(server, template, pooler):
    """A session keeps its plans; nobody analyzes the tables in time."""
    with copy_of(template, server, "helix_grown", pooler) as database:
        with database.connect("helix_bootstrap") as connection:
            for table in ("batch", "work", "entry", "result", "ended", "request"):
                connection.execute(f"alter table helix.{table} set (autovacuum_enabled = off)")
        with Lab(database, q="deep") as lab, Lab(database, "app_a", q="deep") as early:
            found = {
                name: reads.batches(tenant=tenant, limit=LIMIT, **filters)
                for tenant in ("a", None)
                for name, filters in lists(early).items()
            }
            found["failure"] = reads.batches(failure="none such", limit=LIMIT)
            found["queues"] = reads.queues(bound=10)
            for call in found.values():
                early.run(call)
            lab.queue(max_attempts=1)
            lab.submit_many(EACH)
            lab.complete(*lab.claim(EACH))
            lab.submit_many(EACH, prefix="torn")
            lab.fail(*lab.claim(EACH))
            lab.submit_many(EACH, prefix="wait")
            read = {name: rows_read(early, call) for name, call in found.items()}
    assert {name: count for name, count in read.items() if count > ROWS_READ_MAX} == {}


TRUTH = """
  select v.identity, v.revision from helix.overview v
  where (%(tenant)s::text is null or v.tenant = %(tenant)s)
    and (%(queue)s::text is null or v.queue = %(queue)s)
    and (%(state)s::text is null or v.state::text = %(state)s)
    and (%(identity)s::text is null or v.identity = %(identity)s)
    and (%(worker)s::text is null or v.worker = %(worker)s
         or v.state::text = %(state)s and v.finished_by = %(worker)s)
    and (%(run)s::bigint is null or v.run = %(run)s)
    and case when %(state)s in ('COMPLETED', 'FAILED', 'CANCELLED')
                  and %(identity)s::text is null and %(run)s::bigint is null
             then v.finished_at else v.created_at end
        between coalesce(%(since)s::timestamptz, '-infinity')
            and coalesce(%(until)s::timestamptz, 'infinity') - interval '1 us'
"""


@pytest.mark.parametrize("tenant", ["a", "b", None])
def test_bounded_pages_lead_to_all_rows(lab, tenant):
    for name, filters in lists(lab).items():
        wanted = dict.fromkeys(("queue", "state", "identity", "worker", "run", "since", "until"))
        wanted |= filters | {"tenant": tenant}
        with lab.database.connect("helix_bootstrap") as connection:
            truth = connection.execute(TRUTH, wanted).fetchall()
        found, after, pages = [], None, 0
        while True:
            page = lab.run(reads.batches(tenant=tenant, limit=50, after=after, **filters))
            found += [(row.identity[0], row.revision) for row in page.rows]
            after, pages = page.next, pages + 1
            if after is None:
                break
        assert len(found) == len(set(found) if tenant else found), name
        assert sorted(found) == sorted(truth), name
        assert pages <= 8 * EACH // ROWS_SCANNED, name  # it came to an end


def test_pending_batch_is_found_despite_later_finished_ones(lab):
    """Of a queue with few pending ones, all are on the first page."""
    page = lab.run(reads.batches(tenant="a", queue="calm", state=State.PENDING, limit=LIMIT))
    assert [row.identity for row in page.rows] == [("rare",)]
    assert page.next is None
