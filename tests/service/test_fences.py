"""Fences over HTTP: counted, listed, and told of to their tenant alone."""

from __future__ import annotations

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
