"""Every operation of the document, asked by one tenant about what is another's."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import fences, tokens
from helixqueue.identity import key_text
from tests.support.lab import POOLED, Lab
from tests.support.service import DOCUMENT, GUARDED, fill_path, operation_name

WORD = "okapi"  # in whatever is theirs
# Of the stream, which does not end by itself, test_changes.py shows it.
ASKED = [one for one in GUARDED if one[1] != "/v1/changes"]
TABLES = ("overview", "event", "refusal", "decision", "queue", "api_token", "fence")
# Tables of which rows name their queue.
WORK = ("batch", "work", "result", "ended")


@dataclass(frozen=True)
class Loot:
    """What tenant b has: work that waits, runs and failed, its lease, a token, a doubt."""

    batch_ids: list[str]
    lease: dict[str, object]
    fence: str
    version: int

    def in_place_of(self, name, value):
        """A part of a request that names somebody's things; it names theirs from now on."""
        if name in {"leases", "settlements"}:
            return [{**one, **self.lease} for one in value]
        mine = {
            "queue": "shared", "queues": ["shared"], "request": str(uuid.uuid4()),
            "version": self.version, "identity": "zebra",
        }  # fmt: skip
        return mine.get(name, value)


@pytest.fixture(scope="module")
def mine(site):
    return site.token()


@pytest.fixture(scope="module")
def theirs(database):
    with Lab(database, q="shared", worker=WORD) as lab:
        lab.queue(tenant="a")
        lab.queue(tenant="b", lease_seconds=3600)
        rows = lab.submit("failed", "runs", "zebra", tenant="b", payload={"word": WORD})
        failed, runs = lab.claim(2)
        lab.fail(failed, failure="OutOfMemory", detail=WORD, permanent=True)
        assert [one.answer for one in lab.start(failed)] == ["refused"]  # a row of the ledger, too
    with Lab(database, "operator") as operator:
        operator.run(
            tokens.create(
                tenant="b", name="uploader", token_hash=tokens.new_token().hash, scopes=["read"],
                queues=None, expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        )  # fmt: skip
    with HelixQueue(database.dsn("pool"), tenant="b", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence("refund", key=WORD):
            raise TimeoutError("the bank did not answer")
        [doubt] = helix.run(fences.list_fences(name="refund")).rows
    return Loot(
        [str(row.receipt.batch_id) for row in rows],
        {"batch": runs.batch, "token": "{}.{}.{}".format(*runs.token)},
        key_text(doubt.key),
        doubt.version,
    )


def rows_of_b(database):
    return {
        table: database.rows(
            f"select t::text from helix.{table} t where tenant = 'b' order by 1"  # noqa: S608
        )
        for table in TABLES
    } | {
        table: database.rows(
            f"select t::text from helix.{table} t join helix.queue q on q.id = t.queue "  # noqa: S608
            "where q.tenant = 'b' order by 1"
        )
        for table in WORK
    }


def bodies(operation, loot):
    """What an operation is shown with in the document, about their things."""
    method, path, _ = operation
    told = DOCUMENT["paths"][path][method.lower()]
    if "requestBody" not in told:
        return [None]
    shown = told["requestBody"]["content"]["application/json"]["example"]
    body = {name: loot.in_place_of(name, value) for name, value in shown.items()}
    if path == "/v1/tokens":
        # Not the name of theirs: one of ours by that name could then be rotated, and revoked.
        return [{**body, "name": "eves"}]
    if path in {"/v1/batches/retry", "/v1/batches/cancel"}:
        return [body, {"reason": "curiosity", "batch_ids": loot.batch_ids}]
    if path == "/v1/work/claim":
        # With a settlement in it, as a worker's usual round has.
        done = {**loot.lease, "outcome": "completed", "result": {}}
        return [body, {**body, "settle": [done]}]
    return [body]


@pytest.mark.parametrize("operation", ASKED, ids=operation_name)
def test_no_operation_tells_or_touches_another_tenant(site, database, mine, theirs, operation):
    method, path, _ = operation
    before = rows_of_b(database)
    assert all(before.values()), "nothing is there to be seen"
    with site.client(token=mine) as http:
        for batch_id in theirs.batch_ids if "{batch_id}" in path else [None]:
            at = fill_path(path, batch_id, theirs.fence)
            for body in bodies(operation, theirs):
                told = http.request(method, at, json=body)
                assert told.status_code < 500
                assert WORD not in told.text
                if {"{batch_id}", "{name}", "{fence}"} & set(path.split("/")):
                    assert told.status_code == 404, told.text
                else:
                    # Also not as what is not theirs: it is as if it were not there.
                    assert not [one for one in theirs.batch_ids if one in told.text and not body]
    assert rows_of_b(database) == before


def test_their_leases_are_refused_and_nobody_is_named(site, mine, theirs):
    with site.client(token=mine) as http:
        for verb in ("start", "renew", "release"):
            asked = {"worker": "eve", "leases": [theirs.lease]}
            told = http.post(f"/v1/work/{verb}", json=asked).json()["answers"]
            assert [(one["answer"], one["owner"], one["state"]) for one in told] == [
                ("refused", None, None)
            ]
