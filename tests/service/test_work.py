"""The worker protocol over HTTP: one owner, and a stale token is refused with the owner's name."""

from __future__ import annotations

import json
import logging
import uuid

from helixqueue.engine import calls
from tests.support.lab import until
from tests.support.service import Site, serving, settings_for


def claimed(http, lab, worker="gpu-1", **more):
    body = {"worker": worker, "request": str(uuid.uuid4()), "queues": [lab.q], **more}
    told = http.post("/v1/work/claim", json=body)
    assert told.status_code == 200, told.text
    return told.json()


def logged(caplog):
    return "\n".join(caplog.messages).splitlines()


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


def test_token_of_one_lease_cannot_write_to_its_sibling(http, lab):
    """Each lease of a claim has a token of its own outside of the service."""
    lab.submit("mine", "sibling")
    mine, sibling = claimed(http, lab, count=2)["leases"]
    tokens = [one["token"].split(".") for one in (mine, sibling)]
    assert tokens[0][::2] == tokens[1][::2]  # epoch and number
    stored = lab.rows(
        "select nonce, helix.lease_nonce(nonce, batch) from helix.work where batch = any (%s)"
        " order by batch",
        [mine["batch"], sibling["batch"]],
    )
    assert [int(nonce) for _, nonce, _ in tokens] == [derived for _, derived in stored]
    assert not {int(nonce) for _, nonce, _ in tokens} & {nonce for nonce, _ in stored}

    forged = sibling | {"token": mine["token"]}
    for verb in ("start", "renew", "release"):
        assert held(http, verb, "gpu-1", forged) == ["refused"]
    assert settled(http, "gpu-1", forged)[0]["answer"] == "refused"
    kept = lab.rows(
        "select operation, worker from helix.refusal where batch = %s order by 1", sibling["batch"]
    )
    assert kept == [(one, "gpu-1") for one in ("release", "renew", "settle", "start")]
    assert held(http, "start", "gpu-1", mine, sibling) == ["ok", "ok"]
    assert [one["answer"] for one in settled(http, "gpu-1", mine, sibling)] == ["ok", "ok"]


def test_repeated_settle_with_another_result_is_answered_and_logged_as_a_mismatch(
    http, lab, caplog
):
    lab.submit("a")
    [lease] = claimed(http, lab, start=True)["leases"]
    assert [one["mismatch"] for one in settled(http, "gpu-1", lease, result=1)] == [False]
    assert [one["mismatch"] for one in settled(http, "gpu-1", lease, result=1)] == [False]
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        [answer] = settled(http, "gpu-1", lease, result=2)
        until(lambda: len(logged(caplog)) >= 2)
    assert (answer["answer"], answer["mismatch"]) == ("repeat", True)
    step, _ = (json.loads(line) for line in logged(caplog))
    assert (step["batch"], step["worker"], step["mismatch"]) == (lease["batch_id"], "gpu-1", True)
    assert {one.levelname for one in caplog.records if "mismatch" in one.message} == {"ERROR"}


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
        until(lambda: len(logged(caplog)) >= 2)  # they are written after the answer was sent
    assert (answer["answer"], answer["owner"]) == ("refused", "ada")
    step, request = (json.loads(line) for line in logged(caplog))
    assert (step["operation"], step["worker"], step["conflicting_worker"]) == (
        "settle",
        "bo",
        "ada",
    )
    assert (step["decision"], step["batch"]) == ("refused", frozen["batch_id"])
    assert (step["attempt"], step["queue"]) == (1, lab.q)
    assert request["request"] == step["request"]
    assert request["decision"] == ["refused"]


def test_one_batchs_story_is_a_search_for_its_id(site, http, lab, caplog):
    path = f"/v1/queues/{lab.q}/batches"
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        told = http.post(path, json={"identity": "S-1", "payload": 1}).json()
        batch_id = told["receipt"]["batch_id"]
        http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": [
            {"identity": "S-1", "payload": 1}, {"identity": "S-1", "payload": 2},
            {"identity": "S-2", "payload": 1},
        ]})  # fmt: skip
        [one] = claimed(http, lab, worker="bo", start=True)["leases"]
        lab.pass_time(one["batch"])
        lab.run(calls.reap(actor="reaper"))
        lab.run(calls.promote())
        leases = claimed(http, lab, worker="ada", count=2)["leases"]
        [two] = [lease for lease in leases if lease["batch_id"] == batch_id]
        held(http, "start", "ada", two)
        held(http, "renew", "bo", one)
        # Another replica, which handed out neither of the two leases.
        with (
            serving(settings_for(site.database)) as url,
            Site(site.database, url).client() as other,
        ):
            settled(other, "bo", one)
            settled(other, "ada", two)
        http.get(f"/v1/batches/{batch_id}/outcome")
        until(lambda: any("show_outcome" in line for line in logged(caplog)))
    lines = [json.loads(line) for line in logged(caplog) if batch_id in line]
    assert [
        (
            line["operation"],
            line.get("worker"),
            line.get("attempt"),
            line.get("state"),
            line.get("decision"),
        )
        for line in lines
    ] == [
        ("submit", None, None, None, "new"),
        ("submit", None, None, None, "duplicate"),
        ("submit", None, None, None, "conflict"),
        ("claim", "bo", 1, None, "ok"),
        ("claim", "ada", 2, None, "ok"),
        ("start", "ada", 2, "RUNNING", "ok"),
        ("renew", "bo", 1, "RUNNING", "refused"),
        ("settle", "bo", 1, "RUNNING", "refused"),
        ("settle", "ada", 2, "COMPLETED", "ok"),
        ("show_outcome", None, None, None, None),
    ]
    assert {line["conflicting_worker"] for line in lines if line.get("decision") == "refused"} == {
        "ada"
    }
    assert len({line["request"] for line in lines}) == 9
    assert {line["tenant"] for line in lines} == {"a"}


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
    much = {"worker": worker, "health": {"log": "x" * 8_192}}  # a page has five hundred of them
    assert http.post("/v1/work/hello", json=much).status_code == 422
    claimed(http, lab, worker=worker)
    [found] = [w for w in http.get("/v1/workers").json()["workers"] if w["name"] == worker]
    assert (found["free"]["gpus"], found["leases"]) == (2, 1)
    with site.client("read", tenant="b") as other:
        assert worker not in other.get("/v1/workers").text


def test_pages_of_workers_lead_to_all_of_them_though_they_say_hello_meanwhile(site):
    names = [f"w-{n}" for n in range(5)] + ["Ω/7 % &", "w-0/child"]
    with site.client(tenant="b") as http:

        def hello(worker):
            assert http.post("/v1/work/hello", json={"worker": worker}).status_code == 204

        for worker in names:
            hello(worker)
        found, asked = [], {"limit": 2}
        while True:
            page = http.get("/v1/workers", params=asked).json()
            found += [one["name"] for one in page["workers"]]
            for worker in names:
                hello(worker)
            if page["next"] is None:
                break
            asked["after"] = page["next"]
        assert found == sorted(names)
        later = {"since": "2999-01-01T00:00:00Z"}
        assert http.get("/v1/workers", params=later).json() == {"workers": [], "next": None}
        for asked in ({"limit": 501}, {"after": "\0"}, {"after": ""}):
            assert http.get("/v1/workers", params=asked).status_code == 422


def test_a_failure_is_told_and_tried_again(http, lab):
    lab.queue(max_attempts=2, backoff_seconds=0)
    lab.submit("a")
    for state in ("PENDING", "FAILED"):
        [lease] = claimed(http, lab, start=True)["leases"]
        body = {**lease_of(lease), "outcome": "failed", "failure": "OutOfMemory", "detail": "boom"}
        told = http.post("/v1/work/settle", json={"worker": "gpu-1", "settlements": [body]})
        assert told.json()["answers"][0]["state"] == state
