"""Arguments that a driver, a script or an attacker may get wrong: refused whole, never repaired.

PostgreSQL pads the shorter of two arrays and shifts one whose first index is not 1, without an
error, so one missing element would give each row the values of its neighbour.
"""

from __future__ import annotations

import uuid

import psycopg
import pytest
from psycopg import sql

from helixqueue.identity.characters import WHITE_SPACE
from tests.support.lab import Lab

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def call(lab, function, arguments):
    """Call by names of arguments; texts, so that arrays of any shape can be written."""
    query = sql.SQL("select * from {}({})").format(
        sql.Identifier("helix", function),
        sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(f"p_{name}"), sql.Placeholder(name))
            for name in arguments
        ),
    )
    return lab.store.connection.execute(query, arguments).fetchall()


def refused(lab, function, arguments, *states):
    """The call raises one of these SQLSTATEs, and changes nothing."""
    before = everything(lab)
    with pytest.raises(psycopg.Error) as error:
        call(lab, function, arguments)
    assert error.value.sqlstate in states, (arguments, error.value)
    assert everything(lab) == before
    return error.value


def everything(lab):
    return lab.rows(
        "select (select count(*) from helix.batch), (select count(*) from helix.entry),"
        " (select count(*) from helix.refusal), (select count(*) from helix.decision),"
        " (select sum(times) from helix.answer_count),"
        " (select md5(string_agg(w::text, '|' order by w.batch)) from helix.work w)"
    )


def array(values):
    """As PostgreSQL writes it."""
    return (
        "{" + ",".join("null" if value is None else f'"{quoted(value)}"' for value in values) + "}"
    )


def quoted(value):
    return str(value).replace("\\", "\\\\").replace('"', '\\"')


def misshapen(values):
    """The same values in every shape that is not one dimension with indexes from 1."""
    count = len(values)
    yield "one too many", array([*values, values[-1]])
    yield "one too few", array(values[:-1])
    yield "first index 0", f"[0:{count - 1}]={array(values)}"
    yield "first index 2", f"[2:{count + 1}]={array(values)}"
    yield "a row of two dimensions", "{" + array(values) + "}"
    yield "a column of two dimensions", "{" + ",".join(array([value]) for value in values) + "}"


ARRAY_SUBSCRIPT_ERROR = "2202E"

SUBMISSION = {
    "identity": "s",
    "payload": "{}",
    "raw": "s",
    "revision": "r",
    "priority": 5,
    "run_at": "2020-01-01Z",
    "expires_at": "8000-01-01Z",
    "limit_key": "k",
    "requires": '{"gpus":1}',
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", SUBMISSION)
def test_submit_refuses_arrays_that_do_not_run_in_parallel(lab, name, count):
    scalars = {"tenant": "a", "queue": lab.q, "actor": "ann", "profile": "text-v1"}

    def column(item):
        value = SUBMISSION[item]
        return [f"{value}{n}" if item in ("identity", "raw") else value for n in range(count)]

    # Beside all others, and beside the least there must be.
    for others in (SUBMISSION, ("identity", "payload")):
        right = {other: array(column(other)) for other in {*others, name}}
        for what, wrong in misshapen(column(name)):
            error = refused(
                lab, "submit_v1", scalars | right | {name: wrong}, ARRAY_SUBSCRIPT_ERROR
            )
            assert "expected arrays of one dimension" in str(error), what
    # What was refused for its shape is good in the right one.
    assert len(call(lab, "submit_v1", scalars | right)) == count


def test_submit_refuses_no_payloads_at_all(lab):
    scalars = {"tenant": "a", "queue": lab.q, "actor": "ann", "profile": "text-v1"}
    refused(lab, "submit_v1", scalars | {"identity": "{s}", "payload": None}, ARRAY_SUBSCRIPT_ERROR)


TOKEN = ("batch", "epoch", "nonce", "number")
SETTLEMENT = {
    "outcome": "completed",
    "result": "1",
    "failure": "Broken",
    "detail": "x",
    "permanent": False,
    "after": 1.5,
}
HOLDING = {
    "start_v1": TOKEN,
    "renew_v1": TOKEN,
    "release_v1": TOKEN,
    "settle_v1": (*TOKEN, *SETTLEMENT),
    "claim_v1": (*TOKEN, *SETTLEMENT),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("function", "name"),
    [(function, name) for function, names in HOLDING.items() for name in names],
)
def test_no_write_with_tokens_takes_arrays_that_do_not_run_in_parallel(lab, function, name, count):
    lab.submit_many(count)
    leases = lab.claim(count, start=function != "start_v1")
    prefix = "done_" if function == "claim_v1" else ""

    def column(item):
        if item in SETTLEMENT:
            return [SETTLEMENT[item]] * count
        return [lease.batch if item == "batch" else getattr(lease.token, item) for lease in leases]

    scalars = {"worker": "w1"}
    if function == "claim_v1":
        scalars |= {"request": uuid.uuid4(), "queues": "{nowhere}", "count": 0}
    least = (*TOKEN, "outcome") if "outcome" in HOLDING[function] else TOKEN
    for others in (HOLDING[function], least):
        right = {f"{prefix}{other}": array(column(other)) for other in {*others, name}}
        for what, wrong in misshapen(column(name)):
            arguments = scalars | right | {f"{prefix}{name}": wrong}
            error = refused(lab, function, arguments, ARRAY_SUBSCRIPT_ERROR)
            assert "expected arrays of one dimension" in str(error), what
        refused(lab, function, scalars | right | {f"{prefix}batch": "{}"}, ARRAY_SUBSCRIPT_ERROR)
    assert len(call(lab, function, scalars | right)) >= 1
    assert lab.value("select count(*) from helix.refusal") == 0


# --- times and lengths -------------------------------------------------------------------------

CHECK_VIOLATION = "23514"
# A year that Python cannot read would make every list of its tenant fail.
OUT_OF_TIME = ["infinity", "9999-12-31 23:59:59-12", "9000-01-01 00:00:01Z"]
BEFORE_TIME = ["-infinity", "1969-12-31 23:59:59Z", "0001-01-01Z"]


def submission(lab, **options):
    count = len(next(iter(options.values()), [0]))
    arrays = {
        "identity": [f"s{n}" for n in range(count)],
        "payload": ["{}"] * count,
    } | options
    return {"tenant": "a", "queue": lab.q, "actor": "ann", "profile": "text-v1"} | {
        name: array(values) for name, values in arrays.items()
    }


@pytest.mark.parametrize(
    ("name", "moment"),
    [("run_at", moment) for moment in OUT_OF_TIME + BEFORE_TIME]
    + [("expires_at", moment) for moment in OUT_OF_TIME],
)
def test_time_outside_the_calendar_is_refused(lab, name, moment):
    refused(lab, "submit_v1", submission(lab, **{name: [moment]}), CHECK_VIOLATION)
    refused(lab, "submit_v1", submission(lab, **{name: [None, moment]}), CHECK_VIOLATION)


@pytest.mark.parametrize("moment", BEFORE_TIME)
def test_expiry_at_minus_infinity_is_refused_as_past(lab, moment):
    [answer] = call(lab, "submit_v1", submission(lab, expires_at=[moment]))
    assert answer[1] == "refused"
    assert lab.rows("select from helix.batch b join helix.queue q on q.id = b.queue"
                    " where q.name = %s", lab.q) == []  # fmt: skip


@pytest.mark.parametrize("seconds", ["0", "0.04", "-1", "86401", "1e30", "infinity", "nan"])
def test_length_of_lease_out_of_bounds_is_refused(lab, seconds):
    lab.submit("s1")
    claim = {
        "worker": "w1", "request": uuid.uuid4(), "queues": array([lab.q]), "count": 1,
        "lease_seconds": seconds,
    }  # fmt: skip
    refused(lab, "claim_v1", claim, CHECK_VIOLATION)
    assert len(call(lab, "claim_v1", claim | {"lease_seconds": "0.05"})) == 2


# --- texts -------------------------------------------------------------------------------------

ZERO_WIDTH = ["\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u2060", "\ufeff"]


@pytest.mark.parametrize("count", [1, 3])
def test_revision_that_is_not_nfc_is_refused(lab, count):
    """Two spellings of one revision would be two batches."""
    for wrong in ("Sa\u0308", "\u2126", "x" * 256, "ä" * 128):
        revisions = ["r"] * (count - 1) + [wrong]
        refused(lab, "submit_v1", submission(lab, revision=revisions), CHECK_VIOLATION)
    assert call(lab, "submit_v1", submission(lab, revision=["Sä"] * count))


@pytest.mark.parametrize("blank", WHITE_SPACE, ids=lambda char: f"U+{ord(char):04X}")
def test_identity_with_outer_blanks_is_refused(lab, blank):
    """Every profile trims them, so with and without they would be two batches of one identity."""
    for wrong in (
        f"{blank}s", f"s{blank}", f"a\x1f{blank}s", f"a{blank}\x1fs", f"ä{blank}", blank,
    ):  # fmt: skip
        refused(lab, "submit_v1", submission(lab, identity=[wrong]), CHECK_VIOLATION)
    refused(lab, "submit_v1", submission(lab, identity=["a", "b", f"s{blank}"]), CHECK_VIOLATION)


@pytest.mark.parametrize("char", ZERO_WIDTH, ids=lambda char: f"U+{ord(char):04X}")
def test_identity_with_zero_width_characters_is_refused(lab, char):
    for wrong in (f"{char}s", f"s{char}", f"s{char}1", f"a\x1fs{char}1"):
        refused(lab, "submit_v1", submission(lab, identity=[wrong]), CHECK_VIOLATION)
    refused(lab, "submit_v1", submission(lab, identity=["a", "b", f"s{char}"]), CHECK_VIOLATION)


def test_inner_blanks_and_many_parts_are_fine(lab):
    identities = ["run 7", "a\x1fb c\x1fd", "Sämple Ω 1", "検体 7"]
    answers = call(lab, "submit_v1", submission(lab, identity=identities))
    assert [answer[1] for answer in answers] == ["new"] * 4
