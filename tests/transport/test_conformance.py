"""What every transport promises a worker, tried on each of them alike."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid

import pytest

from helixqueue import Queue, Refused, State, Unavailable
from helixqueue.client import run_worker
from helixqueue.client.backend import backend_of
from helixqueue.log.events import WORKER_LOG, log_write
from helixqueue.records.lease import SealedToken
from helixqueue.transport.factory import build_transport
from helixqueue.transport.protocol import ClaimRequest, LeaseRef, Settlement
from helixqueue.worker.options import WorkerOptions
from helixqueue.worker.worker import Worker
from tests.support.lab import wait_until
from tests.support.service import Site, serving, settings_for


class Way:
    """A transport whose coroutines are called one by one, in a loop of its own."""

    def __init__(self, helix, queue):
        self.loop = asyncio.new_event_loop()
        self.queue = queue
        self.transport = self.do(self._made(helix))
        self.worker = self.transport.worker

    async def _made(self, helix):
        return backend_of(helix).transport(WorkerOptions(slots=4, name="gpu"))

    def do(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def ask(self, count=1, **options):
        return ClaimRequest(uuid.uuid4(), [self.queue], count, **options)

    def claim(self, count=1, **options):
        return list(self.do(self.transport.claim(self.ask(count, **options))).leases)

    def settle(self, *settlements):
        return self.do(self.transport.settle(settlements))

    def renew(self, *leases):
        return self.run("renew", leases)

    def release(self, *leases, detail="the node is drained"):
        return self.run("release", leases, detail=detail)

    def run(self, name, leases, **options):
        call = getattr(self.transport.calls, name)
        leases = [held(lease) for lease in leases]
        return self.do(self.transport.run(call(worker=self.worker, leases=leases, **options)))

    def close(self):
        self.do(self.transport.close())
        self.loop.close()


def held(lease):
    return LeaseRef(lease.batch, lease.token)


def completed(lease, result='{"reads":7}'):
    return Settlement(lease.batch, lease.token, "completed", result=result)


def words(answers):
    return [(answer.answer, answer.state) for answer in answers]


@pytest.fixture(scope="module")
def site(database):
    """Without duties: a reaper on a clock would meet the leases that these tests let run out."""
    with serving(settings_for(database, duties=False)) as url:
        yield Site(database, url)


@pytest.fixture
def way(helix, lab):
    way = Way(helix, lab.q)
    yield way
    way.close()


@pytest.fixture
def other(helix, lab):
    """Another worker of the same kind."""
    way = Way(helix, lab.q)
    yield way
    way.close()


def test_claim_returns_every_field_of_a_lease(way, lab):
    payload = {"pod5": "ä.pod5", "n": [1, 0.5, None, "\U0001f9ec"]}
    lab.submit(("Sämple-1", "lane 2"), payload=payload, revision="r2")
    [row] = lab.rows(
        "select b.key from helix.batch b join helix.queue q on q.id = b.queue where q.name = %s",
        lab.q,
    )
    [lease] = way.claim()
    assert bytes(row[0]) == lease.key
    assert json.loads(lease.payload) == payload
    assert lease.identity.split("\x1f") == ["Sämple-1", "lane 2"]
    assert (lease.tenant, lease.queue, lease.revision) == ("a", lab.q, "r2")
    assert (lease.attempt, lease.state, lease.lease_seconds) == (1, State.RUNNING, 120.0)
    assert lab.location(lease.batch_id)[0] == "RUNNING"
    assert lease.deadline.utcoffset() is not None


def test_batch_without_identity_and_with_null_payload_is_delivered_unchanged(way, lab):
    lab.queue(unknown="accept")
    lab.submit(None, payload=[])
    [lease] = way.claim()
    assert (lease.identity, json.loads(lease.payload)) == (None, [])


def test_token_that_left_the_worker_cannot_write_to_a_sibling_of_its_claim(way, lab):
    lab.submit("mine", "sibling")
    mine, sibling = way.claim(2)
    if isinstance(mine.token, SealedToken):
        # Such a token names its batch: there is none to exchange it with.
        forged = sibling._replace(token=SealedToken(mine.token.text[:-4] + sibling.token.text[-4:]))
        for operation in (way.renew(forged), way.settle(completed(forged)), way.release(forged)):
            assert words(operation) == [("refused", None)]
        return
    assert mine.token.number == sibling.token.number
    forged = sibling._replace(token=mine.own_token)
    for operation in (way.renew(forged), way.settle(completed(forged)), way.release(forged)):
        assert words(operation) == [("refused", State.RUNNING)]
    kept = lab.rows(
        "select operation, worker from helix.refusal where batch = %s order by 1",
        lab.batch_number(sibling.batch_id),
    )
    assert kept == [(name, way.worker) for name in ("release", "renew", "settle")]
    own = sibling._replace(token=sibling.own_token)
    assert words(way.settle(completed(own))) == [("ok", State.COMPLETED)]


def test_repeated_claim_after_a_lost_answer_returns_the_same_leases(way, lab):
    lab.submit_many(3)
    ask = way.ask(2)
    first, second = (way.do(way.transport.claim(ask)) for _ in range(2))
    assert [held(lease) for lease in first.leases] == [held(lease) for lease in second.leases]
    assert len(first.leases) == 2
    assert len(way.claim(3)) == 1


def test_claim_cut_at_its_size_limit_reports_more(way, lab):
    lab.submit_many(20, payload={"reads": "A" * 1000 * 1024})
    first, second = (way.do(way.transport.claim(way.ask(150))) for _ in range(2))
    assert [(len(operation.leases), operation.more) for operation in (first, second)] == [
        (17, True),
        (3, False),
    ]


def test_repeated_settle_with_another_result_is_a_mismatch(way, lab, caplog):
    [row] = lab.submit("s")
    [lease] = way.claim()
    [first] = way.settle(completed(lease, '{"reads":7}'))
    with caplog.at_level(logging.INFO, WORKER_LOG.name):
        [same] = way.settle(completed(lease, '{"reads":7}'))
        [other] = way.settle(completed(lease, '{"reads":8}'))
        claimed = way.do(way.transport.claim(way.ask(settle=[completed(lease, '{"reads":9}')])))
        [with_claim] = claimed.settled
        for result in (same, other, with_claim):
            log_write(way.worker, "settle", lease, result)
    assert [(item.answer, item.mismatch) for item in (first, same, other, with_claim)] == [
        ("ok", False), ("repeat", False), ("repeat", True), ("repeat", True),
    ]  # fmt: skip
    records = [record for record in caplog.records if record.name == WORKER_LOG.name]
    lines = [(record.levelname, json.loads(record.message)) for record in records]
    assert [(level, line["worker"], line.get("mismatch", False)) for level, line in lines] == [
        ("INFO", way.worker, False), ("ERROR", way.worker, True), ("ERROR", way.worker, True),
    ]  # fmt: skip
    stored = lab.value(
        "select result::text from helix.result where batch = %s", lab.batch_number(lease.batch_id)
    )
    assert json.loads(stored) == {"reads": 7}
    assert lab.location(row.receipt.batch_id)[0] == "COMPLETED"


def test_client_logs_a_repeated_settle_with_another_result(helix, lab, caplog):
    lab.submit("s")
    [lease] = helix.claim("w", [lab.q], start=True)
    helix.settle("w", [completed(lease, "1")])
    helix.settle("w", [completed(lease, "1")])
    assert caplog.records == []
    helix.settle("w", [completed(lease, "2")])
    [record] = [record for record in caplog.records if record.name == "helixqueue.client"]
    assert record.levelname == "ERROR"
    assert record.message.startswith(f"batch {lease.batch}: worker w repeated its settle")


def test_worker_logs_a_repeated_settle_with_another_result(helix, lab, caplog):
    lab.submit("s")

    async def answered():
        options = WorkerOptions(slots=1, name="gpu")
        transport = backend_of(helix).transport(options)
        worker = Worker(transport, {}, options, helix.submit, None, renews=False)
        [row] = (await transport.claim(ClaimRequest(uuid.uuid4(), [lab.q], 1))).leases
        worker._in_flight.add([row], time.monotonic())
        await transport.settle([completed(row, "1")])
        [answer] = await transport.settle([completed(row, "2")])
        sent = {row.batch: (worker._in_flight.held[row.batch], completed(row, "2"))}
        worker._in_flight.settled(sent, [answer], None)
        await transport.close()
        return row, worker

    row, worker = asyncio.run(answered())
    assert worker.health.counts.completed == 1
    [record] = [record for record in caplog.records if record.name == "helixqueue.worker"]
    assert record.levelname == "ERROR"
    assert record.message.startswith(f"batch {row.batch_id}: worker {worker.worker} repeated")


def test_settle_is_durable_and_a_second_one_is_a_repeat(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    assert words(way.settle(completed(lease))) == [("ok", State.COMPLETED)]
    assert words(way.settle(completed(lease))) == [("repeat", State.COMPLETED)]
    assert [reason for _, reason in lab.history(lease.batch_id)].count("completed") == 1


def test_one_call_settles_claims_and_starts_and_can_be_repeated(way, lab):
    lab.submit("s1", "s2")
    [first] = way.claim()
    ask = way.ask(1, settle=[completed(first)])
    for _ in range(2):
        claimed = way.do(way.transport.claim(ask))
        [answer] = claimed.settled
        assert answer.answer in {"ok", "repeat"}
        assert [lease.state for lease in claimed.leases] == [State.RUNNING]
    assert lab.location(first.batch_id)[0] == "COMPLETED"


def test_missing_result_differs_from_a_null_result(way, lab, helix):
    queue = Queue(lab.q, result=int | None)
    backend_of(helix).declare(queue)
    item, two = (row.receipt for row in lab.submit("s1", "s2"))
    first, second = way.claim(2)
    way.settle(completed(first, None), completed(second, "null"))
    stored = lab.rows(
        "select r.result::text from helix.work w join helix.queue q on q.id = w.queue "
        "left join helix.result r on r.batch = w.batch and r.version = w.version "
        "where q.name = %s order by w.batch",
        lab.q,
    )
    assert [row[0] for row in stored] == [None, "null"]
    assert helix.result(two, queue) is None
    with pytest.raises(Refused, match="gave none"):
        helix.result(item, queue)


def test_failure_keeps_its_message_and_is_final_or_retried(way, lab):
    lab.submit("s1", "s2")
    first, second = way.claim(2)
    answers = way.settle(
        Settlement(first.batch, first.token, "failed", failure="Broken", detail="ä\n" * 9),
        Settlement(
            second.batch, second.token, "failed", failure="Bad", detail="no", permanent=True
        ),
    )
    assert words(answers) == [("ok", State.PENDING), ("ok", State.FAILED)]
    [again] = way.claim(2)
    assert (again.batch, again.attempt) == (first.batch, 2)


def test_failed_batch_is_claimable_after_its_requested_delay(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    way.settle(
        Settlement(lease.batch, lease.token, "failed", failure="Later", after_seconds=3600.0)
    )
    assert way.claim() == []
    due = lab.value(
        "select due - now() from helix.work where batch = %s and cause = 'delay'",
        lab.batch_number(lease.batch_id),
    )
    assert 3500 < due.total_seconds() <= 3600


def test_release_costs_no_attempt_and_a_second_one_is_a_repeat(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    assert words(way.release(lease)) == [("ok", State.PENDING)]
    assert words(way.release(lease))[0][0] == "repeat"
    [again] = way.claim()
    assert again.attempt == 1
    assert again.token != lease.token


def test_every_write_to_a_cancelled_batch_is_refused(way, lab):
    [row] = lab.submit("s")
    [lease] = way.claim()
    lab.decide("cancel", row.receipt.batch_id)
    for operation in (way.renew(lease), way.settle(completed(lease)), way.release(lease)):
        assert words(operation) == [("refused", State.CANCELLED)]


def test_stale_write_is_refused_with_the_name_of_the_current_worker(way, other, lab):
    lab.submit("s")
    [lease] = way.claim()
    assert words(way.renew(lease)) == [("ok", State.RUNNING)]
    lab.pass_time(lab.batch_number(lease.batch_id))
    [theirs] = wait_until(other.claim)  # claims reap, at intervals
    assert theirs.batch == lease.batch
    for operation in (way.renew(lease), way.settle(completed(lease)), way.release(lease)):
        [answer] = operation
        assert (answer.answer, answer.owner) == ("refused", other.worker)
    assert words(other.settle(completed(theirs))) == [("ok", State.COMPLETED)]
    named = lab.rows(
        "select worker, owner from helix.refusal where batch = %s and operation = 'settle'",
        lab.batch_number(lease.batch_id),
    )
    assert named == [(way.worker, other.worker)]


def test_worker_logs_show_the_history_of_a_batch_by_its_id(way, other, lab, caplog):
    """Both names stand in the line of a refused write, whichever way it went."""
    [row] = lab.submit("s")
    with caplog.at_level(logging.INFO, WORKER_LOG.name):
        [lease] = way.claim()
        log_write(way.worker, "claim", lease, request_id=uuid.uuid4())
        lab.pass_time(lab.batch_number(lease.batch_id))
        [theirs] = wait_until(other.claim)
        log_write(other.worker, "claim", theirs, request_id=uuid.uuid4())
        [refused] = way.settle(completed(lease))
        log_write(way.worker, "settle", lease, refused)
        claimed = other.do(other.transport.claim(other.ask(settle=[completed(theirs)])))
        log_write(other.worker, "settle", theirs, claimed.settled[0])
    # The service logs in this process too.
    logged = [item.getMessage() for item in caplog.records if item.name == WORKER_LOG.name]
    lines = [json.loads(text) for text in logged if str(row.receipt.batch_id) in text]
    assert [
        (line["operation"], line["worker"], line.get("conflicting_worker"), line["attempt"],
         line["decision"], line.get("state"), line["queue"])
        for line in lines
    ] == [
        ("claim", way.worker, None, 1, "ok", None, lab.q),
        ("claim", other.worker, None, 2, "ok", None, lab.q),
        ("settle", way.worker, other.worker, 1, "refused", "RUNNING", lab.q),
        ("settle", other.worker, None, 2, "ok", "COMPLETED", lab.q),
    ]  # fmt: skip
    assert all("request" in line for line in lines if line["operation"] == "claim")


def test_late_write_of_an_unreaped_lease_is_accepted_and_marked_late(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    lab.pass_time(lab.batch_number(lease.batch_id))
    [answer] = way.settle(completed(lease))
    assert (answer.answer, answer.late) == ("ok", True)


def test_renewal_extends_the_deadline(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    deadline = "select deadline from helix.work where batch = %s and state = 'RUNNING'"
    before = lab.value(deadline, lab.batch_number(lease.batch_id))
    assert words(way.renew(lease)) == [("ok", State.RUNNING)]
    assert lab.value(deadline, lab.batch_number(lease.batch_id)) > before


def test_work_above_the_limit_of_one_request_is_claimed_and_settled_in_several(way, lab):
    lab.submit_many(260)
    leases = way.claim(250)
    assert len({lease.batch for lease in leases}) == 250
    claimed = way.do(
        way.transport.claim(way.ask(20, settle=[completed(lease) for lease in leases]))
    )
    assert [item.answer for item in claimed.settled] == ["ok"] * 250
    assert len(claimed.leases) == 10


def test_results_above_the_limit_of_one_request_are_settled_in_several(way, lab):
    lab.submit_many(3)
    heavy = json.dumps("x" * 600_000)
    answers = way.settle(*[completed(lease, heavy) for lease in way.claim(3)])
    assert words(answers) == [("ok", State.COMPLETED)] * 3


def test_claim_returns_only_batches_that_fit_the_free_resources(way, lab):
    lab.submit("big", requires=json.dumps({"gpus": 2}))
    lab.submit("small", requires=json.dumps({"gpus": 1}))
    [lease] = way.claim(2, free={"gpus": 1, "labels": {"site": "a"}})
    assert lease.identity == "small"


def test_claims_with_hints_lease_each_batch_once_in_order(way, lab):
    lab.submit_many(6)
    first = way.do(way.transport.claim(way.ask(2)))
    second = way.do(way.transport.claim(way.ask(2, hints=first.hints)))
    leased = [lease.identity for lease in (*first.leases, *second.leases)]
    assert leased == ["s00000", "s00001", "s00002", "s00003"]


def test_ledger_tells_whether_a_token_settled_its_attempt(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    assert way.do(way.transport.was_settled(lease)) is False
    way.settle(completed(lease))
    assert way.do(way.transport.was_settled(lease)) is True


def test_queue_is_returned_with_its_schemas(way, lab):
    lab.queue(result_schema={"type": "object"}, requires={"gpus": 1})
    row = way.do(way.transport.queue("a", lab.q))
    assert (row.name, row.result_schema, row.requires) == (
        lab.q, {"type": "object"}, {"gpus": 1},
    )  # fmt: skip
    assert way.do(way.transport.queue("a", "no-such-queue")) is None


def test_worker_reports_its_health(way, lab):
    found = {
        "gpus": 1,
        "health": {"busy": 2, "trouble": None},
        "progress": [{"batch": str(uuid.uuid4()), "fraction": 0.5, "note": "half"}],
    }
    way.do(way.transport.run(way.transport.calls.hello(worker=way.worker, free=found)))
    [(free,)] = lab.database.rows("select free from helix.worker where name = %s", way.worker)
    assert (free["gpus"], free["health"]["busy"]) == (1, 2)
    assert free["progress"] == found["progress"]


@pytest.mark.parametrize("identities", [["s"], ["s", "t"]], ids=["one", "many"])
def test_submission_wakes_a_waiting_worker(way, lab, identities):
    async def wait():
        await way.transport.subscribe([lab.q], 60)
        await way.transport.wait_for_wakeup(0.3)  # what was told while the way was made
        waiting = asyncio.create_task(way.transport.wait_for_wakeup(30))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await asyncio.to_thread(lab.submit, *identities)
        await waiting
        return time.monotonic() - begun

    assert way.do(wait()) < 5


def test_submission_between_two_waits_ends_the_second(way, lab):
    async def wait():
        await way.transport.subscribe([lab.q], 60)
        await way.transport.wait_for_wakeup(0.3)
        await asyncio.to_thread(lab.submit, "s")
        begun = time.monotonic()
        await way.transport.wait_for_wakeup(30)
        return time.monotonic() - begun

    assert way.do(wait()) < 5


def test_wait_without_new_work_ends_at_its_timeout(way, lab):
    async def wait():
        await way.transport.subscribe([lab.q], 60)
        await way.transport.wait_for_wakeup(0.3)
        begun = time.monotonic()
        await way.transport.wait_for_wakeup(0.3)
        return time.monotonic() - begun

    assert 0.25 < way.do(wait()) < 5


def test_unsubscribed_worker_is_no_waiter(way, lab):
    way.do(way.transport.subscribe([lab.q], 60))
    assert lab.database.value("select count(*) from helix.waiter where queue = %s", lab.q) == 1
    way.do(way.transport.unsubscribe([lab.q]))
    assert lab.database.value("select count(*) from helix.waiter where queue = %s", lab.q) == 0


def test_transport_recreated_in_another_process_renews_leases(way, lab):
    lab.submit("s")
    [lease] = way.claim()
    spec = json.loads(json.dumps(way.transport.spec()))

    async def renewed():
        twin = build_transport(spec)
        try:
            call = twin.calls.renew(worker=twin.worker, leases=[held(lease)])
            return await twin.run(call)
        finally:
            await twin.close()

    assert words(way.do(renewed())) == [("ok", State.RUNNING)]


def test_closed_transport_refuses_calls(way):
    way.do(way.transport.close())
    with pytest.raises(Unavailable, match="closed"):
        way.claim()


# A whole worker.


def work(helix, queue, **options):
    return helix.work(queue, until_idle=True, **options)


def test_handler_submits_the_next_batch(helix, lab):
    queue, then = Queue(lab.q), Queue(f"{lab.q}.then")
    backend_of(helix).declare(then)

    @queue.handler
    def run(lease):
        lease.progress(0.5, "half")
        return {"key": lease.idempotency_key, "n": lease.payload["n"]}

    @then.handler
    async def further(lease):
        return lease.payload["n"] + 1

    done = helix.submit_many(queue, [{"identity": f"s{n}", "payload": {"n": n}} for n in range(30)])
    next_one = helix.submit(then, identity="s", payload={"n": 1})
    summary = work(helix, [queue, then], slots=3)
    assert (summary.completed, summary.failed) == (31, 0)
    assert helix.result(done[7].receipt) == {"key": done[7].receipt.key, "n": 7}
    assert helix.result(next_one.receipt) == 2


def test_transaction_over_http_is_refused_with_the_remedy(helix, lab):
    queue = Queue(lab.q, max_attempts=1)

    @queue.handler
    def run(lease):
        with lease.transaction() as tx:
            return tx.complete({"done": True})

    receipt = helix.submit(queue, identity="s", payload={}).receipt
    summary = work(helix, queue, slots=1)
    if summary.completed:
        assert type(helix).__name__ == "HelixQueue"
        return
    [failed] = [event for event in helix.history(receipt) if event.reason == "failed"]
    assert "return the result instead" in failed.detail


def test_idle_worker_starts_new_work_soon(helix, lab):
    queue = Queue(lab.q)
    started = {}

    @queue.handler
    def run(lease):
        started[lease.identity] = time.monotonic()

    async def watch():
        options = WorkerOptions(slots=2, poll_seconds=20)
        transport = await asyncio.to_thread(backend_of(helix).transport, options)
        worker = Worker(
            transport,
            run_worker.handlers_of(helix, queue),
            options,
            helix.submit,
            None,
            renews=False,
        )
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(
            wait_until,
            lambda: lab.database.value("select count(*) from helix.waiter where queue = %s", lab.q),
        )
        await asyncio.sleep(0.3)
        took = []
        for n in range(3):
            begun = time.monotonic()
            await asyncio.to_thread(lab.submit, f"s{n}")
            await asyncio.to_thread(wait_until, lambda n=n: f"s{n}" in started)
            took.append(started[f"s{n}"] - begun)
        worker.stop()
        await running
        return took

    assert min(asyncio.run(watch())) < 2  # by far sooner than its own look
