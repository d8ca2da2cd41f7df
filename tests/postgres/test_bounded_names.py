"""Pages of queues and workers read their share, however many others there are."""

from __future__ import annotations

from functools import partial

import pytest

from helixqueue.engine import reads, service_calls
from tests.postgres.test_bounded_reads import LIMIT, LOOK, MOST, database, rows_read
from tests.support.lab import Lab

__all__ = ["database"]
EACH = 300


@pytest.fixture(scope="module")
def crowded(database):
    """Tenants with many queues and many workers, and others before and behind them."""
    with Lab(database) as own:
        for tenant in ("l", "m", "n"):
            for number in range(EACH):
                own.queue(f"many-{number}", tenant=tenant)
    with database.connect("service") as service, service.transaction():
        for tenant in ("l", "m", "m-2", "n"):
            service.execute("select set_config('helix.tenant', %s, true)", [tenant])
            service.execute(
                "select helix.hello_v1(%s || '/w-' || n) from generate_series(1, %s) n",
                [tenant, EACH],
            )
    database.rows("select helix.hello_v1('own')", role="pool")
    with database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")
    return database


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("tenant", ["m", None])
def test_a_page_of_queues_reads_no_more_than_its_share(crowded, tenant, plans):
    with Lab(crowded) as fresh:
        fresh.own_rows("select set_config('plan_cache_mode', %s, false)", plans)
        for after in (None, "m/many-100", "m/many-290"):
            call = reads.queues(tenant=tenant, after=after, limit=LIMIT, bound=10)
            assert rows_read(fresh, call) <= MOST
        assert rows_read(fresh, reads.queues(tenant="m", queue="many-290")) <= MOST


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("workers", "seen_by"),
    [
        (partial(service_calls.tenant_workers, tenant="m"), ("service", EACH)),
        (reads.workers, ("operator", 4 * EACH + 1)),
        (reads.workers, ("pool", 1)),
    ],
)
def test_workers_are_looked_for_in_bounded_steps_and_all_are_found(
    crowded, monkeypatch, workers, seen_by, plans
):
    role, there = seen_by
    monkeypatch.setattr(service_calls, "WORKERS_SCANNED", LOOK)
    monkeypatch.setitem(reads._ROWS_SCANNED, "workers", LOOK)
    later = crowded.value("select clock_timestamp() + interval '1 hour'")
    with Lab(crowded, role) as fresh, fresh.store.connection.transaction():
        fresh.own_rows("select set_config('helix.tenant', 'm', true)")
        fresh.own_rows("select set_config('plan_cache_mode', %s, true)", plans)
        for since, wanted in ((None, there), (later, 0)):
            found = list(every(fresh, partial(workers, since=since)))
            assert found == sorted(set(found))
            assert len(found) == wanted


def every(fresh, workers):
    after = None
    while True:
        call = workers(after=after, limit=LIMIT)
        assert rows_read(fresh, call) <= MOST
        page = fresh.run(call)
        yield from ((one.role, one.name) for one in page.rows)
        after = page.next
        if after is None:
            return
