"""Deliveries to the service: one effect per event, whatever a provider sends and how often."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.service import TLS, problem_kind, serving, settings_for
from tests.support.webhooks import SCHEMES, SECRETS, signed_headers


@pytest.mark.parametrize("scheme", SCHEMES)
def test_event_becomes_one_batch_and_resent_it_is_a_duplicate(source_of, scheme):
    source = source_of(scheme)
    body = source.event(sample="S-1")
    first = source.send(body)
    assert (first.status_code, first.headers["helix-decision"]) == (200, "new"), first.text
    for _ in range(3):
        again = source.send(body, at=time.time() + 5)
        assert again.headers["helix-decision"] == "duplicate"
        assert again.json() == first.json()
    [batch] = source.batches()
    assert (batch["batch_id"], batch["identity"]) == (first.json()["effect"], "S-1")
    [row] = source.deliveries()
    assert (row["decision"], row["duplicates"], row["conflicts"]) == ("new", 3, 0)
    assert row["effect"] == batch["batch_id"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_forged_delivery_gets_the_response_of_an_unknown_source(source_of, scheme):
    source = source_of(scheme)
    body = source.event(sample="S-1")
    forged = source.send(body, headers=signed_headers(scheme, body + b" "))
    assert (forged.status_code, problem_kind(forged)) == (401, "bad-signature")
    assert forged.headers["www-authenticate"] == "Signature"
    paths = ("/v1/webhooks/a/unknown", "/v1/webhooks/nobody/stripe", "/v1/webhooks/A%00/x%20y")
    for path in paths:
        unknown = source.provider.post(path, content=body, headers=signed_headers(scheme, body))
        assert unknown.status_code == 401
        without_id = [
            {key: value for key, value in answer.json().items() if key != "request"}
            for answer in (unknown, forged)
        ]
        assert without_id[0] == without_id[1]
    assert source.batches() == []
    assert source.deliveries() == []


@pytest.mark.parametrize("scheme", ["standard", "stripe", "slack", "hmac"])
def test_expired_delivery_is_refused(source_of, scheme):
    source = source_of(scheme)
    body = source.event(sample="S-1")
    for seconds in (-400, 400):
        refused = source.send(body, at=time.time() + seconds)
        assert (refused.status_code, problem_kind(refused)) == (401, "bad-signature")
    assert source.batches() == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rotated_secret_is_accepted_during_the_overlap_and_refused_after_it(source_of, scheme):
    source = source_of(scheme)
    new = "whsec_" + "QUJD" * 8
    assert source.rotate(new, overlap=60) == 2
    for number, secret in enumerate((SECRETS[scheme], new)):
        event = f"rotated-{number}"
        body = source.event(event, sample=f"S-{number}")
        assert source.send(body, secret=secret, event=event).status_code == 200
    assert source.rotate(SECRETS["standard"] + "QUJD", overlap=0) == 3
    for secret in (SECRETS[scheme], new):
        assert source.send(source.event(sample="S-3"), secret=secret).status_code == 401


def test_event_id_with_another_body_is_a_conflict_with_the_difference(source_of):
    source = source_of("stripe")
    first = source.send(source.event("evt_c", sample="S-1", amount=1))
    other = source.send(source.event("evt_c", sample="S-1", amount=2))
    assert (other.status_code, problem_kind(other)) == (409, "reused-event-id")
    assert other.json()["diff"] == [{"op": "replace", "path": "/amount", "value": 2, "was": 1}]
    assert other.json()["effect"] == first.json()["effect"]
    assert len(source.batches()) == 1
    [row] = source.deliveries()
    assert (row["duplicates"], row["conflicts"]) == (0, 1)


def test_delivery_with_another_order_of_members_is_a_duplicate(source_of):
    source = source_of("stripe")
    document = json.loads(source.event("evt_o", sample="S-1"))
    first = source.send(json.dumps(document).encode())
    again = source.send(json.dumps(dict(reversed(document.items())), indent=2).encode())
    assert again.headers["helix-decision"] == "duplicate"
    assert again.json() == first.json()


def test_event_id_with_another_version_or_action_is_another_delivery(source_of):
    source = source_of("github", mapping={"action": "/action", "version": "/v"})
    for action, version in (("opened", 1), ("closed", 1), ("closed", 2)):
        body = source.event(sample=f"S-{action}-{version}", action=action, v=version)
        assert source.send(body, event="same").headers["helix-decision"] == "new"
    assert len(source.batches()) == 3


def test_fifty_equal_deliveries_at_once_have_one_effect(source_of):
    source = source_of("stripe")
    body = source.event(sample="S-50")
    headers = signed_headers("stripe", body)
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: source.send(body, headers), range(50)))
    assert {answer.status_code for answer in answers} <= {200, 503}
    decisions = [answer.headers.get("helix-decision") for answer in answers]
    assert decisions.count("new") == 1
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 503)
    assert len(source.batches()) == 1
    assert source.send(body).headers["helix-decision"] == "duplicate"


def test_older_version_is_superseded_and_newer_ones_take_effect(source_of):
    ordered = {"entity": "/sample", "version": "/v", "order": "version", "revision": "/v"}
    source = source_of("stripe", mapping=ordered)
    decisions = [
        source.send(source.event(sample="S-1", v=version)).headers["helix-decision"]
        for version in (1, 3, 2, 4, 10, 9)
    ]
    assert decisions == ["new", "new", "superseded", "new", "new", "superseded"]
    assert len(source.batches()) == 4
    other = source.send(source.event(sample="S-2", v=1))
    assert other.headers["helix-decision"] == "new"


def test_superseded_version_is_a_conflict_by_setting_also_when_resent(source_of):
    ordered = {"entity": "/sample", "version": "/v", "order": "version", "revision": "/v"}
    source = source_of("stripe", mapping=ordered, superseded=409)
    assert source.send(source.event(sample="S-1", v=2)).status_code == 200
    body = source.event(sample="S-1", v=1)
    for _ in range(2):
        assert problem_kind(source.send(body)) == "superseded"


def test_equal_version_with_another_payload_is_a_dead_letter(source_of):
    ordered = {"entity": "/sample", "version": "/v", "order": "version", "payload": "/data"}
    source = source_of("stripe", mapping=ordered)
    first = source.send(source.event(sample="S-1", v=1, data={"ml": 1}))
    same = source.send(source.event(sample="S-1", v=1, data={"ml": 1}))
    other = source.send(source.event(sample="S-1", v=1, data={"ml": 2}))
    assert same.headers["helix-decision"] == "duplicate_body"
    assert same.json()["effect"] == first.json()["effect"]
    assert other.headers["helix-decision"] == "dead_letter"
    [letter] = source.letters()
    assert letter["reason"] == "conflict"
    assert other.json()["effect"] == f"letter/{letter['letter']}"
    assert len(source.batches()) == 1


def test_equal_times_are_processed_in_order_of_arrival(source_of):
    ordered = {"entity": "/sample", "version": "/created", "order": "time", "revision": "/n"}
    source = source_of("stripe", mapping=ordered)
    at = 1_700_000_000
    decisions = [
        source.send(source.event(sample="S-1", created=created, n=n)).headers["helix-decision"]
        for n, created in enumerate((at, at, at - 1, "2023-11-14T22:13:20+00:00", at + 1))
    ]
    assert decisions == ["new", "new", "superseded", "new", "new"]


@pytest.mark.parametrize("scheme", ["github", "hmac"])
def test_delivery_replayed_under_a_new_id_is_a_duplicate_by_its_body(source_of, scheme):
    # The id of these schemes is in a header that is not signed.
    more = {} if scheme == "github" else {"id": "x-event-id"}
    source = source_of(scheme, dedupe_body=True, **more)
    body = source.event("evt", sample="S-1")
    answers = []
    for event in ("first", "second"):
        headers = signed_headers(scheme, body, event=event) | {"x-event-id": event}
        answers.append(source.send(body, headers))
    assert [answer.headers["helix-decision"] for answer in answers] == ["new", "duplicate_body"]
    assert answers[0].json()["effect"] == answers[1].json()["effect"]
    assert len(source.batches()) == 1


def test_equal_bodies_are_two_events_unless_the_source_says_otherwise(source_of):
    source = source_of("github")
    body = source.event("evt", sample="S-1")
    answers = [source.send(body, event=event) for event in ("one", "two")]
    assert [answer.headers["helix-decision"] for answer in answers] == ["new", "new"]


def test_event_that_cannot_become_a_batch_is_a_dead_letter_that_can_be_redriven(source_of):
    source = source_of("stripe")
    body = source.event(other=1)
    answer = source.send(body)
    assert (answer.status_code, answer.headers["helix-decision"]) == (200, "dead_letter")
    assert source.send(body).json() == answer.json()
    [letter] = source.letters()
    assert (letter["reason"], letter["queue"]) == ("identity", source.lab.q)
    redriven = source.admin.post(
        f"/v1/letters/{letter['letter']}/redrive",
        json={"reason": "the provider left it out", "identity": "S-9"},
    )
    assert redriven.status_code == 200, redriven.text
    [batch] = source.batches()
    assert batch["identity"] == "S-9"


def test_identity_with_another_payload_is_a_dead_letter(source_of):
    source = source_of("stripe")
    source.send(source.event(sample="S-1", ml=1))
    assert source.send(source.event(sample="S-1", ml=2)).headers["helix-decision"] == "dead_letter"
    assert [letter["reason"] for letter in source.letters()] == ["conflict"]


def test_event_without_a_mapping_is_ignored_without_a_trace(source_of):
    source = source_of("github")
    answer = source.send(source.event(sample="S-1"), kind="ping")
    assert answer.json() == {"decision": "ignored", "effect": None}
    assert source.deliveries() == []


def test_challenge_of_slack_is_answered_only_with_a_signature(source_of):
    source = source_of("slack")
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB", "token": "x"}).encode()
    assert source.send(body).json() == {"challenge": "3eZbrw1aB"}
    assert source.send(body, headers={}).status_code == 401


def test_signed_body_that_is_no_event_is_refused(source_of):
    source = source_of("stripe")
    for body in (b"payload=%7B%7D", b'{"id": 1, "id": 2}', b'{"no": "id"}', b"[]", b'"x"', b""):
        answer = source.send(body)
        assert (answer.status_code, problem_kind(answer)) == (400, "unreadable-delivery"), body


def test_body_above_a_mebibyte_is_refused_before_it_is_hashed(source_of):
    source = source_of("stripe")
    body = source.event(sample="S-1", filler="x" * 1024 * 1024)
    answer = source.send(body)
    assert (answer.status_code, problem_kind(answer)) == (413, "body-too-large")


def test_fuzzed_deliveries_get_no_error_of_the_service(source_of):
    chance = random.Random(11)
    sources = [source_of(scheme) for scheme in SCHEMES]
    pieces = ["t=", "v1=", "v1,", ",", " ", "=", "sha256=", "0" * 64, "9" * 40, "\xff", "{}", "v0="]

    def deliver(seed):
        own = random.Random(seed)
        source = own.choice(sources)
        body = bytearray(source.event(sample="S", deep=[[[]]]))
        headers = signed_headers(source.scheme, bytes(body))
        if own.random() < 0.5:
            body[own.randrange(len(body))] ^= 1 << own.randrange(8)
        for name in own.sample(sorted(headers), own.randint(0, len(headers))):
            headers[name] = "".join(own.choices(pieces, k=own.randint(0, 6))).strip()
        if own.random() < 0.2:  # valid signatures of bodies that are no events
            body = bytearray(own.choice([b"", b"[1]", b'{"id": 1e999}', b"\xff", b'{"a":1,"a":2}']))
            headers = signed_headers("stripe", body) if body.isascii() else headers
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        return source.send(bytes(body), encoded).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = set(threads.map(deliver, chance.sample(range(10**9), 10_000)))
    assert statuses <= {200, 400, 401, 409, 503}, statuses


def test_address_without_valid_signatures_is_limited_and_valid_deliveries_are_not(
    database, source_of
):
    source = source_of("stripe")
    settings = settings_for(database, anonymous_per_second=0.001, anonymous_burst=3)
    with serving(settings) as url, httpx.Client(base_url=url, verify=TLS, timeout=30) as provider:
        source.provider = provider
        for number in range(5):
            assert source.send(source.event(sample=f"S-{number}")).status_code == 200
            assert source.send(b"payload=%7B%7D").status_code == 400
        statuses = [source.send(b"{}", headers={}).status_code for _ in range(4)]
        assert statuses == [401, 401, 401, 429]


def test_erased_batch_leaves_no_copy_of_the_body(database, source_of):
    source = source_of("stripe")
    effect = source.send(source.event(sample="S-1", patient="zebra")).json()["effect"]
    kept = "select count(*) from helix.fence where request::text like %s"
    assert database.value(kept, "%zebra%") == 1
    answer = source.admin.post(f"/v1/batches/{effect}/cancel", json={"reason": "x"})
    answer = source.admin.post(f"/v1/batches/{effect}/erase", json={"reason": "consent"})
    assert answer.status_code == 200, answer.text
    assert database.value(kept, "%zebra%") == 0


def test_deliveries_are_counted_by_decision(database, source_of):
    source = source_of("stripe")
    body = source.event("e", sample="S-1")
    for content in (body, body, source.event("e", sample="S-2"), source.event(other=1)):
        source.send(content)
    rows = database.rows(
        "select label, sum(value) from helix.metric_change where queue = %s "
        "and name = 'helix_webhook_deliveries_total' group by 1 order by 1",
        source.name,
    )
    found = {label: int(value) for label, value in rows}
    assert found == {"conflict": 1, "dead_letter": 1, "duplicate": 1, "new": 1}
