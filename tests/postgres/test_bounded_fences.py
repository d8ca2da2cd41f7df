"""A page of fences reads a bounded number of rows, and pages lead to all fences."""

from __future__ import annotations

import pytest

from helixqueue.engine import fences
from helixqueue.errors import Refused
from helixqueue.states import FenceState
from tests.support.bounded_reads import READ
from tests.support.fence_caller import TIMES, FenceCaller
from tests.support.lab import new_database

ROWS_SCANNED = 30
LIMIT = 4
# What a page of LIMIT may read: its scan, its rows, and the small tables of tenants. Reading
# everything would be hundreds.
ROWS_READ_MAX = ROWS_SCANNED + LIMIT + 1 + 40
MANY = 100
NAMES = [None, "busy", "rare", "none such"]
STATES = [None, *FenceState]


@pytest.fixture(scope="module")
def database(server, template, pooler):
    """Few fences in other states, then many sealed ones; as many of another tenant."""
    for database in new_database(server, template, pooler):
        with database.connect("helix_bootstrap") as connection:
            connection.execute("alter table helix.fence set (autovacuum_enabled = off)")
        with FenceCaller(database, tenant="a") as a, FenceCaller(database, tenant="b") as b:
            for number in range(3):
                doubted = a.hold(f"doubt-{number}", name="rare")
                a.run(fences.doubt(doubted, actor="w1", detail="it broke"))
                a.hold(f"claim-{number}", name="rare", start=False)
                released = a.hold(f"release-{number}", name="busy")
                a.run(fences.release(released, TIMES, actor="w1", detail="not begun"))
            a.run(fences.doubt(a.hold("doubt", name="busy"), actor="w1", detail="it broke"))
            for number in range(MANY):
                a.seal(a.hold(f"key-{number}", name="busy"))
            for number in range(MANY):
                b.seal(b.hold(f"key-{number}", name="other"))
            a.seal(a.hold("last", name="busy"))
        with database.connect("helix_bootstrap") as connection:
            connection.execute("analyze")
        yield database


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(fences, "ROWS_SCANNED", ROWS_SCANNED)


def rows_read(caller, call):
    """Return how many rows of tables a call reads, by the server's own count."""
    connection = caller.store.connection
    with connection.transaction(force_rollback=True):
        [(before,)] = connection.execute(READ).fetchall()
        caller.run(call)
        [(after,)] = connection.execute(READ).fetchall()
        return after - before


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize(
    ("role", "tenant"),
    [("pool", "a"), ("pool", None), ("operator", None), ("app_a", None), ("app_b", "b")],
)
def test_fence_pages_are_bounded_and_complete(database, role, tenant, plans):
    """Also by whoever may see one tenant: the fences of the others are not stepped over."""
    result = {"app_a": "a", "app_b": "b"}.get(role)
    with FenceCaller(database, role) as caller:
        caller.store.connection.execute("select set_config('plan_cache_mode', %s, false)", (plans,))
        for name in NAMES:
            for state in STATES:
                value = {"tenant": tenant, "name": name, "state": state}
                truth = database.rows(
                    "select tenant::text, identity from helix.fence f "
                    "where coalesce(f.tenant = %s, true) and coalesce(f.tenant = %s, true) "
                    "and coalesce(f.name = %s, true) and coalesce(f.state::text = %s, true) "
                    "order by life desc",
                    *(tenant, result, name, state and state.value),
                )
                found, after = [], None
                while True:
                    call = fences.list_fences(limit=LIMIT, after=after, **value)
                    assert rows_read(caller, call) <= ROWS_READ_MAX, value
                    page = caller.run(call)
                    found += [(row.tenant, *row.identity) for row in page.rows]
                    after = page.next
                    if after is None:
                        break
                assert found == truth, value


def test_doubts_are_found_at_once_despite_later_seals(database):
    with FenceCaller(database) as caller:
        page = caller.run(fences.list_fences(tenant="a", state=FenceState.IN_DOUBT))
    assert [row.identity for row in page.rows] == [
        ("doubt",),
        ("doubt-2",),
        ("doubt-1",),
        ("doubt-0",),
    ]
    assert page.next is None


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "9" * 19, "1" * 20, "٣"])
def test_invalid_fence_cursor_is_refused(after):
    with pytest.raises(Refused, match="expected the `next` of an earlier page"):
        fences.list_fences(after=after)
