"""Erasing a batch leaves nothing of it in any column of any table, whichever way it came in.

Tables and columns come from the catalog, so a new table is covered.
"""

from __future__ import annotations

import uuid

import pytest
from psycopg import sql

from helixqueue import Conflict, HelixQueue
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.records.submission import Source, SubmissionRow
from tests.support.duties import make_all_due, run_duty
from tests.support.lab import POOLED, completion, failure

WORD = "zebra"
COLUMNS = """
    select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
      and a.attnum > 0 and not a.attisdropped"""


def places_of(database, word):
    """Columns with the word, as text or in bytes."""
    columns = database.rows(COLUMNS)
    assert {("batch", "payload"), ("fence", "answer"), ("result", "detail")} <= set(columns)
    found = set()
    with database.connect("helix_bootstrap") as connection:
        for table, column in columns:
            query = sql.SQL(
                "select exists (select from helix.{} where strpos({}::text, {}) > 0"
                " or strpos({}::text, {}) > 0)"
            ).format(
                sql.Identifier(table), sql.Identifier(column), word,
                sql.Identifier(column), word.encode().hex(),
            )  # fmt: skip
            [(has_word,)] = connection.execute(query)
            if has_word:
                found.add(f"{table}.{column}")
    return found


def keyed(http, path, **body):
    key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    return http.post(path, json=body, headers=key)


@pytest.fixture
def path(lab):
    return f"/v1/queues/{lab.q}"


def submit_every_way(http, path, database, queue, word):
    """Over HTTP with keys and in Python: new, duplicate, conflict and refused; one and many."""
    patient, other = {"patient": word}, {"patient": f"{word}-2"}
    for identity in ("e-1", "e-2"):
        body = {"identity": identity, "payload": patient}
        assert keyed(http, f"{path}/batches", **body).status_code == 201
        assert keyed(http, f"{path}/batches", **body).status_code == 200
        assert keyed(http, f"{path}/batches", **{**body, "payload": other}).status_code == 409
    refused = keyed(http, f"{path}/batches", identity="e\u200b", payload=patient)
    assert refused.status_code == 422
    rows = [{"identity": name, "payload": other} for name in ("e-1", "e-3", "e\u200b")]
    many = keyed(http, f"{path}/chunks", submissions=rows)
    assert word in many.text, "the answer shows the difference to the stored payload"
    with HelixQueue(database.dsn("pool"), "a", pooled=POOLED) as helix:
        helix.submit(queue, identity="e-4", payload=patient)
        helix.submit_many(queue, [{"identity": "e-5", "payload": patient}])
        with pytest.raises(Conflict):
            helix.submit(queue, identity="e-4", payload=other)


def finish(lab, word):
    """Fails with details, fails and succeeds with results, all with the word."""
    leases = {lease.identity: lease for lease in lab.claim(10)}
    text = f'{{"seen":"{word}"}}'
    lab.settle(failure(leases["e-1"], detail=f"KeyError: {word}", permanent=True))
    lab.settle(*[completion(leases[name], text) for name in ("e-2", "e-3", "e-5")])
    lab.settle(failure(leases["e-4"], detail=word))
    [again] = lab.claim(1)
    lab.settle(completion(again, text))
    return [lease.batch_id for lease in leases.values()]


def test_nothing_of_an_erased_payload_is_found_in_any_table(database, http, lab, path):
    lab.queue(backoff_seconds=0)
    submit_every_way(http, path, database, lab.q, WORD)
    ids = finish(lab, WORD)
    before = places_of(database, WORD)
    assert {"batch.payload", "result.result", "result.detail", "fence.request"} <= before
    assert "fence.answer" in before
    for batch_id in ids:
        assert keyed(http, f"/v1/batches/{batch_id}/erase", reason="consent").status_code == 200
    assert places_of(database, WORD) == set()
    # Erasing leaves the proof intact: keys still recognise the work.
    body = {"identity": "e-1", "payload": {"patient": WORD}}
    assert http.post(f"{path}/batches", json=body).status_code == 200
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean
        broken = [result for result in check(connection) if not result.holds]
    # Each has one witness: the function with which tests make time pass.
    assert {result.count for result in broken} <= {1}
    assert all("test_pass_time" in str(result.witnesses) for result in broken), broken


def test_nothing_of_an_erased_identity_is_found_in_any_table(database, http, lab, path):
    name = f"okapi-{lab.q}"
    response = keyed(http, f"{path}/batches", identity=f" {name}", payload={})
    batch_id = response.json()["receipt"]["batch_id"]
    lab.complete(*lab.claim(1))
    assert {"batch.identity", "fence.request"} <= places_of(database, name)
    with HelixQueue(database.dsn("pool"), "a", pooled=POOLED) as helix:
        helix.erase(uuid.UUID(batch_id), reason="consent withdrawn")
        assert "batch.identity" in places_of(database, name), "the identity is kept by default"
        helix.erase(uuid.UUID(batch_id), reason="consent withdrawn", identity=True)
    assert places_of(database, name) == set()
    assert http.post(f"{path}/batches", json={"identity": name, "payload": {}}).status_code == 200


def test_identity_is_erased_over_http_with_the_option(database, http, lab, path):
    name = f"quagga-{lab.q}"
    response = keyed(http, f"{path}/batches", identity=name, payload={})
    batch_id = response.json()["receipt"]["batch_id"]
    lab.complete(*lab.claim(1))
    erased = keyed(http, f"/v1/batches/{batch_id}/erase", reason="consent", identity=True)
    assert erased.status_code == 200
    assert places_of(database, name) == set()


def test_refused_keyed_request_leaves_no_copy_of_its_body(database, http, lab, path):
    word = f"gnu{lab.q}"
    refused = keyed(http, f"{path}/batches", identity="e\u200b", payload={"patient": word})
    assert refused.status_code == 422
    assert places_of(database, word) == set()


@pytest.mark.parametrize("way", ["erased", "retired"])
def test_no_text_of_a_submission_is_found_in_any_table_after_the_option_or_retention(
    database, lab, way
):
    word = f"tapir{lab.q}"
    lab.queue(keep_failed_seconds=0)
    source = {"kind": "redis", "name": f"{word}-stream", "id": f"{word}-1"}
    row = SubmissionRow(word, "{}", revision=word, limit_key=word, source=Source(**source))
    [answer] = lab.submit_rows(row)
    lab.settle(failure(*lab.claim(1), failure=word, permanent=True))
    assert {
        "batch.revision", "batch.limit_key", "work.limit_key", "key_limit.key", "source.id",
        "source.name", "result.failure",
    } <= places_of(database, word)  # fmt: skip
    if way == "erased":
        with HelixQueue(database.dsn("pool"), "a", pooled=POOLED) as helix:
            helix.erase(answer.receipt.batch_id, reason="consent withdrawn", identity=True)
    else:
        retire = "select helix.retire_v1('a', %s, 'FAILED', 'infinity')"
        assert lab.rows_as_client(retire, lab.q) == [(1,)]
    # The counter of failed attempts keeps the names of failure classes.
    assert places_of(database, word) <= {"metric.label", "metric_change.label"}
    [again] = lab.submit_rows(row)
    assert (again.decision, again.receipt) == ("duplicate", answer.receipt)


def test_unused_limit_keys_are_deleted_and_used_ones_work_on(lab):
    lab.queue(key_limit=1)
    for name in ("used", "unused"):
        lab.submit(f"{name}-1", limit_key=name)
        lab.submit(f"{name}-2", limit_key=name)
    first, second = lab.claim(4)
    lab.complete(second)
    [third] = lab.claim(4)
    lab.complete(third)
    assert run_duty(lab, "sweep") is None
    make_all_due(lab)  # `run_duty` puts the others off, which `check` would report
    keys = (
        "select k.key from helix.key_limit k join helix.queue q on q.id = k.queue where q.name = %s"
    )
    assert lab.rows(keys, lab.q) == [("used",)]
    lab.submit("unused-3", limit_key="unused")
    assert [lease.identity for lease in lab.claim(4)] == ["unused-3"]
    lab.complete(first)
    assert [lease.identity for lease in lab.claim(4)] == ["used-2"]
