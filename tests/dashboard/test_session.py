"""Sessions: what the cookie allows, and what a page of another origin cannot do with it."""

from __future__ import annotations

import re

import httpx
import pytest

from helixqueue.dashboard.app import Dashboard
from helixqueue.dashboard.page import page_routes
from helixqueue.engine import tokens
from helixqueue.service.routing import router
from tests.dashboard.conftest import form_of, sign_in
from tests.support.service import TLS, offer_login

MANY_FIELDS = b"&".join(b"f%d=x" % number for number in range(300))


def is_paused(site, lab):
    return site.database.value("select paused from helix.queue where name = %s", lab.q)


def test_opening_a_link_changes_nothing_and_its_button_signs_in(site, database):
    code = offer_login(database)
    with httpx.Client(base_url=site.url, verify=TLS, headers={"Origin": site.url}) as http:
        for _ in range(3):
            page = http.get("/login", params={"code": code})
            assert (page.status_code, code in page.text) == (200, True)
        assert page.headers["cache-control"] == "no-store"
        assert http.post("/login", data={"code": code}).status_code == 303
        assert http.get("/").status_code == 200
        assert http.post("/login", data={"code": code, "form": form_of(http)}).status_code == 410


def test_cookie_is_strict_and_hidden_from_scripts_and_no_token_appears(site, person):
    [cookie] = person.cookies.jar
    secret = cookie.value
    assert re.fullmatch(r"hs_[A-Za-z0-9_-]{43}", secret)
    again = httpx.post(
        f"{site.url}/login",
        data={"code": offer_login(site.database)},
        headers={"Origin": site.url},
        verify=TLS,
    )
    words = again.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=strict", "path=/"} <= set(words)
    assert 0 < int(next(word for word in words if word.startswith("max-age="))[8:]) <= 43_200
    page = person.get("/")
    assert secret not in page.text
    assert "hx_" not in page.text


@pytest.mark.parametrize(
    ("host", "secure"),
    [("lab.example", True), ("localhost:8080", False), ("[::1]:8080", False)],
)
def test_cookie_is_secure_unless_traffic_stays_on_the_machine(site, database, host, secure):
    """A TLS proxy forwards plain HTTP with the host name of the browser."""
    answer = httpx.post(
        f"{site.url}/login",
        data={"code": offer_login(database)},
        headers={"Host": host, "Origin": f"https://{host}"},
        verify=TLS,
    )
    assert ("; secure" in answer.headers["set-cookie"].lower()) is secure


def test_session_is_no_api_token_and_a_token_is_no_session(site, person):
    [cookie] = person.cookies.jar
    bearer = {"Authorization": f"Bearer {cookie.value}"}
    assert httpx.get(f"{site.url}/v1/queues", headers=bearer, verify=TLS).status_code == 401
    assert person.get("/v1/queues").status_code == 401
    token = site.token()
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Cookie": f"{cookie.name}={token}"},
    ):
        assert httpx.get(f"{site.url}/queues", headers=headers, verify=TLS).status_code == 401


def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(site, person):
    [cookie] = person.cookies.jar
    stolen = {"Cookie": f"{cookie.name}={cookie.value}"}
    assert httpx.get(site.url, headers=stolen, verify=TLS).status_code == 200
    answer = person.post("/logout", data={"form": form_of(person)})
    assert answer.status_code == 200
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    database = site.database
    token_hash = tokens.hash_token(cookie.value)
    row = database.value(
        "select (revoked_by = name)::text || ' ' || reason from helix.api_token where hash = %s",
        token_hash,
    )
    assert row == "true signed out"


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 403), ("null", 403), ("https://evil.example", 403), ("http://127.0.0.1:1", 403)],
)
def test_form_of_another_origin_is_refused(site, person, lab, origin, status):
    token = form_of(person)
    person.headers.pop("origin")
    headers = {} if origin is None else {"Origin": origin}
    answer = person.post(
        f"/queues/{lab.q}/pause", data={"form": token, "reason": "x"}, headers=headers
    )
    assert answer.status_code == status
    assert not is_paused(site, lab)


def test_form_without_the_token_of_its_session_is_refused(site, person, lab):
    with sign_in(site) as other:
        foreign = form_of(other)
    for fields in ({}, {"form": ""}, {"form": "0" * 64}, {"form": foreign}):
        answer = person.post(f"/queues/{lab.q}/pause", data={"reason": "x", **fields})
        assert answer.status_code == 403
        assert not is_paused(site, lab)
    good = {"form": form_of(person), "reason": "maintenance"}
    assert person.post(f"/queues/{lab.q}/pause", data=good).status_code == 303
    assert is_paused(site, lab)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b'{"reason": "x"}', "application/json"),
        (b"reason=x", "text/plain"),
        (b"reason=%ff", "application/x-www-form-urlencoded"),
        (b"reason=x&reason=y", "application/x-www-form-urlencoded"),
        (MANY_FIELDS, "application/x-www-form-urlencoded"),
    ],
    ids=("json", "text", "bytes", "repeat", "many"),
)
def test_write_takes_one_well_formed_form(site, person, lab, content, media_type):
    answer = person.post(
        f"/queues/{lab.q}/pause", content=content, headers={"Content-Type": media_type}
    )
    assert 400 <= answer.status_code < 500
    assert not is_paused(site, lab)


def test_every_action_needs_a_scope_and_every_route_checks_its_forms():
    for route in Dashboard().routes:
        assert route.scope is not None, route.path
        is_open = route.scope == "open"
        assert not is_open or route.path.startswith(("/login", "/static/")), route.path
    plain = router("x")
    plain.get("/x")(lambda: None)
    with pytest.raises(TypeError, match="skip"):
        page_routes([plain])


def test_reader_sees_no_action_and_cannot_send_one(site, lab):
    with sign_in(site, scopes=("read",)) as reader:
        page = reader.get(f"/queues/{lab.q}?act=pause")
        assert page.status_code == 200
        assert "/pause" not in page.text
        answer = reader.post(
            f"/queues/{lab.q}/pause", data={"form": form_of(reader), "reason": "x"}
        )
    assert answer.status_code == 403
    assert not is_paused(site, lab)


def test_stranger_gets_the_page_for_signing_in_and_no_data(site, lab):
    for path in ("/", "/queues", f"/queues/{lab.q}", "/batches", "/live?of=/"):
        answer = httpx.get(site.url + path, verify=TLS)
        assert answer.status_code == 401
        assert "token link" in answer.text
        assert lab.q not in answer.text


def test_link_from_another_site_loads_again_with_the_cookie(site):
    """Browsers keep a strict cookie back when a page of another site leads here."""
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = httpx.get(f"{site.url}/queues", headers=headers, verify=TLS)
    assert 'http-equiv="refresh"' in answer.text


def test_cookie_that_is_no_cookie_is_none(site):
    for value in ("x", "=;=", "a" * 4_000, "helix-session=hs_" + "A" * 43):
        answer = httpx.get(site.url, headers={"Cookie": value}, verify=TLS)
        assert answer.status_code == 401
