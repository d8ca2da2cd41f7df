"""Nothing that a tenant receives over HTTP depends on how much the other tenants do."""

from __future__ import annotations

import base64
import re
import uuid
from itertools import pairwise

import pytest

from helixqueue import HelixQueue
from helixqueue.errors import Refused
from helixqueue.service.tenant_cipher import TenantCipher
from tests.support.lab import POOLED, Lab, new_database
from tests.support.service import Site, serving, settings_for, stream_events

# Sequences start here, so that every number of theirs is recognized in a response.
FIRST = {
    "batch_id": 1_100_000_000_000,
    "entry_id": 2_200_000_000_000,
    "fence_number": 3_300_000_000_000,
}
SPAN = 1_000_000


@pytest.fixture(scope="module")
def database(server, template, pooler):
    for database in new_database(server, template, pooler):
        with database.connect("helix_bootstrap") as connection:
            for name, first in FIRST.items():
                connection.execute(f"select setval('helix.{name}', {first})")
        yield database


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database, replay_batches=1)) as url:
        yield Site(database, url)


class Recorder:
    """A client of tenant a that keeps all it receives, with a busy neighbour beside it."""

    def __init__(self, http, neighbour):
        self.http = http
        self.received = []
        self._neighbour = neighbour

    def send(self, method, path, **options):
        self._neighbour()
        response = self.http.request(method, path, **options)
        assert response.status_code < 300, response.text
        self.keep(response.text, *response.headers.values())
        return response.json() if response.content else None

    def keep(self, *texts):
        self.received += texts


def numbers_in(text):
    """The decimal numbers of a text, and those in its parts that are base64."""
    plain = [text]
    for part in re.findall(r"[A-Za-z0-9_-]{16,}", text):
        data = base64.urlsafe_b64decode(part[: len(part) // 4 * 4])
        plain.append(data.decode("latin-1"))
    return [int(number) for item in plain for number in re.findall(r"\d+", item)]


def read_changes(recorder, last_event_id=None):
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with recorder.http.stream("GET", "/v1/changes?seconds=1", headers=headers) as stream:
        events = list(stream_events(stream))
    recorder.keep(*(str(event) for event in events))
    return events


def run_worker(recorder, queue):
    """Submit, claim, start, renew, settle, fail, release and lose batches."""
    rows = [{"identity": f"s-{n}", "payload": n} for n in range(6)]
    recorder.send("POST", f"/v1/queues/{queue}/chunks", json={"submissions": rows})
    request = {"worker": "gpu-1", "queues": [queue], "count": 2}

    def claim(**more):
        body = {**request, "request": str(uuid.uuid4()), **more}
        leases = recorder.send("POST", "/v1/work/claim", json=body)["leases"]
        return [lease["lease"] for lease in leases]

    first, second = claim()
    for verb in ("start", "renew"):
        body = {"worker": "gpu-1", "leases": [first, second]}
        recorder.send("POST", f"/v1/work/{verb}", json=body)
    done = [{"lease": first, "outcome": "completed", "result": 1}]
    third, fourth = claim(start=True, settle=done)
    failed = {"lease": third, "outcome": "failed", "permanent": True, "failure": "Torn"}
    body = {"worker": "gpu-1", "settlements": [failed, {"lease": second, "outcome": "completed"}]}
    recorder.send("POST", "/v1/work/settle", json=body)
    body = {"worker": "gpu-1", "leases": [fourth]}
    recorder.send("POST", "/v1/work/release", json=body)
    stale = recorder.send("POST", "/v1/work/release", json={**body, "worker": "gpu-2"})
    assert [answer["answer"] for answer in stale["answers"]] == ["refused"]


def read_everything(recorder, queue):
    page = recorder.send("GET", "/v1/batches", params={"queue": queue, "limit": 2})
    assert len(page["rows"]) == 2
    after = {"queue": queue, "limit": 500, "after": page["next"]}
    page["rows"] += recorder.send("GET", "/v1/batches", params=after)["rows"]
    assert len({batch["batch_id"] for batch in page["rows"]}) == 6
    details = [recorder.send("GET", f"/v1/batches/{batch['batch_id']}") for batch in page["rows"]]
    refusals = [refusal for detail in details for refusal in detail["refusals"]]
    assert [refusal["worker"] for refusal in refusals] == ["gpu-2"]
    recorder.send("GET", "/v1/check")
    after = recorder.send("GET", "/v1/replay")["next"]
    assert recorder.send("GET", "/v1/replay", params={"after": after})["violated"] == 0
    fences = recorder.send("GET", "/v1/fences", params={"limit": 1})
    recorder.send("GET", "/v1/fences", params={"after": fences["next"]})
    retry = {"reason": "mended", "queue": queue}
    recorder.send("POST", "/v1/batches/retry", json=retry)
    for path in ("/v1/queues", "/v1/workers", "/v1/tokens", "/v1/token"):
        recorder.send("GET", path)
    return details


def test_responses_contain_no_number_of_a_shared_sequence(site, database):
    with (
        Lab(database) as lab,
        Lab(database) as neighbour,
        site.client() as http,
        HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix,
    ):
        lab.queue()
        neighbour.queue(tenant="b")
        for n in range(3):
            with helix.fence("refund", key=f"order-{n}"):
                pass

        def drive_neighbour():
            neighbour.submit(*[str(uuid.uuid4()) for _ in range(10)], tenant="b")
            neighbour.complete(*neighbour.claim(10))

        recorder = Recorder(http, drive_neighbour)
        [(_, _, _)] = begin = read_changes(recorder)
        run_worker(recorder, lab.q)
        details = read_everything(recorder, lab.q)
        changes = read_changes(recorder, begin[0][0])
        assert {kind for _, kind, _ in changes} == {"begin", "change"}
        [(position,)] = lab.rows("select pg_current_xact_id()::text::bigint")
        leaks = {
            number
            for text in recorder.received
            for number in numbers_in(text)
            if any(first <= number <= first + SPAN for first in FIRST.values())
        }
        assert leaks == set()
        assert not [cursor for cursor, *_ in changes if str(position)[:-2] in cursor.split("-")]
        numbers = {event["number"] for detail in details for event in detail["events"]} - {None}
        assert len(numbers) >= 2  # one per claim, so that a reader can tell leases apart


def test_counters_of_the_process_are_for_the_metrics_tenant(database):
    with serving(settings_for(database, metrics_tenant="b")) as url:
        site = Site(database, url)
        with (
            site.client("operate") as http,
            site.client("operate", tenant="b") as operator,
            site.client("submit", tenant="b") as submitter,
        ):
            key = {"Idempotency-Key": '"0123456789-of-tenant-b"'}
            submitter.post("/v1/queues/none/batches", json={"payload": {}}, headers=key)
            of_fences = "helix_fence_decisions_total{"
            assert of_fences in operator.get("/metrics").text
            assert of_fences not in http.get("/metrics").text
            # Families, not series: which series a tenant has depends on what it did before.
            of_tenant, of_operator = (
                {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
                for text in (http.get("/metrics").text, operator.get("/metrics").text)
            )
    of_process = {"helix_http_requests_total", "helix_duty_rows_total"}
    assert not of_tenant & of_process
    assert of_process <= of_operator
    assert of_tenant < of_operator


def test_stream_cursors_of_one_position_are_not_equal(site):
    """Equal cursors would show that no tenant did anything between them."""
    with site.client("read") as http:
        recorder = Recorder(http, lambda: None)
        [first, *_], [second, *_] = read_changes(recorder), read_changes(recorder)
        assert first[0] != second[0]


def test_cursor_of_another_tenant_is_refused(site, database):
    with Lab(database) as lab, site.client() as http, site.client(tenant="b") as intruder:
        lab.queue()
        lab.submit_many(3)
        cursor = http.get("/v1/batches", params={"queue": lab.q, "limit": 1}).json()["next"]
        assert http.get("/v1/batches", params={"after": cursor}).status_code == 200
        for path in ("/v1/batches", "/v1/fences"):
            assert intruder.get(path, params={"after": cursor}).status_code == 422
        assert intruder.get("/v1/changes", headers={"Last-Event-ID": cursor}).status_code == 400


def test_claims_over_http_find_work_before_the_hints_of_the_service(site, database):
    with Lab(database) as lab, site.client("work") as http:
        lab.queue()
        lab.submit_many(4)
        held_back = lab.claim(1, start=False)
        body = {"worker": "gpu-1", "queues": [lab.q], "count": 1}

        def claim():
            response = http.post("/v1/work/claim", json={**body, "request": str(uuid.uuid4())})
            return [lease["identity"] for lease in response.json()["leases"]]

        assert claim() == ["s00001"]
        lab.release(*held_back)  # now before the hint
        assert sorted(claim() + claim() + claim()) == ["s00000", "s00002", "s00003"]
        assert claim() == []


def test_hidden_numbers_differ_for_each_tenant_and_show_no_distance():
    first, second = TenantCipher(b"a" * 32), TenantCipher(b"b" * 32)
    hidden = [first.hide(n) for n in range(100)]
    assert hidden == [first.hide(n) for n in range(100)]
    assert all(0 <= number < 2**53 for number in hidden)
    assert len({later - earlier for earlier, later in pairwise(hidden)}) == 99
    assert not {second.hide(n) for n in range(100)} & set(hidden)


@pytest.mark.parametrize("text", ["", "!", "2026-11-18T00:00:00+00:00~17", "A" * 40])
def test_text_that_no_key_sealed_is_refused_as_cursor(text):
    cipher = TenantCipher(b"a" * 32)
    assert cipher.open(cipher.seal("17")) == "17"
    with pytest.raises(Refused, match="start again without a cursor"):
        cipher.open(text)
    sealed = cipher.seal("17")
    with pytest.raises(Refused):
        cipher.open(("B" if sealed[0] == "A" else "A") + sealed[1:])
