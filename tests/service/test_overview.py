"""Figures over time, late writes, actions and search, as a page of the service reads them."""

from __future__ import annotations

import unicodedata
from contextlib import suppress
from datetime import UTC, datetime

from helixqueue import HelixQueue
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences, reads
from tests.support.duties import run_duty
from tests.support.lab import POOLED, completion, failure, wait_until
from tests.support.letters import write_letters


def lose_and_complete(lab, identity="S-1"):
    """One batch: w1 loses it, w2 completes it, and w1 comes back too late."""
    [row] = lab.submit(identity)
    [lost] = lab.claim(1, worker="w1")
    lab.pass_time(lost.batch)
    [again] = wait_until(lambda: lab.claim(1, worker="w2"))
    lab.settle(completion(again), worker="w2")
    lab.settle(completion(lost), worker="w1")
    return row.receipt.batch_id


def test_late_write_is_listed_with_both_workers_and_the_attempts(http, lab):
    batch_id = lose_and_complete(lab)
    page = http.get("/v1/refusals", params={"queue": lab.q}).json()
    [row] = page["rows"]
    assert (row["worker"], row["operation"], row["batch_id"]) == ("w1", "settle", str(batch_id))
    assert (row["state"], row["identity"], row["queue"]) == ("COMPLETED", "S-1", lab.q)
    assert [(a["worker"], a["end"]) for a in row["attempts"]] == [
        ("w1", "lost"),
        ("w2", "completed"),
    ]
    stored = [event.number for event in lab.run(reads.batch_detail(batch_id)).attempts]
    # Numbers of leases count the work of all tenants.
    assert {a["number"] for a in row["attempts"]}.isdisjoint(stored)


def test_pages_of_late_writes_have_each_once(http, lab):
    batches = [str(lose_and_complete(lab, f"S-{place}")) for place in range(5)]
    listed, after = [], {}
    while after is not None:
        params = {"queue": lab.q, "limit": 2} | after
        page = http.get("/v1/refusals", params=params).json()
        listed += [row["batch_id"] for row in page["rows"]]
        after = page["next"] and {"after": page["next"]}
    assert listed == batches[::-1]


def test_series_counts_what_happened_and_the_backlog(http, lab):
    lose_and_complete(lab)
    lab.submit("S-2", "S-3")
    assert run_duty(lab, "metrics") is None
    series = http.get("/v1/series", params={"queue": lab.q, "period": "7d"}).json()
    assert (len(series["points"]), series["step_seconds"]) == (168, 3600)
    total = series["total"]
    assert (total["submitted"], total["completed"], total["lost"], total["refused"]) == (3, 1, 1, 1)
    assert total["run_p95"] >= total["run_p50"] > 0
    assert series["points"][-1]["pending"] == 2
    assert series["points"][0]["pending"] == 0
    everything = http.get("/v1/series", params={"period": "7d"}).json()
    assert everything["total"]["submitted"] >= 3
    nothing = http.get("/v1/series", params={"queue": "nobody"}).json()
    assert nothing["total"]["submitted"] == 0
    assert nothing["total"]["wait_p50"] is None


def test_overview_has_the_queue_with_failures_before_the_others(http, lab):
    lab.queue(max_attempts=1)
    lab.submit("S-1")
    lab.fail(*lab.claim(1), failure="OutOfMemory")
    assert run_duty(lab, "metrics") is None
    overview = http.get("/v1/overview").json()
    assert overview["kept_at"] is not None
    conditions = [queue["condition"] for queue in overview["queues"]]
    order = ["stalled", "failures", "paused", "flowing", "idle", "closed"]
    assert conditions == sorted(conditions, key=order.index)
    [queue] = [queue for queue in overview["queues"] if queue["queue"] == lab.q]
    assert (queue["condition"], queue["failed"], queue["hour"]["failed"]) == ("failures", 1, 1)
    assert overview["today"]["failed"] >= 1


def test_overview_says_when_the_ledger_was_last_reconciled(http, lab):
    assert run_duty(lab, "reconcile") is None
    overview = http.get("/v1/overview").json()
    last = lab.value("select last_at from helix.duty where duty = 'reconcile'")
    assert datetime.fromisoformat(overview["reconciled_at"]) == last


def test_overview_says_that_a_queue_is_stalled(http, lab):
    lab.queue(stalled_after_seconds=1)
    lab.submit("S-1")
    wait_until(lambda: run_duty(lab, "metrics") is None and condition(http, lab) == "stalled")
    found = "select from helix.finding where kind = 'stalled_pending' and cleared_at is null"
    wait_until(lambda: run_duty(lab, "reconcile") is None and lab.rows(found))
    assert http.get("/v1/overview").json()["findings"] == 0  # it waits, and contradicts nothing
    http.post(f"/v1/queues/{lab.q}/pause", json={"reason": "flow cell exchange"})
    assert condition(http, lab) == "paused"


def test_queue_flows_while_short_batches_end_between_two_counts(http, lab):
    assert condition(http, lab) == "idle"
    lose_and_complete(lab)
    assert run_duty(lab, "metrics") is None
    assert condition(http, lab) == "flowing"


def test_worker_that_ended_is_no_longer_known(http, lab):
    name = f"w-{lab.q}"
    known = http.get("/v1/overview").json()["workers_known"]
    say_hello(http, name, [lab.q])
    assert http.get("/v1/overview").json()["workers_known"] == known + 1
    ended = {"worker": name, "ended": True}
    assert http.post("/v1/work/hello", json=ended).status_code == 204
    assert http.get("/v1/overview").json()["workers_known"] == known


def condition(http, lab):
    queues = http.get("/v1/overview").json()["queues"]
    return next(queue["condition"] for queue in queues if queue["queue"] == lab.q)


def test_activity_names_person_action_and_reason(http, lab):
    lab.queue(max_attempts=1)
    [row] = lab.submit("S-1")
    lab.fail(*lab.claim(1))
    reason = {"reason": "workers with more memory"}
    http.post(f"/v1/batches/{row.receipt.batch_id}/retry", json=reason)
    http.post(f"/v1/queues/{lab.q}/pause", json={"reason": "flow cell exchange"})
    rows = http.get("/v1/activity", params={"limit": 20}).json()["rows"]
    mine = [row for row in rows if row["name"] == lab.q]
    assert [(item["action"], item["subject"]) for item in mine[:2]] == [
        ("set", "queue"), ("retried", "batch"),
    ]  # fmt: skip
    assert "flow cell exchange" in mine[0]["detail"]
    assert (mine[1]["detail"], mine[1]["batches"]) == (reason["reason"], 1)
    assert mine[1]["batch_id"] == str(row.receipt.batch_id)
    assert any(item["action"] == "created" and item["subject"] == "token" for item in rows)
    assert [item["at"] for item in rows] == sorted((item["at"] for item in rows), reverse=True)


def test_activity_names_releases_of_people_and_decisions_about_fences_and_letters(
    http, lab, database
):
    [row] = lab.submit("S-1")
    path = f"/v1/batches/{row.receipt.batch_id}"
    [lease] = lab.claim(1)
    assert [answer.answer for answer in lab.release(lease, detail="drained")] == ["ok"]
    [lease] = lab.claim(1)
    http.post(f"{path}/release", json={"reason": "the node is gone"})
    first, second = write_letters(lab, "1-1", "2-1")
    http.post(f"/v1/letters/{first}/discard", json={"reason": "a test tube"})
    body = {"reason": "read again", "identity": f"again-{lab.q}"}
    http.post(f"/v1/letters/{second}/redrive", json=body).raise_for_status()
    fence = doubtful(database, lab.q, "order-7")
    decision = {"reason": "asked the bank", "applied": False, "version": fence.version}
    http.post(f"/v1/fences/{fence.fence}/resolve", json=decision).raise_for_status()
    rows = http.get("/v1/activity", params={"limit": 5}).json()["rows"]
    assert [(item["action"], item["key"], item["detail"]) for item in rows[:4]] == [
        ("resolved", fence.fence, "asked the bank"), ("redriven", str(second), "read again"),
        ("discarded", str(first), "a test tube"), ("released", None, "the node is gone"),
    ]  # fmt: skip
    assert "drained" not in {item["detail"] for item in rows}, "a worker is no person"


def doubtful(database, name, key):
    """A fence whose effect began and was not recorded."""
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        with suppress(TimeoutError), helix.fence(name, key=key):
            raise TimeoutError("the bank did not answer")
        [row] = backend_of(helix).run(fences.list_fences(name=name)).rows
    return row


def test_pages_of_activity_have_each_action_once(http, lab):
    for place in range(5):
        verb = "pause" if place % 2 else "resume"
        http.post(f"/v1/queues/{lab.q}/{verb}", json={"reason": f"turn {place}"})
    listed, after = [], {}
    while after is not None and len(listed) < 400:
        page = http.get("/v1/activity", params={"limit": 3} | after).json()
        listed += [row["detail"] for row in page["rows"] if row["name"] == lab.q]
        after = page["next"] and {"after": page["next"]}
    turns = [next(n for n in range(5) if f"turn {n}" in text) for text in listed if "turn" in text]
    assert turns == [4, 3, 2, 1, 0]


def find(http, text):
    rows = http.get("/v1/search", params={"text": text}).json()["rows"]
    return [(row["kind"], row["name"]) for row in rows]


def test_search_finds_a_sample_in_another_spelling_and_by_its_id(http, lab):
    [row] = lab.submit("Sjö-0417")
    batch_id = str(row.receipt.batch_id)
    assert ("batch", "Sjö-0417") in find(http, unicodedata.normalize("NFD", "Sjö-0417"))
    for text in (batch_id, batch_id[:8], batch_id.upper(), row.receipt.key, batch_id[:30]):
        assert find(http, text) == [("batch", "Sjö-0417")], text
    assert find(http, batch_id[:-4] + "0000") == []


def test_search_finds_worker_fence_queue_and_letter(http, lab):
    body = {"worker": f"gpu-{lab.q}", "free": {"gpus": 1}, "health": {"queues": [lab.q]}}
    assert http.post("/v1/work/hello", json=body).status_code == 204
    [letter] = write_letters(lab, "1-1")
    assert find(http, f"gpu-{lab.q}"[:-1])[0][0] == "worker"
    assert find(http, f"gpu-{lab.q}") == [("worker", f"gpu-{lab.q}")]
    assert find(http, lab.q) == [("queue", lab.q)]
    assert ("letter", str(letter)) in find(http, str(letter))


def test_search_finds_a_fence_by_name_by_any_spelling_of_its_key_and_by_its_id(
    http, lab, database, site
):
    fence = doubtful(database, lab.q, ("Sjö", "7"))
    known = ("fence", f"{lab.q} Sjö / 7")
    for text in (
        "Sjö / 7",
        unicodedata.normalize("NFD", "Sjö / 7"),
        fence.fence,
        fence.fence[3:12],
    ):
        assert known in find(http, text), text
    assert [kind for kind, _ in find(http, lab.q)] == ["fence", "queue"]
    with site.client(tenant="b") as other:
        assert find(other, fence.fence) == find(other, "Sjö / 7") == []


def test_search_finds_a_sample_of_several_parts_as_pages_show_it(http, lab):
    [row] = lab.submit(("PRJ-1", "S-7"))
    assert find(http, "PRJ-1 / S-7") == [("batch", "PRJ-1 / S-7")]
    assert find(http, str(row.receipt.batch_id)[:8]) == [("batch", "PRJ-1 / S-7")]


def test_token_of_another_tenant_sees_nothing(site, lab):
    [row] = lab.submit("secret-sample")
    assert run_duty(lab, "metrics") is None
    [letter] = write_letters(lab, "1-1")
    with site.client(tenant="b") as other:
        for text in ("secret-sample", str(row.receipt.batch_id), lab.q, str(letter)):
            assert find(other, text) == [], text
        series = other.get("/v1/series", params={"period": "7d"}).json()
        assert (series["total"]["submitted"], series["points"][-1]["pending"]) == (0, None)
        assert other.get("/v1/refusals").json()["rows"] == []
        assert other.get("/v1/overview").json()["queues"] == []


def test_proof_of_a_batch_has_the_hash_of_each_step(http, lab, database):
    batch_id = lose_and_complete(lab)
    proof = http.get(f"/v1/batches/{batch_id}/proof").json()
    events = http.get(f"/v1/batches/{batch_id}").json()["events"]
    assert [entry["version"] for entry in proof["entries"]] == [row["version"] for row in events]
    assert proof["sound"] is True
    stored = {row[0].hex() for row in database.rows("select hash from helix.entry")}
    assert {entry["hash"] for entry in proof["entries"]} <= stored
    unknown = http.get("/v1/batches/00000000-0000-8000-8000-000000000000/proof")
    assert unknown.status_code == 404


def test_proof_shows_an_entry_that_was_edited(http, lab):
    batch_id = lose_and_complete(lab)
    with lab.superuser.transaction():
        lab.superuser.execute("alter table helix.entry disable trigger a_guard")
        lab.superuser.execute(
            "update helix.entry e set actor = 'forged' from helix.work w "
            "where w.entry = e.id and w.batch = %s",
            [lab.batch_number(batch_id)],
        )
        lab.superuser.execute("alter table helix.entry enable always trigger a_guard")
    proof = http.get(f"/v1/batches/{batch_id}/proof").json()
    assert proof["sound"] is False
    first, *_, last = proof["entries"]
    assert (first["sound"], last["sound"]) == (True, False)


def test_list_marks_batches_with_a_late_write(http, lab):
    lose_and_complete(lab)
    lab.submit("S-2")
    rows = http.get("/v1/batches", params={"queue": lab.q}).json()["rows"]
    assert {row["identity"]: row["refused"] for row in rows} == {"S-1": True, "S-2": False}


def why(http, lab):
    rows = http.get(f"/v1/queues/{lab.q}/waiting").json()["rows"]
    return {row["identity"]: row["why"] for row in rows}


def say_hello(http, worker, queues, **free):
    body = {"worker": worker, "free": free, "health": {"slots": 1, "queues": queues}}
    assert http.post("/v1/work/hello", json=body).status_code == 204


def test_waiting_batch_says_why_no_worker_has_it(http, lab):
    lab.submit("plain")
    lab.submit("large", requires='{"gpus": 1, "labels": {"kind": "a100"}}')
    lab.submit("later", run_at=datetime(2999, 1, 1, tzinfo=UTC))
    say_hello(http, f"idle-{lab.q}", ["elsewhere"], gpus=8)
    assert why(http, lab)["plain"] == "no worker is alive"
    assert why(http, lab)["later"] == "not before 2999-01-01T00:00:00Z"
    say_hello(http, f"cpu-{lab.q}", [lab.q], cpu_cores=8)
    assert why(http, lab)["plain"] == "waits for its turn"
    assert why(http, lab)["large"] == (
        'no_worker_matches: no worker has gpus 1, labels {"kind": "a100"}'
    )
    say_hello(http, f"gpu-{lab.q}", [lab.q], gpus=2, labels={"kind": "a100"})
    assert why(http, lab)["large"] == "waits for its turn"
    http.post(f"/v1/queues/{lab.q}/pause", json={"reason": "flow cell exchange"})
    assert why(http, lab)["plain"] == "the queue is paused"
    assert http.get("/v1/queues/nobody/waiting").status_code == 404


def test_worker_shows_what_it_ended_today(site, http, lab):
    worker = f"gpu-{lab.q}"
    say_hello(http, worker, [lab.q])
    lab.queue(backoff_seconds=0)
    lab.submit("S-1", "S-2", "S-3")
    done, also_done, broken = lab.claim(3, worker=worker)
    lab.settle(completion(done), completion(also_done), failure(broken), worker=worker)

    def ended():
        assert run_duty(lab, "metrics") is None  # follows what older transactions do not hold up
        shown = http.get(f"/v1/workers/{worker}").json()
        return shown["completed_today"], shown["failed_today"]

    assert wait_until(lambda: ended() == (2, 1))
    with site.client(tenant="b") as other:
        say_hello(other, worker, [])
        shown = other.get(f"/v1/workers/{worker}").json()
    assert (shown["completed_today"], shown["failed_today"]) == (0, 0)
