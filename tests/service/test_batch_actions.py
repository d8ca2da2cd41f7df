"""Operator actions over HTTP: with reason and name in the ledger."""

from __future__ import annotations

import uuid

import pytest

from tests.support.service import problem_kind, submit


@pytest.fixture
def batch_id(http, lab):
    return submit(http, lab).json()["receipt"]["batch_id"]


def decide(http, verb, batch_id, reason="the sample was mixed up"):
    return http.post(f"/v1/batches/{batch_id}/{verb}", json={"reason": reason})


def test_ledger_stores_reason_and_name_of_an_action(site, lab, batch_id):
    with site.client("operate", "read", name="ann") as ann:
        response = decide(ann, "cancel", batch_id)
        assert response.json() | {"note": None} == {
            "batch_id": batch_id, "answer": "ok", "state": "CANCELLED", "note": None,
            "queue": lab.q, "identity": "s-1", "revision": "",
        }  # fmt: skip
        assert decide(ann, "cancel", batch_id).json()["answer"] == "repeat"
    actor, detail = lab.rows(
        "select e.actor, r.detail from helix.event e "
        "join helix.locate(array[%s::uuid]) l on l.batch = e.batch "
        "left join helix.result r on r.batch = e.batch and r.version = e.version "
        "order by e.version desc limit 1",
        batch_id,
    )[0]
    assert (actor, detail) == ("ann", "the sample was mixed up")


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "a\u0001b"}])
@pytest.mark.parametrize("verb", ["retry", "cancel", "release", "erase"])
def test_action_without_a_reason_is_refused(http, lab, batch_id, verb, body):
    response = http.post(f"/v1/batches/{batch_id}/{verb}", json=body)
    assert response.status_code == 422
    assert len(lab.history(uuid.UUID(batch_id))) == 1


def test_only_failed_batches_can_be_retried(http, lab, batch_id):
    response = decide(http, "retry", batch_id)
    assert (response.status_code, problem_kind(response)) == (409, "illegal-transition")
    lab.fail(*lab.claim(), permanent=True)
    assert decide(http, "retry", batch_id).json()["state"] == "PENDING"


def test_lease_of_a_dead_worker_can_be_released(http, lab, batch_id):
    [lease] = lab.claim()
    assert decide(http, "release", batch_id).json()["state"] == "PENDING"
    assert [item.answer for item in lab.complete(lease)] == ["refused"]
    assert decide(http, "release", str(uuid.uuid4())).status_code == 404


def test_erase_keeps_the_ledger(http, lab, batch_id):
    assert decide(http, "erase", batch_id).status_code == 409
    lab.complete(*lab.claim())
    assert decide(http, "erase", batch_id).json()["answer"] == "ok"
    response = http.get(f"/v1/batches/{batch_id}", params={"payload": "true"}).json()
    assert (response["erased"], response["payload"], response["result"]) == (True, None, None)
    assert response["decisions"][-1]["kind"] == "erased"
    assert len(response["events"]) == 4


def test_repeated_deletion_with_one_key_returns_the_first_response(site, lab):
    name = f"{lab.q}-typo"
    lab.queue(name)
    reason = {"reason": "a typing error"}
    with site.client("operate", "read") as operator:
        path = f"/v1/queues/{name}/delete"
        key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
        first, again = (operator.post(path, json=reason, headers=key) for _ in range(2))
        assert first.json() == again.json() == {"tenant": "a", "queue": name}
        assert problem_kind(operator.post(path, json=reason)) == "no-such-queue"
        lab.submit("s")
        kept = operator.post(f"/v1/queues/{lab.q}/delete", json=reason)
        assert (kept.status_code, problem_kind(kept)) == (409, "queue-not-empty")
    with site.client("submit", "read") as reader:
        denied = reader.post(f"/v1/queues/{lab.q}/delete", json=reason)
        assert problem_kind(denied) == "forbidden"


def test_queue_is_created_changed_paused_and_resumed_with_a_reason(site, lab):
    name = f"{lab.q}-new"
    with site.client("operate", "read", name=f"boss-{lab.q}") as operator:
        assert (
            problem_kind(operator.post(f"/v1/queues/{name}/pause", json={"reason": "x"}))
            == "no-such-queue"
        )
        response = operator.put(
            f"/v1/queues/{name}",
            json={"reason": "a new assay", "lease_seconds": 60, "requires": {"gpus": 1}},
        )
        assert response.status_code == 200
        assert (response.json()["lease_seconds"], response.json()["requires"]) == (60, {"gpus": 1})
        assert operator.post(f"/v1/queues/{name}/pause", json={"reason": "flood"}).json()["paused"]
        resumed = operator.post(f"/v1/queues/{name}/resume", json={"reason": "dry again"})
        assert resumed.json()["paused"] is False
        shown = operator.get(f"/v1/queues/{name}").json()
        assert shown["counts"]["ready"] == {"number": 0, "more": False}
        assert name in {item["name"] for item in operator.get("/v1/queues").json()["rows"]}
    kept = lab.rows(
        "select actor, detail::json ->> 'reason' from helix.decision "
        "where queue = %s and tenant = 'a' order by id",
        name,
    )
    assert kept == [(f"boss-{lab.q}", why) for why in ("a new assay", "flood", "dry again")]


@pytest.mark.parametrize(
    "settings",
    [
        {"requires": {"gpu": 1}},
        {"payload_schema": {"type": 7}},
        {"payload_schema": {"$ref": "http://elsewhere/schema"}},
        {"result_schema": {"description": "x" * 65_536}},
        {"profile": "other"},
        {"lease_seconds": 0},
        {"pausd": True},
    ],
    ids=lambda settings: str(settings)[:40],
)
def test_invalid_settings_change_nothing(http, lab, settings):
    name = f"{lab.q}-bad"
    response = http.put(f"/v1/queues/{name}", json={"reason": "x", **settings})
    assert response.status_code == 422
    assert "constraint" not in response.text, "expected words, got the database's own"
    assert http.get(f"/v1/queues/{name}").status_code == 404


def test_queue_pages_return_every_queue(http, lab):
    for number in range(5):
        lab.queue(f"{lab.q}-{number}")
    result, request = [], {"limit": 2, "count_to": 10}
    while True:
        page = http.get("/v1/queues", params=request).json()
        result += [item["name"] for item in page["rows"]]
        if page["next"] is None:
            break
        request["after"] = page["next"]
    assert result == sorted(set(result))
    assert {lab.q, *(f"{lab.q}-{number}" for number in range(5))} <= set(result)
    for request in ({"limit": 501}, {"limit": 0}, {"after": "nonsense"}, {"after": "a/\0"}):
        assert http.get("/v1/queues", params=request).status_code == 422


def test_page_of_many_queues_counts_less_far(http, lab):
    first = f"0-{lab.q}"
    lab.queue(first)
    lab.submit_many(1_001, queue=first)

    def ready(limit):
        page = http.get("/v1/queues", params={"limit": limit, "count_to": 10_000}).json()
        (result,) = [item for item in page["rows"] if item["name"] == first]
        return result["counts"]["ready"]

    assert ready(50) == {"number": 1_001, "more": False}
    assert ready(500) == {"number": 1_000, "more": True}


def test_profile_of_a_queue_with_batches_cannot_be_changed(http, lab, batch_id):
    response = http.put(f"/v1/queues/{lab.q}", json={"reason": "x", "profile": "lab-id-v1"})
    assert (response.status_code, problem_kind(response)) == (422, "refused")
    assert http.get(f"/v1/queues/{lab.q}").json()["profile"] == "text-v1"
    assert submit(http, lab).json()["receipt"]["batch_id"] == batch_id


def test_profile_of_an_empty_queue_can_be_changed(http, lab):
    response = http.put(f"/v1/queues/{lab.q}", json={"reason": "x", "profile": "lab-id-v1"})
    assert (response.status_code, response.json()["profile"]) == (200, "lab-id-v1")
