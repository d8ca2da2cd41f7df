"""Refused identities are logged in hex, and so is work without an identity."""

from __future__ import annotations

import json
import logging

import pytest

from helixqueue import HelixClient, InvalidIdentity
from helixqueue.engine import tokens
from tests.support.lab import wait_until
from tests.support.service import Site, serving, settings_for, submit

# A zero-width space; a lone part of a tube's label that a terminal would not show.
BROKEN = "S\u200b1"
BROKEN_HEX = BROKEN.encode().hex()


def lines(caplog, requests=1):
    """The lines of so many requests: the service writes them after its response."""
    wait_until(lambda: len(caplog.messages) >= requests)
    return [json.loads(line) for message in caplog.messages for line in message.splitlines()]


@pytest.fixture
def requests(caplog):
    caplog.set_level(logging.INFO, "helixqueue.service.request")
    return caplog


def test_service_logs_refused_identities_in_hex(http, lab, requests):
    assert submit(http, lab, BROKEN).status_code == 422
    [line] = lines(requests)
    assert (line["decision"], line["raw_hex"]) == ("refused", BROKEN_HEX)
    assert "U+200B" in line["reason"]
    requests.clear()
    rows = [{"identity": name, "payload": 1} for name in ("ok", BROKEN, ["a", BROKEN])]
    http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": rows})
    steps = [line.get("raw_hex") for line in lines(requests) if line["operation"] == "submit"]
    assert steps == [None, BROKEN_HEX, f"611f{BROKEN_HEX}"]
    requests.clear()
    body = {"refused": [{"raw": BROKEN_HEX, "why": "zero width"}]}
    assert http.post(f"/v1/queues/{lab.q}/refused", json=body).status_code == 204
    assert [line.get("raw_hex") for line in lines(requests)] == [BROKEN_HEX, None]


def test_request_log_of_a_chunk_has_one_line_per_row_in_order(http, lab, requests):
    names = ("a", "b", "a", BROKEN, "c")
    rows = [{"identity": name, "payload": 1} for name in names]
    response = http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": rows})
    *steps, summary = lines(requests)
    answers = response.json()["submitted"]
    assert [(line["decision"], line.get("batch")) for line in steps] == [
        (answer["decision"], answer["receipt"] and answer["receipt"]["batch_id"])
        for answer in answers
    ]
    for line in steps:
        assert (line["operation"], line["queue"]) == ("submit", lab.q)
        assert line["request"] == summary["request"]


def test_secret_in_a_refused_identity_is_not_logged(http, lab, requests):
    secret = tokens.new_token().token
    assert submit(http, lab, f"\u200b{secret}").status_code == 422
    assert lines(requests)
    assert secret not in requests.text
    assert secret.encode().hex() not in requests.text
    assert b"hx_(masked)".hex() in requests.text


def test_service_warns_about_work_without_identity(http, lab, requests):
    lab.queue(unknown="accept")
    assert submit(http, lab, None).status_code == 201
    rows = [{"identity": identity, "payload": 1} for identity in (None, "known", "Unknown")]
    response = http.post(f"/v1/queues/{lab.q}/chunks", json={"submissions": rows})
    answers = response.json()["submitted"]
    assert [answer.get("without_identity", False) for answer in answers] == [True, False, True]
    summaries = [line for line in lines(requests, 2) if "status" in line]
    assert [line["without_identity"] for line in summaries] == [1, 2]
    assert {record.levelname for record in requests.records} == {"WARNING"}


def test_client_logs_refused_and_missing_identities(database, lab, caplog):
    caplog.set_level(logging.INFO, "helixqueue.identity")
    lab.queue(unknown="accept")
    settings = settings_for(database)
    with serving(settings) as url:
        site = Site(database, url)
        with HelixClient(url, site.token("submit")) as helix:
            helix.submit(lab.q, identity=None, payload=1)
            with pytest.raises(InvalidIdentity):
                helix.submit(lab.q, identity=BROKEN, payload=1)
            many = [{"identity": BROKEN, "payload": number} for number in range(30)]
            assert {row.decision for row in helix.submit_many(lab.q, many)} == {"refused"}
    client = [json.loads(r.message) for r in caplog.records if r.name == "helixqueue.identity"]
    refused = [line for line in client if line.get("decision") == "refused"]
    assert (refused[0]["queue"], refused[0]["raw_hex"]) == (lab.q, BROKEN_HEX)
    assert "U+200B" in refused[0]["reason"]
    assert refused[-1]["more"] == 10
    assert len(refused) == 1 + 20 + 1
    [accepted] = [line for line in client if "without_identity" in line]
    assert (accepted["queue"], accepted["level"]) == (lab.q, "warning")
    assert accepted["batch"]
