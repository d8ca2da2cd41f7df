"""What operators do over HTTP: for a reason, by name, on record."""

from __future__ import annotations

import uuid

import pytest

from tests.support.service import problem_kind, submit


@pytest.fixture
def batch_id(http, lab):
    return submit(http, lab).json()["receipt"]["batch_id"]


def decide(http, verb, batch_id, reason="the sample was mixed up"):
    return http.post(f"/v1/batches/{batch_id}/{verb}", json={"reason": reason})


def test_a_decision_lands_in_the_ledger_with_name_and_reason(site, lab, batch_id):
    with site.client("operate", name="ann") as ann:
        told = decide(ann, "cancel", batch_id)
        assert told.json() | {"note": None} == {
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
def test_nothing_is_decided_without_a_reason(http, lab, batch_id, verb, body):
    told = http.post(f"/v1/batches/{batch_id}/{verb}", json=body)
    assert told.status_code == 422
    assert len(lab.history(uuid.UUID(batch_id))) == 1


def test_failed_work_is_retried_and_only_failed_work(http, lab, batch_id):
    told = decide(http, "retry", batch_id)
    assert (told.status_code, problem_kind(told)) == (409, "illegal-transition")
    lab.fail(*lab.claim(), permanent=True)
    assert decide(http, "retry", batch_id).json()["state"] == "PENDING"


def test_a_lease_is_taken_back_from_a_worker_that_is_gone(http, lab, batch_id):
    [lease] = lab.claim()
    assert decide(http, "release", batch_id).json()["state"] == "PENDING"
    assert [one.answer for one in lab.complete(lease)] == ["refused"]
    assert decide(http, "release", str(uuid.uuid4())).status_code == 404


def test_finished_work_is_erased_and_its_ledger_stays(http, lab, batch_id):
    assert decide(http, "erase", batch_id).status_code == 409
    lab.complete(*lab.claim())
    assert decide(http, "erase", batch_id).json()["answer"] == "ok"
    told = http.get(f"/v1/batches/{batch_id}", params={"payload": "true"}).json()
    assert (told["erased"], told["payload"], told["result"]) == (True, None, None)
    assert told["decisions"][-1]["kind"] == "erased"
    assert len(told["events"]) == 4


def test_a_queue_is_declared_changed_paused_and_resumed_for_a_reason(site, lab):
    name = f"{lab.q}-new"
    with site.client("operate", "read", name=f"boss-{lab.q}") as boss:
        assert (
            problem_kind(boss.post(f"/v1/queues/{name}/pause", json={"reason": "x"}))
            == "no-such-queue"
        )
        told = boss.put(
            f"/v1/queues/{name}",
            json={"reason": "a new assay", "lease_seconds": 60, "requires": {"gpus": 1}},
        )
        assert told.status_code == 200
        assert (told.json()["lease_seconds"], told.json()["requires"]) == (60, {"gpus": 1})
        assert boss.post(f"/v1/queues/{name}/pause", json={"reason": "flood"}).json()["paused"]
        resumed = boss.post(f"/v1/queues/{name}/resume", json={"reason": "dry again"})
        assert resumed.json()["paused"] is False
        shown = boss.get(f"/v1/queues/{name}").json()
        assert shown["counts"]["ready"] == {"number": 0, "more": False}
        assert name in {one["name"] for one in boss.get("/v1/queues").json()["queues"]}
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
def test_settings_that_make_no_sense_change_nothing(http, lab, settings):
    name = f"{lab.q}-bad"
    told = http.put(f"/v1/queues/{name}", json={"reason": "x", **settings})
    assert told.status_code == 422
    assert "constraint" not in told.text, "expected words, got the database's own"
    assert http.get(f"/v1/queues/{name}").status_code == 404


def test_pages_of_queues_lead_to_all_of_them(http, lab):
    for number in range(5):
        lab.queue(f"{lab.q}-{number}")
    found, asked = [], {"limit": 2, "count_to": 10}
    while True:
        page = http.get("/v1/queues", params=asked).json()
        found += [one["name"] for one in page["queues"]]
        if page["next"] is None:
            break
        asked["after"] = page["next"]
    assert found == sorted(set(found))
    assert {lab.q, *(f"{lab.q}-{number}" for number in range(5))} <= set(found)
    for asked in ({"limit": 501}, {"limit": 0}, {"after": "nonsense"}, {"after": "a/\0"}):
        assert http.get("/v1/queues", params=asked).status_code == 422


def test_a_page_of_very_many_queues_counts_less_far(http, lab):
    first = f"0-{lab.q}"
    lab.queue(first)
    lab.submit_many(1_001, queue=first)

    def ready(limit):
        page = http.get("/v1/queues", params={"limit": limit, "count_to": 10_000}).json()
        (found,) = [one for one in page["queues"] if one["name"] == first]
        return found["counts"]["ready"]

    assert ready(50) == {"number": 1_001, "more": False}
    assert ready(500) == {"number": 1_000, "more": True}


def test_a_profile_is_for_good(http, lab):
    told = http.put(f"/v1/queues/{lab.q}", json={"reason": "x", "profile": "lab-id-v1"})
    assert (told.status_code, problem_kind(told)) == (422, "refused")
