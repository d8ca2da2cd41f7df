"""The words of the schema and of the package are the same words."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.ledger.fold import REASONS
from helixqueue.states import ARROWS, FINAL, FINISHED, State
from helixqueue.store.reads import ENDINGS
from tests.lab import one_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from one_database(server, template, pooler)


def enum(database, name):
    return [
        word
        for (word,) in database.rows(
            "select e.enumlabel from pg_enum e where e.enumtypid = %s::regtype order by 1", name
        )
    ]


def test_the_states_are_the_same(database):
    assert enum(database, "helix.state") == sorted(State)


def test_the_arrows_are_the_same(database):
    arrows = database.rows("select from_state::text, to_state::text from helix.arrow")
    assert {(before and State(before), State(after)) for before, after in arrows} == ARROWS
    assert len(arrows) == len(ARROWS)


def test_endings_have_the_same_numbers(database):
    numbered = database.rows(
        "select s::text, helix.ending(s) from unnest(enum_range(null::helix.state)) s"
    )
    assert {State(state): number for state, number in numbered if number} == ENDINGS
    assert set(ENDINGS) == FINISHED


@pytest.mark.parametrize("state", sorted(FINISHED))
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_no_outcome_says_two_things(database, state, number):
    """Lists and retention go by the number, people by the state."""
    with (
        database.connect("helix_bootstrap") as connection,
        connection.transaction(force_rollback=True),
    ):
        connection.execute("alter table helix.outcome disable trigger all")
        insert = (
            "insert into helix.outcome (batch, tenant, state, ending, version, attempt, actor, "
            "reason, lane, queue) values (1, 'a', %s, %s, 4, 1, 'eve', 'completed', 1, 'q')"
        )
        if ENDINGS[state] == number:
            connection.execute(insert, (state, number))
        else:
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(insert, (state, number))


def test_the_reasons_are_the_same(database):
    assert enum(database, "helix.reason") == sorted(REASONS)


def test_every_arrow_has_a_reason_and_every_reason_an_arrow():
    explained = set().union(*REASONS.values())
    assert explained == ARROWS
    assert all(REASONS.values())


@pytest.mark.parametrize("state", FINAL)
def test_no_arrow_leaves_a_final_state(state):
    assert [arrow for arrow in ARROWS if arrow[0] == state] == []


def test_every_state_can_be_reached_and_every_other_left():
    assert {after for _, after in ARROWS} == set(State)
    assert {before for before, _ in ARROWS} - {None} == set(State) - FINAL
    assert {State.FAILED} == FINISHED - FINAL
