"""Every write that the engine does not deduplicate accepts a key and runs once per key."""

from __future__ import annotations

import uuid

import pytest

from helixqueue import HelixQueue, Machine
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences
from helixqueue.fence.policy import Policy, Route
from helixqueue.identity import key_text
from tests.support.lab import POOLED
from tests.support.letters import write_letters
from tests.support.service import DOCUMENT, Site, serving, settings_for

WRITES = {
    answer["operationId"]: (method.upper(), path, answer["x-fenced"])
    for path, methods in DOCUMENT["paths"].items()
    for method, answer in methods.items()
    if method != "get"
}
FENCED = [name for name, (_, _, fenced) in WRITES.items() if fenced]
# Deduplicated by the engine; with secrets in the response; without effect.
KNOWN_BY_ITSELF = {
    *("claim", "start", "renew", "settle", "release", "hello", "expect", "wait"),
    *("open_outputs", "register_outputs"),
    # A repeated definition or secret changes nothing; a delivery is known by the id of its event.
    *("apply_source", "rotate_secret", "receive_webhook"),
    # A run is known by its key, a page of datums by the number of its first.
    *("start_run", "append_run"),
}
SECRETS = {"create_token", "rotate_token", "revoke_token", "offer_login", "log_in"}
NOTHING = {"rehearse", "note_refused", "seal"}


def test_every_write_accepts_a_key_or_needs_none():
    assert set(WRITES) == {*FENCED, *KNOWN_BY_ITSELF, *SECRETS, *NOTHING}
    assert not set(FENCED) & (KNOWN_BY_ITSELF | SECRETS | NOTHING)


@pytest.fixture
def ready(database, lab):
    """For each action a batch that allows it, and a fence in doubt."""
    lab.queue(max_attempts=1)
    lab.queue(f"{lab.q}-empty")
    lab.submit("erase_batch", "retry_batch", "retry_batches", "release_batch")
    leases = {lease.identity: lease for lease in lab.claim(4)}
    lab.complete(leases["erase_batch"])
    lab.fail(leases["retry_batch"], leases["retry_batches"], permanent=True)
    [waiting] = lab.submit("cancel_batch")
    ids = {name: str(lease.batch_id) for name, lease in leases.items()}
    ids["cancel_batch"] = str(waiting.receipt.batch_id)
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence(lab.q, key="order-7"):
            raise TimeoutError("the bank did not answer")
        [doubt] = backend_of(helix).run(fences.list_fences(name=lab.q)).rows
        helix.ledger(lab.q, Machine({"A": ["B"]})).append("e", 1, "A")
        helix.feed(lab.q, ledger=lab.q)
        ids["run"] = helix.start_run(
            key=lab.q, name="words", digest="0" * 64, datums=0, spec="{}", queue=lab.q
        ).name
    ids["redrive_letter"], ids["discard_letter"] = write_letters(lab, "1-1", "2-1")
    return ids, doubt


def body_of(name, ids, doubt):
    why = {"reason": "asked twice"}
    work = {"identity": "S-1", "payload": {"n": 1}}
    event = {"entity": "e", "seq": 2, "kind": "B"}
    return {
        "declare_ledger": {"arrows": {"A": ["B"]}},
        "append_event": event,
        "append_events": {"events": [event]},
        "declare_feed": {"ledger": ids["feed"]},
        "confirm_feed": ids["page"],
        "submit": work,
        "submit_many": {"submissions": [work, {"identity": "S-2", "payload": {"n": 2}}]},
        "retry_batches": {**why, "batch_ids": [ids["retry_batches"]]},
        "cancel_batches": {**why, "batch_ids": [ids["cancel_batch"]]},
        "set_queue": {**why, "lease_seconds": 60},
        "resolve_fences": {**why, "applied": False, "name": "none"},
        "resolve_fence": {**why, "version": doubt.version, "applied": False},
    }.get(name, why)


@pytest.mark.parametrize("name", FENCED)
def test_repeated_keyed_write_returns_the_stored_response(http, lab, ready, name):
    ids, doubt = ready
    method, path, _ = WRITES[name]
    path = path.format(
        queue=f"{lab.q}-empty" if name == "delete_queue" else lab.q, batch_id=ids.get(name),
        letter=ids.get(name), fence=key_text(doubt.key),
        ledger=lab.q, feed=lab.q, run=ids["run"],
    )  # fmt: skip
    [event] = http.get(f"/v1/feeds/{lab.q}/events").json()["rows"]
    ids |= {
        "feed": lab.q,
        "page": {"after": event["after"], "to": event["position"], "count": 1},
    }
    body = body_of(name, ids, doubt)
    key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    first, again = (http.request(method, path, json=body, headers=key) for _ in range(2))
    assert first.status_code in {200, 201}, first.text
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    # The key belongs to this request only.
    other = {**body, "reason": "another"} if "reason" in body else {**body, "nonsense": 1}
    reused = http.request(method, path, json=other, headers=key)
    assert reused.status_code in {409, 422}
    assert reused.json()["type"].endswith(("key-reused", "invalid-request"))
    assert {"expected", "got", "remedy"} <= reused.json().keys()


def test_revoked_token_is_refused_with_a_key_too(site, http, lab):
    """Permissions are cached for a second; the database checks validity every time."""
    name, path = f"gone-{lab.q}", f"/v1/queues/{lab.q}/batches"
    work = {"identity": "S-1", "payload": 1}
    with site.client("submit", name=name) as gone:
        key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
        assert gone.post(path, json=work, headers=key).status_code == 201
        http.post(f"/v1/tokens/{name}/revoke", json={"reason": "lost"})
        assert gone.get("/v1/token").status_code == 401, "though it needs no look at any row"
        for again in (key, {"Idempotency-Key": f'"{uuid.uuid4()}"'}):
            response = gone.post(path, json=work, headers=again)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("unlisted", ["refuse", "pass"])
def test_keyed_request_to_an_operation_that_the_policy_leaves_out_is_never_silent(
    database, lab, caplog, unlisted
):
    """Its key would protect nothing: refused by default, or passed by setting; always counted."""
    route = Route(path="/v1/queues/{queue}/batches", required=False)
    policy = Policy(routes=(route,), unlisted=unlisted)
    headers = {"Idempotency-Key": f"left-out-{lab.q}-0000000"}
    decision, status = {
        "refuse": ("key-not-accepted", 400), "pass": ("unlisted", 200),
    }[unlisted]  # fmt: skip
    with (
        serving(settings_for(database, policy=policy)) as url,
        Site(database, url).client() as http,
    ):
        path = f"/v1/queues/{lab.q}/pause"
        response = http.post(path, json={"reason": "a test"}, headers=headers)
        assert response.status_code == status, response.text
        assert "idempotency-receipt" not in response.headers
        paused = http.get(f"/v1/queues/{lab.q}").json()["paused"]
        assert paused is (unlisted == "pass")
        assert f'decision="{decision}"' in http.get("/metrics").text
        assert f'"{decision}"' in caplog.text or decision in caplog.text
        # Without a key, nothing is asked of the policy.
        assert http.post(path, json={"reason": "a test"}).status_code == 200
