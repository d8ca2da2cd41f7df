"""Generated requests, valid and invalid: no internal errors, no undocumented responses."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.support.service import DOCUMENT, OPERATIONS

load_all_checks()
RESPONSE_CHECKS = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
    )
]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
QUIET = list(HealthCheck)
EXAMPLES = 100 if os.environ.get("HELIX_PROOF") else 3


@pytest.fixture(scope="module")
def fuzzer(site, database):
    database.rows("select helix.set_queue_v1('a', 'basecall', 'fuzz')")
    return {"Authorization": f"Bearer {site.token()}"}


def cases():
    """Valid requests for every operation, invalid ones for operations with parameters."""
    for method, path, _ in OPERATIONS:
        response = DOCUMENT["paths"][path][method.lower()]
        yield method, path, GenerationMode.POSITIVE
        if response.get("parameters") or "requestBody" in response:
            yield method, path, GenerationMode.NEGATIVE


@pytest.mark.parametrize(("method", "path", "mode"), list(cases()))
def test_no_generated_request_causes_an_internal_error(site, fuzzer, method, path, mode):
    endless = path == "/v1/changes"

    @settings(max_examples=2 if endless else EXAMPLES, deadline=None, database=None,
              suppress_health_check=QUIET)  # fmt: skip
    @given(case=SCHEMA[path][method].as_strategy(generation_mode=mode))
    def ask(case):
        if endless:
            case.query = {**(case.query or {}), "seconds": 1}
        if path == "/v1/work/wait" and isinstance(case.body, dict):
            held = case.body.get("seconds", 10)
            if isinstance(held, int | float) and held > 0:
                case.body = {**case.body, "seconds": min(held, 0.1)}
        case.headers = {**(case.headers or {}), **fuzzer}
        response = case.call_and_validate(base_url=site.url, checks=RESPONSE_CHECKS, timeout=30)
        if response.headers.get("content-type", [""])[0] == "application/problem+json":
            assert response.json()["type"] in DOCUMENT["paths"][path][method.lower()]["x-problems"]

    ask()
