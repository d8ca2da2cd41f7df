"""The worker protocol over HTTP: one owner, and a stale token is refused with the owner's name."""

from __future__ import annotations

import json
import logging
import uuid

from helixqueue.store import calls


def claimed(http, lab, worker="gpu-1", **more):
    body = {"worker": worker, "request": str(uuid.uuid4()), "queues": [lab.q], **more}
    told = http.post("/v1/work/claim", json=body)
    assert told.status_code == 200, told.text
    return told.json()


def lease_of(one):
    return {"batch": one["batch"], "token": one["token"]}


def held(http, verb, worker, *leases):
    body = {"worker": worker, "leases": [lease_of(one) for one in leases]}
    return [one["answer"] for one in http.post(f"/v1/work/{verb}", json=body).json()["answers"]]


def settled(http, worker, *leases, **more):
    body = {
        "worker": worker,
        "settlements": [{**lease_of(one), "outcome": "completed", **more} for one in leases],
    }
    return http.post("/v1/work/settle", json=body).json()["answers"]


def test_a_batch_goes_from_claim_to_completed(http, lab):
    lab.submit("a", payload={"n": 1})
    [lease] = claimed(http, lab)["leases"]
    assert (lease["identity"], lease["payload"], lease["state"]) == ("a", {"n": 1}, "ASSIGNED")
    assert held(http, "start", "gpu-1", lease) == ["ok"]
    assert held(http, "renew", "gpu-1", lease) == ["ok"]
    [answer] = settled(http, "gpu-1", lease, result={"reads": 3})
    assert (answer["answer"], answer["state"]) == ("ok", "COMPLETED")
    assert settled(http, "gpu-1", lease, result={"reads": 3})[0]["answer"] == "repeat"
    told = http.get(f"/v1/batches/{lease['batch_id']}/outcome").json()
    assert (told["state"], told["result"]) == ("COMPLETED", {"reads": 3})


def test_one_round_settles_claims_and_starts(http, lab):
    lab.submit("a", "b")
    [first] = claimed(http, lab, start=True)["leases"]
    done = {**lease_of(first), "outcome": "completed", "result": None}
    told = claimed(http, lab, start=True, settle=[done])
    assert [one["answer"] for one in told["settled"]] == ["ok"]
    assert [one["state"] for one in told["leases"]] == ["RUNNING"]


def test_a_repeated_claim_gives_the_same_leases(http, lab):
    lab.submit("a", "b")
    request = str(uuid.uuid4())
    first = claimed(http, lab, request=request)["leases"]
    assert claimed(http, lab, request=request)["leases"] == first


def test_a_worker_gives_back_what_it_cannot_do(http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    assert held(http, "release", "gpu-1", lease) == ["ok"]
    [again] = claimed(http, lab)["leases"]
    assert again["attempt"] == 1


def test_a_frozen_worker_is_refused_and_both_names_are_logged(http, lab, caplog):
    lab.submit("a")
    [frozen] = claimed(http, lab, worker="bo")["leases"]
    lab.pass_time(frozen["batch"])
    lab.run(calls.reap(actor="reaper"))
    claimed(http, lab, worker="ada")
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        [answer] = settled(http, "bo", frozen)
    assert (answer["answer"], answer["owner"]) == ("refused", "ada")
    line = json.loads(caplog.messages[-1])
    assert (line["worker"], line["conflicting_worker"]) == ("bo", ["ada"])
    assert (line["decision"], line["batch"]) == (["refused"], [frozen["batch"]])


def test_a_token_of_another_tenant_moves_nothing(site, http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    with site.client(tenant="b") as intruder:
        for verb in ("start", "renew", "release"):
            assert "ok" not in held(intruder, verb, "gpu-1", lease)
        assert settled(intruder, "gpu-1", lease)[0]["answer"] == "refused"
    assert held(http, "renew", "gpu-1", lease) == ["ok"]


def test_forged_tokens_are_refused_and_never_a_fault(http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    for token in ("0.0.0", "9999999999.9999999999999999999.9999999999999999999", "1.-1.1"):
        forged = {"batch": lease["batch"], "token": token}
        assert held(http, "renew", "gpu-1", forged) == ["refused"]


def test_a_worker_is_given_only_what_fits(http, lab):
    lab.queue(requires={"gpus": 1})
    lab.submit("a")
    assert claimed(http, lab)["leases"] == []
    assert claimed(http, lab, free={"gpus": 1})["leases"] != []


def test_workers_that_said_hello_are_listed_to_their_tenant(site, http, lab):
    lab.submit("a")
    worker = f"w-{lab.q}"
    told = http.post("/v1/work/hello", json={"worker": worker, "free": {"gpus": 2}})
    assert told.status_code == 204
    claimed(http, lab, worker=worker)
    [found] = [w for w in http.get("/v1/workers").json()["workers"] if w["name"] == worker]
    assert (found["free"]["gpus"], found["leases"]) == (2, 1)
    with site.client("read", tenant="b") as other:
        assert worker not in other.get("/v1/workers").text


def test_a_failure_is_told_and_tried_again(http, lab):
    lab.queue(max_attempts=2, backoff_seconds=0)
    lab.submit("a")
    for state in ("PENDING", "FAILED"):
        [lease] = claimed(http, lab, start=True)["leases"]
        body = {**lease_of(lease), "outcome": "failed", "failure": "OutOfMemory", "detail": "boom"}
        told = http.post("/v1/work/settle", json={"worker": "gpu-1", "settlements": [body]})
        assert told.json()["answers"][0]["state"] == state
