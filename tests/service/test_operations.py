"""One table over declared operations: scope, problems, token queues, redaction, answer.

Every operation is a row of TABLE. Each column is checked against a running service, so a changed
declaration fails here before a client notices it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest

from helixqueue import HelixClient, HelixQueue, Machine
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences as fence_calls
from helixqueue.errors import Unavailable
from helixqueue.fence import operations as fences
from helixqueue.operations import (
    batch_actions,
    batch_reads,
    checks,
    duties,
    feeds,
    identities,
    intakes,
    ledgers,
    letters,
    outputs,
    overview,
    queues,
    runs,
    seals,
    tokens,
    workers,
)
from helixqueue.operations.operation import operations_of
from helixqueue.records.fence import FenceDetail
from helixqueue.records.letter import LetterDetail, LetterRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import Payload
from helixqueue.records.queue import QueueRow
from helixqueue.records.worker import WorkerDetail
from helixqueue.service.derived_routes import _changed, _is_payload
from helixqueue.transport.http.call import Reply
from helixqueue.transport.http.derived_calls import request_of
from helixqueue.webhook import operations as webhooks
from tests.support.lab import POOLED, Lab, wait_until
from tests.support.letters import write_letters
from tests.support.outputs import publish_output
from tests.support.runs import allow, datum
from tests.support.service import DOCUMENT, PROBLEM_PREFIX

REASON = {"reason": "the table test"}
RUN = {
    "key": "k", "name": "words", "digest": "0" * 64, "datums": 0, "spec": '{"a":1}', "queue": "q",
}  # fmt: skip
RESOLUTION = {**REASON, "applied": True, "effect": "re_1", "result": {"id": "re_1"}}
OPERATIONS = {
    operation.name: operation
    for subject in (
        overview,
        batch_reads,
        batch_actions,
        workers,
        queues,
        identities,
        letters,
        outputs,
        runs,
        intakes,
        duties,
        checks,
        tokens,
        seals,
        ledgers,
        feeds,
        fences,
        webhooks,
    )
    for operation in operations_of(subject)
}


class Case(NamedTuple):
    """What a declaration must say, and what the service answers."""

    scope: str
    # Status for a token that is limited to another queue.
    limited: int
    body: dict[str, Any] | None = None


WEBHOOK = {"definition": {"scheme": "github", "mappings": [{"events": "*", "queue": "basecall"}]}}
TABLE = {
    "show_overview": Case("read", 200),
    "show_series": Case("read", 200),
    "list_refusals": Case("read", 200),
    "list_activity": Case("read", 200),
    "search": Case("read", 200),
    "list_waiting": Case("read", 200),
    "prove_batch": Case("read", 200),
    "list_batches": Case("read", 200),
    "show_batch": Case("read", 200),
    "show_outcome": Case("read", 200),
    "list_causes": Case("read", 200),
    "retry_batches": Case("operate", 200, REASON),
    "cancel_batches": Case("operate", 200, REASON),
    "retry_batch": Case("operate", 200, REASON),
    "cancel_batch": Case("operate", 200, REASON),
    "release_batch": Case("operate", 200, REASON),
    "erase_batch": Case("operate", 200, REASON),
    "list_workers": Case("read", 200),
    "list_devices": Case("read", 200),
    "show_worker": Case("read", 200),
    "list_queues": Case("read", 200),
    "show_queue": Case("read", 200),
    "show_settings": Case("any", 403),
    "set_queue": Case("operate", 200, REASON),
    "pause_queue": Case("operate", 200, REASON),
    "resume_queue": Case("operate", 200, REASON),
    "delete_queue": Case("operate", 200, REASON),
    "list_refused": Case("read", 200),
    "list_identities": Case("read", 200),
    "list_intakes": Case("read", 200),
    "list_duties": Case("read", 200),
    "list_checks": Case("read", 200),
    "list_seals": Case("seal", 200),
    "show_seal": Case("seal", 404),
    "list_findings": Case("read", 200),
    "list_manifests": Case("read", 200),
    "list_outputs": Case("read", 200),
    "list_runs": Case("read", 200),
    "show_run": Case("read", 200),
    "list_datums": Case("read", 200),
    "list_run_outputs": Case("read", 200),
    "show_run_text": Case("work", 200),
    "list_roots": Case("run", 200),
    "start_run": Case("run", 403, RUN),
    "append_run": Case("run", 403, {"first": 1, "datums": [datum("b")]}),
    "cancel_run": Case("operate", 403, REASON),
    "retry_run": Case("operate", 403, REASON),
    "list_letters": Case("read", 200),
    "show_letter": Case("read", 404),
    "redrive_letter": Case("operate", 404, REASON),
    "discard_letter": Case("operate", 404, REASON),
    "list_sources": Case("read", 200),
    "show_source": Case("read", 404),
    "apply_source": Case("admin", 403, WEBHOOK),
    "rotate_secret": Case("admin", 404, {"secret": "a secret of some length"}),
    "list_deliveries": Case("read", 404),
    "list_fences": Case("read", 200),
    "show_fence": Case("read", 200),
    "resolve_fence": Case("operate", 200, RESOLUTION),
    "resolve_fences": Case("operate", 200, {**REASON, "applied": False, "name": "none"}),
    "rehearse": Case("payloads", 200, {"calls": [{"name": "refund", "key": "order-7"}]}),
    "show_token": Case("any", 200),
    "list_tokens": Case("admin", 200),
    "create_token": Case("admin", 403, {"name": "table-test", "scopes": ["read"]}),
    "rotate_token": Case("admin", 403, {}),
    "revoke_token": Case("admin", 404, REASON),
    "offer_login": Case("admin", 403, {}),
    "list_ledgers": Case("read", 403),
    "show_ledger": Case("any", 403),
    "declare_ledger": Case("operate", 403, {"arrows": {"A": []}}),
    "show_entity": Case("read", 403),
    "list_events": Case("read", 403),
    "list_feeds": Case("read", 200),
    "show_feed": Case("read", 404),
    "declare_feed": Case("payloads", 403, {"start": "beginning"}),
    "read_feed": Case("payloads", 404),
    "confirm_feed": Case("payloads", 404, {"count": 1}),
    "pause_feed": Case("operate", 404, REASON),
    "resume_feed": Case("operate", 404, REASON),
    "rewind_feed": Case("operate", 404, REASON),
}


def test_every_declared_operation_is_in_the_table():
    assert set(TABLE) == set(OPERATIONS)


class Subject(NamedTuple):
    """Rows of tenant a that an operation can read and change."""

    names: dict[str, Any]  # of its path
    query: dict[str, Any]
    body: dict[str, Any]


@pytest.fixture
def subject(site, database, lab, request):  # noqa: C901 - one branch per kind of row
    """A letter, a fence, or a ledger with an event and a feed, where the operation needs one."""
    operation = OPERATIONS[request.getfixturevalue("name")]
    names = {"queue": lab.q, "ledger": lab.q, "feed": lab.q, "name": "nobody", "number": 99}
    query, body = {}, {}
    if operation.name in BATCH_STATES:
        names["batch_id"] = batch = str(batch_in(lab, BATCH_STATES[operation.name]))
        body = {"batch_ids": [batch]}
    if operation is workers.show_worker:
        names["worker"] = lab.worker
        with site.client() as http:
            http.post("/v1/work/hello", json={"worker": lab.worker}).raise_for_status()
    if "{letter}" in operation.path or operation is letters.list_letters:
        write_letters(lab, "1")
        [[names["letter"]]] = database.rows(
            "select max(id) from helix.dead_letter where tenant = 'a' and name = %s", lab.q
        )
    if "{ledger}" in operation.path or "{feed}" in operation.path:
        with HelixClient(site.url, token=site.token()) as helix:
            helix.ledger(lab.q, Machine({"A": []})).append("drone-7", 1, "A", {"pad": "north"})
            [event] = wait_until(helix.feed(lab.q, ledger=lab.q).read)
        query = {"entity": "drone-7"} if "entity" in operation.parameters else {}
        body = {"ledger": lab.q, "after": event.after, "to": event.position}
    if operation in {outputs.list_outputs, outputs.list_manifests}:
        names["batch_id"] = str(publish_output(lab, lab.q))
    if operation.name in {item.name for item in operations_of(runs)} and "{run}" in operation.path:
        allow(database, "memory://lab")
        with HelixClient(site.url, token=site.token()) as helix:
            count = 1 if operation is runs.retry_run else 2
            begun = helix.start_run(**RUN | {"key": lab.q, "queue": lab.q, "datums": count})
            helix.append_run(begun.name, first=0, datums=[datum("a")])
        names["run"] = str(begun.run)
        lab.fail(*lab.claim(1), failure="Torn", detail="half a file", permanent=True)
    if operation is overview.search:
        query = {"text": "S-1"}
    if operation in {overview.list_waiting, overview.prove_batch}:
        lab.queue(max_attempts=2, backoff_seconds=0)
        [row] = lab.submit("waits")
        names["batch_id"] = row.receipt.batch_id
        lab.fail(*lab.claim(1), detail="out of memory")
    if operation is overview.list_activity:
        lab.queue()
    body = {member: body[member] for member in body if member in operation.parameters}
    body = body if "{feed}" in operation.path or "batch_ids" in body else {}
    body = {"queue": lab.q} if operation is runs.start_run else body
    if "fence" in operation.name:
        row = resolved_fence(site, database, lab.q)
        if "{fence}" in operation.path:
            names["fence"], body = row["fence"], {"version": row["version"], "correct": True}
        query = {"name": lab.q} if operation is fences.list_fences else {}
    return Subject(names, query, body)


# The state of the batch that an operation needs.
BATCH_STATES = {
    **dict.fromkeys((operation.name for operation in operations_of(batch_reads)), "FAILED"),
    "retry_batches": "FAILED",
    "retry_batch": "FAILED",
    "erase_batch": "FAILED",
    "cancel_batches": "PENDING",
    "cancel_batch": "PENDING",
    "release_batch": "RUNNING",
}


def batch_in(lab, state):
    [row] = lab.submit("S-1", payload={"pod5": "a.pod5"})
    if state != "PENDING":
        leases = lab.claim()
        if state != "RUNNING":
            lab.fail(*leases, permanent=True, failure="Torn", detail="half a file")
    return row.receipt.batch_id


def resolved_fence(site, database, name):
    """A sealed fence of tenant a whose detail is the reason of its resolution."""
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence(name, key="order-7"):
            raise TimeoutError("the bank did not answer")
        [row] = backend_of(helix).run(fence_calls.list_fences(name=name)).rows
    with site.client() as http:
        body = {**RESOLUTION, "version": row.version}
        return http.post(f"/v1/fences/{row.fence}/resolve", json=body).json()


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
def test_token_of_another_queue_gets_the_status_of_the_table(site, subject, name):
    operation, case = OPERATIONS[name], TABLE[name]
    path = operation.path.format(**subject.names)
    sent = {"params": subject.query, "json": case.body and case.body | subject.body}
    with site.client(queues=["elsewhere"]) as limited:
        response = limited.request(operation.method, path, **sent)
    assert response.status_code == case.limited, response.text
    if case.limited in {403, 404} and not re.search(r"{(name|number)}", operation.path):
        # The same request of a token for all queues succeeds.
        with site.client() as http:
            response = http.request(operation.method, path, **sent)
        assert response.status_code in {200, 201}, response.text


@dataclass(frozen=True)
class Inner:
    text: Annotated[str | None, Payload]
    name: str


@dataclass(frozen=True)
class Outer:
    rows: tuple[Inner, ...]
    listed: list[Inner]
    single: Inner
    missing: tuple[Inner, ...] | None


def payload_fields(answer, *, nested=False):
    """Names of the fields of an answer, or of the rows of a page, that are marked as payload."""
    record = get_args(answer)[0] if get_origin(answer) is Page else answer
    if not is_dataclass(get_origin(record) or record):
        return set()
    hints = get_type_hints(get_origin(record) or record, include_extras=True)
    found = set()
    for field in fields(get_origin(record) or record):
        kind = hints[field.name]
        if get_origin(kind) is Annotated and Payload in get_args(kind):
            found.add(field.name)
        elif nested and get_origin(kind) in {tuple, list}:
            found |= payload_fields(get_args(kind)[0], nested=True)
    return found


def values_of(document, name):
    """The values of a member, also in the records that a document contains."""
    if isinstance(document, list):
        return [value for part in document for value in values_of(part, name)]
    if not isinstance(document, dict):
        return []
    parts = [value for member, value in document.items() if member != name]
    own = [document[name]] if name in document else []
    return own + values_of(parts, name)


def test_fields_marked_as_payload_are_found():
    assert payload_fields(LetterDetail) == {"detail", "fields", "body"}
    assert payload_fields(Page[LetterRow]) == {"detail"}
    proof = {"form", "digest", "fingerprint", "sealed_at"}
    assert payload_fields(FenceDetail) == {"detail", "receipt_document"} | proof
    assert payload_fields(QueueRow) == set()
    assert payload_fields(WorkerDetail) == set()
    assert payload_fields(WorkerDetail, nested=True) == {"detail"}


def test_payload_inside_of_other_records_is_hidden_wherever_it_stands():
    secret = ("secret", "public")
    row = Outer((Inner(*secret),), [Inner(*secret)], Inner(*secret), None)
    hidden = _changed((row, row), _is_payload, lambda _: None)
    known = Inner(None, "public")
    assert hidden == (Outer((known,), [known], known, None),) * 2


@pytest.mark.parametrize(
    "name", [n for n in TABLE if payload_fields(OPERATIONS[n].answer, nested=True)]
)
def test_token_without_payloads_sees_no_payload_field(site, subject, name):
    operation = OPERATIONS[name]
    query = {"raw": "true", "queue": subject.names["queue"]} | subject.query
    query = {
        key: value
        for key, value in query.items()
        if key in operation.parameters and not operation.parameters[key].in_path
    }

    def answer(*scopes, **changed):
        parameters = dict(query)
        if operation is batch_reads.show_batch and "payloads" in scopes:
            parameters["payload"] = True
        body = TABLE[name].body and TABLE[name].body | subject.body | changed
        with site.client(*scopes) as http:
            path = operation.path.format(**subject.names)
            document = http.request(operation.method, path, params=parameters, json=body).json()
        if "rows" in document and not payload_fields(operation.answer) and not document["rows"]:
            return {}  # records with payloads inside of others: the test above has them
        return document["rows"][0] if "rows" in document else document

    hidden = answer("read", "operate")
    shown = answer("read", "operate", "payloads", version=hidden.get("version"))
    for field in payload_fields(operation.answer):
        assert set(values_of(hidden, field)) == {None}
        if field != "result":  # a failed batch has none
            assert shown[field] is not None, "nothing was there to be hidden"
    for field in payload_fields(operation.answer, nested=True):
        assert set(values_of(hidden, field)) <= {None}


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
