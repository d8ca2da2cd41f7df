"""The chain in Python is the chain in SQL, whatever the columns contain."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helixqueue.ledger.chain import (
    BYTEA,
    INT2,
    INT4,
    INT8,
    LedgerEntry,
    array_of,
    entry_hash,
    integers,
    microseconds,
    moment,
)
from helixqueue.ledger.fold import REASONS
from helixqueue.states import State

# PostgreSQL stores no U+0000, and UTF-8 has no surrogates; everything else must come through,
# characters beyond the basic plane above all.
text = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("Ω🧬\x1f>é")
)
states = st.sampled_from([state.value for state in State])
# timestamptz reaches from 4713 BC to 294276 AD; outside of this range is infinity.
moments = st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999)


def signed(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def arrays(kind, elements):
    return st.lists(elements, max_size=5).map(lambda values: array_of(kind, values))


hashes = st.binary(min_size=32, max_size=32)
entries = st.builds(
    LedgerEntry,
    id=signed(64),
    part=signed(16),
    at=moments,
    position=signed(64),
    epoch=st.none() | signed(32),
    from_state=st.none() | states,
    to_state=states,
    reason=st.sampled_from(list(REASONS)),
    late=st.booleans(),
    hash=st.just(b""),
    actor=text,
    batch=arrays(INT8, signed(64)),
    queue=arrays(INT4, signed(32)),
    version=arrays(INT4, signed(32)),
    attempt=arrays(INT2, signed(16)),
    before=st.none() | arrays(INT8, signed(64)),
    content=st.none() | arrays(BYTEA, st.none() | st.binary(max_size=40)),
)
KINDS = {INT8: "int8", INT4: "int4", INT2: "int2", BYTEA: "bytea"}

SQL = """
select helix.entry_hash(
  p_hashes => %(hashes)s::bytea[], p_id => %(id)s::bigint, p_part => %(part)s::smallint,
  p_at => timestamptz '2000-01-01 00:00Z' + %(at)s::interval, p_position => %(position)s::bigint,
  p_epoch => %(epoch)s::int, p_from => %(from_state)s::helix.state,
  p_to => %(to_state)s::helix.state, p_reason => %(reason)s::helix.reason, p_late => %(late)s,
  p_actor => %(actor)s, p_batch => %(batch)s::bigint[], p_queue => %(queue)s::int[],
  p_version => %(version)s::int[], p_attempt => %(attempt)s::smallint[],
  p_before => %(before)s::bigint[], p_content => %(content)s::bytea[])
"""


def values(array):
    """What `array_of` was made from."""
    if array is None or array[:4] == bytes(4):
        return None if array is None else []
    size, at, found = int.from_bytes(array[12:16], "big"), 20, []
    for _ in range(size):
        length = int.from_bytes(array[at : at + 4], "big", signed=True)
        at += 4
        data = None if length < 0 else array[at : at + length]
        at += max(length, 0)
        binary = array[8:12] == BYTEA.to_bytes(4, "big")
        found.append(data if binary or data is None else int.from_bytes(data, "big", signed=True))
    return found


def of_sql(connection, before, entry):
    # An interval of whole days and a rest: one of microseconds alone overflows.
    days, rest = divmod(entry.at, 86_400_000_000)
    arguments = entry._asdict() | {
        "hashes": before or None,
        "at": f"{days} days {rest} microseconds",
    }
    for name in ("batch", "queue", "version", "attempt", "before", "content"):
        arguments[name] = values(arguments[name])
    [(digest,)] = connection.execute(SQL, arguments).fetchall()
    return digest


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=st.lists(hashes, max_size=3), entry=entries)
def test_python_and_sql_compute_the_same_hash(connection, before, entry):
    assert entry_hash(before, entry) == of_sql(connection, before, entry)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([(INT8, 64), (INT4, 32), (INT2, 16)]).flatmap(
        lambda kind: st.tuples(st.just(kind[0]), st.lists(signed(kind[1]), max_size=50))
    )
)
def test_arrays_are_those_that_postgresql_sends(connection, case):
    kind, numbers = case
    query = f"select array_send(%s::{KINDS[kind]}[])"
    [(sent,)] = connection.execute(query, (numbers,)).fetchall()
    assert array_of(kind, numbers) == sent
    if numbers:
        assert integers(kind, sent) == tuple(numbers)


@pytest.mark.parametrize(
    "array",
    [
        "'{}'::int8[]",
        "'{1,null}'::int8[]",
        "'{{1,2},{3,4}}'::int8[]",
        "'[0:1]={1,2}'::int8[]",
        "'{1,2,3}'::int4[]",
    ],
)
def test_array_of_another_shape_is_refused(connection, array):
    """Only forged entries have one: an element that was left out would be another step."""
    [(sent,)] = connection.execute(f"select array_send({array})").fetchall()
    with pytest.raises(ValueError, match="plain array"):
        integers(INT8, sent)


@pytest.fixture
def connection(database):
    # As the superuser: `array_send` and `entry_hash` are not for clients.
    with database.connect("helix_bootstrap") as connection:
        # Days are 24 hours long only where no clock is changed.
        connection.execute("set timezone = 'UTC'")
        yield connection


FIRST = LedgerEntry(
    id=1,
    part=1,
    at=0,
    position=700,
    epoch=None,
    from_state=None,
    to_state="PENDING",
    reason="submitted",
    late=False,
    hash=b"",
    actor="lab",
    batch=array_of(INT8, [7, 8]),
    queue=array_of(INT4, [1, 1]),
    version=array_of(INT4, [1, 1]),
    attempt=array_of(INT2, [0, 0]),
    before=None,
    content=None,
)


def test_missing_array_is_not_an_empty_one():
    empty = FIRST._replace(content=array_of(BYTEA, []))
    assert entry_hash([], FIRST) != entry_hash([], empty)
    nulls = FIRST._replace(content=array_of(BYTEA, [None, None]))
    assert entry_hash([], nulls) != entry_hash([], empty)


def test_missing_number_is_not_zero():
    assert entry_hash([], FIRST) != entry_hash([], FIRST._replace(epoch=0))


def test_text_does_not_move_from_one_field_into_the_next():
    first = FIRST._replace(actor="f>1>x", late=False)
    second = FIRST._replace(actor="x", late=False)
    assert entry_hash([], first) != entry_hash([], second)


def test_element_does_not_move_from_one_array_into_the_next():
    moved = FIRST._replace(queue=array_of(INT4, [1]), version=array_of(INT4, [1, 1, 1]))
    assert entry_hash([], FIRST) != entry_hash([], moved)


def test_order_of_the_entries_before_counts():
    first, second = b"1" * 32, b"2" * 32
    assert entry_hash([first, second], FIRST) != entry_hash([second, first], FIRST)


def test_hash_encoding_is_stable():
    """The digests of two entries, written down: a change here breaks every ledger there is."""
    first = entry_hash([], FIRST)
    assert first.hex() == "796fd5df7c951853e6cb201f689a3f417c71a82189793d12687c555c6cf35c50"
    second = FIRST._replace(
        id=2, epoch=1, from_state="PENDING", to_state="RUNNING", reason="started", actor="wörker",
        version=array_of(INT4, [3, 3]), attempt=array_of(INT2, [1, 1]),
        before=array_of(INT8, [1, 1]), content=array_of(BYTEA, [b"c" * 32, None]),
    )  # fmt: skip
    assert (
        entry_hash([first], second).hex()
        == "c6eed3eb9c82a6768b79d2d51878a551eb724154c6abdc70b80774db982a9441"
    )


def test_time_and_its_microseconds():
    when = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    assert moment(microseconds(when)) == when
