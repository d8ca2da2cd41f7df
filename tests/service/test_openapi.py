"""The OpenAPI document is complete, and a real service accepts its examples."""

from __future__ import annotations

import jsonschema_rs
import pytest

from helixqueue.fence.http.problem import PREFIX
from helixqueue.service.openapi import examples
from helixqueue.service.problems import PROBLEMS
from tests.support.service import DOCUMENT, OPERATIONS

OPERATION_OBJECTS = [DOCUMENT["paths"][path][method.lower()] for method, path, _ in OPERATIONS]
BY_ID = {operation["operationId"]: operation for operation in OPERATION_OBJECTS}


def every(wanted=OPERATION_OBJECTS):
    return pytest.mark.parametrize(
        "operation", wanted, ids=lambda operation: operation["operationId"]
    )


def fits(schema, value):
    """Validates with JSON Schema 2020-12, the dialect of OpenAPI 3.1, including formats."""
    whole = {**schema, "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
    return [str(error.message) for error in validator.iter_errors(value)]


def resolved(thing):
    if "$ref" not in thing:
        return thing
    found = DOCUMENT
    for part in thing["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def medias(operation):
    """Location and media type of every request and response body."""
    yield from (
        ("request", item) for item in operation.get("requestBody", {}).get("content", {}).values()
    )
    for status, response in operation["responses"].items():
        yield from ((status, item) for item in response.get("content", {}).values())


def shown(media):
    if "example" in media:
        yield media["example"]
    for item in media.get("examples", {}).values():
        yield resolved(item)["value"]


def test_operation_ids_are_unique():
    assert len(BY_ID) == len(OPERATION_OBJECTS)
    assert set(examples.recorded()) == set(BY_ID), "run `make examples`"


@every()
def test_every_operation_has_summary_and_description(operation):
    assert operation["summary"]
    assert len(operation["description"]) > 20
    assert "Parameters" not in operation["description"]


@every()
def test_every_request_and_response_has_a_valid_example(operation):
    ids = 0
    for where, media in medias(operation):
        values = list(shown(media))
        assert values, where
        for value in values:
            ids += 1
            if isinstance(value, str):
                continue  # a stream or the Prometheus text format
            assert fits(media["schema"], value) == [], where
    assert ids


@every([operation for operation in OPERATION_OBJECTS if operation.get("parameters")])
def test_every_path_parameter_has_a_valid_example(operation):
    for parameter in operation["parameters"]:
        assert parameter["in"] != "path" or "example" in parameter, parameter["name"]
        if "example" in parameter:
            assert fits(parameter["schema"], parameter["example"]) == [], parameter["name"]


@every()
def test_every_response_documents_its_headers(operation):
    needs = {"401": {"WWW-Authenticate"}, "405": {"Allow"}, "429": {"Retry-After"}}
    for status, response in operation["responses"].items():
        headers = response["headers"]
        assert {"X-Request-Id"} | needs.get(status, set()) <= set(headers)
        assert status != "503" or "Retry-After" in headers
        assert ("Idempotency-Replayed" in headers) == (operation["x-fenced"] and status < "300")
        for name, header in headers.items():
            assert fits(header["schema"], header["example"]) == [], name


@every()
def test_every_problem_is_listed_under_its_status(operation):
    listed = set(operation["x-problems"])
    assert listed
    under = {}
    for status, response in operation["responses"].items():
        problems = response.get("content", {}).get("application/problem+json", {})
        for name, item in problems.get("examples", {}).items():
            value = resolved(item)["value"]
            assert (value["type"], str(value["status"])) == (PREFIX + name, status)
            assert f"`{name}`" in response["description"]
            under[value["type"]] = status
    assert set(under) == listed
    if operation["x-scope"] != "open":
        assert {PREFIX + "unauthenticated", PREFIX + "forbidden"} <= listed


def test_every_problem_has_an_example():
    named = DOCUMENT["components"]["examples"].keys()
    assert named >= PROBLEMS.keys() >= examples.PROBLEM_MEMBERS.keys()


@pytest.fixture(scope="module")
def basecall(database):
    database.rows("select helix.set_queue_v1('a', 'basecall', 'example', p_profile => 'lab-id-v1')")


@pytest.mark.usefixtures("basecall")
@every([operation for operation in OPERATION_OBJECTS if "requestBody" in operation])
def test_service_accepts_every_request_example(http, operation):
    [(method, path)] = [
        (method, path)
        for method, path, _ in OPERATIONS
        if DOCUMENT["paths"][path][method.lower()] is operation
    ]
    media = operation["requestBody"]["content"]["application/json"]
    parameters = examples.recorded()[operation["operationId"]]["parameters"]
    answer = http.request(method, path.format(**parameters), json=media["example"])
    assert str(answer.status_code) in operation["responses"]
    if operation["operationId"] == "confirm_feed":
        # Positions are encrypted: those of the example belong to no tenant.
        assert answer.json()["type"].endswith(":refused")
        return
    # Batch, lease and token of the examples do not exist, but the requests are valid.
    assert answer.status_code in {200, 201, 204, 404, 409}, answer.text
    if answer.status_code < 204:
        [good] = [m for status, m in medias(operation) if status == str(answer.status_code)]
        assert answer.json().keys() == good["example"].keys()


def test_responses_without_a_model_match_the_document(http, lab):
    """No model validates pages and bulk results, and those of the fuzz test are mostly empty."""
    names = ["a", "b", "c", ["two", "parts"], "\u200b"]
    rows = [{"identity": name, "payload": 1} for name in names] + [{"identity": "a", "payload": 2}]
    chunk = http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": rows}).json()
    single = http.post(f"/v1/queues/{lab.q}/batches", json={"identity": "d", "payload": 1}).json()
    dead, done, _ = lab.claim(3)
    lab.fail(dead, permanent=True, failure="Torn", detail="half a file")
    lab.complete(done)
    page = http.get("/v1/batches", params={"queue": lab.q}).json()
    failed = http.get("/v1/batches", params={"queue": lab.q, "failure": "Torn"}).json()
    retry = {"reason": "mended", "queue": lab.q}
    retried = http.post("/v1/batches/retry", json=retry).json()
    assert {row["decision"] for row in chunk["submitted"]} == {"new", "conflict", "refused"}
    assert {row["state"] for row in page["rows"]} == {
        "FAILED", "COMPLETED", "RUNNING", "PENDING",
    }  # fmt: skip
    assert len(failed["rows"]) == len(retried["rows"]) == 1
    for name, response in (
        ("SubmitManyResponse", chunk),
        ("SubmittedResponse", single),
        ("Page_BatchRow_", page),
        ("Page_BatchRow_", failed),
        ("Page_ActionResult_", retried),
    ):
        assert fits({"$ref": f"#/components/schemas/{name}"}, response) == [], name
    # The schema allows further members, which would be undocumented.
    for name, row in (
        ("BatchRow", failed["rows"][0]),
        ("ActionResult", retried["rows"][0]),
    ):
        assert row.keys() == DOCUMENT["components"]["schemas"][name]["properties"].keys()
