"""A connection that was there before the work was: plans made on empty tables must not stay."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.engine import calls
from helixqueue.records.claim_hints import Hint
from tests.support.lab import Lab, completion, engine_function

SCANNED = """
  select coalesce(sum(seq_tup_read), 0)::integer from pg_stat_xact_user_tables
  where schemaname = 'helix' and relname in ('entry', 'work', 'batch', 'ended', 'result')
"""
FETCHED = """
  select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables
  where schemaname = 'helix' and relname = 'work'
"""

FETCHED_QUEUES = FETCHED.replace("'work'", "'queue'")


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


def test_ledger_is_never_read_from_end_to_end_for_its_heads(lab):
    lab.queue()
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")  # which somebody does to be sure; now they are known as empty
    # Often enough that PostgreSQL settles for a plan, on tables that are as good as empty.
    for number in range(12):
        lab.submit(f"first-{number}")
        claimed = lab.claim_result(start=True)
        lab.settle(*[completion(lease) for lease in claimed.leases])
    lab.submit_many(300)
    with lab.store.connection.transaction():
        lab.submit_many(50, prefix="then")
        lease = calls.claim(worker="w1", request=uuid.uuid4(), queues=[lab.q], count=50, start=True)
        leases = lab.run(lease).leases
        lab.settle(*[completion(lease) for lease in leases])
        assert len(leases) == 50
        assert lab.rows_as_client(SCANNED) == [(0,)]


@pytest.mark.parametrize("hinted", [False, True])
def test_claim_bound_to_a_tenant_does_not_step_over_the_backlog_of_others(lab, hinted):
    lab.queue()
    lab.queue(tenant="b")
    lab.submit_many(2000)
    lab.submit_many(3, tenant="b")
    hints = [Hint(10**6, 1, 1)] if hinted else []
    with Lab(lab.database, "app_b", q=lab.q) as own:
        own.claim(1, hints=hints)
        no_duty_is_due(own)
        with own.store.connection.transaction():
            [(before,)] = own.rows_as_client(FETCHED)
            assert len(own.claim(2, hints=hints)) == 2
            [(after,)] = own.rows_as_client(FETCHED)
            assert own.claim(2, hints=hints) == []
            [(nothing,)] = own.rows_as_client(FETCHED)
    assert after - before < 30
    assert nothing - after < 30


def test_claim_shared_by_two_tenants_reads_no_queue_of_the_others(lab):
    """It counts the tenants of its lanes; the planner would read all queues to do so."""
    for number in range(100):
        lab.queue(tenant=f"idle{number}")
    for tenant in ("a", "b"):
        lab.queue(tenant=tenant)
        lab.submit_many(20, tenant=tenant)
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")
    lab.claim(1)
    no_duty_is_due(lab)
    with lab.store.connection.transaction():
        [(before,)] = lab.rows_as_client(FETCHED_QUEUES)
        assert {lease.tenant for lease in lab.claim(2)} == {"a", "b"}
        [(after,)] = lab.rows_as_client(FETCHED_QUEUES)
    assert after - before < 20


def no_duty_is_due(lab):
    """A claim that does duties reads more."""
    with engine_function(lab.database) as execute:
        later = "update helix.duty set next_at = clock_timestamp() + interval '1 hour'"
        assert execute(later) is None


def test_settlement_reads_only_its_own_leases(lab):
    lab.queue()
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")
    for number in range(12):
        lab.submit(f"first-{number}", f"second-{number}")
        lab.settle(*[completion(lease) for lease in lab.claim_result(2, start=True).leases])
    lab.submit_many(300)
    leases = lab.claim_result(300, start=True).leases
    with lab.store.connection.transaction():
        # Of earlier transactions too, until a session reports them.
        [(before,)] = lab.rows_as_client(FETCHED)
        lab.settle(*[completion(lease) for lease in leases[:2]])
        [(after,)] = lab.rows_as_client(FETCHED)
        assert 2 <= after - before < 20
