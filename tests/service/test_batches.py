"""Submitting and reading over HTTP: one batch, equal receipts, useful problems."""

from __future__ import annotations

import asyncio
import socket
import uuid
from urllib.parse import urlsplit

import httpx
import pytest

from helixqueue.engine import calls
from tests.support.lab import completion, wait_until
from tests.support.service import PROBLEM_PREFIX, Site, problem_kind, serving, settings_for, submit

NFC, NFD = "S\u00e4mple-1", "Sa\u0308mple-1"
BATCHES = """
    select count(*) from helix.batch b join helix.queue q on q.id = b.queue where q.name = %s"""


def test_two_spellings_create_one_batch_with_one_receipt(http, lab):
    first, second = submit(http, lab, NFC), submit(http, lab, NFD)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (first.json()["decision"], second.json()["decision"]) == ("new", "duplicate")
    assert first.json()["receipt"] == second.json()["receipt"]


def test_another_payload_is_a_conflict_with_a_diff(site, http, lab):
    submit(http, lab, payload={"reads": 1})
    response = submit(http, lab, payload={"reads": 2})
    assert (response.status_code, problem_kind(response)) == (409, "conflict")
    [change] = response.json()["diff"]
    assert (change["op"], change["path"], change["value"]) == ("replace", "/reads", 2)
    with site.client("submit") as blind:
        [change] = submit(blind, lab, payload={"reads": 3}).json()["diff"]
    assert change == {"op": "replace", "path": "/reads"}


def test_conflicts_keep_what_differs_for_tokens_that_see_payloads(site, http, lab):
    stored = {"reads": 1, "lane": {"tile": 4}, "gone": None}
    receipt = submit(http, lab, payload=stored).json()["receipt"]
    path = f"/v1/batches/{receipt['batch_id']}"
    for _ in range(2):
        submit(http, lab, payload={"reads": 2, "lane": {"tile": 4}, "added": "x" * 300})
    with site.client("read") as blind:
        [hidden] = blind.get(path).json()["differences"]
    [row] = http.get(path).json()["differences"]
    assert (hidden["changes"], hidden["actor"]) == (None, row["actor"])
    assert row["changes"] == [
        {"name": "added", "stored": None, "received": '"' + "x" * 199},
        {"name": "gone", "stored": "null", "received": None},
        {"name": "reads", "stored": "1", "received": "2"},
    ]
    for other in (7, [1], "text", None, 2.5, True):
        submit(http, lab, payload=other)
    rows = http.get(path).json()["differences"]
    assert len(rows) == 5, "a client that repeats a conflict adds a bounded number of rows"
    whole = {"name": None, "stored": '{"gone":null,"lane":{"tile":4},"reads":1}', "received": "7"}
    assert rows[1]["changes"] == [whole]


@pytest.mark.parametrize(
    ("identity", "problem"), [("a\u200bb", "invalid-identity"), (None, "invalid-identity")]
)
def test_invalid_identity_is_refused_with_its_code(http, lab, identity, problem):
    response = submit(http, lab, identity)
    assert (response.status_code, problem_kind(response)) == (422, problem)


def test_payload_that_violates_the_schema_is_refused_with_its_path(http, lab):
    lab.queue(payload_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    response = submit(http, lab, payload={"n": "seven"})
    assert (response.status_code, problem_kind(response)) == (422, "invalid-payload")
    assert response.json()["pointer"] == "/n"


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"{", 400, "not-json"),
        (b'{"identity": "a", "identity": "b", "payload": 1}', 400, "not-json"),
        (b'{"identity": "a", "payload": NaN}', 400, "not-json"),
        (b'{"identity": "a", "payload": "\\ud800"}', 400, "not-json"),
        (b'{"identity": "a"}', 422, "invalid-request"),
        (b'{"identity": "a", "payload": 1, "prority": 3}', 422, "invalid-request"),
        (b'{"identity": "a", "payload": 1, "priority": 10}', 422, "invalid-request"),
        (b'{"identity": "a", "payload": 1, "run_at": "2026-01-01T00:00:00"}', 422,
         "invalid-request"),
        (b'{"identity": "a", "payload": 1, "run_at": 99999999999}', 422, "invalid-request"),
        (b'{"identity": "a", "payload": 1, "run_at": "1700000000"}', 422, "invalid-request"),
        (b"x" * (1024 * 1024 + 1), 413, "body-too-large"),
        (b"", 422, "invalid-request"),
    ],
    ids=["torn", "doubled", "nan", "surrogate", "missing", "misspelt", "range", "zone", "number",
         "digits", "large", "empty"],
)  # fmt: skip
def test_ambiguous_json_is_refused(http, lab, body, status, problem):
    response = http.post(
        f"/v1/queues/{lab.q}/batches", content=body, headers={"content-type": "application/json"}
    )
    assert (response.status_code, problem_kind(response)) == (status, problem)
    assert problem != "not-json" or response.json()["detail"].startswith("body ")
    assert lab.value(BATCHES, lab.q) == 0


@pytest.mark.parametrize(
    "content_type",
    [
        [("content-type", "text/csv")],
        [("content-type", "application/x-www-form-urlencoded")],
        [("content-type", "application/json"), ("content-type", "text/csv")],
        [("content-type", "application/json"), ("content-encoding", "gzip")],
    ],
    ids=["csv", "form", "two", "compressed"],
)
@pytest.mark.parametrize("path", ["/v1/queues/{q}/batches", "/v1/queues/{q}/pause"])
def test_body_of_another_content_type_is_refused(http, lab, path, content_type):
    """In hot routes and in routes that FastAPI resolves."""
    body = b'{"identity": "a", "payload": 1}' if path.endswith("batches") else b'{"reason": "r"}'
    path = path.format(q=lab.q)
    response = http.post(path, content=body, headers=[("connection", "close"), *content_type])
    assert (response.status_code, problem_kind(response)) == (415, "unsupported-media-type")
    assert (
        "application/json" in response.json()["remedy"] or content_type[-1][0] == "content-encoding"
    )
    for form in ("application/json; charset=utf-8", "application/merge-patch+json", None):
        headers = {} if form is None else {"content-type": form}
        assert http.post(path, content=body, headers=headers).status_code in {200, 201}


def test_body_with_a_large_content_length_is_refused_before_it_is_read(site, http, lab):
    """A client that waits for 100-continue gets the refusal at once."""
    head = f"POST /v1/queues/{lab.q}/batches HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    head += f"Authorization: {http.headers['authorization']}\r\nContent-Length: 1048577\r\n\r\n"
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as client:
        client.sendall(head.encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_unknown_or_closed_queue_accepts_nothing(http, lab):
    response = http.post("/v1/queues/nowhere/batches", json={"identity": "a", "payload": 1})
    assert (response.status_code, problem_kind(response)) == (404, "no-such-queue")
    lab.queue(closed=True)
    response = submit(http, lab, "late")
    assert (response.status_code, problem_kind(response)) == (409, "queue-closed")


def test_bulk_submit_returns_a_result_per_row_in_order(http, lab):
    submit(http, lab, "b", payload=1)
    rows = [("a", 1), ("b", 1), ("b", 2), ("\u200b", 1), ("a", 1)]
    response = http.post(
        f"/v1/queues/{lab.q}/chunks",
        json={"submissions": [{"identity": i, "payload": p} for i, p in rows]},
    )
    assert response.status_code == 200
    result = response.json()["submitted"]
    words = ["new", "duplicate", "conflict", "refused", "duplicate"]
    assert [item["decision"] for item in result] == words
    assert result[2]["problem"]["type"] == f"{PROBLEM_PREFIX}conflict"
    assert result[0]["receipt"] == result[4]["receipt"]
    too_many = {"submissions": [{"identity": str(n), "payload": 1} for n in range(1001)]}
    assert http.post(f"/v1/queues/{lab.q}/chunks", json=too_many).status_code == 422


def test_concurrent_equal_submissions_create_one_batch_each(site, lab):
    identities = [f"crowd-{n}" for n in range(5)]
    token = site.token("submit")

    async def item(client, identity):
        response = await client.post(
            f"/v1/queues/{lab.q}/batches", json={"identity": identity, "payload": {"of": identity}}
        )
        return identity, response.status_code, response.json()["receipt"]["key"]

    async def crowd():
        limits = httpx.Limits(max_connections=40)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            base_url=site.url, headers=headers, limits=limits, timeout=60
        ) as client:
            return await asyncio.gather(*[item(client, i) for i in identities for _ in range(40)])

    answer = asyncio.run(crowd())
    assert len(answer) == 200
    assert sorted(status for _, status, _ in answer).count(201) == len(identities)
    assert len({(identity, key) for identity, _, key in answer}) == len(identities)
    assert lab.value(BATCHES, lab.q) == len(identities)


def test_batch_list_has_pages_and_filters(http, lab):
    for n in range(5):
        submit(http, lab, f"p-{n}")
    ids, after = [], None
    while True:
        query = {"queue": lab.q, "limit": 2} | ({"after": after} if after else {})
        page = http.get("/v1/batches", params=query).json()
        ids += [item["identity"] for item in page["rows"]]
        after = page["next"]
        if after is None:
            break
    assert ids == [f"p-{n}" for n in (4, 3, 2, 1, 0)]
    [lease] = lab.claim()
    running = http.get("/v1/batches", params={"queue": lab.q, "state": "RUNNING"}).json()["rows"]
    assert [item["batch_id"] for item in running] == [str(lease.batch_id)]
    mine = http.get("/v1/batches", params={"worker": lab.worker, "queue": lab.q}).json()["rows"]
    assert len(mine) == 1
    assert http.get("/v1/batches", params={"after": "x"}).status_code == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/batches?stat=FAILED"), ("GET", "/v1/batches?queue=q&runs=7"),
     ("POST", "/v1/queues/{q}/batches?dry_run=1"), ("GET", "/v1/queues?%71ueue=x")],
)  # fmt: skip
def test_unknown_filter_is_refused(http, lab, method, path):
    body = {"identity": "S-1", "payload": 1} if method == "POST" else None
    response = http.request(method, path.format(q=lab.q), json=body)
    assert (response.status_code, problem_kind(response)) == (422, "invalid-request")
    assert response.json()["got"] in {"stat", "runs", "dry_run", "queue"}
    assert lab.value(BATCHES, lab.q) == 0


@pytest.mark.parametrize(
    "query",
    ["state=FAILED&state=PENDING", "limit=1&limit=2", "worker=%ff", "worker=a%00b",
     "since=1700000000", "identity=a&identity=b&queue=q&queue=q"],
)  # fmt: skip
def test_ambiguous_filter_is_refused(http, query):
    response = http.get(f"/v1/batches?{query}")
    assert (response.status_code, problem_kind(response)) == (422, "invalid-request")
    assert "PostgreSQL" not in response.text


def test_identity_filter_matches_any_spelling(http, lab):
    key = submit(http, lab, NFC).json()["receipt"]["key"]
    result = http.get("/v1/batches", params={"identity": NFD, "queue": lab.q}).json()["rows"]
    assert [item["key"] for item in result] == [key]


def test_batch_detail_has_attempts_events_and_refusals(site, http, lab):
    batch_id = submit(http, lab, payload={"secret": "x"}).json()["receipt"]["batch_id"]
    [frozen] = lab.claim(worker="bo", lease_seconds=0.05)
    lab.pass_time(frozen.batch)
    lab.run(calls.reap(actor="ada"))
    [second] = lab.claim(worker="ada")
    lab.settle(completion(second), worker="ada")
    lab.settle(completion(frozen), worker="bo")
    response = http.get(f"/v1/batches/{batch_id}", params={"payload": "true"}).json()
    assert [item["worker"] for item in response["attempts"]] == ["bo", "ada"]
    assert response["events"][-1]["to_state"] == "COMPLETED"
    [refusal] = response["refusals"]
    assert (refusal["worker"], refusal["operation"]) == ("bo", "settle")
    assert (response["payload"], response["result"]) == ({"secret": "x"}, {"reads": 7})
    assert http.get(f"/v1/batches/{batch_id}/outcome").json()["result"] == {"reads": 7}
    with site.client("read") as viewer:
        blind = viewer.get(f"/v1/batches/{batch_id}").json()
        assert blind["payload"] is blind["result"] is None
        assert {event["detail"] for event in blind["events"]} == {None}
        refused = viewer.get(f"/v1/batches/{batch_id}", params={"payload": "true"})
        assert (refused.status_code, problem_kind(refused)) == (403, "forbidden")
        assert viewer.get(f"/v1/batches/{batch_id}/outcome").json()["result"] is None


def test_unknown_batch_is_not_found(http):
    response = http.get(f"/v1/batches/{uuid.uuid4()}")
    assert (response.status_code, problem_kind(response)) == (404, "no-such-batch")


def test_keyed_request_is_repeated_without_running_again(http, lab):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = submit(http, lab, "keyed", headers=key)
    second = submit(http, lab, "keyed", headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["idempotency-replayed"] == "true"
    assert first.json() == second.json()
    other = submit(http, lab, "other", headers=key)
    assert (other.status_code, other.json()["type"]) == (409, f"{PROBLEM_PREFIX}key-reused")


def test_refused_request_may_be_repeated_with_its_key(http, lab):
    key = {"Idempotency-Key": str(uuid.uuid4())}
    lab.queue(closed=True)
    assert submit(http, lab, "again", headers=key).status_code == 409
    lab.queue(closed=False)
    assert submit(http, lab, "again", headers=key).status_code == 201


def test_full_queue_reports_its_pending_count(database, lab):
    settings = settings_for(database, max_pending=3)
    with serving(settings) as url, Site(database, url).client() as http:
        lab.submit_many(3)
        response = submit(http, lab, "one-more")
        assert (response.status_code, problem_kind(response)) == (429, "queue-full")
        assert (response.json()["pending"], response.json()["limit"]) == (3, 3)
        assert int(response.headers["retry-after"]) >= 1
        # Only pending batches count: completed work makes room for as many.
        lab.complete(*lab.claim(2))
        wait_until(lambda: submit(http, lab, "one-more").status_code == 201)
        rows = [{"identity": f"m{n}", "payload": {}} for n in range(2)]
        many = http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": rows})
        assert (many.status_code, problem_kind(many)) == (429, "queue-full")
        assert (many.json()["pending"], many.json()["got"]) == (2, "4")
    assert lab.value(BATCHES, lab.q) == 4


def test_token_above_its_rate_limit_gets_429(database):
    """Every request counts, refused requests included."""
    settings = settings_for(database, requests_per_second=0.01, burst=3)
    with serving(settings) as url, Site(database, url).client("read") as http:
        paths = ("/v1/batches", "/v1/tokens", "/v1/nowhere")
        answers = [http.get(path).status_code for path in (*paths, *paths)]
        assert answers == [200, 403, 404, 429, 429, 429]
