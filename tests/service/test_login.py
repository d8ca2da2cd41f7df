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
            refused = (psycopg.errors.CheckViolation, psycopg.errors.InsufficientPrivilege)
            with pytest.raises(refused, match=r"login_scopes_check|only an operator"):
                connection.execute(offer, (scopes,))
    assert database.value("select count(*) from helix.login where hash = sha256('link')") == 0


def test_login_link_gives_the_scope_seal_if_an_operator_offers_it(database):
    offer = """select set_config('helix.tenant', 'a', false),
        helix.offer_login_v1('a', sha256('seal link'), '{seal}', 60, 60, 'eve')"""
    with (
        database.connect("service") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="only an operator"),
    ):
        connection.execute(offer)
    with database.connect("operator") as connection:
        assert connection.execute(offer).fetchone()[1] is not None


@pytest.mark.parametrize(
    "code", ["", "hl_short", "hx_" + "A" * 43, '"><script>alert(1)</script>', "hl_" + "A" * 43]
)
def test_invalid_code_gets_no_token(site, code):
    assert exchanged(site, code).status_code in {404, 422}


def test_name_of_a_person_is_never_that_of_a_program(site):
    """The ledger identifies its actors by these names."""
    with site.client() as http:
        assert http.post("/v1/links", json={"name": "ada"}).status_code == 201
        program = {"name": "robot", "scopes": ["read"]}
        assert http.post("/v1/tokens", json=program).status_code == 201
        assert http.post("/v1/links", json={"name": "robot"}).status_code == 409
        link = http.post("/v1/links", json={"name": "ada", "scopes": ["read"]}).json()
        session = exchanged(site, link["code"]).json()
        assert (session["name"], session["scopes"]) == ("ada", ["read"])
        for attempt in (
            http.post("/v1/tokens", json={"name": "ada", "scopes": ["read"]}),
            http.post("/v1/tokens/ada/rotate", json={}),
        ):
            assert attempt.status_code in {404, 409}


def test_name_given_to_a_program_meanwhile_ends_the_link(site):
    with site.client() as http:
        link = http.post("/v1/links", json={"name": "late"}).json()
        http.post("/v1/tokens", json={"name": "late", "scopes": ["read"]}).raise_for_status()
    assert exchanged(site, link["code"]).status_code == 404


def test_concurrent_logins_of_a_person_are_generations_of_one_name(site):
    with site.client() as http:
        links = [http.post("/v1/links", json={"name": "eve"}).json() for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda link: exchanged(site, link["code"]), links))
        assert {answer.json()["name"] for answer in answers} == {"eve"}
        rows = http.get("/v1/tokens", params={"limit": 500}).json()["rows"]
    assert sorted(row["generation"] for row in rows if row["name"] == "eve") == [1, 2, 3, 4, 5, 6]
