"""Login links: valid once, for a limited time, for one tenant."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from helixqueue.engine import tokens
from tests.support.lab import Lab
from tests.support.service import TLS, offer_login


def exchanged(site, code):
    return httpx.post(f"{site.url}/v1/login", json={"code": code}, verify=TLS, timeout=30)


def test_one_of_many_logins_with_a_code_gets_the_token(site, database):
    code = offer_login(database)
    with ThreadPoolExecutor(12) as pool:
        response = list(pool.map(lambda _: exchanged(site, code), range(12)))
    assert sorted(item.status_code for item in response) == [201] + [404] * 11
    [won] = [item.json() for item in response if item.status_code == 201]
    assert (won["tenant"], set(won["scopes"])) == ("a", set(tokens.TENANT_SCOPES))
    with site.client(token=won["token"]) as http:
        [row] = [item for item in http.get("/v1/tokens", params={"limit": 500}).json()["rows"]
                 if item["name"] == won["name"]]  # fmt: skip
    assert row["created_by"] == "ann"
    assert row["queues"] is None


def test_login_code_expires(site, database):
    code = offer_login(database)
    with database.connect("helix_bootstrap") as connection:
        connection.execute(
            "create function helix.test_age() returns void language sql security definer as "
            "$$ select set_config('helix.scope', '*', true); "
            "update helix.login set expires_at = clock_timestamp() $$;"
            "alter function helix.test_age owner to helix_engine"
        )
        connection.execute("select helix.test_age()")
        connection.execute("drop function helix.test_age")
    assert exchanged(site, code).status_code == 404


def test_only_hashes_of_codes_are_stored_and_unreadable(database):
    code = offer_login(database)
    kept = database.value("select string_agg(l::text, ' ') from helix.login l")
    assert code not in kept
    for role in ("pool", "operator", "service"):
        with (
            database.connect(role) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("table helix.login")


def test_login_link_belongs_to_the_tenant_of_its_creator(database):
    code = tokens.new_token("hl_")
    with Lab(database, "app_a") as lab, pytest.raises(Exception, match="may not act"):
        lab.run(tokens.offer_login(tenant="b", code_hash=code.hash))


@pytest.mark.parametrize("role", ["service", "operator"])
def test_login_link_never_gives_the_figures_of_all_tenants(database, role):
    """The token of a link is inserted as its creator asked, so the link itself is refused."""
    offer = """select set_config('helix.tenant', 'a', false),
        helix.offer_login_v1('a', sha256('link'), %s, 60, 60, 'eve')"""
    with database.connect(role) as connection:
        for scopes in (["metrics"], ["read", "metrics"], ["root"]):
            with pytest.raises(psycopg.errors.CheckViolation, match="login_scopes_check"):
                connection.execute(offer, (scopes,))
    assert database.value("select count(*) from helix.login where hash = sha256('link')") == 0


def test_opening_a_link_changes_nothing_and_its_button_logs_in(site, database):
    code = offer_login(database)
    with httpx.Client(base_url=site.url, verify=TLS) as http:
        for _ in range(3):
            page = http.get("/login", params={"code": code})
            assert (page.status_code, code in page.text) == (200, True)
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        pressed = http.post("/login", data={"code": code})
        assert pressed.status_code == 200
        assert "hx_" in pressed.text
        again = http.post("/login", data={"code": code})
        assert (again.status_code, "hx_" in again.text) == (410, False)


@pytest.mark.parametrize(
    ("host", "base"),
    [("lab.example", "https://lab.example/"), ("localhost:8080", "http://localhost:8080/")],
)
def test_login_page_never_suggests_plain_http(site, database, host, base):
    """A TLS proxy forwards plain HTTP with the host name of the browser."""
    form, headers = {"code": offer_login(database)}, {"Host": host}
    page = httpx.post(f"{site.url}/login", data=form, headers=headers, verify=TLS)
    assert page.status_code == 200
    assert f" {base}" in page.text


def test_home_page_explains_login_only(site):
    with httpx.Client(base_url=site.url, verify=TLS) as http:
        page = http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "helixq token link" in page.text
        assert http.post("/").status_code == 401
        assert http.get("/v1/queues").status_code == 401


@pytest.mark.parametrize(
    "code", ["", "hl_short", "hx_" + "A" * 43, '"><script>alert(1)</script>', "hl_" + "A" * 43]
)
def test_invalid_code_is_not_echoed(site, code):
    with httpx.Client(base_url=site.url, verify=TLS) as http:
        page = http.get("/login", params={"code": code})
        assert page.status_code == 200
        assert "script" not in page.text
        assert http.post("/login", data={"code": code}).status_code == 410
        for form in (b"\xff" * 100, b"&".join(b"%d=x" % n for n in range(99)), b"code=x&code=y"):
            assert http.post("/login", content=form).status_code == 410
        assert exchanged(site, code).status_code in {404, 422}
        # Other methods need a token like any other request.
        assert http.delete("/login").status_code == 401
