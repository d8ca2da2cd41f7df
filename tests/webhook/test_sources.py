"""Sources: their file with the lines of its faults, their commands, and who may define them."""

from __future__ import annotations

import json
import re

import pytest

from helixqueue.errors import Refused
from helixqueue.webhook.source import source_of
from helixqueue.webhook.source_file import parse_sources
from helixqueue.yaml_document import InvalidYaml
from tests.support.cli import Helixq
from tests.support.webhooks import SECRETS, definition

GOOD = """\
version: 1
sources:
  - name: stripe
    scheme: stripe
    mappings:
      - events: [invoice.paid, invoice.voided]
        queue: invoices
        identity: /data/object/id
        entity: /data/object/id
        version: /created
        order: time
  - name: sequencer
    scheme: hmac
    id: x-event
    signature: {header: X-Signature, timestamp: X-Time}
    mappings: [{events: "*", queue: runs}]
"""


def faults_of(text):
    with pytest.raises(InvalidYaml) as refused:
        parse_sources(text)
    return {(fault.line, fault.path): str(fault) for fault in refused.value.faults}


def test_sources_of_a_file_are_read():
    stripe, sequencer = parse_sources(GOOD)
    assert stripe.mapping("invoice.voided").queue == "invoices"
    assert stripe.mapping("invoice.drafted") is None
    assert stripe.keep_seconds == 9 * 86_400
    assert sequencer.mapping("anything").queue == "runs"
    assert sequencer.layout.timestamp == "X-Time"
    assert source_of(json.loads(stripe.text())) == stripe


def test_every_fault_of_a_file_has_its_line():
    text = GOOD.replace("queue: invoices", "quue: invoices").replace("scheme: hmac", "scheme: md5")
    found = faults_of(text)
    assert "did you mean queue?" in found[7, "sources[0].mappings[0].quue"]
    assert "'md5'" in found[13, "sources[1].scheme"]


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("name: sequencer", "name: stripe"), 12, "each name once"),
        (("order: time", "order: newest"), 11, "'version', 'time' or 'none'"),
        (("        version: /created\n", ""), 6, "entity and version for `order: time`"),
        (("identity: /data/object/id", "identity: data.id"), 8, "a JSON Pointer"),
        (("identity: /data/object/id", "identity: /a~2b"), 8, "a JSON Pointer"),
        (("    id: x-event\n", ""), 12, "`id` for the scheme hmac"),
        (("timestamp: X-Time", "secret: abc"), 15, "one of header, prefix"),
        ((", timestamp: X-Time}", "}\n    keep_days: 30"), 12, "no keep_days"),
        (("invoice.voided]", "invoice.paid]"), 3, "each event type once"),
    ],
)
def test_fault_names_its_line_and_what_was_expected(change, line, words):
    found = faults_of(GOOD.replace(*change))
    [(place, text)] = found.items()
    assert (place[0], words in text) == (line, True), found


def test_yaml_of_any_shape_is_refused_without_an_error_of_ours():
    for text in ("", "[]", "sources: 1", "sources: [1]", "a: &a [*a]", "sources: [{}]", "{", "\0"):
        with pytest.raises(Refused):
            parse_sources(text)


def test_commands_apply_rotate_and_try_a_source(database, lab, tmp_path):
    helixq = Helixq(database)
    file = tmp_path / "webhooks.yml"
    text = GOOD.replace("name: stripe", f"name: {lab.q}").replace(
        "queue: invoices", f"queue: {lab.q}"
    )
    file.write_text(text, encoding="utf-8")
    applied = helixq("webhook", "apply", file, "--json").json
    assert (applied[0]["name"], applied[0]["answer"]) == (lab.q, "created")
    secret = SECRETS["stripe"]
    rotated = helixq("webhook", "rotate", lab.q, "--secret-file", "-", stdin=secret.encode())
    assert rotated.code == 0, rotated.err
    assert "secret 1 is valid" in rotated.out
    shown = helixq("webhook", "show", lab.q).out + helixq("webhook", "list").out
    assert f"invoice.paid, invoice.voided > queue {lab.q}, order time" in shown
    assert secret not in shown
    body = tmp_path / "event.json"
    for created, invoice, code in (
        (1_700_000_000, "in_1", 0), ("soon", "in_1", 1), (1_700_000_000, "in\u200b_1", 1),
    ):  # fmt: skip
        event = {"id": "e", "type": "invoice.paid", "created": created}
        event["data"] = {"object": {"id": invoice}}
        body.write_text(json.dumps(event), encoding="utf-8")
        tried = helixq("webhook", "test", lab.q, "--body", body)
        assert (tried.code, "problem" in tried.out) == (code, bool(code)), tried.out
    assert helixq("webhook", "test", lab.q).code == 2


def test_token_of_other_queues_neither_defines_nor_sees_a_source(site, source_of):
    source = source_of("stripe")
    with site.client(queues=["elsewhere"]) as limited:
        path = f"/v1/webhook-sources/{source.name}"
        for queue in (source.lab.q, "elsewhere"):
            body = {"definition": definition("stripe", queue)}
            assert limited.put(path, json=body).status_code == 403
        assert limited.get(path).status_code == 404
        assert source.name not in limited.get("/v1/webhook-sources").text
        rotated = limited.post(f"{path}/rotate", json={"secret": SECRETS["stripe"]})
        assert rotated.status_code == 404


def test_repeated_rotation_with_the_same_secret_changes_nothing(source_of):
    source = source_of("stripe")
    assert source.rotate() == source.rotate() == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mappings": None}, "mappings: expected a list, got None"),
        ({"scheme": "md5"}, "'hmac', got 'md5'"),
        ({"secret": "abc"}, "secret: expected no member of this name, got one"),
        ({"keep_days": 1}, "keep_days: expected a number of days from 7 to 3650, got 1"),
        ({"mappings": [{"queue": "q"}]}, "events: expected a value for events, got none"),
    ],
)
def test_fault_of_a_definition_in_json_names_its_place(change, words):
    with pytest.raises(Refused, match=re.escape(words)):
        source_of(definition("stripe", "q") | {"name": "stripe"} | change)


def test_definition_that_is_too_large_is_refused_with_its_size():
    events = [f"{'e' * 190}{number}" for number in range(400)]
    source = source_of(definition("stripe", "q", mapping={"events": events}) | {"name": "stripe"})
    with pytest.raises(Refused, match="at most 65536 bytes, got 7"):
        source.text()
