"""The words of the schema and of the package are the same words."""

from __future__ import annotations

import pytest

from helixqueue.ledger.fold import REASONS
from helixqueue.states import ARROWS, FINAL, FINISHED, State
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
