"""The worker protocol over HTTP: one owner, and a stale token is refused with the owner's name."""

from __future__ import annotations

import base64
import json
import logging
import uuid

from helixqueue.engine import calls
from helixqueue.service.tenant_cipher import TenantCipher
from tests.support.lab import wait_until
from tests.support.service import Site, problem_kind, serving, settings_for


def claimed(http, lab, worker="gpu-1", **more):
    body = {"worker": worker, "request": str(uuid.uuid4()), "queues": [lab.q], **more}
    response = http.post("/v1/work/claim", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def logged(caplog):
    return "\n".join(caplog.messages).splitlines()


def lease_of(lease):
    return {"lease": lease["lease"]}


def held(http, verb, worker, *leases):
    body = {"worker": worker, "leases": [item["lease"] for item in leases]}
    return [item["answer"] for item in http.post(f"/v1/work/{verb}", json=body).json()["answers"]]


def settled(http, worker, *leases, **more):
    body = {
        "worker": worker,
        "settlements": [{**lease_of(item), "outcome": "completed", **more} for item in leases],
    }
    return http.post("/v1/work/settle", json=body).json()["answers"]


def test_batch_is_claimed_and_completed(http, lab):
    lab.submit("a", payload={"n": 1})
    [lease] = claimed(http, lab)["leases"]
    assert (lease["identity"], lease["payload"], lease["state"]) == ("a", {"n": 1}, "ASSIGNED")
    assert held(http, "start", "gpu-1", lease) == ["ok"]
    assert held(http, "renew", "gpu-1", lease) == ["ok"]
    [answer] = settled(http, "gpu-1", lease, result={"reads": 3})
    assert (answer["answer"], answer["state"]) == ("ok", "COMPLETED")
    assert settled(http, "gpu-1", lease, result={"reads": 3})[0]["answer"] == "repeat"
    response = http.get(f"/v1/batches/{lease['batch_id']}/outcome").json()
    assert (response["state"], response["result"]) == ("COMPLETED", {"reads": 3})


COUNTED = {"type": "object", "properties": {"reads": {"type": "integer"}}, "required": ["reads"]}


def test_http_worker_cannot_store_a_result_that_breaks_the_schema_of_its_queue(http, lab):
    """Readers rely on the declared type of a result, whatever program computed it."""
    http.put(f"/v1/queues/{lab.q}", json={"reason": "test", "result_schema": COUNTED})
    lab.submit("a", "b", "c")
    first, second, third = claimed(http, lab, start=True, count=3)["leases"]
    [answer] = settled(http, "gpu-1", first, result={"reads": "many"})
    assert (answer["answer"], answer["state"]) == ("ok", "PENDING")
    [answer] = settled(http, "gpu-1", first, result={"reads": "many"})
    assert (answer["answer"], answer["mismatch"]) == ("repeat", False)
    [answer] = settled(http, "gpu-1", second)  # without a result
    assert answer["state"] == "PENDING"
    done = {**lease_of(third), "outcome": "completed", "result": {"reads": None}}
    [answer] = claimed(http, lab, count=1, settle=[done])["settled"]
    assert answer["state"] == "PENDING"
    detail = http.get(f"/v1/batches/{first['batch_id']}").json()
    [attempt] = [item for item in detail["attempts"] if item["end"] == "failed"]
    assert "does not match the queue's result type: result at /reads" in attempt["detail"]


def test_valid_results_of_one_call_are_stored_beside_an_invalid_one(http, lab):
    http.put(f"/v1/queues/{lab.q}", json={"reason": "test", "result_schema": COUNTED})
    lab.submit("a", "b")
    leases = claimed(http, lab, start=True, count=2)["leases"]
    results = [{"reads": 3}, {"reads": "three"}]
    settlements = [
        {**lease_of(lease), "outcome": "completed", "result": result}
        for lease, result in zip(leases, results, strict=True)
    ]
    body = {"worker": "gpu-1", "settlements": settlements}
    answers = http.post("/v1/work/settle", json=body).json()["answers"]
    assert [answer["state"] for answer in answers] == ["COMPLETED", "PENDING"]


def test_one_call_settles_claims_and_starts(http, lab):
    lab.submit("a", "b")
    [first] = claimed(http, lab, start=True)["leases"]
    done = {**lease_of(first), "outcome": "completed", "result": None}
    response = claimed(http, lab, start=True, settle=[done])
    assert [item["answer"] for item in response["settled"]] == ["ok"]
    assert [item["state"] for item in response["leases"]] == ["RUNNING"]


def test_repeated_claim_returns_the_same_leases(http, lab):
    lab.submit("a", "b")
    request = str(uuid.uuid4())
    first = claimed(http, lab, request=request)["leases"]
    assert claimed(http, lab, request=request)["leases"] == first


def test_lease_contains_its_own_token_and_no_other(http, lab):
    """Outside of the service each lease of a claim has its own token."""
    lab.submit("mine", "sibling")
    leases = claimed(http, lab, count=2)["leases"]
    [(key,)] = lab.rows("select helix.tenant_key_v1('a')")
    opened = [TenantCipher(bytes(key)).open_lease(lease["lease"]) for lease in leases]
    stored = lab.rows(
        "select batch, epoch, helix.lease_nonce(nonce, batch), number from helix.work"
        " where batch = any (%s) order by batch",
        [lab.batch_number(lease["batch_id"]) for lease in leases],
    )
    assert [(lease.batch, *lease.token) for lease in opened] == stored
    assert [str(lease.batch_id) for lease in opened] == [lease["batch_id"] for lease in leases]
    assert [(lease.queue, lease.attempt) for lease in opened] == [(lab.q, 1)] * 2


def test_repeated_settle_with_another_result_is_a_logged_mismatch(http, lab, caplog):
    lab.submit("a")
    [lease] = claimed(http, lab, start=True)["leases"]
    assert [item["mismatch"] for item in settled(http, "gpu-1", lease, result=1)] == [False]
    assert [item["mismatch"] for item in settled(http, "gpu-1", lease, result=1)] == [False]
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        [answer] = settled(http, "gpu-1", lease, result=2)
        wait_until(lambda: len(logged(caplog)) >= 2)
    assert (answer["answer"], answer["mismatch"]) == ("repeat", True)
    step, _ = (json.loads(line) for line in logged(caplog))
    assert (step["batch"], step["worker"], step["mismatch"]) == (lease["batch_id"], "gpu-1", True)
    assert {item.levelname for item in caplog.records if "mismatch" in item.message} == {"ERROR"}


def test_worker_releases_a_lease(http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    assert held(http, "release", "gpu-1", lease) == ["ok"]
    [again] = claimed(http, lab)["leases"]
    assert again["attempt"] == 1


def test_stale_worker_is_refused_and_both_names_are_logged(http, lab, caplog):
    lab.submit("a")
    [frozen] = claimed(http, lab, worker="bo")["leases"]
    lab.pass_time(lab.batch_number(frozen["batch_id"]))
    lab.run(calls.reap(actor="reaper"))
    claimed(http, lab, worker="ada")
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        [answer] = settled(http, "bo", frozen)
        wait_until(lambda: len(logged(caplog)) >= 2)  # written after the response
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


def test_log_search_for_a_batch_id_finds_its_history(site, http, lab, caplog):
    path = f"/v1/queues/{lab.q}/batches"
    with caplog.at_level(logging.INFO, "helixqueue.service.request"):
        response = http.post(path, json={"identity": "S-1", "payload": 1}).json()
        batch_id = response["receipt"]["batch_id"]
        http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": [
            {"identity": "S-1", "payload": 1}, {"identity": "S-1", "payload": 2},
            {"identity": "S-2", "payload": 1},
        ]})  # fmt: skip
        [item] = claimed(http, lab, worker="bo", start=True)["leases"]
        lab.pass_time(lab.batch_number(item["batch_id"]))
        lab.run(calls.reap(actor="reaper"))
        lab.run(calls.promote())
        leases = claimed(http, lab, worker="ada", count=2)["leases"]
        [two] = [lease for lease in leases if lease["batch_id"] == batch_id]
        held(http, "start", "ada", two)
        held(http, "renew", "bo", item)
        # Another replica, which handed out neither of the two leases.
        with (
            serving(settings_for(site.database)) as url,
            Site(site.database, url).client() as other,
        ):
            settled(other, "bo", item)
            settled(other, "ada", two)
        http.get(f"/v1/batches/{batch_id}/outcome")
        wait_until(lambda: any("show_outcome" in line for line in logged(caplog)))
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


def test_token_of_another_tenant_changes_nothing(site, http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    with site.client(tenant="b") as intruder:
        for verb in ("start", "renew", "release"):
            assert "ok" not in held(intruder, verb, "gpu-1", lease)
        assert settled(intruder, "gpu-1", lease)[0]["answer"] == "refused"
    assert held(http, "renew", "gpu-1", lease) == ["ok"]


def test_token_for_one_queue_cannot_touch_the_leases_of_another(site, http, lab):
    lab.submit("a")
    [lease] = claimed(http, lab)["leases"]
    with site.client("work", queues=["elsewhere"]) as narrow:
        done = {**lease_of(lease), "outcome": "completed"}
        claim = {"worker": "gpu-1", "request": str(uuid.uuid4()), "queues": ["elsewhere"]}
        requests = {
            verb: {"worker": "gpu-1", "leases": [lease["lease"]]}
            for verb in ("start", "renew", "release")
        }
        requests["settle"] = {"worker": "gpu-1", "settlements": [done]}
        requests["claim"] = claim | {"settle": [done]}
        for verb, body in requests.items():
            assert problem_kind(narrow.post(f"/v1/work/{verb}", json=body)) == "forbidden", verb
    assert held(http, "start", "gpu-1", lease) == ["ok"]


def test_number_fields_accept_no_booleans_and_no_strings(http, lab):
    for seconds in (True, "60"):
        body = {"worker": "w", "request": str(uuid.uuid4()), "queues": [lab.q]}
        response = http.post("/v1/work/claim", json=body | {"lease_seconds": seconds})
        assert problem_kind(response) == "invalid-request"
        response = http.put(f"/v1/queues/{lab.q}", json={"reason": "t", "backoff_seconds": seconds})
        assert problem_kind(response) == "invalid-request"
        body = {"worker": "w", "queues": [lab.q], "seconds": seconds}
        assert problem_kind(http.post("/v1/work/wait", json=body)) == "invalid-request"
    body = {"worker": "w", "queues": [lab.q], "seconds": 0}
    assert http.post("/v1/work/wait", json=body).status_code == 200


def forgeries(lease):
    """Leases that no key of the tenant sealed, made of one that it did."""
    data = bytearray(base64.urlsafe_b64decode(lease + "=" * (-len(lease) % 4)))
    for place in range(len(data)):
        data[place] ^= 1
        yield base64.urlsafe_b64encode(data).decode().rstrip("=")
        data[place] ^= 1
    yield from (lease[:-1], lease[:-4], lease[:20], lease + "AAAA", "A", "A" * 90, "A" * 300)


def test_forged_and_truncated_leases_are_refused_like_unknown_ones(http, lab):
    lab.submit("a", "b")
    lease, other = claimed(http, lab, count=2)["leases"]
    forged = list(forgeries(lease["lease"]))
    mixed = [*forged, other["lease"]]
    unknown = {"answer": "refused", "owner": None, "state": None, "late": False, "mismatch": False}
    for verb in ("start", "renew", "release"):
        body = {"worker": "gpu-1", "leases": mixed}
        answers = http.post(f"/v1/work/{verb}", json=body).json()["answers"]
        answers = {answer.pop("lease"): answer for answer in answers}
        assert answers.pop(other["lease"])["answer"] == "ok"
        assert answers == dict.fromkeys(forged, unknown)
    done = [{"lease": text, "outcome": "completed"} for text in forged[:90]]
    body = {"worker": "gpu-1", "settlements": done}
    answers = http.post("/v1/work/settle", json=body).json()["answers"]
    answers += claimed(http, lab, settle=done)["settled"]
    assert [answer.pop("lease") for answer in answers] == forged[:90] * 2
    assert all(answer == unknown for answer in answers)
    assert held(http, "renew", "gpu-1", lease) == ["ok"]
    for text in ("", "!", "A" * 401, "1.-42.7"):
        body = {"worker": "gpu-1", "leases": [text]}
        assert problem_kind(http.post("/v1/work/renew", json=body)) == "invalid-request"


def test_cursor_is_no_lease_and_lease_no_cursor(http, lab):
    lab.submit_many(2)
    [lease] = claimed(http, lab)["leases"]
    cursor = http.get("/v1/batches", params={"queue": lab.q, "limit": 1}).json()["next"]
    assert held(http, "renew", "gpu-1", {"lease": cursor}) == ["refused"]
    assert http.get("/v1/batches", params={"after": lease["lease"]}).status_code == 422
    assert http.get("/v1/replay", params={"after": cursor}).status_code == 422


def test_worker_gets_only_batches_that_fit(http, lab):
    lab.queue(requires={"gpus": 1})
    lab.submit("a")
    assert claimed(http, lab)["leases"] == []
    assert claimed(http, lab, free={"gpus": 1})["leases"] != []


def test_registered_workers_are_listed_for_their_tenant(site, http, lab):
    lab.submit("a")
    worker = f"w-{lab.q}"
    response = http.post("/v1/work/hello", json={"worker": worker, "free": {"gpus": 2}})
    assert response.status_code == 204
    much = {"worker": worker, "health": {"log": "x" * 8_192}}  # a page has five hundred of them
    assert http.post("/v1/work/hello", json=much).status_code == 422
    claimed(http, lab, worker=worker)
    [result] = [w for w in http.get("/v1/workers").json()["rows"] if w["name"] == worker]
    assert (result["free"]["gpus"], result["leases"]) == (2, 1)
    with site.client("read", tenant="b") as other:
        assert worker not in other.get("/v1/workers").text


def test_worker_pages_return_every_worker_despite_registrations(site):
    names = [f"w-{n}" for n in range(5)] + ["Ω/7 % &", "w-0/child"]
    with site.client(tenant="b") as http:

        def hello(worker):
            assert http.post("/v1/work/hello", json={"worker": worker}).status_code == 204

        for worker in names:
            hello(worker)
        result, request = [], {"limit": 2}
        while True:
            page = http.get("/v1/workers", params=request).json()
            result += [item["name"] for item in page["rows"]]
            for worker in names:
                hello(worker)
            if page["next"] is None:
                break
            request["after"] = page["next"]
        assert result == sorted(names)
        later = {"since": "2999-01-01T00:00:00Z"}
        assert http.get("/v1/workers", params=later).json() == {"rows": [], "next": None}
        for request in ({"limit": 501}, {"after": "\0"}, {"after": ""}):
            assert http.get("/v1/workers", params=request).status_code == 422


def test_failed_attempt_is_reported_and_retried(http, lab):
    lab.queue(max_attempts=2, backoff_seconds=0)
    lab.submit("a")
    for state in ("PENDING", "FAILED"):
        [lease] = claimed(http, lab, start=True)["leases"]
        body = {**lease_of(lease), "outcome": "failed", "failure": "OutOfMemory", "detail": "boom"}
        response = http.post("/v1/work/settle", json={"worker": "gpu-1", "settlements": [body]})
        assert response.json()["answers"][0]["state"] == state
