"""Every request loses its first answer: one effect each, and the answers of a client in peace."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid

import pytest

from helixqueue import (
    AsyncHelixClient,
    Conflict,
    HelixClient,
    HelixQueue,
    InProgress,
    Queue,
    Settlement,
    State,
    Submission,
    Unavailable,
)
from helixqueue.client.backend import backend_of
from helixqueue.transport.http.connection import ServiceAddress
from helixqueue.transport.http.transport import HttpTransport
from helixqueue.transport.protocol import ClaimRequest, Transport
from tests.support.lab import BATCHES, wait_until
from tests.support.network_cuts import LossyProxy


@pytest.fixture
def cutting(site):
    with LossyProxy(site.url) as cutting:
        cutting.lose_each = True
        yield cutting


@pytest.fixture
def plain(database):
    """The client whose answers count."""
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        yield helix


@pytest.fixture
def cut_off(cutting, site):
    with HelixClient(cutting.url, token=site.token()) as helix:
        wait_for_service(helix, cutting)
        yield helix


def wait_for_service(helix, cutting):
    """A client that never reached its service gives up at once: let it be reached."""
    cutting.lose_each = False
    list(helix.batches(queue="nothing-here"))
    cutting.lose_each = True


def completed(lease):
    return Settlement(lease.batch, lease.token, "completed", result='{"reads":7}')


def failed(lease):
    return Settlement(lease.batch, lease.token, "failed", failure="Broken", permanent=True)


def whole_life(helix, queue):
    """Every method of a client; what it answered, without what differs from queue to queue."""
    found = {}
    backend_of(helix).declare(queue)
    submitted = helix.submit(queue, identity="one", payload={"n": 1})
    many = helix.submit_many(
        queue, [Submission("one", {"n": 1}), Submission("two", {"n": 2}), Submission("x\u200b", 1)]
    )
    none = helix.submit(queue, identity=None, payload={"n": 0})
    found["decisions"] = [row.decision for row in many]
    found["receipts"] = many[0].receipt == submitted.receipt
    found["refusal"] = (type(many[2].error), many[2].error.code, many[2].error.offset)
    with pytest.raises(Conflict) as conflict:
        helix.submit(queue, identity="one", payload={"n": 2})
    found["diff"] = conflict.value.diff
    two = many[1].receipt
    found["state"] = helix.state(submitted.receipt)
    with pytest.raises(InProgress):
        helix.wait(submitted.receipt, timeout=0)
    first, second, third = helix.claim("gpu-1", [queue], 3)
    found["start"] = helix.start("gpu-1", [first, second])
    found["renew"] = helix.renew("gpu-1", [first])
    found["release"] = helix.release("gpu-1", [third])
    found["settle"] = helix.settle("gpu-1", [completed(first), failed(second)])
    found["wait"] = helix.wait(submitted.receipt), helix.wait(two)
    found["result"] = helix.result(submitted.receipt)
    found["retry"] = helix.retry(two, reason="once more")
    found["cancel"] = helix.cancel(none.receipt, reason="not wanted")
    found["erase"] = helix.erase(submitted.receipt, reason="asked to")
    found["histories"] = [
        [(step.reason, step.to_state, step.attempt) for step in helix.history(receipt)]
        for receipt in (submitted.receipt, two, none.receipt)
    ]
    found["batches"] = [(row.identity, row.state) for row in helix.batches(queue=queue)]
    return found


def without_numbers(text):
    for word in ("start", "renew", "release", "settle"):
        text[word] = [answer._replace(batch=0) for answer in text[word]]
    # A repeat of what was done is answered as one; what it did is the same.
    text = json.loads(json.dumps(text, default=str).replace('"repeat"', '"ok"'))
    text["decisions"] = [
        "duplicate" if decision == "new" else decision for decision in text["decisions"]
    ]
    return text


def test_batch_whose_every_answer_is_lost_once_takes_the_same_steps(cut_off, cutting, plain, lab):
    there = whole_life(plain, Queue(f"{lab.q}.plain", unknown="accept", max_attempts=3))
    local = whole_life(cut_off, Queue(f"{lab.q}.cut", unknown="accept", max_attempts=3))
    assert without_numbers(local) == without_numbers(there)
    # A run in which nothing was lost shows nothing.
    ids = {line.split()[0] + " " + line.split("/")[-1].partition("?")[0] for line in cutting.lost}
    assert {
        "POST chunks", "POST refused", "GET settings", f"PUT {lab.q}.cut", "GET outcome",
        "POST claim", "POST start", "POST renew", "POST release", "POST settle",
        "POST retry", "POST cancel", "POST erase", "GET batches",
    } <= ids  # fmt: skip


def test_work_without_identity_is_created_once_despite_a_lost_answer(cut_off, cutting, lab):
    lab.queue(unknown="accept")
    rows = [Submission(None, {"n": n}) for n in range(5)]
    answers = cut_off.submit_many(lab.q, rows)
    assert [answer.decision for answer in answers] == ["new"] * 5
    assert lab.value(BATCHES, lab.q) == 5
    assert any("chunks" in line for line in cutting.lost)


def test_repeated_retry_after_a_lost_answer_does_not_undo_later_steps(cut_off, cutting, lab):
    """Without its key the repeat would retry what failed again meanwhile."""
    [row] = lab.submit("s")
    lab.fail(*lab.claim(), permanent=True)
    assert cut_off.retry(row.receipt, reason="once more") is State.PENDING
    lab.fail(*wait_until(lab.claim), permanent=True)
    steps = [reason for _, reason in lab.history(row.receipt.batch_id)]
    assert steps.count("retried") == 1
    assert any("retry" in line for line in cutting.lost)


def test_worker_whose_every_answer_is_lost_once_completes_each_batch_once(cutting, site, lab):
    queue = Queue(lab.q)
    begun = []

    @queue.handler
    def run(lease):
        begun.append(lease.identity)
        return {"n": lease.payload["n"]}

    with HelixClient(cutting.url, token=site.token()) as helix:
        wait_for_service(helix, cutting)
        rows = [Submission(f"s{n}", {"n": n}) for n in range(40)]
        answers = helix.submit_many(queue, rows)
        summary = helix.work(queue, slots=3, until_idle=True)
        assert [helix.result(answer.receipt)["n"] for answer in answers] == list(range(40))
    assert (summary.completed, summary.lost, summary.failed) == (40, 0, 0)
    assert sorted(begun) == sorted(f"s{n}" for n in range(40))
    reasons = lab.rows(
        "select e.reason::text, count(*)::int from helix.event e join helix.batch b "
        "on b.id = e.batch join helix.queue q on q.id = b.queue where q.name = %s group by 1",
        lab.q,
    )
    assert dict(reasons) == {"submitted": 40, "claimed": 40, "started": 40, "completed": 40}
    assert any("claim" in line for line in cutting.lost)


# What a worker may ask: of a lease, and what the repeat of a lost answer is told.
OF_A_WORKER = {
    "claim": (lambda way, _: way.claim(way.request), lambda operation: len(operation.leases) == 1),
    "renew": (
        lambda way, it: way.run(way.calls.renew(worker=way.worker, leases=[it])),
        lambda operation: operation[0].answer == "ok",
    ),
    "settle": (
        lambda way, it: way.settle([completed(it)]),
        lambda operation: operation[0].answer == "repeat",
    ),
    "release": (
        lambda way, it: way.run(way.calls.release(worker=way.worker, leases=[it], detail="x")),
        lambda operation: operation[0].answer == "repeat",
    ),
    "was_settled": (lambda way, it: way.was_settled(it), lambda operation: operation is False),
    "queue": (lambda way, it: way.queue("a", it.queue), lambda operation: operation is not None),
    "hello": (
        lambda way, _: way.run(way.calls.hello(worker=way.worker, free={"gpus": 1})),
        lambda operation: operation is None,
    ),
    "subscribe": (
        lambda way, it: way.subscribe([it.queue], 60),
        lambda operation: operation is None,
    ),
    "unsubscribe": (
        lambda way, it: way.unsubscribe([it.queue]),
        lambda operation: operation is None,
    ),
}


def test_every_call_of_the_transport_has_a_case():
    calls = {name for name, first in vars(Transport).items() if inspect.iscoroutinefunction(first)}
    # `run` takes the calls of leases and of a worker's status. A worker that is not woken polls, so
    # `wait_for_wakeup` fails with nothing; closing sends nothing.
    methods = calls - {"run", "wait_for_wakeup", "close"}
    assert methods | {"renew", "release", "hello"} == set(OF_A_WORKER)


@pytest.mark.parametrize("name", OF_A_WORKER)
def test_worker_call_with_a_lost_answer_takes_effect_once(cutting, site, lab, name):
    ask, fits = OF_A_WORKER[name]
    [row] = lab.submit("s")

    async def tried():
        way = HttpTransport(ServiceAddress(cutting.url, site.token()), "gpu-1")
        way.request = ClaimRequest(uuid.uuid4(), [lab.q], 1)
        cutting.lose_each = False
        lease = None if name == "claim" else (await way.claim(way.request)).leases[0]
        cutting.lose_each = True
        with pytest.raises(Unavailable) as lost:
            await ask(way, lease)
        assert lost.value.outcome_unknown
        answer = await ask(way, lease)
        await way.close()
        return answer

    assert fits(asyncio.run(tried()))
    assert len(cutting.lost) == 1
    steps = [reason for _, reason in lab.history(row.receipt.batch_id)]
    ends = {"settle": ["completed"], "release": ["released"]}
    assert steps == ["submitted", "claimed", "started", *ends.get(name, [])]


def test_worker_without_wake_ups_polls(cutting, site, lab):
    async def wait():
        way = HttpTransport(ServiceAddress(cutting.url, site.token()), "gpu-1")
        cutting.lose_each = False
        await way.subscribe([lab.q], 60)
        cutting.lose_each = True
        await way.wait_for_wakeup(0.05)
        await way.close()

    asyncio.run(wait())
    assert [line.split("/")[-1] for line in cutting.lost] == ["wait"]


def test_async_client_retries_like_the_sync_client(cutting, site, lab):
    lab.queue(unknown="accept")

    async def ask():
        async with AsyncHelixClient(cutting.url, token=site.token()) as helix:
            cutting.lose_each = False
            await backend_of(helix).declare(lab.q)
            cutting.lose_each = True
            many = [helix.submit(lab.q, identity=None, payload={"n": n}) for n in range(10)]
            await asyncio.gather(*many)
            submitted = await helix.submit(lab.q, identity="s", payload={})
            return await helix.cancel(submitted.receipt, reason="no")

    assert asyncio.run(ask()) is State.CANCELLED
    assert lab.value(BATCHES, lab.q) == 11
    assert len(cutting.lost) >= 12


def test_retries_end_after_their_time_limit(cutting, site, lab):
    with HelixClient(cutting.url, token=site.token(), retry_seconds=0) as helix:
        wait_for_service(helix, cutting)
        with pytest.raises(Exception, match="repeat the call") as trouble:
            helix.submit(lab.q, identity="s", payload={})
    assert trouble.value.outcome_unknown
