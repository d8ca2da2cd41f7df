"""Failed batches over HTTP: listed with their failure, retried by id or by filter."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.engine import calls
from tests.support.lab import Lab, failure
from tests.support.service import problem_kind, submit


def list_failed(http, lab, **filters):
    query = {"queue": lab.q, "state": "FAILED", **filters}
    response = http.get("/v1/batches", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def retry(http, **body):
    return http.post("/v1/batches/retry", json={"reason": "a new flow cell", **body})


def cancel(http, **body):
    return http.post("/v1/batches/cancel", json={"reason": "not needed", **body})


def fail_batches(lab, count=1, prefix="s", **options):
    """Submit batches and fail them; their ids, the latest failure first."""
    rows = lab.submit_many(count, prefix=prefix)
    for lease in lab.claim(count):
        lab.fail(lease, permanent=True, **options)
    return [str(row.receipt.batch_id) for row in reversed(rows)]


def test_batch_without_attempts_left_is_listed_with_its_last_worker(http, lab):
    lab.queue(max_attempts=2)
    batch_id = submit(http, lab).json()["receipt"]["batch_id"]
    [lease] = lab.claim(worker="ada")
    lab.settle(failure(lease, after_seconds=0), worker="ada")
    assert list_failed(http, lab) == {"rows": [], "next": None}
    [lease] = lab.claim(worker="bo")
    lab.pass_time(lease.batch)
    lab.run(calls.reap(actor="ada"))
    [batch] = list_failed(http, lab)["rows"]
    assert batch["finished_at"]
    assert "bo did not renew" in batch["detail"]
    # Ada reaped the lease; bo held it.
    named = ("batch_id", "tenant", "queue", "identity", "revision", "state", "attempt", "failure",
             "finished_by", "last_worker", "worker")  # fmt: skip
    assert {name: batch[name] for name in named} == {
        "batch_id": batch_id, "tenant": "a", "queue": lab.q, "identity": "s-1", "revision": "",
        "state": "FAILED", "attempt": 2, "failure": "lost", "finished_by": "ada",
        "last_worker": "bo", "worker": None,
    }  # fmt: skip


def test_permanent_failure_is_listed_and_shows_its_attempts(site, http, lab):
    [batch_id] = fail_batches(lab, failure="Contaminated", detail="reads of a mouse")
    [batch] = list_failed(http, lab)["rows"]
    assert (batch["failure"], batch["detail"], batch["last_worker"]) == (
        "Contaminated", "reads of a mouse", "w1",
    )  # fmt: skip
    detail = http.get(f"/v1/batches/{batch_id}").json()
    assert (detail["failure"], detail["detail"]) == ("Contaminated", "reads of a mouse")
    assert [(row["attempt"], row["end"], row["detail"]) for row in detail["attempts"]] == [
        (1, "failed", "reads of a mouse")
    ]
    with site.client("read") as reader:
        assert "mouse" not in reader.get(f"/v1/batches/{batch_id}").text
        [batch] = list_failed(reader, lab)["rows"]
        assert (batch["failure"], batch["detail"]) == ("Contaminated", None)


def test_retried_batch_runs_again_and_leaves_the_list(site, http, lab):
    [batch_id] = fail_batches(lab)
    with site.client("operate", "read", name=f"ann-{lab.q}") as ann:
        assert retry(ann, batch_ids=[batch_id, batch_id]).json() == {
            "rows": [
                {
                    "batch_id": batch_id, "answer": "ok", "state": "PENDING", "note": None,
                    "queue": lab.q, "identity": "s00000", "revision": "",
                }
            ],
            "next": None,
        }  # fmt: skip
        assert retry(ann, batch_ids=[batch_id]).json()["rows"][0]["answer"] == "repeat"
    assert list_failed(http, lab)["rows"] == []
    event = http.get(f"/v1/batches/{batch_id}").json()["events"][-1]
    assert (event["reason"], event["actor"], event["detail"]) == (
        "retried", f"ann-{lab.q}", "a new flow cell",
    )  # fmt: skip
    lab.complete(*lab.claim())
    [answer] = retry(http, batch_ids=[batch_id]).json()["rows"]
    assert (answer["answer"], answer["state"]) == ("illegal", "COMPLETED")


def test_erased_batch_cannot_be_retried_and_does_not_affect_others(http, lab):
    erased, other = fail_batches(lab, 2)
    http.post(f"/v1/batches/{erased}/erase", json={"reason": "consent withdrawn"})
    answers = {row["batch_id"]: row for row in retry(http, queue=lab.q).json()["rows"]}
    assert answers[other]["answer"] == "ok"
    assert (answers[erased]["answer"], answers[erased]["note"]) == (
        "illegal", "its payload was erased",
    )  # fmt: skip


def test_retry_by_filter_is_bounded_and_returns_a_cursor(http, lab):
    ids = fail_batches(lab, 5)
    others = fail_batches(lab, 2, prefix="o", failure="Other")
    first = retry(http, queue=lab.q, failure="Broken", limit=3).json()
    assert [row["batch_id"] for row in first["rows"]] == ids[:3]
    last = retry(http, queue=lab.q, failure="Broken", limit=3, after=first["next"]).json()
    assert [row["batch_id"] for row in last["rows"]] == ids[3:]
    assert last["next"] is None
    assert [row["batch_id"] for row in list_failed(http, lab)["rows"]] == others


def test_dry_run_lists_the_batches_and_changes_nothing(http, lab):
    erased, *others = fail_batches(lab, 3)
    http.post(f"/v1/batches/{erased}/erase", json={"reason": "consent withdrawn"})
    for selection in ({"queue": lab.q}, {"batch_ids": [erased, *others]}):
        answers = retry(http, **selection, dry_run=True).json()["rows"]
        assert [(row["identity"], row["answer"], row["state"]) for row in answers] == [
            ("s00002", "illegal", "FAILED"),
            ("s00001", "ok", "FAILED"),
            ("s00000", "ok", "FAILED"),
        ]
    assert len(list_failed(http, lab)["rows"]) == 3
    [event] = http.get(f"/v1/batches/{others[0]}").json()["events"][-1:]
    assert event["to_state"] == "FAILED"


def test_batch_that_fails_again_is_not_retried_twice(http, lab):
    fail_batches(lab, 2)
    until = list_failed(http, lab)["rows"][0]["finished_at"]  # exclusive: only the other
    assert len(retry(http, queue=lab.q, until=until).json()["rows"]) == 1
    lab.fail(*lab.claim(), permanent=True)
    assert retry(http, queue=lab.q, until=until).json() == {"rows": [], "next": None}


def test_retry_repeated_with_its_key_retries_no_more(http, lab):
    fail_batches(lab, 3)
    body = {"reason": "again", "queue": lab.q, "limit": 1}
    key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    responses = [http.post("/v1/batches/retry", json=body, headers=key).json() for _ in range(2)]
    assert responses[0] == responses[1]
    assert len(list_failed(http, lab)["rows"]) == 2


def test_pages_and_filters_return_each_failed_batch_once(http, lab):
    older = fail_batches(lab, 3, prefix="m", failure="OutOfMemory")
    ids = fail_batches(lab, 2) + older
    listed, after = [], {}
    while True:
        page = list_failed(http, lab, limit=2, **after)
        listed += [row["batch_id"] for row in page["rows"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert listed == ids
    rows = list_failed(http, lab, failure="OutOfMemory")["rows"]
    assert [row["batch_id"] for row in rows] == ids[2:]
    # A failure class implies the state.
    query = {"queue": lab.q, "failure": "OutOfMemory"}
    assert http.get("/v1/batches", params=query).json()["rows"] == rows
    since = rows[0]["finished_at"]
    assert len(list_failed(http, lab, since=since)["rows"]) == 3
    assert len(list_failed(http, lab, until=since)["rows"]) == 2
    [row] = list_failed(http, lab, identity="m00001", failure="OutOfMemory")["rows"]
    assert row["batch_id"] == older[1]
    assert list_failed(http, lab, identity="m00001", failure="Broken")["rows"] == []


def test_other_tenant_neither_lists_nor_retries_failed_batches(site, http, lab):
    [batch_id] = fail_batches(lab)
    with Lab(site.database, q=lab.q) as there:
        there.queue(tenant="b")
    with site.client(tenant="b") as other:
        assert list_failed(other, lab)["rows"] == []
        responses = [other.get(f"/v1/batches/{item}") for item in (batch_id, uuid.uuid4())]
        assert [problem_kind(response) for response in responses] == ["no-such-batch"] * 2
        for dry_run in (True, False):
            [answer] = retry(other, batch_ids=[batch_id], dry_run=dry_run).json()["rows"]
            assert (answer["answer"], answer["state"]) == ("refused", None)
            assert (answer["queue"], answer["identity"], answer["revision"]) == (None, None, None)
            assert retry(other, queue=lab.q, dry_run=dry_run).json()["rows"] == []
    assert len(list_failed(http, lab)["rows"]) == 1


def test_token_without_read_scope_learns_no_identity_from_actions(site, lab):
    [batch_id] = fail_batches(lab)
    with site.client("operate") as operator, site.client("operate", "read") as reader:
        for client, shown in ((operator, None), (reader, lab.q)):
            for selection in ({"batch_ids": [batch_id]}, {"queue": lab.q}):
                [answer] = retry(client, dry_run=True, **selection).json()["rows"]
                assert (answer["batch_id"], answer["answer"]) == (batch_id, "ok")
                assert answer["queue"] == shown
                assert (answer["identity"] is None) is (shown is None)
        answer = operator.post(f"/v1/batches/{batch_id}/retry", json={"reason": "again"}).json()
        assert (answer["answer"], answer["identity"]) == ("ok", None)


def test_cancel_by_filter_takes_batches_in_one_state(http, lab):
    lab.submit_many(3)
    lab.claim()
    selection = {"queue": lab.q, "state": "PENDING"}
    answers = cancel(http, **selection, dry_run=True).json()["rows"]
    assert [(row["answer"], row["state"]) for row in answers] == [("ok", "PENDING")] * 2
    answers = cancel(http, **selection).json()["rows"]
    assert [(row["answer"], row["state"]) for row in answers] == [("ok", "CANCELLED")] * 2
    [running] = http.get("/v1/batches", params={"queue": lab.q, "state": "RUNNING"}).json()["rows"]
    [answer] = cancel(http, batch_ids=[running["batch_id"]]).json()["rows"]
    assert (answer["answer"], answer["state"]) == ("ok", "CANCELLED")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "q", "batch_ids": [str(uuid.UUID(int=7))]},
        {"batch_ids": []},
        {"batch_ids": [str(uuid.UUID(int=7))], "failure": "Broken"},
        {"batch_ids": [str(uuid.UUID(int=7))], "limit": 1},
        {"queue": "q", "limit": 1_001},
        {"queue": "q", "reason": " "},
        {"queue": "q", "fialure": "Broken"},
        {"queue": "q", "state": "FAILED"},
    ],
    ids=str,
)
def test_ambiguous_retry_is_refused(http, body):
    assert retry(http, **body).status_code == 422


@pytest.mark.parametrize(
    "body", [{"queue": "q"}, {"queue": "q", "state": "FAILED"}, {"state": "PENDING", "limit": 0}]
)
def test_cancel_by_filter_without_an_unfinished_state_is_refused(http, body):
    assert cancel(http, **body).status_code == 422


def test_unknown_or_contradictory_filter_is_refused(http):
    for query in (
        {"failure": "Broken", "state": "PENDING"}, {"before": "yesterday"}, {"until": "yesterday"},
        {"limit": 501}, {"after": "x"},
    ):  # fmt: skip
        assert http.get("/v1/batches", params=query).status_code == 422
