"""What a client answers: declarations, types, crowds, waiting, results, lists."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import psycopg
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from helixqueue import (
    AsyncHelixQueue,
    Conflict,
    HelixQueue,
    InProgress,
    InvalidPayload,
    NoResult,
    Queue,
    Receipt,
    Refused,
    Settlement,
    State,
    Submission,
)
from helixqueue.identity import public_id


class Basecall(BaseModel):
    pod5: str
    kits: list[int] = Field(default_factory=list)


class Reads(BaseModel):
    reads: int


@dataclass
class Trim:
    adapter: str
    cost: Decimal = Decimal("1.50")
    tags: list[str] = field(default_factory=list)


class Align(TypedDict):
    reference: str


def stored(helix, name):
    return helix._do(helix._operations.find_queue(name))


def settings_written(database, name):
    return database.value(
        "select count(*) from helix.decision where queue = %s and kind = 'setting'", name
    )


def finish(helix, name, *, result='{"reads":7}', outcome="completed", **more):
    [lease] = helix.claim("w", [name], start=True)
    [answer] = helix.settle(
        "w", [Settlement(lease.batch, lease.token, outcome, result=result, **more)]
    )
    assert answer.answer == "ok"
    return lease


# --- declarations --------------------------------------------------------------------------------


def test_declared_queue_is_created_on_first_use_and_written_once(database, helix, name):
    queue = Queue(
        name, payload=Basecall, result=Reads, profile="lab-id-v1", lease=timedelta(minutes=1),
        max_attempts=7, backoff=0.1, backoff_max=9, key_limit=3, unknown="accept",
        requires={"gpus": 1},
    )  # fmt: skip
    for n in range(3):
        helix.submit(queue, identity=f"s{n}", payload=Basecall(pod5="a"))
    row = stored(helix, name)
    assert (row.profile, row.lease_seconds, row.max_attempts, row.key_limit) == (
        "lab-id-v1", 60, 7, 3,
    )  # fmt: skip
    assert (row.unknown, row.requires, row.backoff_max_seconds) == ("accept", {"gpus": 1}, 9)
    assert row.payload_schema == Basecall.model_json_schema()
    assert row.result_schema == Reads.model_json_schema()
    # Another program with the same declaration finds nothing to change.
    with HelixQueue(database.dsn("pool"), tenant="a") as other:
        other.submit(queue, identity="s", payload=Basecall(pod5="a"))
    assert settings_written(database, name) == 1


def test_declared_settings_win_and_others_stay_as_the_operator_set_them(database, helix, name):
    helix.submit(Queue(name, lease=60), identity="s", payload={})
    with database.connect("pool") as operator:
        operator.execute(
            "select helix.set_queue_v1('a', %s, 'ann', p_lease_seconds => 30, "
            "p_max_attempts => 9::smallint)",
            (name,),
        )
    with HelixQueue(database.dsn("pool"), tenant="a") as later:
        later.submit(Queue(name, lease=60), identity="t", payload={})
    row = stored(helix, name)
    assert (row.lease_seconds, row.max_attempts) == (60, 9)


def test_option_of_a_call_overrides_the_queue_for_its_batch_only(helix, name):
    queue = Queue(name, requires={"gpus": 1})
    helix.submit(queue, identity="big", payload={}, requires={"gpus": 4}, priority=0)
    helix.submit(queue, identity="usual", payload={})
    [lease] = helix.claim("w", [queue], 5, {"gpus": 1})
    assert lease.identity == "usual"


def test_changed_profile_is_refused_and_changes_nothing(helix, name):
    helix.submit(Queue(name), identity="s", payload={})
    with pytest.raises(Refused, match="has batches of profile text-v1"):
        helix.submit(Queue(name, profile="lab-id-v1"), identity="s", payload={})
    assert stored(helix, name).profile == "text-v1"


def test_queue_passed_by_name_is_created_only_on_request(helix, name):
    with pytest.raises(Refused, match="create=True"):
        helix.submit(name, identity="s", payload={})
    assert helix.submit(name, identity="s", payload={}, create=True).decision == "new"
    assert helix.submit_many(name, [Submission("s", {})])[0].decision == "duplicate"


def test_concurrent_declarations_create_one_queue(database, name):
    def declare(n):
        with HelixQueue(database.dsn("pool"), tenant="a") as client:
            queue = Queue(name, payload=Basecall, lease=33)
            return client.submit(queue, identity=f"s{n}", payload=Basecall(pod5="a")).decision

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(declare, range(6))) == ["new"] * 6


def test_changed_schema_is_stored_and_used_by_name(helix, database, name):
    class Wider(BaseModel):
        pod5: str
        flow: int = 0

    helix.submit(Queue(name, payload=Basecall), identity="s", payload=Basecall(pod5="a"))
    helix.submit(Queue(name, payload=Wider), identity="t", payload=Wider(pod5="a"))
    with HelixQueue(database.dsn("pool"), tenant="a") as other:
        with pytest.raises(InvalidPayload) as refused:
            other.submit(name, identity="u", payload={"pod5": "a", "flow": "x"})
        assert refused.value.path == "/flow"


def test_schema_too_large_to_store_is_refused(helix, name):
    fields = {f"field_{n}": (str, Field(description="x" * 200)) for n in range(400)}
    from pydantic import create_model  # noqa: PLC0415

    with pytest.raises(Refused, match="65536"):
        helix.submit(Queue(name, payload=create_model("Big", **fields)), identity="s", payload={})


# --- types ---------------------------------------------------------------------------------------

SHAPES = {
    "model": (Basecall, Basecall(pod5="a"), {"pod5": "a", "kits": []}),
    "dataclass": (Trim, Trim("x"), {"adapter": "x", "cost": "1.50", "tags": []}),
    "TypedDict": (Align, {"reference": "hg38"}, {"reference": "hg38"}),
    "dict": (dict[str, int], {"n": 1}, {"n": 1}),
    "list": (list[int], [1, 2], [1, 2]),
    "number": (int, 7, 7),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_type_round_trips_through_its_stored_schema(database, helix, name, shape):
    kind, value, plain = SHAPES[shape]
    queue = Queue(name, payload=kind, result=kind)
    submitted = helix.submit(queue, identity="s", payload=value)
    same = helix.submit(queue, identity="s", payload=plain)
    with HelixQueue(database.dsn("pool"), tenant="a") as stranger:
        named = stranger.submit(name, identity="s", payload=plain)
        with pytest.raises(InvalidPayload):
            stranger.submit(name, identity="t", payload={"wrong": object.__name__})
        assert submitted.receipt == same.receipt == named.receipt
        finish(helix, name, result=json.dumps(plain))
        assert helix.result(submitted.receipt) == value
        # Without the declaration the result is what JSON says; with it, the type again.
        assert stranger.result(submitted.receipt) == plain
        assert stranger.result(submitted.receipt.batch_id, queue) == value


def test_typed_payload_is_accepted_by_a_queue_passed_by_name(helix, name):
    submitted = helix.submit(name, identity="s", payload=Trim("x"), create=True)
    two = helix.submit(name, identity="s", payload=SHAPES["dataclass"][2])
    three = helix.submit(name, identity="t", payload=Basecall(pod5="a"))
    assert submitted.receipt == two.receipt
    assert three.decision == "new"


def test_model_made_invalid_after_construction_is_refused(helix, name):
    payload = Basecall(pod5="a")
    payload.pod5 = 5  # type: ignore[assignment]
    with pytest.raises(InvalidPayload):
        helix.submit(Queue(name, payload=Basecall), identity="s", payload=payload)


def test_conflict_lists_every_difference(helix, name):
    queue = Queue(name, payload=Basecall)
    first = helix.submit(queue, identity="Sämple", payload=Basecall(pod5="a", kits=[1]))
    with pytest.raises(Conflict, match="/kits/1, /pod5") as refused:
        helix.submit(queue, identity="Sa\u0308mple", payload=Basecall(pod5="b", kits=[1, 2]))
    assert refused.value.diff == [
        {"op": "add", "path": "/kits/1", "value": 2},
        {"op": "replace", "path": "/pod5", "value": "b", "was": "a"},
    ]
    revised = helix.submit(queue, identity="Sämple", payload=Basecall(pod5="b"), revision="2")
    assert revised.decision == "new"
    assert revised.receipt != first.receipt


def test_options_that_differ_are_reported_and_the_first_wins(helix, name):
    queue = Queue(name)
    helix.submit(queue, identity="s", payload={}, priority=1, limit_key="k")
    again = helix.submit(queue, identity="s", payload={}, priority=2)
    assert (again.decision, again.differs) == ("duplicate", ("priority", "limit_key"))


# --- crowds --------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_input(helix, name):
    queue = Queue(name, payload=Basecall)
    rows = [
        Submission("a", Basecall(pod5="1")),
        {"identity": "\u200b", "payload": {"pod5": "1"}},
        Submission("a", Basecall(pod5="2")),
        {"identity": "b", "payload": {"pod5": 5}},
        Submission("a", Basecall(pod5="1")),
        {"identity": ("x", "y"), "payload": {"pod5": "1"}, "priority": 0},
    ]
    answers = helix.submit_many(queue, rows)
    assert [answer.decision for answer in answers] == [
        "new", "refused", "conflict", "refused", "duplicate", "new",
    ]  # fmt: skip
    assert answers[0].receipt == answers[2].receipt == answers[4].receipt
    assert answers[2].error.diff == [{"op": "replace", "path": "/pod5", "value": "2", "was": "1"}]
    assert helix.submit_many(queue, []) == []


def test_submissions_are_read_one_chunk_ahead_at_most(helix, name):
    helix._operations.call_set = replace(helix._operations.call_set, chunk_rows=10)
    queue, value = Queue(name), []

    def rows():
        for n in range(25):
            value.append(sum(1 for _ in helix.batches(queue=name)))
            yield Submission(f"s{n % 24}", {"n": n % 24})

    answers = helix.submit_many(queue, rows())
    assert [answer.decision for answer in answers] == ["new"] * 24 + ["duplicate"]
    assert answers[24].receipt == answers[0].receipt
    assert value == [0] * 10 + [10] * 10 + [20] * 5


def test_large_payloads_are_split_by_size(database, helix, name):
    heavy = "x" * 900_000
    answers = helix.submit_many(
        Queue(name), ({"identity": f"s{n}", "payload": [heavy, n]} for n in range(40))
    )
    assert {answer.decision for answer in answers} == {"new"}
    moments = database.value(
        "select count(distinct b.created_at) from helix.batch b "
        "join helix.queue q on q.id = b.queue where q.name = %s",
        name,
    )
    assert moments > 1  # a call has one


def test_error_of_the_callers_iterable_is_raised_unchanged(helix, name):
    def rows():
        yield Submission("s", {})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        helix.submit_many(Queue(name), rows())


# --- what becomes of work ------------------------------------------------------------------------


def test_wait_returns_at_the_end_of_the_batch(helix, name):
    queue = Queue(name, payload=Basecall, result=Reads)
    made = helix.submit(queue, identity="s", payload=Basecall(pod5="a"))
    with pytest.raises(InProgress, match="is PENDING"):
        helix.result(made.receipt)
    with pytest.raises(InProgress) as early:
        helix.wait(made.receipt, timeout=0.01)
    assert early.value.retry_after > 0
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(helix.wait, made.receipt, timeout=20)
        finish(helix, name)
        assert waiting.result() is State.COMPLETED
    assert helix.result(made.receipt) == Reads(reads=7)
    assert [event.reason for event in helix.history(made.receipt)] == [
        "submitted", "claimed", "started", "completed",
    ]  # fmt: skip


def test_failed_or_cancelled_batch_raises_no_result_with_the_reason(helix, name):
    queue = Queue(name, max_attempts=1)
    failed = helix.submit(queue, identity="failed", payload={}).receipt
    finish(helix, name, outcome="failed", result=None, failure="OutOfMemory", detail="24 GB")
    with pytest.raises(NoResult, match=r"OutOfMemory: 24 GB.*retry it") as refused:
        helix.result(failed)
    assert (refused.value.state, refused.value.failure) == ("FAILED", "OutOfMemory")
    assert helix.retry(failed, reason="more memory") is State.PENDING
    assert helix.cancel(failed, reason="not needed") is State.CANCELLED
    assert helix.cancel(failed, reason="not needed") is State.CANCELLED
    with pytest.raises(NoResult, match="submit a new revision"):
        helix.result(failed)


def test_failed_batches_are_listed_and_retried_by_reference_and_filter(helix, name):
    queue = Queue(name, max_attempts=1)
    for number, failure in enumerate(("OutOfMemory", "Truncated", "OutOfMemory")):
        helix.submit(queue, identity=f"s{number}", payload={})
        finish(helix, name, outcome="failed", result=None, failure=failure, detail="24 GB")
    newest, *_ = rows = list(helix.batches(queue=name, state="failed"))
    assert [row.identity for row in rows] == [("s2",), ("s1",), ("s0",)]
    assert (newest.failure, newest.detail, newest.last_worker) == ("OutOfMemory", "24 GB", "w")
    assert newest.finished_at is not None
    assert [row.identity for row in helix.batches(queue=name, failure="Truncated")] == [("s1",)]
    assert list(helix.batches(queue=name, state="FAILED", since=datetime.now(UTC))) == []
    assert list(helix.batches(queue=name, state="FAILED", until=rows[-1].finished_at)) == []

    preview = helix.retry(queue=queue, failure="OutOfMemory", reason="x", dry_run=True)
    assert [(row.identity, row.answer, row.state) for row in preview] == [
        (("s2",), "ok", "FAILED"), (("s0",), "ok", "FAILED"),
    ]  # fmt: skip
    fresh = helix.submit(queue, identity="fresh", payload={}).receipt
    selected = [*helix.batches(queue=name, failure="OutOfMemory"), rows[0].batch_id, fresh]
    answers = helix.retry(selected, reason="more memory")
    assert [(row.batch_id, row.answer, row.state) for row in answers] == [
        (rows[0].batch_id, "ok", "PENDING"), (rows[2].batch_id, "ok", "PENDING"),
        (fresh.batch_id, "illegal", "PENDING"),
    ]  # fmt: skip
    assert [row.identity for row in helix.batches(queue=name, state="failed")] == [("s1",)]
    assert helix.history(rows[0].batch_id)[-1].reason == "retried"
    assert helix.retry([], reason="nothing to do") == []
    assert helix.retry(rows[1].batch_id, reason="x", dry_run=True) is State.FAILED
    assert helix.retry(rows[1], reason="x") is State.PENDING
    cancelled = helix.cancel(queue=name, state="pending", reason="enough")
    assert [row.answer for row in cancelled] == ["ok"] * 4


def test_retry_by_filter_takes_more_than_one_page(helix, name):
    queue = Queue(name, max_attempts=1)
    helix.submit_many(queue, [{"identity": f"s{n}", "payload": {}} for n in range(600)])
    while leases := helix.claim("w", [name], 100, start=True):
        ends = [Settlement(lease.batch, lease.token, "failed", failure="Torn") for lease in leases]
        helix.settle("w", ends)
    listed = list(helix.batches(queue=name, failure="Torn"))
    assert [row.answer for row in helix.retry(listed, reason="x", dry_run=True)] == ["ok"] * 600
    answers = helix.retry(queue=name, reason="mended")
    assert [row.answer for row in answers] == ["ok"] * 600
    assert list(helix.batches(queue=name, state="failed")) == []


@pytest.mark.parametrize(
    ("batches", "reason", "filters"),
    [
        ([], " ", {}), ([], None, {}), ("text", "x", {}), ([7], "x", {}), (7, "x", {}),
        ([{}], "x", {}), (None, "x", {}), ([], "x", {"queue": "q"}),
    ],
)  # fmt: skip
def test_ambiguous_retry_is_refused(helix, batches, reason, filters):
    with pytest.raises(Refused, match=r"retry|reason|expected a receipt"):
        helix.retry(batches, reason=reason, **filters)


def test_retry_of_an_unknown_batch_is_refused(helix):
    with pytest.raises(Refused, match="no such batch"):
        helix.retry(uuid.UUID(int=7), reason="x")


def test_erased_or_retired_batch_is_reported_as_such(database, helix, name):
    receipt = helix.submit(Queue(name), identity="s", payload={"who": "ann"}).receipt
    finish(helix, name)
    assert helix.erase(receipt, reason="asked for") is State.COMPLETED
    assert helix.result(receipt) is None
    with pytest.raises(Conflict):
        helix.submit(name, identity="s", payload={"who": "bob"})
    with database.connect("pool") as connection:
        connection.execute(
            "select helix.retire_v1('a', %s, 'COMPLETED', clock_timestamp())", (name,)
        )
    assert helix.wait(receipt) is State.COMPLETED
    # The ledger is append-only: retention takes payload and result, and leaves the steps.
    reasons = [event.reason for event in helix.history(receipt)]
    assert reasons == ["submitted", "claimed", "started", "completed"]
    with pytest.raises(NoResult, match="retention"):
        helix.result(receipt)
    again = helix.submit(name, identity="s", payload={"who": "ann"})
    assert (again.decision, again.receipt) == ("duplicate", receipt)


def test_erased_typed_result_raises_no_result(helix, name):
    receipt = helix.submit(Queue(name, result=Reads), identity="s", payload={}).receipt
    finish(helix, name)
    assert helix.result(receipt) == Reads(reads=7)
    helix.erase(receipt, reason="asked for")
    with pytest.raises(NoResult, match="erased"):
        helix.result(receipt)


def test_lists_are_filtered_by_queue_state_identity_worker_and_time(helix, name):
    queue = Queue(name, profile="lab-id-v1")
    helix.submit_many(queue, [Submission(f"Sämple-{n}", {"n": n}) for n in range(5)])
    finish(helix, name)
    assert len(list(helix.batches(queue=queue))) == 5
    assert len(list(helix.batches(queue=name, state="PENDING"))) == 4
    [done] = helix.batches(queue=name, state=State.COMPLETED)
    assert (done.identity, done.finished_by) == (("Sämple-0",), "w")
    [twin] = helix.batches(queue=name, identity="Sa\u0308mple-3")
    assert twin.identity == ("Sämple-3",)
    now = datetime.now(UTC)
    assert list(helix.batches(queue=name, since=now + timedelta(minutes=1))) == []
    assert len(list(helix.batches(queue=name, until=now + timedelta(minutes=1)))) == 5


def test_pages_of_a_list_neither_skip_nor_repeat_rows(helix, name):
    helix.submit_many(Queue(name), [Submission(f"s{n}", {}) for n in range(30)])
    found = [batch.identity for batch in helix.batches(queue=name, limit=7)]
    assert len(found) == len(set(found)) == 30

    async def pages():
        dsn = helix._backend.source.open()
        async with AsyncHelixQueue(dsn, tenant="a") as client:
            return [batch.identity async for batch in client.batches(queue=name, limit=7)]

    assert asyncio.run(pages()) == found


def test_leases_are_started_renewed_released_and_settled(helix, name):
    queue = Queue(name)
    helix.submit_many(queue, [Submission(f"s{n}", {}) for n in range(3)])
    leases = helix.claim("w", [queue], 3)
    assert [item.answer for item in helix.start("w", leases)] == ["ok"] * 3
    assert [item.answer for item in helix.renew("w", leases)] == ["ok"] * 3
    assert [item.answer for item in helix.release("w", leases[:1])] == ["ok"]
    done = [Settlement(lease.batch, lease.token, "completed", result="1") for lease in leases]
    answers = {item.batch: item.answer for item in helix.settle("w", done)}
    assert [answers[lease.batch] for lease in leases] == ["refused", "ok", "ok"]
    assert [item.answer for item in helix.settle("w", done[1:])] == ["repeat", "repeat"]


def test_receipts_are_values(helix, name):
    submitted = helix.submit(Queue(name), identity="s", payload={}).receipt
    two = Receipt(submitted.batch_id, submitted.key, submitted.fingerprint)
    assert submitted == two
    assert {submitted: 1}[two] == 1
    assert helix.state(two) is State.PENDING
    assert submitted not in {helix.submit(Queue(name), identity="t", payload={}).receipt, "s"}
    assert pickle.loads(pickle.dumps(submitted)) == copy.deepcopy(submitted) == submitted  # noqa: S301
    batch_id, key, fingerprint = submitted
    assert (batch_id, key, fingerprint) == (
        submitted.batch_id,
        submitted.key,
        submitted.fingerprint,
    )
    assert public_id(key) == batch_id
    assert repr(submitted) == (
        f"Receipt(batch_id={batch_id!r}, key={key!r}, fingerprint={fingerprint!r})"
    )
    assert eval(repr(submitted), {"Receipt": Receipt, "UUID": uuid.UUID}) == submitted  # noqa: S307
    with pytest.raises(ValueError, match="expected the batch id of this key"):
        Receipt(uuid.uuid4(), key, fingerprint)


def test_actor_of_a_submission_is_recorded(database, name):
    with HelixQueue(database.dsn("pool"), tenant="a", actor="intake@bench") as helix:
        receipt = helix.submit(Queue(name), identity="s", payload={}).receipt
        assert [event.actor for event in helix.history(receipt)] == ["intake@bench"]


def test_role_bound_by_setting_sees_only_the_tenant_of_its_client(database, name):
    queue = Queue(name)
    with (
        HelixQueue(database.dsn("service"), tenant="a") as first,
        HelixQueue(database.dsn("service"), tenant="b") as second,
    ):
        mine = first.submit(queue, identity="s", payload={}).receipt
        other = second.submit(queue, identity="s", payload={}).receipt
        assert mine != other
        with pytest.raises(Refused, match="has no batch"):
            second.state(mine)
        with pytest.raises(Refused, match="no such batch"):
            second.cancel(mine, reason="because")
        [lease] = second.claim("w", [queue], 5)
        assert lease.batch_id == other.batch_id


def test_latest_declaration_decides_the_type_of_the_result(helix, name):
    class Counted(BaseModel):
        reads: float

    helix.submit(Queue(name, result=Reads), identity="s", payload={})
    receipt = helix.submit(Queue(name, result=Counted), identity="s", payload={}).receipt
    finish(helix, name)
    assert helix.result(receipt) == Counted(reads=7.0)


def test_schema_above_its_limit_is_refused_by_the_database_too(database, name):
    with (
        database.connect("pool") as connection,
        pytest.raises(psycopg.errors.CheckViolation, match="payload_schema"),
    ):
        connection.execute(
            "select helix.set_queue_v1('a', %s, 'ann', "
            "p_payload_schema => to_jsonb(repeat('x', 70000)))",
            (name,),
        )


def test_unused_queue_is_deleted_and_a_used_one_stays(helix, name):
    queue = Queue(name)
    assert helix.delete_queue(name, reason="a typing error") is False
    helix.submit(f"{name}-used", identity="S-1", payload={}, create=True)
    with pytest.raises(Refused, match=r"has or had batches.*--closed"):
        helix.delete_queue(f"{name}-used", reason="a typing error")
    helix.submit_many(queue, [])
    assert stored(helix, name).name == name
    assert helix.delete_queue(queue, reason="a typing error") is True
    assert stored(helix, name) is None
    # The client does not remember the deleted queue.
    assert helix.submit(queue, identity="S-1", payload={}).decision == "new"
    with pytest.raises(Refused, match="expected a reason"):
        helix.delete_queue(name, reason=" ")
