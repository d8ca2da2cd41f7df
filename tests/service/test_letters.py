"""Dead letters and sources over HTTP, and with the Python client of the service."""

from __future__ import annotations

import uuid

import pytest

from helixqueue import HelixClient
from helixqueue.errors import Refused
from tests.support.letters import write_letters


def test_client_of_the_service_lists_redrives_and_discards_letters(http, lab):
    lab.queue()
    first, second = write_letters(lab, "1-1", "2-1")
    token = http.headers["authorization"].removeprefix("Bearer ")
    with HelixClient(str(http.base_url), token) as helix:
        listed = [row.letter for row in helix.letters(queue=lab.q)]
        assert listed == [second, first]
        detail = helix.letter(first)
        assert (detail.reason, detail.source) == ("refused", "1-1")
        assert "letter-1-1" in detail.fields["identity"]
        redriven = helix.redrive(first, reason="opened")
        assert redriven.decision == "new"
        assert helix.discard([second], reason="test data") == {second: "ok"}
        assert list(helix.letters(queue=lab.q)) == []
        assert helix.letter(first).batch_id == redriven.receipt.batch_id
        with pytest.raises(Refused, match="redriven"):
            helix.redrive(first, reason="again")
    shown = http.get(f"/v1/batches/{redriven.receipt.batch_id}").json()
    assert [(row["kind"], row["name"], row["id"]) for row in shown["sources"]] == [
        ("stream", lab.q, "1-1")
    ]


def test_idempotency_key_and_named_source_are_shown_with_the_batch(http, lab):
    lab.queue()
    path, key = f"/v1/queues/{lab.q}/batches", str(uuid.uuid4())
    work = {"identity": "S-1", "payload": 1}
    first = http.post(path, json=work, headers={"Idempotency-Key": f'"{key}"'})
    webhook = {"kind": "webhook", "name": "orders", "id": "evt_1"}
    assert http.post(path, json={**work, "source": webhook}).status_code == 200
    assert http.post(path, json=work).status_code == 200  # no source, not the request id
    batch_id = first.json()["receipt"]["batch_id"]
    sources = http.get(f"/v1/batches/{batch_id}").json()["sources"]
    assert [(row["kind"], row["id"], row["decision"]) for row in sources] == [
        ("http", key, "new"),
        ("webhook", "evt_1", "duplicate"),
    ]


def test_token_without_payloads_sees_no_message(site, lab):
    lab.queue()
    [letter] = write_letters(lab, "1-1")
    with site.client("read", name=f"reader-{lab.q}") as reader:
        shown = reader.get(f"/v1/letters/{letter}").json()
        assert (shown["fields"], shown["detail"]) == (None, None)
        denied = reader.post(f"/v1/letters/{letter}/discard", json={"reason": "x"})
        assert denied.status_code == 403
