"""No request holds the event loop: every other tenant would wait with it."""

from __future__ import annotations

import json
import uuid
from bisect import bisect_left

import pytest

from helixqueue import Machine
from helixqueue.service.compute_threads import is_large
from helixqueue.service.settings import MAX_ROWS
from tests.support.service import Site, problem_kind
from tests.support.stall_service import stall_service

MAX_STALL_MS = 100
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def stalls(database):
    with stall_service(database.dsn("service")) as service:
        site = Site(database, service.url)
        site.service = service
        yield site


@pytest.fixture(scope="module")
def policed(database):
    """A service with thousands of rules in its idempotency policy."""
    with stall_service(database.dsn("service"), "large-policy") as service:
        site = Site(database, service.url)
        site.service = service
        yield site


@pytest.fixture(scope="module")
def operator(stalls):
    with stalls.client() as client:
        yield client


@pytest.fixture(scope="module")
def submitter(stalls):
    with stalls.client("submit") as client:
        yield client


def queue(operator, name, **settings):
    response = operator.put(f"/v1/queues/{name}", json={"reason": "test", **settings})
    assert response.status_code == 200, response.text
    return f"/v1/queues/{name}"


def doubled_references(levels):
    """2 KB of schema that mean 2 ** levels type checks."""
    definitions = {"d0": {"type": "integer"}}
    for level in range(1, levels):
        reference = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"allOf": [reference, reference]}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


ANY_OF = {"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "null"}}]}
RECURSIVE = {
    "properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}},
    "not": {"type": "integer"},
}


# A schema of moderate cost, which takes long for many items.
MAXIMA = {"items": {"allOf": [{"maximum": 1_000 + number} for number in range(1_000)]}}


def nested(depth, inner="1"):
    return '{"a":' * depth + inner + "}" * depth


def single(payload_text, identity="s"):
    return f'{{"identity": "{identity}", "payload": {payload_text}}}'


def post(client, path, text, status, **headers):
    headers["Content-Type"] = "application/json"
    response = client.post(path, content=text, headers=headers, timeout=60)
    assert response.status_code == status, response.text[:500]
    return response


def assert_no_stall(stalls):
    assert stalls.service.longest_stall() < MAX_STALL_MS


WRONG_ITEMS = "[" + ",".join(["7"] * 490_000) + "]"
# Schema, payload, and whether the payload is valid.
SCHEMAS = {
    "wrong-items": ({"items": {"type": "string"}}, WRONG_ITEMS, False),
    "any-of": (ANY_OF, json.dumps(["x"] * 200_000), False),
    "unique": ({"uniqueItems": True}, json.dumps(list(range(120_000))), True),
    "recursive": (RECURSIVE, nested(50), False),
    "pattern": ({"pattern": "^(a|b)*a(a|b){400}c$"}, f'"{"ab" * 300_000}"', False),
    "enum": ({"items": {"enum": list(range(9000))}}, json.dumps(["x"] * 9000), False),
    "steps": (MAXIMA, json.dumps([7] * 100_000 + [10_000]), False),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_submit_token_cannot_stall_the_service_with_a_schema(stalls, operator, submitter, name):
    schema, payload, is_valid = SCHEMAS[name]
    path = queue(operator, name, payload_schema=schema)
    stalls.service.longest_stall()
    response = post(submitter, f"{path}/batches", single(payload), 201 if is_valid else 422)
    assert is_valid or problem_kind(response) == "invalid-payload"
    assert_no_stall(stalls)


def test_operate_token_cannot_store_a_schema_of_unbounded_cost(stalls, operator):
    stalls.service.longest_stall()
    for schema in (
        doubled_references(30),
        {"pattern": r"(\w{100}){100}"},
        {"pattern": r"[\s\S]{5000}x"},
        {"properties": {f"p{number}": {"pattern": "a"} for number in range(300)}},
    ):
        body = {"reason": "test", "payload_schema": schema}
        response = operator.put("/v1/queues/attack", json=body)
        assert problem_kind(response) == "refused"
    assert_no_stall(stalls)


ROWS = [{"identity": f"b{number}", "payload": {"text": "x" * 900}} for number in range(1000)]
ACCENTS = [{"identity": "\u1e9b\u0323" * 90, "payload": number} for number in range(1000)]
# Too long for an identity, and each "://:" looks like the start of a password in the log.
URLS = [{"identity": ["://:" * 255] * 4, "payload": number} for number in range(240)]
# Route, body, status.
LARGE = {
    "array": ("batches", single(WRONG_ITEMS, "array"), 201),
    "escapes": ("batches", single(json.dumps(["\u00e9\n"] * 60_000), "escapes"), 201),
    "floats": ("batches", single(json.dumps([1e-7] * 100_000), "floats"), 201),
    "objects": ("batches", single(json.dumps([{"a": 1}] * 90_000), "objects"), 201),
    "repeated-name": ("batches", single(f'{{"a":1,"a":2,"b":{WRONG_ITEMS}}}'), 400),
    "deep": ("batches", single("[" * 400_000 + "]" * 400_000), 400),
    "identity": ("batches", single("1", "\u0301" * 300_000), 422),
    "identity-parts": ("batches", json.dumps({"identity": ["a"] * 200_000, "payload": 1}), 422),
    "unknown-members": ("batches", json.dumps({f"m{number}": 1 for number in range(9_000)}), 422),
    "rows": ("chunks", json.dumps({"submissions": ROWS}), 200),
    "rows-of-unknown-members": (
        "chunks", json.dumps({"submissions": [{f"m{n}": 1 for n in range(90)}] * 999}), 422
    ),
    "too-many-rows": ("chunks", json.dumps({"submissions": [1] * 300_000}), 422),
    "rows-of-accents": ("chunks", json.dumps({"submissions": ACCENTS}, ensure_ascii=False), 200),
    "rows-of-urls": ("chunks", json.dumps({"submissions": URLS}), 200),
}  # fmt: skip


@pytest.mark.parametrize("has_key", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("name", LARGE)
def test_large_request_does_not_stall_the_service(stalls, operator, submitter, name, has_key):
    path = queue(operator, f"large-{has_key}".lower())
    route, body, status = LARGE[name]
    assert len(body.encode()) < MIB
    stalls.service.longest_stall()
    headers = {"Idempotency-Key": f"large-request-{name}"} if has_key else {}
    post(submitter, f"{path}/{route}", body, status, **headers)
    assert_no_stall(stalls)


def longest_inline(start, item, end, most=20_000):
    """The longest body that the service handles in its event loop; `item` gets its number."""

    def body(count):
        return start + ",".join(item(number) for number in range(count)) + end

    first_large = bisect_left(range(most + 1), 1, key=lambda count: is_large(body(count).encode()))
    return body(first_large - 1)


def longest_inline_chunk(row):
    def text(number):
        identity, payload = row(number)
        return f'{{"identity": {identity}, "payload": {payload}}}'

    return longest_inline('{"submissions": [', text, "]}", MAX_ROWS)


FLOATS = "{" + ",".join(f'"{name}":1e-7' for name in "abcdefgh") + "}"
LONG = "x" * 200
# Plain bodies right at the bound. Route, body, status.
INLINE = {
    "floats": (
        "batches", longest_inline('{"identity":"f","payload":[', lambda _: FLOATS, "]}"), 201
    ),
    "repeated-name": (
        "batches", longest_inline(
            '{"identity":"n","payload":[{"a":1,"a":2},', lambda _: '{"a":1}', "]}"
        ), 400
    ),
    "unknown-members": ("batches", longest_inline("{", lambda n: f'"m{n}":1', "}", 10_000), 422),
    "rows": ("chunks", longest_inline_chunk(lambda n: (f'"{n}{LONG}"', "1")), 200),
    "rows-of-floats": (
        "chunks", longest_inline_chunk(lambda n: (f'"{n}"', "[" + "1e-7," * 11 + "1e-7]")), 200
    ),
    "rows-with-spaces": ("chunks", longest_inline_chunk(lambda n: (f'" {n}{LONG}"', "2")), 200),
    "rows-of-controls": (
        "chunks", longest_inline_chunk(lambda n: (f'"{n}{LONG}\x7f"', "1")), 200
    ),
}  # fmt: skip


@pytest.mark.parametrize("has_key", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("name", INLINE)
def test_longest_request_in_the_event_loop_does_not_stall_it(
    stalls, operator, submitter, name, has_key
):
    path = queue(operator, f"inline-{has_key}".lower())
    route, body, status = INLINE[name]
    assert len(body) > MIB // 64
    headers = {"Idempotency-Key": f"inline-request-{name}"} if has_key else {}
    stalls.service.longest_stall()
    post(submitter, f"{path}/{route}", body, status, **headers)
    assert_no_stall(stalls)


def test_longest_events_in_the_event_loop_do_not_stall_it(stalls, operator, submitter):
    arrows = Machine({"REQUESTED": ["CONFIRMED"]}).arrows
    machine = {kind: list(after) for kind, after in arrows.items()}
    declared = operator.put("/v1/ledgers/long", json={"arrows": machine})
    assert declared.status_code == 200, declared.text

    def event(number):
        entity = f" {number}{LONG[:160]}"
        return f'{{"entity": "{entity}", "seq": 1, "kind": "REQUESTED", "payload": [1e-7]}}'

    body = longest_inline('{"events": [', event, "]}", MAX_ROWS)
    assert len(body) > MIB // 64
    stalls.service.longest_stall()
    answers = post(submitter, "/v1/ledgers/long/chunks", body, 200).json()["appended"]
    assert {answer["decision"] for answer in answers} == {"written"}
    assert_no_stall(stalls)


def test_conflicts_of_a_chunk_in_the_event_loop_do_not_stall_it(stalls, operator):
    path = queue(operator, "conflicts")
    stored = {f"a{number}": 1 for number in range(80)}
    rows = [{"identity": f"c{number}", "payload": stored} for number in range(MAX_ROWS)]
    for part in (rows[:500], rows[500:]):
        post(operator, f"{path}/chunks", json.dumps({"submissions": part}), 200)
    payload = json.dumps({f"b{number}": 1 for number in range(12)})
    body = longest_inline_chunk(lambda n: (f'"c{n}"', payload))
    stalls.service.longest_stall()
    answers = post(operator, f"{path}/chunks", body, 200).json()["submitted"]
    assert {answer["decision"] for answer in answers} == {"conflict"}
    assert_no_stall(stalls)


def test_repeated_and_conflicting_large_keyed_requests_do_not_stall_the_service(
    stalls, operator, submitter
):
    path = queue(operator, "again")
    body = json.dumps({"submissions": ROWS})
    headers = {"Idempotency-Key": "large-request-again"}
    first = post(submitter, f"{path}/chunks", body, 200, **headers)
    assert_no_stall(stalls)
    assert post(submitter, f"{path}/chunks", body, 200, **headers).content == first.content
    assert_no_stall(stalls)
    # The two differ in the last of 490,000 values.
    headers = {"Idempotency-Key": "large-request-differs"}
    post(submitter, f"{path}/batches", single(WRONG_ITEMS), 201, **headers)
    other = single(WRONG_ITEMS[:-2] + "8]")
    response = post(submitter, f"{path}/batches", other, 409, **headers)
    assert response.json()["type"].endswith("key-reused")
    assert_no_stall(stalls)


def test_large_policy_does_not_stall_the_service(policed):
    with policed.client() as client:
        path = queue(client, "policed")
        payload = {f"n{number}": "x" for number in range(1500)}
        headers = {"Idempotency-Key": "a-request-of-a-large-policy"}
        policed.service.longest_stall()
        post(client, f"{path}/batches", single(json.dumps(payload)), 201, **headers)
        assert_no_stall(policed)
        changed = payload | {f"n{number}": "y" for number in range(90)}
        response = post(client, f"{path}/batches", single(json.dumps(changed)), 409, **headers)
        assert {op["value"] for op in response.json()["diff"]} == {"(masked)"}
        assert_no_stall(policed)


def test_large_stored_payloads_do_not_stall_the_service(stalls, operator):
    """Small requests whose responses are large: conflicts, claims, batches."""
    path = queue(operator, "stored")
    for number in range(8):
        post(operator, f"{path}/batches", single(WRONG_ITEMS, f"s{number}"), 201)
    stalls.service.longest_stall()
    other = single(WRONG_ITEMS.replace("7", "8"), "s0")
    for body in (single("1", "s0"), other):
        assert problem_kind(post(operator, f"{path}/batches", body, 409)) == "conflict"
    assert_no_stall(stalls)
    rows = [{"identity": f"s{number}", "payload": 1} for number in range(8)]
    response = post(operator, f"{path}/chunks", json.dumps({"submissions": rows}), 200)
    answers = response.json()["submitted"]
    assert [answer["decision"] for answer in answers] == ["conflict"] * 8
    assert answers[0]["problem"]["diff"]
    assert "submit it alone" in answers[7]["problem"]["detail"]
    assert len(response.content) < 2 * MIB
    assert_no_stall(stalls)
    body = {"worker": "w", "request": str(uuid.uuid4()), "queues": ["stored"], "count": 100}
    leases = operator.post("/v1/work/claim", json=body).json()["leases"]
    assert len(leases) == 8
    assert leases[0]["payload"][0] == 7
    assert_no_stall(stalls)
    done = {"lease": leases[0]["lease"], "outcome": "completed"}
    result = json.dumps(done)[:-1] + f', "result": {WRONG_ITEMS}}}'
    post(operator, "/v1/work/settle", f'{{"worker": "w", "settlements": [{result}]}}', 200)
    assert_no_stall(stalls)
    batch_id = leases[0]["batch_id"]
    assert operator.get(f"/v1/batches/{batch_id}?payload=true").json()["payload"][0] == 7
    health = f'{{"worker": "w", "health": {{"a": {WRONG_ITEMS}}}}}'
    post(operator, "/v1/work/hello", health, 422)
    assert_no_stall(stalls)


def test_result_of_a_worker_does_not_stall_the_service(stalls, operator):
    path = queue(operator, "results", result_schema=SCHEMAS["any-of"][0])
    post(operator, f"{path}/batches", single("1"), 201)
    body = {"worker": "w", "request": str(uuid.uuid4()), "queues": ["results"], "count": 1}
    [lease] = operator.post("/v1/work/claim", json=body | {"start": True}).json()["leases"]
    done = {"lease": lease["lease"], "outcome": "completed"}
    stalls.service.longest_stall()
    result = json.dumps(done)[:-1] + f', "result": {SCHEMAS["any-of"][1]}}}'
    text = f'{{"worker": "w", "settlements": [{result}]}}'
    [answer] = post(operator, "/v1/work/settle", text, 200).json()["answers"]
    assert answer["state"] == "PENDING"
    assert_no_stall(stalls)


def test_page_of_queues_with_large_schemas_does_not_stall_the_service(stalls, operator):
    schema = {"properties": {f"property_{number}": {"type": "string"} for number in range(1400)}}
    for number in range(20):
        queue(operator, f"schema{number}", payload_schema=schema, result_schema=schema)
    assert_no_stall(stalls)
    page = operator.get("/v1/queues?limit=500").json()
    assert {item["payload_schema"] is None for item in page["rows"]} == {True}
    assert operator.get("/v1/queues/schema0").json()["payload_schema"] == schema
    assert_no_stall(stalls)
