"""Fences over HTTP: counted, listed, and told of to their tenant alone."""

from __future__ import annotations

from contextlib import suppress

import pytest

from helixqueue import HelixQueue, NotPermitted
from helixqueue.engine import fences, tokens
from helixqueue.identity import key_text
from tests.support.lab import POOLED, Lab

BODY = {"identity": "S-1", "payload": {"pod5": "a.pod5"}}


def keyed(http, lab, key):
    headers = {"Idempotency-Key": key}
    return http.post(f"/v1/queues/{lab.q}/batches", json=BODY, headers=headers)


def test_keyed_requests_are_counted_over_all_tokens(site, lab):
    key = f"counted-{lab.q}-0000000000"
    with site.client() as one, site.client() as two:
        for http in (one, one, two):
            assert keyed(http, lab, key).status_code in {200, 201}
        text = two.get("/metrics").text
    fence = 'surface="http",fence="http /v1/queues/{queue}/batches"'
    counted = {
        word: int(line.rpartition(" ")[2])
        for line in text.splitlines()
        for word in ("executed", "repeated")
        if line.startswith(f'helix_fence_decisions_total{{{fence},decision="{word}"}}')
    }
    # Two tokens are two principals: each executed once, and the first asked again.
    assert counted["executed"] >= 2
    assert counted["repeated"] >= 1
    assert "helix_fence_housekeeping_lag_seconds" in text
    assert key not in text


def test_a_fence_and_its_story_are_told_to_their_tenant_alone(site, http, lab):
    keyed(http, lab, f"told-{lab.q}-000000000000")
    [row] = [
        one
        for one in http.get("/v1/fences", params={"limit": 100}).json()["fences"]
        if one["identity"][-1] == f"told-{lab.q}-000000000000"
    ]
    assert row["state"] == "SEALED"
    told = http.get(f"/v1/fences/{row['fence']}").json()
    assert [step["what"] for step in told["story"]] == ["claimed", "sealed"]
    assert told["receipt"].startswith("r1:")
    with site.client(tenant="b") as stranger:
        answer = stranger.get(f"/v1/fences/{row['fence']}")
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (
            404,
            "no-such-fence",
        )
        named = {one["fence"] for one in stranger.get("/v1/fences").json()["fences"]}
        assert row["fence"] not in named
    assert http.get("/v1/fences/nothing").status_code == 404
    doubts = http.get("/v1/fences", params={"fence_state": "IN_DOUBT"}).json()["fences"]
    assert row["fence"] not in {one["fence"] for one in doubts}
    with site.client("submit") as submitter:
        assert submitter.get("/v1/fences").status_code == 403


def test_pages_and_filters_find_each_fence_once(database, http, lab, monkeypatch):
    monkeypatch.setattr(fences, "ROWS_SCANNED", 4)
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        for number in range(9):
            with suppress(TimeoutError), helix.fence(lab.q, key=str(number)):
                if number % 4 == 0:
                    raise TimeoutError("the bank did not answer")

    def walked(**query):
        found, after = [], None
        while True:
            page = {"limit": 2} | ({} if after is None else {"after": after})
            told = http.get("/v1/fences", params={"fence_name": lab.q} | page | query).json()
            assert len(told["fences"]) <= 2
            found += [one["identity"][-1] for one in told["fences"]]
            after = told["next"]
            if after is None:
                return found

    assert walked() == list("876543210")
    assert walked(fence_state="IN_DOUBT") == list("840")
    assert walked(fence_state="SEALED") == list("765321")
    assert walked(fence_state="RELEASED") == []
    assert walked(fence_name=f"{lab.q}-other") == []


@pytest.mark.parametrize(
    "query", [{"after": "x"}, {"after": "9" * 19}, {"limit": 0}, {"limit": 501}]
)
def test_a_page_of_fences_that_is_none_is_refused(http, query):
    assert http.get("/v1/fences", params=query).status_code == 422


@pytest.fixture
def doubted(database, lab):
    """A fence of tenant a in doubt."""
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence(lab.q, key="order-7"):
            raise TimeoutError("the bank did not answer")
        [row] = helix.run(fences.list_fences(name=lab.q)).rows
    return row


def resolve(database, row, token, role="service"):
    call = fences.resolve_by_token(
        tokens.hash_token(token), row.key, row.version, fences.Times(), reason="looked", answer=None
    )
    with Lab(database, role) as desk:
        return desk.run(call).decision


def test_the_database_itself_looks_at_the_token_that_decides_a_doubt(site, database, doubted):
    """Whatever a bug of the service lets through: only operate, and only the own tenant's."""
    for good_for_less in (site.token("read", "admin", "payloads", "submit", "work"), "hx_unknown"):
        with pytest.raises(NotPermitted, match="only a good token with the scope operate"):
            resolve(database, doubted, good_for_less)
    assert resolve(database, doubted, site.token("operate", tenant="b")) == "stale"
    for stranger in ("pool", "app_a", "app_b"):
        # Their logins serve nobody's tokens.
        with pytest.raises(NotPermitted):
            resolve(database, doubted, site.token("operate"), stranger)
    assert resolve(database, doubted, site.token("operate")) == "done"


def test_a_decision_is_about_the_fence_that_was_looked_at(http, doubted):
    path = f"/v1/fences/{key_text(doubted.key)}/resolve"
    body = {"reason": "looked", "applied": False, "version": doubted.version + 1}
    told = http.post(path, json=body)
    assert told.status_code == 409
    assert told.json()["type"].endswith(":not-in-doubt")
    assert (told.json()["state"], told.json()["version"]) == ("IN_DOUBT", doubted.version)
    body["version"] = doubted.version
    assert http.post(path, json=body | {"effect": "re_1"}).status_code == 422
    headers = {"Idempotency-Key": f"decide-{doubted.name}-0000000"}
    first, again = (http.post(path, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, first.json()["state"]) == (200, "RELEASED")
    assert again.json() == first.json()
    assert http.post(path, json=body).status_code == 409
