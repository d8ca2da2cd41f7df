"""Dead letters over HTTP: nothing that nobody tries any more is out of sight, or out of reach."""

from __future__ import annotations

import uuid

import pytest

from helixqueue.engine import calls
from tests.support.lab import Lab, failed
from tests.support.service import problem_kind, submit


def listed(http, lab, **filters):
    told = http.get("/v1/letters", params={"queue": lab.q, **filters})
    assert told.status_code == 200, told.text
    return told.json()


def redrive(http, **body):
    return http.post("/v1/letters/redrive", json={"reason": "a new flow cell", **body})


def dead(lab, count=1, prefix="s", **options):
    """So many letters; their ids, the newest first."""
    made = lab.submit_many(count, prefix=prefix)
    for lease in lab.claim(count):
        lab.fail(lease, permanent=True, **options)
    return [str(one.receipt.batch_id) for one in reversed(made)]


def test_work_becomes_a_letter_when_its_tries_are_used_up(http, lab):
    lab.queue(max_attempts=2)
    batch_id = submit(http, lab).json()["receipt"]["batch_id"]
    [lease] = lab.claim(worker="ada")
    lab.settle(failed(lease, after_seconds=0), worker="ada")
    assert listed(http, lab) == {"letters": [], "next": None}
    [lease] = lab.claim(worker="bo")
    lab.pass_time(lease.batch)
    lab.run(calls.reap(actor="ada"))
    [letter] = listed(http, lab)["letters"]
    assert letter.pop("failed_at")
    assert "bo did not renew" in letter.pop("detail")
    # Ada found the lease run out; it was bo who had it.
    assert letter == {
        "batch_id": batch_id, "tenant": "a", "queue": lab.q, "identity": "s-1", "revision": "",
        "attempt": 2, "failure": "lost", "worker": "bo",
    }  # fmt: skip


def test_a_permanent_failure_is_a_letter_at_once_and_tells_its_attempts(site, http, lab):
    [batch_id] = dead(lab, failure="Contaminated", detail="reads of a mouse")
    told = http.get(f"/v1/letters/{batch_id}").json()
    assert (told["failure"], told["detail"], told["worker"]) == (
        "Contaminated", "reads of a mouse", "w1",
    )  # fmt: skip
    assert [(one["attempt"], one["end"], one["detail"]) for one in told["attempts"]] == [
        (1, "failed", "reads of a mouse")
    ]
    assert told.keys() - {"attempts"} == listed(http, lab)["letters"][0].keys()
    with site.client("read") as blind:
        assert "mouse" not in blind.get(f"/v1/letters/{batch_id}").text
        [letter] = listed(blind, lab)["letters"]
        assert (letter["failure"], letter["detail"]) == ("Contaminated", None)


def test_a_redriven_letter_runs_again_and_leaves_the_list(site, http, lab):
    [batch_id] = dead(lab)
    with site.client("operate", name=f"ann-{lab.q}") as ann:
        assert redrive(ann, batch_ids=[batch_id, batch_id]).json() == {
            "answers": [{"batch_id": batch_id, "answer": "ok", "state": "PENDING", "note": None}],
            "next": None,
        }
        assert redrive(ann, batch_ids=[batch_id]).json()["answers"][0]["answer"] == "repeat"
    assert listed(http, lab)["letters"] == []
    told = http.get(f"/v1/letters/{batch_id}")
    assert (told.status_code, problem_kind(told)) == (404, "no-such-letter")
    event = http.get(f"/v1/batches/{batch_id}").json()["events"][-1]
    assert (event["reason"], event["actor"], event["detail"]) == (
        "retried", f"ann-{lab.q}", "a new flow cell",
    )  # fmt: skip
    lab.complete(*lab.claim())
    [one] = redrive(http, batch_ids=[batch_id]).json()["answers"]
    assert (one["answer"], one["note"]) == ("refused", "no dead letter: it is COMPLETED")


def test_an_erased_letter_is_refused_and_hinders_no_other(http, lab):
    erased, sound = dead(lab, 2)
    http.post(f"/v1/batches/{erased}/erase", json={"reason": "consent withdrawn"})
    told = {one["batch_id"]: one for one in redrive(http, queue=lab.q).json()["answers"]}
    assert told[sound]["answer"] == "ok"
    assert (told[erased]["answer"], told[erased]["note"]) == ("refused", "its payload was erased")


def test_a_redrive_of_a_queue_is_bounded_and_leads_on_to_what_is_left(http, lab):
    ids = dead(lab, 5)
    others = dead(lab, 2, prefix="o", failure="Other")
    first = redrive(http, queue=lab.q, failure="Broken", limit=3).json()
    assert [one["batch_id"] for one in first["answers"]] == ids[:3]
    last = redrive(http, queue=lab.q, failure="Broken", limit=3, after=first["next"]).json()
    assert [one["batch_id"] for one in last["answers"]] == ids[3:]
    assert last["next"] is None
    assert [one["batch_id"] for one in listed(http, lab)["letters"]] == others


def test_what_fails_again_meanwhile_is_not_driven_around(http, lab):
    dead(lab, 2)
    before = listed(http, lab)["letters"][0]["failed_at"]  # not itself: only the other
    assert len(redrive(http, queue=lab.q, before=before).json()["answers"]) == 1
    lab.fail(*lab.claim(), permanent=True)
    assert redrive(http, queue=lab.q, before=before).json() == {"answers": [], "next": None}


def test_a_redrive_that_comes_again_with_its_key_drives_no_more(http, lab):
    dead(lab, 3)
    body = {"reason": "again", "queue": lab.q, "limit": 1}
    key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    told = [http.post("/v1/letters/redrive", json=body, headers=key).json() for _ in range(2)]
    assert told[0] == told[1]
    assert len(listed(http, lab)["letters"]) == 2


def test_pages_and_filters_find_each_letter_once(http, lab):
    older = dead(lab, 3, prefix="m", failure="OutOfMemory")
    ids = dead(lab, 2) + older
    seen, after = [], {}
    while True:
        page = listed(http, lab, limit=2, **after)
        seen += [one["batch_id"] for one in page["letters"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == ids
    found = listed(http, lab, failure="OutOfMemory")["letters"]
    assert [one["batch_id"] for one in found] == ids[2:]
    since = found[0]["failed_at"]
    assert len(listed(http, lab, since=since)["letters"]) == 3
    assert len(listed(http, lab, before=since)["letters"]) == 2


def test_another_tenant_sees_no_letter_and_redrives_none(site, http, lab):
    [batch_id] = dead(lab)
    with Lab(site.database, q=lab.q) as there:
        there.queue(tenant="b")
    with site.client(tenant="b") as other:
        assert listed(other, lab)["letters"] == []
        theirs, nobodys = (other.get(f"/v1/letters/{one}") for one in (batch_id, uuid.uuid4()))
        assert (problem_kind(theirs), problem_kind(nobodys)) == ("no-such-letter", "no-such-letter")
        [told] = redrive(other, batch_ids=[batch_id]).json()["answers"]
        assert (told["answer"], told["state"]) == ("refused", None)
        assert redrive(other, queue=lab.q).json()["answers"] == []
    assert len(listed(http, lab)["letters"]) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": "q", "batch_ids": [str(uuid.UUID(int=7))]},
        {"batch_ids": []},
        {"batch_ids": [str(uuid.UUID(int=7))], "failure": "Broken"},
        {"queue": "q", "limit": 1_001},
        {"queue": "q", "reason": " "},
        {"queue": "q", "fialure": "Broken"},
    ],
    ids=str,
)
def test_a_redrive_without_one_meaning_is_refused(http, body):
    assert redrive(http, **body).status_code == 422


def test_a_filter_that_is_unknown_is_refused(http):
    for query in ({"state": "FAILED"}, {"before": "yesterday"}, {"limit": 501}, {"after": "x"}):
        assert http.get("/v1/letters", params=query).status_code == 422
