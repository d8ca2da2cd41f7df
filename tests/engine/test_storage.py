"""How rows of helix.work are stored: what happens to every batch must stay on its page (HOT).

PostgreSQL decides that by columns, those of index predicates included: one index that names a
column which settling changes, though it matched no row, made every settlement write all indexes.
"""

from __future__ import annotations

import pytest

from tests.support.lab import Lab, completion, wait_until

ROUNDS, SIZE, RENEWALS = 5, 200, 2
COUNTED = (
    "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'helix.work'::regclass"
)
# Columns of an index: those of its key, and those of its expressions and its predicate.
INDEXED = """
select i.indexrelid::regclass::text, array_agg(a.attname::text order by a.attname)
from pg_index i
join pg_attribute a on a.attrelid = i.indrelid and a.attnum > 0
  and (a.attnum = any (i.indkey)
       or exists (select from pg_depend d
                  where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                    and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid
                    and d.refobjsubid = a.attnum))
where i.indrelid = 'helix.work'::regclass group by 1
"""


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


# Sessions whose snapshot may be older than the last commit: row versions they may see stay on
# their page. An autovacuum worker that analyzes another table is one of them.
SNAPSHOTS = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_xmin is not null
"""


def wait_until_old_versions_can_go(lab):
    """A page has room for a HOT update only when PostgreSQL may remove the old versions on it."""
    wait_until(lambda: lab.value(SNAPSHOTS) == 0, seconds=30)


def updates(lab, at_least):
    """All updates of helix.work and the HOT ones among them, when so many have been reported."""

    def reported():
        # A session reports what it did when it is idle for a while, or when it is told to.
        lab.rows_as_client("select pg_stat_force_next_flush()::text")
        lab.rows_as_client("select 1")
        [row] = lab.rows(COUNTED)
        return row if row[0] >= at_least else None

    return wait_until(reported, seconds=30)


def test_settle_and_renew_are_hot_updates_and_claims_are_not(lab):
    lab.submit_many(ROUNDS * SIZE)
    before, hot_before = updates(lab, 0)
    claimed = renewed = settled = 0
    done = []
    for _ in range(ROUNDS + 1):
        wait_until_old_versions_can_go(lab)
        answer = lab.claim_result(SIZE, start=True, settle=[completion(lease) for lease in done])
        settled += len(done)
        claimed += len(answer.leases)
        done = list(answer.leases)
        for _ in range(RENEWALS):
            wait_until_old_versions_can_go(lab)
            assert {item.answer for item in lab.renew(*done)} <= {"ok"}
            renewed += len(done)
    assert claimed == settled == ROUNDS * SIZE
    assert renewed == RENEWALS * claimed
    total, hot = updates(lab, before + claimed + renewed + settled)
    total, hot = total - before, hot - hot_before
    assert total == claimed + renewed + settled
    # A claim takes a row out of the claim order, so it writes indexes; nothing else does.
    assert total - hot >= claimed
    assert hot >= 0.9 * (renewed + settled)


def changed(lab, lease, act):
    """The columns of the row that this changes."""
    query = "select to_jsonb(w) from helix.work w where batch = %s"
    before = lab.value(query, lease.batch)
    act(lease)
    after = lab.value(query, lease.batch)
    return {name for name in before if before[name] != after[name]}


def test_no_index_names_a_column_that_settle_or_renew_changes(lab):
    lab.submit("s1", "s2", "s3")
    [unstarted] = lab.claim(1, start=False)
    first, second = lab.claim(2)
    columns = (
        changed(lab, first, lab.renew)
        | changed(lab, unstarted, lab.start)
        | changed(lab, first, lab.complete)
        | changed(lab, second, lambda lease: lab.fail(lease, permanent=True))
    )
    assert columns >= {"state", "version", "entry", "before", "deadline", "changed_at", "reason"}
    # Also what they change at other times.
    columns |= {"actor", "late", "content", "came_from", "version_before", "step"}
    indexes = dict(lab.rows(INDEXED))
    assert {"helix.work_pkey", "helix.work_claim", "helix.work_claim_of_queue"} <= set(indexes)
    assert indexes["helix.work_claim"] == ["batch", "lane", "pending", "turn"]
    for index, named in indexes.items():
        assert not columns & set(named), index


def test_rows_have_room_to_change_on_their_page_and_indexes_are_vacuumed(lab):
    """Dead entries of claimed batches, left in the index, made the next claim take 23 ms."""
    [(options,)] = lab.rows("select reloptions from pg_class where oid = 'helix.work'::regclass")
    assert {"fillfactor=50", "vacuum_index_cleanup=on"} <= set(options)
