"""One table over declared operations: scope, problems, token queues, redaction, answer.

Every operation is a row of TABLE. Each column is checked against a running service, so a changed
declaration fails here before a client notices it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest

from helixqueue import HelixClient
from helixqueue.errors import Unavailable
from helixqueue.operations import identities, letters, queues, tokens
from helixqueue.operations.operation import operations_of
from helixqueue.records.letter import LetterDetail, LetterRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import Payload
from helixqueue.records.queue import QueueRow
from helixqueue.transport.http.call import Reply
from helixqueue.transport.http.derived_calls import request_of
from tests.support.lab import Lab
from tests.support.letters import write_letters
from tests.support.service import DOCUMENT, PROBLEM_PREFIX

REASON = {"reason": "the table test"}
OPERATIONS = {
    operation.name: operation
    for subject in (queues, identities, letters, tokens)
    for operation in operations_of(subject)
}


class Case(NamedTuple):
    """What a declaration must say, and what the service answers."""

    scope: str
    # Status for a token that is limited to another queue.
    limited: int
    body: dict[str, Any] | None = None


TABLE = {
    "list_queues": Case("read", 200),
    "show_queue": Case("read", 200),
    "show_settings": Case("any", 403),
    "set_queue": Case("operate", 200, REASON),
    "pause_queue": Case("operate", 200, REASON),
    "resume_queue": Case("operate", 200, REASON),
    "delete_queue": Case("operate", 200, REASON),
    "list_refused": Case("read", 200),
    "list_identities": Case("read", 200),
    "list_letters": Case("read", 200),
    "show_letter": Case("read", 404),
    "redrive_letter": Case("operate", 404, REASON),
    "discard_letter": Case("operate", 404, REASON),
    "list_tokens": Case("admin", 200),
    "create_token": Case("admin", 201, {"name": "table-test", "scopes": ["read"]}),
    "rotate_token": Case("admin", 404, {}),
    "revoke_token": Case("admin", 404, REASON),
    "offer_login": Case("admin", 201, {}),
}


def test_every_declared_operation_is_in_the_table():
    assert set(TABLE) == set(OPERATIONS)


def entry_of(operation):
    return DOCUMENT["paths"][operation.path][operation.method.lower()]


@pytest.mark.parametrize("name", TABLE)
def test_document_states_scope_and_problems_of_the_declaration(name):
    operation, entry = OPERATIONS[name], entry_of(OPERATIONS[name])
    assert entry["operationId"] == name
    assert entry["x-scope"] == operation.scope == TABLE[name].scope
    declared = {PROBLEM_PREFIX + error.kind for error in operation.raises}
    assert declared <= set(entry["x-problems"])
    assert entry["summary"] == operation.summary.removesuffix(".")


@pytest.mark.parametrize("name", TABLE)
def test_token_of_another_queue_gets_the_status_of_the_table(site, database, name):
    operation, case = OPERATIONS[name], TABLE[name]
    with Lab(database) as lab:
        lab.queue()
        if "{letter}" in operation.path:
            write_letters(lab, name)
            [[letter]] = database.rows(
                "select max(id) from helix.dead_letter where tenant = 'a' and name = %s", lab.q
            )
        else:
            letter = None
        path = operation.path.format(queue=lab.q, letter=letter, name="nobody")
        with site.client(queues=["elsewhere"]) as limited:
            response = limited.request(operation.method, path, json=case.body)
        assert response.status_code == case.limited, response.text
        if case.limited in {403, 404} and "{name}" not in operation.path:
            # The same request of a token for all queues succeeds.
            with site.client() as http:
                response = http.request(operation.method, path, json=case.body)
            assert response.status_code == 200, response.text


def payload_fields(answer):
    """Names of the fields of an answer, or of the rows of a page, that are marked as payload."""
    record = get_args(answer)[0] if get_origin(answer) is Page else answer
    if not is_dataclass(get_origin(record) or record):
        return set()
    hints = get_type_hints(get_origin(record) or record, include_extras=True)
    return {
        field.name
        for field in fields(get_origin(record) or record)
        if get_origin(hints[field.name]) is Annotated and Payload in get_args(hints[field.name])
    }


def test_fields_marked_as_payload_are_found():
    assert payload_fields(LetterDetail) == {"detail", "fields", "body"}
    assert payload_fields(Page[LetterRow]) == {"detail"}
    assert payload_fields(QueueRow) == set()


@pytest.mark.parametrize("name", TABLE)
def test_answer_with_payload_fields_declares_its_redaction(name):
    operation = OPERATIONS[name]
    assert (operation.redact is not None) == bool(payload_fields(operation.answer))


@pytest.mark.parametrize("name", [n for n in TABLE if payload_fields(OPERATIONS[n].answer)])
def test_token_without_payloads_sees_no_payload_field(site, database, name):
    operation = OPERATIONS[name]
    with Lab(database) as lab:
        lab.queue()
        write_letters(lab, "1")
        [[letter]] = database.rows(
            "select max(id) from helix.dead_letter where tenant = 'a' and name = %s", lab.q
        )
    query = {"raw": "true"} if "raw" in operation.parameters else {"queue": lab.q}

    def answer(*scopes):
        with site.client(*scopes) as http:
            document = http.get(operation.path.format(letter=letter), params=query).json()
        return document["rows"][0] if "rows" in document else document

    hidden, shown = answer("read"), answer("read", "payloads")
    for field in payload_fields(operation.answer):
        assert hidden[field] is None
        assert shown[field] is not None, "nothing was there to be hidden"


def test_raw_bytes_of_a_letter_reach_the_client_unchanged(site, database):
    with Lab(database) as lab:
        lab.queue()
        write_letters(lab, "1")
        [[letter, body]] = database.rows(
            "select id, body from helix.dead_letter where name = %s", lab.q
        )
    with HelixClient(site.url, token=site.token()) as helix:
        assert helix.letter(letter, raw=True).body == bytes(body)
        assert helix.letter(letter).body is None


def test_word_that_a_client_does_not_know_is_kept_as_text():
    read = request_of(letters.discard_letter, {"letter": 7, "reason": "x"}).read
    discarded = read(Reply(200, {}, b'{"letter": 7, "answer": "postponed"}'))
    assert (discarded.letter, discarded.answer) == (7, "postponed")
    with pytest.raises(Unavailable):
        read(Reply(200, {}, b'{"letter": 7, "answer": 8}'))
