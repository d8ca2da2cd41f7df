"""Access is denied by default: every operation of the document, called without permission."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from helixqueue.engine import tokens
from tests.support.lab import Lab
from tests.support.service import ALL, GUARDED, OPERATIONS, TLS, fill_path, operation_name


def request(site, operation, token):
    method, path, _ = operation
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=site.url, timeout=30, verify=TLS) as client:
        return client.request(method, fill_path(path), headers=headers)


@pytest.fixture(scope="module")
def strangers(site):
    """Invalid tokens, by reason."""
    revoked = site.token(name="revoked")
    with Lab(site.database, "operator") as operator:
        assert operator.run(tokens.revoke(tenant="a", name="revoked", reason="lost")) == 1
    return {
        "none": None,
        "unknown": tokens.new_token().token,
        "torn": "hx_short",
        "expired": site.token(expires_at=datetime.now(UTC) - timedelta(seconds=1)),
        "revoked": revoked,
    }


@pytest.fixture(scope="module")
def narrow(site):
    """For each scope, a token with every other scope."""
    return {scope: site.token(*(item for item in ALL if item != scope)) for scope in ALL}


@pytest.mark.parametrize("operation", OPERATIONS, ids=operation_name)
def test_every_operation_declares_a_scope(operation):
    assert operation[2] in {*ALL, "any", "open"}
    assert (operation[2] == "open") == operation[1].startswith(
        ("/health/", "/v1/login", "/v1/keys", "/v1/webhooks/")
    )


@pytest.mark.parametrize("operation", GUARDED, ids=operation_name)
def test_no_operation_accepts_an_invalid_token(site, strangers, operation):
    for why, token in strangers.items():
        response = request(site, operation, token)
        assert response.status_code == 401, why
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["type"].endswith(":unauthenticated")


@pytest.mark.parametrize(
    "operation", [item for item in GUARDED if item[2] != "any"], ids=operation_name
)
def test_no_operation_accepts_a_token_without_its_scope(site, narrow, operation):
    response = request(site, operation, narrow[operation[2]])
    assert response.status_code == 403
    assert response.json()["expected"] == f"a token with the scope {operation[2]}"


@pytest.mark.parametrize("operation", GUARDED, ids=operation_name)
def test_unsupported_methods_are_refused(site, strangers, operation):
    _, path, _ = operation
    known = {item for item, there, _ in OPERATIONS if there == path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"} - known:
        # An invalid token learns nothing here either.
        assert request(site, (method, path, ""), strangers["unknown"]).status_code == 401
        response = request(site, (method, path, ""), site.everything)
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == known


@pytest.fixture(scope="module", autouse=True)
def everything(site):
    site.everything = site.token()


def test_token_limited_to_queues_cannot_use_other_queues(site, database):
    with Lab(database, q="ours") as lab:
        lab.queue()
        lab.queue("others")
    with site.client(queues=["ours"]) as http:
        work = {"identity": "x", "payload": 1}
        assert http.post("/v1/queues/ours/batches", json=work).status_code == 201
        assert http.post("/v1/queues/others/batches", json=work).status_code == 403
        many = {"submissions": [work]}
        assert http.post("/v1/queues/others/chunks", json=many).status_code == 403
        claim = {"worker": "w", "request": str(uuid.uuid4()), "queues": ["ours", "others"]}
        response = http.post("/v1/work/claim", json=claim)
        assert response.status_code == 403
        assert response.json()["got"] == "others"


def test_token_in_the_url_is_ignored(site):
    with httpx.Client(base_url=site.url) as http:
        for name in ("token", "access_token", "authorization"):
            response = http.get("/v1/batches", params={name: site.everything})
            assert response.status_code == 401
            assert site.everything not in response.text


def test_revoked_token_is_refused_by_the_next_request(site):
    with site.client(name="short-lived") as http:
        assert http.get("/v1/batches").status_code == 200
        response = http.post("/v1/tokens/short-lived/revoke", json={"reason": "done with it"})
        assert response.json()["revoked"] == 1
        assert http.get("/v1/batches").status_code == 401


def test_revoked_token_does_not_wait_for_work(site, lab):
    body = {"worker": "w", "queues": [lab.q], "seconds": 20}
    with site.client("work", "admin", name="waiting") as http:
        assert http.post("/v1/work/expect", json=body).status_code == 200
        http.post("/v1/tokens/waiting/revoke", json={"reason": "lost"}).raise_for_status()
        assert http.post("/v1/work/wait", json=body, timeout=10).status_code == 401


def test_token_for_some_queues_makes_no_token_for_others(site, http):
    http.post("/v1/tokens", json={"name": "wide", "scopes": ["submit"]}).raise_for_status()
    with site.client("admin", "submit", queues=["ours"], name="narrow") as narrow:
        for queues in (None, ["theirs"], ["ours", "theirs"]):
            body = {"name": "wider", "scopes": ["submit"]} | ({"queues": queues} if queues else {})
            assert narrow.post("/v1/tokens", json=body).status_code == 403
        assert narrow.post("/v1/tokens/wide/rotate", json={}).status_code == 403
        assert narrow.post("/v1/links", json={"name": "eve"}).status_code == 403
        own = {"name": "same", "scopes": ["submit"], "queues": ["ours"]}
        assert narrow.post("/v1/tokens", json=own).status_code == 201
        assert narrow.post("/v1/tokens/narrow/rotate", json={}).status_code == 201


def test_tokens_are_created_rotated_listed_and_revoked_over_http(site, http):
    response = http.post(
        "/v1/tokens", json={"name": "uploader-2", "scopes": ["submit"], "queues": ["ours"]}
    )
    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    first = response.json()["token"]
    taken = http.post("/v1/tokens", json={"name": "uploader-2", "scopes": ["submit"]})
    assert taken.status_code == 409
    second = http.post("/v1/tokens/uploader-2/rotate", json={"overlap_seconds": 60}).json()
    assert (second["generation"], second["queues"]) == (2, ["ours"])
    for token in (first, second["token"]):
        with site.client(token=token) as holder:
            assert holder.get("/v1/openapi.json").status_code == 200
    listed = http.get("/v1/tokens", params={"limit": 500})
    assert {1, 2} <= {
        item["generation"] for item in listed.json()["rows"] if item["name"] == "uploader-2"
    }
    assert first not in listed.text
    page = http.get("/v1/tokens", params={"limit": 1}).json()
    assert page["next"]
    following = http.get("/v1/tokens", params={"limit": 1, "after": page["next"]}).json()
    assert following["rows"] != page["rows"]


def test_responses_have_headers_that_prevent_rendering(http):
    response = http.get("/v1/batches")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in response.headers
