"""Appends to user ledgers: one row per event, and the answers."""

from __future__ import annotations

import threading

import psycopg
import pytest

from helixqueue import HelixQueue, Machine, NewEvent, NotPermitted, Refused, errors
from tests.support.lab import wait_until
from tests.user_ledger.conftest import DISPATCH

pytestmark = pytest.mark.module_database


def test_repeated_event_is_a_duplicate_and_stored_once(dispatch):
    first = dispatch.append("d-1", 1, "REQUESTED", {"pad": "north"}, node="alp-1")
    again = dispatch.append("d-1", 1, "REQUESTED", {"pad": "north"}, node="alp-2")
    assert (first.decision, again.decision) == ("written", "duplicate_suppressed_by_db")
    assert first.key == again.key
    assert first.key.startswith("v2:")
    [event] = dispatch.history("d-1")
    assert (event.node, event.payload, event.version) == ("alp-1", {"pad": "north"}, 1)


def test_twin_spellings_of_an_entity_are_one_entity(dispatch):
    assert dispatch.append("Sämtis-1", 1, "REQUESTED").is_new
    assert (
        dispatch.append("Sa\u0308mtis-1", 1, "REQUESTED").decision == "duplicate_suppressed_by_db"
    )


def test_other_payload_of_the_same_event_is_a_conflict_with_a_diff(dispatch):
    dispatch.append("d-2", 1, "REQUESTED", {"pad": "north"})
    answer = dispatch.append("d-2", 1, "REQUESTED", {"pad": "south"})
    assert answer.decision == "conflict"
    assert answer.diff == ({"op": "replace", "path": "/pad", "value": "south", "was": "north"},)
    assert len(dispatch.history("d-2")) == 1


@pytest.mark.parametrize(
    ("seq", "kind", "rules"),
    [
        (3, "LAUNCHED", ("gap", "arrow")),
        (2, "LAUNCHED", ("arrow",)),
        (1, "CONFIRMED", ("seq",)),
    ],
)
def test_illegal_event_is_answered_with_its_rules_and_not_written(dispatch, seq, kind, rules):
    dispatch.append("d-3", 1, "REQUESTED")
    answer = dispatch.append("d-3", seq, kind)
    assert (answer.decision, answer.rules, answer.state) == ("illegal", rules, "REQUESTED")
    assert len(dispatch.history("d-3")) == 1


def test_first_event_must_be_initial_and_nothing_follows_a_terminal_one(dispatch):
    assert dispatch.append("d-4", 1, "CONFIRMED").rules == ("initial",)
    dispatch.append("d-4", 1, "REQUESTED")
    dispatch.append("d-4", 2, "CANCELLED")
    assert dispatch.append("d-4", 3, "CONFIRMED").rules == ("terminal",)
    state = dispatch.state("d-4")
    assert (state.state, state.seq, state.events) == ("CANCELLED", 2, 2)


def test_bulk_append_answers_each_event_in_the_order_of_the_input(dispatch):
    answers = dispatch.append_many(
        [
            NewEvent("b-1", 1, "REQUESTED"),
            NewEvent("b-2", 1, "CONFIRMED"),
            {"entity": "b-1", "seq": 2, "kind": "CONFIRMED", "payload": {"n": 1}},
            {"entity": "b-1", "seq": 0, "kind": "CONFIRMED"},
            NewEvent("b-1", 2, "CONFIRMED", {"n": 1}),
            NewEvent("b-1", 2, "CONFIRMED", {"n": 2}),
            {"entity": "b-1", "kind": "LAUNCHED"},
            NewEvent("b-1", 3, "LAUNCHED"),
        ]
    )
    assert [answer.decision for answer in answers] == [
        *(
            "written",
            "illegal",
            "written",
            "refused",
            "duplicate_suppressed_by_db",
            "conflict",
            "refused",
        ),
        "written",
    ]
    assert [event.kind for event in dispatch.history("b-1")] == [
        *("REQUESTED", "CONFIRMED", "LAUNCHED")
    ]


def test_recorded_violations_are_kept_in_a_ledger_that_is_not_strict(helix):
    ledger = helix.ledger("observed", DISPATCH, strict=False)
    assert ledger.append("d", 3, "LAUNCHED").rules == ("gap", "initial")
    late = ledger.append("d", 1, "REQUESTED")
    assert (late.decision, late.rules, late.state) == ("written", ("seq",), "LAUNCHED")
    assert [event.violations for event in ledger.history("d")] == [("gap", "initial"), ("seq",)]
    assert ledger.state("d").state == "LAUNCHED"


def test_ignored_fields_do_not_make_a_conflict(helix):
    ledger = helix.ledger("traced", DISPATCH, ignore=["/trace/id", "/at~1node"])
    ledger.append("d", 1, "REQUESTED", {"pad": 1, "trace": {"id": "a"}, "at/node": 1})
    again = ledger.append("d", 1, "REQUESTED", {"pad": 1, "trace": {"id": "b"}, "at/node": 2})
    other = ledger.append("d", 1, "REQUESTED", {"pad": 2, "trace": {"id": "a"}, "at/node": 1})
    assert (again.decision, other.decision) == ("duplicate_suppressed_by_db", "conflict")


def test_bound_payload_is_part_of_the_identity(helix):
    ledger = helix.ledger("bound", DISPATCH, strict=False, bind_payload=True)
    first = ledger.append("d", 1, "REQUESTED", {"pad": 1})
    second = ledger.append("d", 1, "REQUESTED", {"pad": 2})
    again = ledger.append("d", 1, "REQUESTED", {"pad": 1})
    assert [answer.decision for answer in (first, second, again)] == [
        "written",
        "written",
        "duplicate_suppressed_by_db",
    ]
    assert first.key.startswith("v3:")
    assert first.key != second.key


def test_append_within_a_rolled_back_transaction_leaves_nothing(dispatch, database):
    with psycopg.connect(database.dsn("app_a")) as connection:
        assert dispatch.append("r-1", 1, "REQUESTED", within=connection).is_new
        connection.rollback()
    assert dispatch.history("r-1") == []
    with psycopg.connect(database.dsn("app_a")) as connection:
        dispatch.append("r-1", 1, "REQUESTED", within=connection)
    assert len(dispatch.history("r-1")) == 1


def test_concurrent_nodes_write_each_event_once(dispatch, database):
    """Two kinds of race: the same event twice, and two successors of one event."""
    dispatch.append("race", 1, "REQUESTED")
    decisions: list[str] = []
    start = threading.Barrier(8)

    def append(kind: str) -> None:
        with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
            ledger = helix.ledger(dispatch.name, DISPATCH)
            start.wait()
            decisions.append(ledger.append("race", 2, kind).decision)

    threads = [
        threading.Thread(target=append, args=(kind,)) for kind in ("CONFIRMED", "CANCELLED") * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decisions.count("written") == 1
    assert sorted(set(decisions)) == ["duplicate_suppressed_by_db", "illegal", "written"]
    assert len(dispatch.history("race")) == 2


def test_loser_of_a_race_waits_and_learns_of_the_winner(dispatch, database):
    """The winner has inserted and not committed; the loser must not answer before it knows."""
    answers = []
    with psycopg.connect(database.dsn("app_a")) as winner:
        dispatch.append("slow", 1, "REQUESTED", {"n": 1}, within=winner)
        loser = threading.Thread(
            target=lambda: answers.append(dispatch.append("slow", 1, "REQUESTED", {"n": 2}))
        )
        loser.start()
        wait_until(
            lambda: (
                database.value(
                    "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
                )
                >= 1
            )
        )
        assert answers == []
    loser.join()
    assert answers[0].decision == "conflict"


@pytest.mark.parametrize("role", ["helix_bootstrap", "helix_migrator"])
@pytest.mark.parametrize(
    "statement",
    [
        "update helix.ledger_event set kind = 'CANCELLED'",
        "delete from helix.ledger_event",
        "truncate helix.ledger_event",
        "update helix.ledger set machine = '{}'",
    ],
)
def test_no_role_edits_a_ledger_with_sql(dispatch, database, role, statement):
    dispatch.append("fixed", 1, "REQUESTED")
    with database.connect(role) as connection:
        if role == "helix_migrator":
            connection.execute("set role helix_owner")
        with pytest.raises(psycopg.errors.DatabaseError, match=r"append-only|only the functions"):
            connection.execute(statement)
    assert len(dispatch.history("fixed")) == 1


def test_other_tenant_sees_and_appends_nothing(dispatch, database):
    dispatch.append("secret", 1, "REQUESTED", {"pad": "north"})
    with HelixQueue(database.dsn("app_b"), tenant="b") as other:
        ledger = other.ledger(dispatch.name, DISPATCH)
        assert ledger.history("secret") == []
        assert ledger.state("secret") is None
    with HelixQueue(database.dsn("app_b"), tenant="a") as forged, pytest.raises(NotPermitted):
        forged.ledger(dispatch.name, DISPATCH)


def test_redeclared_ledger_may_grow_and_not_change(helix):
    helix.ledger("grows", DISPATCH)
    more = Machine({**DISPATCH.arrows, "LAUNCHED": ["LANDED", "LOST"]})
    helix.ledger("grows", more)
    with pytest.raises(Refused, match="declared otherwise"):
        helix.ledger("grows", DISPATCH)
    with pytest.raises(Refused, match="declared otherwise"):
        helix.ledger("grows", Machine({**more.arrows, "LANDED": ["CHECKED"]}))
    with pytest.raises(Refused, match="declared otherwise"):
        helix.ledger("grows", more, strict=False)


@pytest.mark.parametrize(
    ("arrows", "options", "message"),
    [
        ({"A": ["B"], "B": ["A"]}, {}, "initial"),
        ({"A": ["A"]}, {"initial": ["A"]}, "terminal"),
        ({"A": ["B", "C"], "C": ["C"]}, {}, "end after C"),
        ({"A": ["B"], "C": ["D"]}, {"initial": ["A"]}, "reach C, D"),
        ({"A": "B"}, {}, "list of kinds"),
        ({"A b": []}, {}, "beginning with a letter"),
        ({}, {}, "1 to 200 kinds"),
        ([], {}, "mapping"),
    ],
)
def test_machine_in_which_entities_cannot_start_or_end_is_refused(arrows, options, message):
    with pytest.raises(Refused, match=message):
        Machine(arrows, **options)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (("d", 0, "REQUESTED"), "seq"),
        (("d", 2**63, "REQUESTED"), "seq"),
        (("d", True, "REQUESTED"), "seq"),
        (("d", 1, "UNKNOWN"), "kind"),
        (("", 1, "REQUESTED"), "empty"),
        (("d", 1, "REQUESTED", "x" * 1_048_577), "bytes"),
        (("d", 1, "REQUESTED", float("nan")), "finite"),
    ],
)
def test_invalid_event_is_refused_with_the_reason(dispatch, event, message):
    with pytest.raises(Refused, match=message):
        dispatch.append(*event)


def test_append_is_undecided_while_a_constraint_is_missing(fresh_database):
    """An index that was dropped cannot tell a duplicate: the event goes to the caller's table."""
    database = fresh_database
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        ledger = helix.ledger("dispatch", DISPATCH)
        with database.connect("helix_bootstrap") as connection:
            connection.execute("create table undecided (entity text, seq bigint)")
            connection.execute("grant insert on undecided to app_a")
            connection.execute(
                "alter table helix.ledger_event drop constraint ledger_event_key_key"
            )
        assert ledger.append("d", 1, "REQUESTED").decision == "undecided"
        with psycopg.connect(database.dsn("app_a")) as own:
            answer = ledger.append(
                *("d", 1, "REQUESTED"),
                within=own,
                fallback=lambda tx, event: tx.execute(
                    "insert into undecided values (%s, %s)", (event.entity, event.seq)
                ),
            )
        assert answer.decision == "undecided"
        assert ledger.history("d") == []
    assert database.rows("select * from undecided") == [("d", 1)]


UNIQUE = {
    "ledger_event_pkey": "primary key (ledger, entity, seq, kind, bound)",
    "ledger_event_key_key": "unique (key)",
    "ledger_event_ledger_entity_version_key": "unique (ledger, entity, version)",
}


@pytest.mark.parametrize("constraint", UNIQUE)
def test_open_connection_notices_a_dropped_and_a_restored_constraint(fresh_database, constraint):
    """The plan of a connection contains whether the constraints exist; a change discards it."""
    database = fresh_database
    with HelixQueue(database.dsn("app_a"), tenant="a", connections=1) as helix:
        ledger = helix.ledger("dispatch", DISPATCH)
        assert [ledger.append(f"d-{n}", 1, "REQUESTED").decision for n in range(3)] == [
            *("written", "written", "written")
        ]
        with database.connect("helix_bootstrap") as connection:
            connection.execute(f"alter table helix.ledger_event drop constraint {constraint}")
        assert ledger.append("d-3", 1, "REQUESTED").decision == "undecided"
        with database.connect("helix_bootstrap") as connection:
            connection.execute(
                f"alter table helix.ledger_event add constraint {constraint} {UNIQUE[constraint]}"
            )
        assert ledger.append("d-3", 1, "REQUESTED").decision == "written"


def test_old_snapshot_does_not_hide_a_dropped_constraint(fresh_database):
    """A repeatable read transaction, older than the drop, makes the connection's plan."""
    database = fresh_database
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        ledger = helix.ledger("dispatch", DISPATCH)
        ledger.append("d-0", 1, "REQUESTED")
        with psycopg.connect(database.dsn("app_a")) as own:
            own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            own.execute("select 1")
            with database.connect("helix_bootstrap") as connection:
                connection.execute(
                    "alter table helix.ledger_event drop constraint ledger_event_key_key"
                )
            old = [
                ledger.append("d-1", 1, "REQUESTED", within=own),
                *ledger.append_many([("d-2", 1, "REQUESTED"), ("d-3", 1, "REQUESTED")], within=own),
            ]
            assert {answer.decision for answer in old} == {"undecided"}
            own.rollback()
            own.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            answer = ledger.append("d-1", 1, "REQUESTED", within=own)
    assert answer.decision == "undecided"


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"bind_payload": True}])
def test_single_and_bulk_appends_decide_alike(helix, options):
    """A single append has a shorter path; both answer the same."""
    events = [
        *(("d", 1, "CONFIRMED"), ("d", 1, "REQUESTED", {"n": 1}), ("d", 1, "REQUESTED", {"n": 1})),
        *(("d", 1, "REQUESTED", {"n": 2}), ("d", 3, "CONFIRMED"), ("d", 2, "LANDED")),
        *(("d", 2, "CANCELLED"), ("d", 3, "CONFIRMED"), ("d", 1, "CANCELLED")),
    ]
    name = "-".join(["alike", *options])
    single, bulk = (helix.ledger(f"{name}-{n}", DISPATCH, **options) for n in range(2))
    singly = [single.append(*event)._replace(key=None) for event in events]
    assert singly == [answer._replace(key=None) for answer in bulk.append_many(events)]
    assert [event.version for event in single.history("d")] == [
        event.version for event in bulk.history("d")
    ]


def test_append_raises_while_the_database_cannot_answer():
    dsn = "postgresql://app@/nowhere?host=/nonexistent"
    with HelixQueue(dsn, tenant="a") as away, pytest.raises(errors.Unavailable):
        away.ledger("dispatch", DISPATCH)


def test_history_that_begins_at_44_is_strict_in_everything_else(helix):
    ledger = helix.ledger("late", DISPATCH, gaps="allow")
    assert ledger.append("d", 44, "REQUESTED").is_new
    assert ledger.append("d", 44, "REQUESTED").decision == "duplicate_suppressed_by_db"
    assert ledger.append("d", 60, "CONFIRMED").is_new
    older = ledger.append("d", 50, "LAUNCHED")
    assert (older.decision, older.rules) == ("illegal", ("seq",))
    wrong = ledger.append("d", 61, "REQUESTED")
    assert (wrong.decision, wrong.rules) == ("illegal", ("arrow",))
    first = ledger.append("e", 9, "LAUNCHED")
    assert (first.decision, first.rules) == ("illegal", ("initial",))
    assert [event.seq for event in ledger.history("d")] == [44, 60]
    assert ledger.state("d").state == "CONFIRMED"


@pytest.mark.parametrize(
    ("strict", "gaps", "decision", "rules"),
    [
        (True, "refuse", "illegal", ("gap",)),
        (True, "warn", "written", ("gap",)),
        (True, "allow", "written", ()),
        (False, "refuse", "illegal", ("gap",)),
        (False, "warn", "written", ("gap",)),
        (False, "allow", "written", ()),
    ],
)
def test_gap_is_refused_recorded_or_allowed_as_declared(helix, strict, gaps, decision, rules):
    ledger = helix.ledger(f"gaps-{strict}-{gaps}".lower(), DISPATCH, strict=strict, gaps=gaps)
    assert ledger.append("d", 1, "REQUESTED").is_new
    answer = ledger.append("d", 3, "CONFIRMED")
    assert (answer.decision, answer.rules) == (decision, rules)


def test_other_rule_for_gaps_than_the_declared_one_is_refused(helix):
    helix.ledger("ruled", DISPATCH, gaps="warn")
    with pytest.raises(Refused, match="gaps=warn"):
        helix.ledger("ruled", DISPATCH, gaps="allow")
