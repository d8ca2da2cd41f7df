"""Pages of queues and workers read a bounded number of rows, however many others exist."""

from __future__ import annotations

from functools import partial

import pytest

from helixqueue.engine import reads
from tests.support.bounded_reads import (
    LIMIT,
    ROWS_READ_MAX,
    ROWS_SCANNED,
    database_without_autovacuum,
    rows_read,
)
from tests.support.lab import Lab

EACH = 120


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from database_without_autovacuum(server, template, pooler)


@pytest.fixture(scope="module")
def many_names(database):
    """Tenants with many queues and workers, and other tenants before and after them by name."""
    with Lab(database) as own:
        for tenant in ("l", "m", "n"):
            for number in range(EACH):
                own.queue(f"many-{number}", tenant=tenant)
    with database.connect("service") as service, service.transaction():
        for tenant in ("l", "m", "m-2", "n"):
            service.execute("select set_config('helix.tenant', %s, true)", [tenant])
            service.execute(
                "select helix.hello_v1('w-' || n) from generate_series(1, %s) n", [EACH]
            )
    database.rows("select helix.hello_v1('own')", role="pool")
    with database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")
    return database


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("tenant", ["m", None])
def test_page_of_queues_reads_no_more_than_its_share(many_names, tenant, plans):
    with Lab(many_names) as fresh:
        fresh.rows_as_client("select set_config('plan_cache_mode', %s, false)", plans)
        for after in (None, "m/many-40", "m/many-110"):
            call = reads.queues(tenant=tenant, after=after, limit=LIMIT, bound=10)
            assert rows_read(fresh, call) <= ROWS_READ_MAX
        assert rows_read(fresh, reads.queues(tenant="m", queue="many-110")) <= ROWS_READ_MAX


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("workers", "seen_by"),
    [
        # One serves every tenant.
        (partial(reads.workers, tenant="m"), ("service", EACH + 1)),
        (reads.workers, ("service", EACH + 1)),
        (reads.workers, ("operator", 4 * EACH + 1)),
        (partial(reads.workers, tenant="m"), ("operator", EACH + 1)),
    ],
)
def test_worker_pages_are_bounded_and_complete(many_names, monkeypatch, workers, seen_by, plans):
    role, there = seen_by
    monkeypatch.setitem(reads._ROWS_SCANNED, "workers", ROWS_SCANNED)
    later = many_names.value("select clock_timestamp() + interval '1 hour'")
    with Lab(many_names, role) as fresh, fresh.store.connection.transaction():
        fresh.rows_as_client("select set_config('helix.tenant', 'm', true)")
        fresh.rows_as_client("select set_config('plan_cache_mode', %s, true)", plans)
        for since, wanted in ((None, there), (later, 0)):
            found = list(every(fresh, partial(workers, since=since)))
            assert found == sorted(set(found))
            assert len(found) == wanted


def every(fresh, workers):
    after = None
    while True:
        call = workers(after=after, limit=LIMIT)
        assert rows_read(fresh, call) <= ROWS_READ_MAX
        page = fresh.run(call)
        yield from ((worker.tenant, worker.name) for worker in page.rows)
        after = page.next
        if after is None:
            return
