"""G3: a function of the engine that is wrong is refused, whatever it does to a batch.

The guards let every function of the engine through, so here the triggers stand alone: a step
without its arrow, its version or its predecessor, a row that comes back, an edit that says it is
none. The functions of these tests are created by a superuser and owned by the engine's role.
"""

from __future__ import annotations

import itertools

import psycopg
import pytest

from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.states import ARROWS, State
from tests.support.lab import Lab, engine_function

QUEUE = "q"


@pytest.fixture
def lab(database):
    with Lab(database, q=QUEUE) as lab:
        yield lab


@pytest.fixture
def execute(database):
    with engine_function(database) as execute:
        yield execute


@pytest.fixture
def one_of_each(lab):
    """A batch in every state, by its internal id."""
    lab.queue()
    lab.submit("s1", "s2", "s3", "s4", "s5", "s6", payload={"tube": 1})
    failed, completed, cancelled, running = lab.claim(4)
    lab.fail(failed, permanent=True, detail="pipette broke")
    lab.complete(completed)
    lab.decide("cancel", cancelled.batch_id)
    [assigned] = lab.claim(1, start=False)
    found = dict(lab.rows("select state::text, min(batch) from helix.work group by 1"))
    assert set(found) == set(State)
    assert found[State.RUNNING] == running.batch
    assert found[State.ASSIGNED] == assigned.batch
    return {State(state): batch for state, batch in found.items()}


EVERY_ROW = {
    "work": "select to_jsonb(t) from helix.work t order by batch",
    "entry": "select to_jsonb(t) from helix.entry t order by id, part",
    "batch": "select to_jsonb(t) from helix.batch t order by id",
    "ended": "select to_jsonb(t) from helix.ended t order by batch",
    "result": "select to_jsonb(t) from helix.result t order by batch, version",
}


def everything(database):
    return {table: database.rows(query) for table, query in EVERY_ROW.items()}


def assert_whole(database):
    """No invariant is broken, but for the function that these tests create."""
    with database.connect("helix_migrator") as connection:
        wrong = [result.witnesses for result in check(connection) if not result.holds]
        assert all("test_execute" in str(witness) for found in wrong for witness in found), wrong
        assert replay(connection).violations == []


def step(batch, to, /, **other):
    """A step as the engine would take it, but for what is given in `other`, as SQL."""
    pending = to is State.PENDING
    leased = to in (State.ASSIGNED, State.RUNNING)
    columns = {
        "state": f"'{to}'",
        "version": "version + 1",
        "version_before": "version",
        "reason": "'lost'",
        "actor": "'eve'",
        "entry": "(select last_value from helix.entry_id)",
        "before": "entry",
        "came_from": "state",
        "changed_at": "clock_timestamp()",
        "step": "true",
        "late": "false",
        "pending": str(pending).lower(),
        "cause": "null",
        "due": "null",
        "content": "null",
    }
    if leased:
        entry = "(select last_value from helix.entry_id)"
        columns |= {
            "number": f"case state when 'PENDING' then {entry} else number end",
            "nonce": "1",
            "epoch": "1",
            "deadline": "clock_timestamp() + interval '1 h'",
            "lease_seconds": "60",
        }
    columns |= other
    changes = ", ".join(f"{column} = {value}" for column, value in columns.items())
    return (
        "do $do$ begin perform nextval('helix.entry_id');"
        f" update helix.work set {changes} where batch = {batch}; end $do$"
    )


# --- arrows and versions -----------------------------------------------------------------------


@pytest.mark.usefixtures("execute")
def test_only_the_arrows_of_the_table_can_be_taken(database, one_of_each):
    """All pairs of states, compared with helix.arrow."""
    arrows = set(database.rows("select from_state::text, to_state::text from helix.arrow"))
    assert {(first and str(first), str(other)) for first, other in ARROWS} == arrows
    taken = set()
    for before, after in itertools.product(State, State):
        with database.connect("helix_bootstrap") as connection:
            try:
                with connection.transaction(force_rollback=True):
                    connection.execute(
                        "select helix.test_execute(%s)", (step(one_of_each[before], after),)
                    )
            except psycopg.Error as refused:
                assert refused.sqlstate == "QH001", (before, after)  # noqa: PT017
            else:
                taken.add((str(before), str(after)))
    assert taken == {arrow for arrow in arrows if arrow[0]}
    assert_whole(database)


@pytest.mark.parametrize("steps", [-1, 0, 2, 3])
def test_no_step_skips_or_repeats_a_version(database, one_of_each, execute, steps):
    before = everything(database)
    for start, end in itertools.product(State, State):
        if (start, end, steps) == (State.PENDING, State.RUNNING, 2):
            continue  # a claim that starts at once: two arrows, two steps
        forged = step(one_of_each[start], end, version=f"version + {steps}")
        assert execute(forged) == "QH001", (start, end)
    assert everything(database) == before
    assert_whole(database)


def test_claimed_and_started_at_once_is_two_steps(database, one_of_each, execute):
    batch = one_of_each[State.PENDING]
    assert execute(step(batch, State.RUNNING)) == "QH001"
    assert execute(step(batch, State.RUNNING, version="version + 2", reason="'started'")) is None
    assert database.rows(
        "select version, from_state::text, to_state::text from helix.event"
        " where batch = %s order by 1",
        batch,
    ) == [(1, None, "PENDING"), (2, "PENDING", "ASSIGNED"), (3, "ASSIGNED", "RUNNING")]


FORGED = {
    "the entry before": {"before": "entry - 1"},
    "an entry before that is none": {"before": "null"},
    "itself as the entry before": {"before": "(select last_value from helix.entry_id)"},
    "the state before": {"came_from": "'ASSIGNED'"},
    "a state before that is none": {"came_from": "null"},
    "the version before": {"version_before": "version - 1", "version": "version"},
    "a version before that is none": {"version_before": "null"},
    "the entry of the step before": {"entry": "entry"},
    "an older entry": {"entry": "1"},
    "another batch": {"batch": "batch + 1000"},
    "that it is claimable": {"pending": "true"},
    "a cause why it is not claimable": {"cause": "'paused'"},
    "a due time": {"due": "clock_timestamp()"},
    "that it is no step": {"step": "false"},
}


@pytest.mark.parametrize("what", FORGED)
def test_step_with_a_forged_column_is_refused(database, one_of_each, execute, what):
    before = everything(database)
    forged = step(one_of_each[State.RUNNING], State.COMPLETED, reason="'completed'", **FORGED[what])
    assert execute(forged) == "QH001"
    assert everything(database) == before
    assert_whole(database)


TOKENS = {
    "number": ["entry", "null", "(select last_value from helix.entry_id) + 1", "1"],
    "nonce": ["null"],
    "epoch": ["null"],
    "deadline": ["null"],
}


@pytest.mark.parametrize("column", TOKENS)
def test_no_claim_forges_its_token(database, one_of_each, execute, column):
    """The number of a lease is the entry of its claim; no part of a token is missing."""
    before = everything(database)
    for value in TOKENS[column]:
        forged = step(
            one_of_each[State.PENDING], State.ASSIGNED, reason="'claimed'", **{column: value}
        )
        assert execute(forged) == "QH001", value
    assert everything(database) == before


PENDING_AGAIN = {
    "neither claimable nor blocked": {"pending": "false"},
    "claimable and blocked": {"cause": "'paused'"},
    "delayed without a time": {"pending": "false", "cause": "'delay'"},
    "a time without a delay": {"due": "clock_timestamp()"},
    "blocked by a limit key that it does not have": {"pending": "false", "cause": "'limit'"},
}


@pytest.mark.parametrize("what", PENDING_AGAIN)
def test_pending_batch_is_claimable_or_has_a_cause(database, one_of_each, execute, what):
    before = everything(database)
    wrong = step(one_of_each[State.RUNNING], State.PENDING, **PENDING_AGAIN[what])
    assert execute(wrong) == "QH001"
    # The same without a step.
    changes = {"pending": "true", "cause": "null", "due": "null"} | PENDING_AGAIN[what]
    moved = ", ".join(f"{column} = {value}" for column, value in changes.items())
    batch = one_of_each[State.PENDING]
    move = f"update helix.work set step = false, {moved} where batch = {batch}"
    assert execute(move) == "QH001"
    assert everything(database) == before


def test_legal_step_of_a_new_function_leaves_its_entry(database, one_of_each, execute):
    """The entry comes from the trigger, not from the care of the function's author."""
    batch = one_of_each[State.RUNNING]
    assert execute(step(batch, State.COMPLETED, reason="'completed'")) is None
    assert database.rows(
        "select from_state::text, to_state::text, actor from helix.event where batch = %s "
        "order by version desc limit 1",
        batch,
    ) == [("RUNNING", "COMPLETED", "eve")]
    assert database.rows(
        "select e.ending from helix.ended e join helix.work w on w.batch = e.batch"
        " and w.queue = e.queue and w.changed_at = e.at where e.batch = %s",
        batch,
    ) == [(1,)]
    assert_whole(database)


def test_whole_transaction_goes_or_stays_with_its_entry(database, lab):
    """An entry without its state change would be as false as a change without its entry."""
    lab.queue()
    lab.submit("s1")
    [lease] = lab.claim()
    before = everything(database)
    with lab.store.connection.transaction(force_rollback=True):
        assert [item.answer for item in lab.complete(lease)] == ["ok"]
    assert everything(database) == before
    assert_whole(database)


# --- what is no step ---------------------------------------------------------------------------

# What a renewal, a block or a promotion may change.
MOVABLE = {"deadline", "lane", "turn", "pending", "due", "cause"}
OTHER_VALUE = {
    "bigint": "coalesce({}, 0) + 1000",
    "integer": "coalesce({}, 0) + 1",
    "smallint": "(coalesce({}, 0) + 1)::smallint",
    "real": "coalesce({}, 0) + 1",
    "boolean": "not {}",
    "text": "coalesce({}, '') || 'x'",
    "bytea": "coalesce({}, '') || '\\x00'",
    "timestamp with time zone": "coalesce({}, clock_timestamp()) + interval '1 s'",
    "helix.state": "case {} when 'PENDING' then 'FAILED' else 'PENDING' end::helix.state",
    "helix.reason": "case {} when 'lost' then 'failed' else 'lost' end::helix.reason",
    "helix.cause": "case {} when 'limit' then 'paused' else 'limit' end::helix.cause",
}
COLUMNS = """
select attname::text, format_type(atttypid, null), attnotnull from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
"""


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.COMPLETED])
def test_update_without_step_changes_only_the_claim_order(database, one_of_each, execute, state):
    batch = one_of_each[state]
    before = everything(database)
    refused = set()
    columns = database.rows(COLUMNS, "helix.work")
    for name, kind, required in columns:
        if name == "step" or name in MOVABLE:
            continue
        values = [OTHER_VALUE[kind].format(name)]
        [(present,)] = database.rows(
            f"select {name} is not null from helix.work where batch = %s",
            batch,
        )
        if present and not required:
            values.append("null")
        for value in values:
            move = f"update helix.work set step = false, {name} = {value} where batch = {batch}"
            assert execute(move) == "QH001", (name, value)
        refused.add(name)
    assert refused == {name for name, _, _ in columns} - MOVABLE - {"step"}
    assert everything(database) == before
    assert_whole(database)


@pytest.mark.parametrize("state", [State.ASSIGNED, State.RUNNING])
def test_renewal_is_no_step_and_leaves_no_entry(database, one_of_each, execute, state):
    entries = database.rows(EVERY_ROW["entry"])
    renewal = (
        "update helix.work set step = false,"
        " deadline = clock_timestamp() + make_interval(secs => lease_seconds)"
        f" where batch = {one_of_each[state]}"
    )
    assert execute(renewal) is None
    assert database.rows(EVERY_ROW["entry"]) == entries
    assert_whole(database)


# --- rows that come and go ---------------------------------------------------------------------


def test_no_row_is_deleted_without_its_tombstone(database, one_of_each, execute):
    before = everything(database)
    for state, batch in one_of_each.items():
        assert execute(f"delete from helix.work where batch = {batch}") == "QH001", state
    assert execute("delete from helix.work") == "QH001"
    assert everything(database) == before
    assert_whole(database)


FIRST = (
    "insert into helix.work (batch, turn, entry, changed_at, queue, lane, bytes, version, state,"
    " reason, attempt, pending, step, actor)"
    " select {batch}, 1, nextval('helix.entry_id'), clock_timestamp(), b.queue, l.id, 2, 1,"
    " 'PENDING', 'submitted', 0, true, true, 'eve' from helix.batch b"
    " join helix.queue q on q.id = b.queue join helix.lane l on l.queue = q.name"
    " where b.id = {batch} limit 1"
)


def test_no_row_is_deleted_and_inserted_again(database, one_of_each, execute):
    """It would begin again at version 1, and the ledger would have two lives of one batch."""
    before = everything(database)
    for state, batch in one_of_each.items():
        twice = FIRST.format(batch=batch)
        assert execute(twice) == "23505", state
        again = f"do $do$ begin delete from helix.work where batch = {batch}; {twice}; end $do$"
        assert execute(again) == "QH001", state
        at_once = f"with gone as (delete from helix.work where batch = {batch}) {twice}"
        assert execute(at_once) in {"QH001", "23505"}, state
    assert everything(database) == before
    assert_whole(database)


def test_retired_batch_does_not_begin_again(database, lab, one_of_each, execute):
    assert lab.rows("select helix.retire_v1('a', %s, 'COMPLETED', 'infinity')", QUEUE) == [(1,)]
    before = everything(database)
    assert execute(FIRST.format(batch=one_of_each[State.COMPLETED])) == "QH001"
    assert everything(database) == before
    assert_whole(database)


FIRST_STEPS = {
    "a later version": "2, 'PENDING', 'submitted', 0, true, true",
    "another state": "1, 'COMPLETED', 'submitted', 0, false, true",
    "another reason": "1, 'PENDING', 'retried', 0, true, true",
    "attempts": "1, 'PENDING', 'submitted', 3, true, true",
    "no step": "1, 'PENDING', 'submitted', 0, true, false",
    "neither claimable nor blocked": "1, 'PENDING', 'submitted', 0, false, true",
}


@pytest.mark.parametrize("what", FIRST_STEPS)
def test_new_batch_with_a_forged_column_is_refused(database, lab, execute, what):
    lab.queue()
    lab.submit("s1")
    before = everything(database)
    wrong = (
        "insert into helix.work (batch, turn, entry, changed_at, queue, lane, bytes, version,"
        " state, reason, attempt, pending, step, actor)"
        " select 1000, 1, nextval('helix.entry_id'), clock_timestamp(), q.id, 1, 2,"
        f" {FIRST_STEPS[what]}, 'eve'"
        " from helix.queue q limit 1"
    )
    assert execute(wrong) == "QH001"
    assert everything(database) == before


# --- what was asked ----------------------------------------------------------------------------

BATCH_VALUE = OTHER_VALUE | {
    "helix.moment": "coalesce({}, clock_timestamp()) + interval '1 s'",
    "helix.priority": "(({} + 1) % 10)::smallint",
    "helix.key": "set_byte({0}, 5, 255 - get_byte({0}, 5))",
    "helix.sha256": "sha256(coalesce({}, ''))",
    "helix.revision_text": "{} || 'x'",
    "helix.identity_text": "coalesce({}, '') || 'x'",
    "helix.limit_key": "coalesce({}, '') || 'x'",
    "helix.document": "'[7]'::json",
}
# Retention and erasing empty these.
EMPTIED = {"identity", "raw", "limit_key", "payload"}
# Retention writes these, once.
TOMBSTONE = {"retired_at", "ended_at", "entry", "version", "state", "attempt", "tombstone"}


@pytest.mark.parametrize("retired", [False, True])
def test_submitted_batch_cannot_be_changed(database, lab, one_of_each, execute, retired):
    batch = one_of_each[State.COMPLETED]
    if retired:
        assert lab.rows("select helix.retire_v1('a', %s, 'COMPLETED', 'infinity')", QUEUE) == [(1,)]
    before = everything(database)
    refused = set()
    for name, kind, required in database.rows(COLUMNS, "helix.batch"):
        if name in TOMBSTONE and not retired:
            continue
        values = [BATCH_VALUE[kind].format(name)]
        if not required and name not in EMPTIED | {"limit_print", "run", "run_at", "expires_at"}:
            values.append("null")
        for value in values:
            change = f"update helix.batch set {name} = {value} where id = {batch}"
            assert execute(change) == "QH001", (name, value)
        refused.add(name)
    assert refused >= {"key", "fingerprint", "payload", "identity", "revision", "queue", "actor"}
    assert everything(database) == before
    assert_whole(database)


def test_no_batch_is_deleted(database, one_of_each, execute):
    before = everything(database)
    for state, batch in one_of_each.items():
        assert execute(f"delete from helix.batch where id = {batch}") == "QH001", state
    assert everything(database) == before


# --- the ledger --------------------------------------------------------------------------------


def test_step_whose_predecessor_is_missing_is_refused(database, lab):
    """A ledger that was cut is not continued as if nothing had happened."""
    lab.queue()
    lab.submit("s1", "s2")
    first, second = lab.claim(1) + lab.claim(1)
    with database.connect("helix_bootstrap") as connection, connection.transaction():
        connection.execute("alter table helix.entry disable trigger all")
        connection.execute("delete from helix.entry where id = %s", (first.token.number,))
        connection.execute("alter table helix.entry enable always trigger a_guard")
        connection.execute("alter table helix.entry enable always trigger a_guard_truncate")
    with pytest.raises(Exception, match="an entry that it continues is missing from the ledger"):
        lab.complete(first)
    assert lab.rows("select state::text from helix.work where batch = %s", first.batch) == [
        ("RUNNING",)
    ]
    assert [answer.answer for answer in lab.complete(second)] == ["ok"]


LEDGER = {
    "an entry of one's own": "insert into helix.entry (id, part, at, position, to_state, "
    "reason, late,"
    " actor, batch, queue, version, attempt, hash) values (nextval('helix.entry_id'), 1, now(), 1,"
    " 'PENDING', 'submitted', false, 'eve', '{1}', '{1}', '{1}', '{0}', '')",
    "another actor": "update helix.entry set actor = 'eve'",
    "no arrays": "update helix.entry set batch = null, queue = null, version = null,"
    " attempt = null, before = null, content = null",
    "another hash": "update helix.entry set hash = ''",
    "no change": "update helix.entry set actor = actor",
    "a deletion": "delete from helix.entry",
}


@pytest.mark.parametrize("what", LEDGER)
@pytest.mark.usefixtures("one_of_each")
def test_no_function_but_archive_writes_to_the_ledger(database, execute, what):
    before = everything(database)
    assert execute(LEDGER[what]) == "QH003"
    assert everything(database) == before
    assert_whole(database)


# --- replication role --------------------------------------------------------------------------


def test_every_trigger_fires_whatever_the_replication_role(database):
    assert (
        database.rows(
            "select t.tgrelid::regclass::text, t.tgname from pg_trigger t"
            " join pg_class c on c.oid = t.tgrelid where c.relnamespace = 'helix'::regnamespace"
            " and not t.tgisinternal and t.tgenabled <> 'A'"
        )
        == []
    )


@pytest.mark.usefixtures("execute")
def test_replica_mode_lets_no_state_change_without_its_entry(database, one_of_each):
    batch = one_of_each[State.RUNNING]
    before = everything(database)
    with database.connect("helix_bootstrap") as connection:
        connection.execute("set session_replication_role = replica")
        for statement in (
            step(batch, State.COMPLETED, version="version + 2"),
            step(batch, State.ASSIGNED),
            step(batch, State.COMPLETED, before="null"),
            f"update helix.work set step = false, actor = 'eve' where batch = {batch}",
            f"delete from helix.work where batch = {batch}",
            f"delete from helix.batch where id = {batch}",
            f"update helix.batch set actor = 'eve' where id = {batch}",
            "delete from helix.entry",
        ):
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("select helix.test_execute(%s)", (statement,))
            assert refused.value.sqlstate in {"QH001", "QH003"}, statement
        for table in ("work", "entry", "batch", "ended", "result"):
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(f"delete from helix.{table}")
            assert refused.value.sqlstate in {"QH002", "QH003"}, table
        assert everything(database) == before
        # What is legal leaves its entry, its place in the list and its hash.
        legal = step(batch, State.COMPLETED, reason="'completed'")
        connection.execute("select helix.test_execute(%s)", (legal,))
        connection.execute(
            "select helix.note_refused_v1('a', %s, 'eve', array['x'::bytea], array['x'])", (QUEUE,)
        )
    assert database.rows(
        "select to_state::text from helix.event where batch = %s order by version desc limit 1",
        batch,
    ) == [("COMPLETED",)]
    assert database.rows("select ending from helix.ended where batch = %s", batch) == [(1,)]
    assert_whole(database)
