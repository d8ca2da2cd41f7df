"""Fences over HTTP: counted, listed, visible to their tenant only."""

from __future__ import annotations

from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helixqueue import HelixQueue, NotPermitted
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences, tokens
from tests.support.lab import POOLED, Lab

BODY = {"identity": "S-1", "payload": {"pod5": "a.pod5"}}


def keyed(http, lab, key):
    headers = {"Idempotency-Key": key}
    return http.post(f"/v1/queues/{lab.q}/batches", json=BODY, headers=headers)


def test_keyed_requests_of_all_tokens_are_counted(site, lab):
    key = f"counted-{lab.q}-0000000000"
    with site.client() as item, site.client() as two:
        for http in (item, item, two):
            assert keyed(http, lab, key).status_code in {200, 201}
        text = two.get("/metrics").text
    labels = {"surface": "http", "fence": "http /v1/queues/{queue}/batches"}
    counted = {
        sample.labels["decision"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "helix_fence_decisions_total" and labels.items() <= sample.labels.items()
    }
    # Two tokens are two principals: each executed once, and the first repeated.
    assert counted["new"] >= 2
    assert counted["duplicate"] >= 1
    assert "helix_fence_housekeeping_lag_seconds" in text
    assert key not in text


def test_fence_and_history_are_visible_to_their_tenant_only(site, http, lab):
    keyed(http, lab, f"told-{lab.q}-000000000000")
    [row] = [
        item
        for item in http.get("/v1/fences", params={"limit": 100}).json()["rows"]
        if item["identity"][-1] == f"told-{lab.q}-000000000000"
    ]
    assert row["state"] == "SEALED"
    response = http.get(f"/v1/fences/{row['fence']}").json()
    assert [step["what"] for step in response["history"]] == ["claimed", "sealed"]
    assert response["receipt"].startswith("r2:")
    with site.client(tenant="b") as anonymous:
        answer = anonymous.get(f"/v1/fences/{row['fence']}")
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (
            404,
            "no-such-fence",
        )
        named = {item["fence"] for item in anonymous.get("/v1/fences").json()["rows"]}
        assert row["fence"] not in named
    assert http.get("/v1/fences/nothing").status_code == 404
    doubts = http.get("/v1/fences", params={"state": "IN_DOUBT"}).json()["rows"]
    assert row["fence"] not in {item["fence"] for item in doubts}
    with site.client("submit") as submitter:
        assert submitter.get("/v1/fences").status_code == 403


def test_fence_pages_and_filters_return_each_fence_once(database, http, lab, monkeypatch):
    monkeypatch.setattr(fences, "ROWS_SCANNED", 4)
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        for number in range(9):
            with suppress(TimeoutError), helix.fence(lab.q, key=str(number)):
                if number % 4 == 0:
                    raise TimeoutError("the bank did not answer")

    def walked(**query):
        result, after = [], None
        while True:
            page = {"limit": 2} | ({} if after is None else {"after": after})
            response = http.get("/v1/fences", params={"name": lab.q} | page | query).json()
            assert len(response["rows"]) <= 2
            result += [item["identity"][-1] for item in response["rows"]]
            after = response["next"]
            if after is None:
                return result

    assert walked() == list("876543210")
    assert walked(state="IN_DOUBT") == list("840")
    assert walked(state="SEALED") == list("765321")
    assert walked(state="RELEASED") == []
    assert walked(name=f"{lab.q}-other") == []


@pytest.mark.parametrize(
    "query", [{"after": "x"}, {"after": "9" * 19}, {"limit": 0}, {"limit": 501}]
)
def test_invalid_fence_cursor_is_refused(http, query):
    assert http.get("/v1/fences", params=query).status_code == 422


@pytest.fixture
def doubted(database, lab):
    """A fence of tenant a in doubt."""
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence(lab.q, key="order-7"):
            raise TimeoutError("the bank did not answer")
        [row] = backend_of(helix).run(fences.list_fences(name=lab.q)).rows
    return row


def resolve(database, row, token, role="service"):
    call = fences.resolve(
        row.key, row.version, fences.Times(),
        actor=tokens.hash_token(token), reason="looked", result=None,
    )  # fmt: skip
    with Lab(database, role) as desk:
        return desk.run(call).decision


def test_database_checks_the_token_that_resolves_a_fence(site, database, doubted):
    """Even with a bug in the service: only the scope operate, only the own tenant."""
    for good_for_less in (site.token("read", "admin", "payloads", "submit", "work"), "hx_unknown"):
        with pytest.raises(NotPermitted, match="only a good token with the scope operate"):
            resolve(database, doubted, good_for_less)
    assert resolve(database, doubted, site.token("operate", tenant="b")) == "stale"
    for anonymous in ("pool", "app_a", "app_b"):
        # These logins serve no tokens.
        with pytest.raises(NotPermitted):
            resolve(database, doubted, site.token("operate"), anonymous)
    assert resolve(database, doubted, site.token("operate")) == "done"


def test_resolution_of_a_changed_fence_is_refused(http, doubted):
    path = f"/v1/fences/{doubted.fence}/resolve"
    body = {"reason": "looked", "applied": False, "version": doubted.version + 1}
    response = http.post(path, json=body)
    assert response.status_code == 409
    assert response.json()["type"].endswith(":not-in-doubt")
    assert (response.json()["state"], response.json()["version"]) == ("IN_DOUBT", doubted.version)
    body["version"] = doubted.version
    assert http.post(path, json=body | {"effect": "re_1"}).status_code == 422
    headers = {"Idempotency-Key": f"decide-{doubted.name}-0000000"}
    first, again = (http.post(path, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, first.json()["state"]) == (200, "RELEASED")
    assert again.json() == first.json()
    assert http.post(path, json=body).status_code == 409
