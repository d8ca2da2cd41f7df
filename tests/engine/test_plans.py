"""A connection that was there before the work was: plans made on empty tables must not stay."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.store import calls
from tests.lab import Lab, completed

SCANNED = """
  select coalesce(sum(seq_tup_read), 0) from pg_stat_xact_user_tables
  where schemaname = 'helix' and relname ~ '^event'
"""
FETCHED = """
  select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables
  where schemaname = 'helix' and relname = 'active'
"""


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


def test_the_ledger_is_never_read_from_end_to_end_for_its_heads(lab):
    lab.queue()
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")  # which somebody does to be sure; now they are known as empty
    # Often enough that PostgreSQL settles for a plan, on tables that are as good as empty.
    for number in range(12):
        lab.submit(f"first-{number}")
        claimed = lab.call_claim(start=True)
        lab.settle(*[completed(lease) for lease in claimed.leases])
    lab.submit_many(300)
    with lab.store.connection.transaction():
        lab.submit_many(50, prefix="then")
        lease = calls.claim(worker="w1", request=uuid.uuid4(), queues=[lab.q], count=50, start=True)
        leases = lab.run(lease).leases
        lab.settle(*[completed(one) for one in leases])
        assert len(leases) == 50
        assert lab.value(SCANNED) == 0


def test_a_settlement_reads_its_own_leases_and_not_everybodys(lab):
    lab.queue()
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute("analyze")
    for number in range(12):
        lab.submit(f"first-{number}", f"second-{number}")
        lab.settle(*[completed(lease) for lease in lab.call_claim(2, start=True).leases])
    lab.submit_many(300)
    leases = lab.call_claim(300, start=True).leases
    with lab.store.connection.transaction():
        before = lab.value(FETCHED)  # of earlier transactions too, until a session reports them
        lab.settle(*[completed(lease) for lease in leases[:2]])
        assert lab.value(FETCHED) - before < 20
