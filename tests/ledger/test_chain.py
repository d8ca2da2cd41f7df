"""The chain in Python is the chain in SQL, whatever the columns hold."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helixqueue.ledger.chain import Event, event_hash, microseconds
from helixqueue.ledger.fold import REASONS
from helixqueue.states import State

# PostgreSQL keeps no U+0000, and UTF-8 has no surrogates; everything else must come through,
# characters beyond the basic plane above all.
text = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("Ω🧬\x1f>é")
)
states = st.sampled_from([state.value for state in State])
# timestamptz reaches from 4713 BC to 294276 AD; outside of this range lies infinity.
moments = st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999)


def signed(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


events = st.builds(
    Event,
    batch=signed(64),
    version=signed(32),
    tenant=text,
    from_state=st.none() | states,
    to_state=states,
    at=moments,
    xid=st.integers(3, 2**63 - 1),
    attempt=signed(16),
    epoch=st.none() | signed(32),
    number=st.none() | signed(64),
    actor=text,
    reason=st.sampled_from(list(REASONS)),
    detail=st.none() | text,
    late=st.booleans(),
    hash=st.just(b""),
)

SQL = """
select helix.event_hash(
  p_before => %s, p_batch => %s, p_version => %s, p_tenant => %s, p_from => %s::helix.state,
  p_to => %s::helix.state, p_at => timestamptz '2000-01-01 00:00Z' + %s::interval,
  p_attempt => %s::smallint, p_epoch => %s::int, p_number => %s::bigint, p_actor => %s,
  p_reason => %s::helix.reason, p_detail => %s, p_late => %s, p_xid => %s)
"""


def of_sql(connection, before, event):
    # An interval of whole days and a rest: one of microseconds alone overflows.
    days, rest = divmod(event.at, 86_400_000_000)
    [(digest,)] = connection.execute(
        SQL,
        (before, event.batch, event.version, event.tenant, event.from_state, event.to_state,
         f"{days} days {rest} microseconds", event.attempt, event.epoch, event.number, event.actor,
         event.reason, event.detail, event.late, event.xid),
    ).fetchall()  # fmt: skip
    return digest


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=st.none() | st.binary(min_size=32, max_size=32), event=events)
def test_python_and_sql_make_the_same_hash(connection, before, event):
    assert event_hash(before or b"", event) == of_sql(connection, before, event)


@pytest.fixture
def connection(database):
    with database.connect("operator") as connection:
        # Days are 24 hours long only where no clock is changed.
        connection.execute("set timezone = 'UTC'")
        yield connection


FIRST = Event(
    batch=1,
    version=1,
    tenant="a",
    from_state=None,
    to_state="PENDING",
    at=0,
    xid=700,
    attempt=0,
    epoch=None,
    number=None,
    actor="lab",
    reason="submitted",
    detail=None,
    late=False,
    hash=b"",
)


def test_null_is_not_the_empty_text():
    assert event_hash(b"", FIRST) != event_hash(b"", FIRST._replace(detail=""))


def test_a_number_that_is_missing_is_not_a_number():
    assert event_hash(b"", FIRST) != event_hash(b"", FIRST._replace(epoch=0))
    assert event_hash(b"", FIRST) != event_hash(b"", FIRST._replace(number=0))


def test_text_does_not_flow_from_one_column_into_the_next():
    one = FIRST._replace(tenant="ab", actor="c")
    two = FIRST._replace(tenant="a", actor="bc")
    assert event_hash(b"", one) != event_hash(b"", two)


def test_the_encoding_is_fixed_for_ever():
    """The digest of one event, written down: a change here breaks every ledger there is."""
    assert event_hash(b"", FIRST).hex() == (
        "5c7d1719bbd1ab7a269b98230d979111ad6a4c3677ba0b670556fbdbca2c1f1f"
    )


def test_a_moment_and_its_microseconds():
    when = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    assert FIRST._replace(at=microseconds(when)).when == when
