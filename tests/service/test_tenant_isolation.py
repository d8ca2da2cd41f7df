"""Every operation of the document, called by one tenant with ids of another."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue import HelixQueue, Machine
from helixqueue.client.backend import backend_of
from helixqueue.engine import fences, service_calls, tokens, webhooks
from helixqueue.identity import key_text
from helixqueue.service.tenant_cipher import TenantCipher
from tests.support.lab import POOLED, Lab, wait_until
from tests.support.letters import write_letters
from tests.support.service import DOCUMENT, GUARDED, fill_path, operation_name

WORD = "okapi"  # in every value of the other tenant
# test_changes.py covers the stream, which does not end by itself.
REQUESTS = [item for item in GUARDED if item[1] != "/v1/changes"]
TABLES = (
    *("overview", "event", "refusal", "decision", "queue", "api_token", "fence", "dead_letter"),
    *("ledger", "ledger_event", "feed", "webhook_source", "webhook_secret"),
)
# Tables whose rows name their queue.
WORK = ("batch", "work", "result", "ended")


@dataclass(frozen=True)
class Loot:
    """Rows of tenant b: pending, running and failed batches, a lease, a token, a doubt."""

    batch_ids: list[str]
    lease: str  # of tenant b, sealed with the key of tenant a
    fence: str
    version: int
    positions: dict[str, str]  # of the feed of tenant b, encrypted with the key of tenant a

    def in_place_of(self, name, value):
        """Replace the ids in a part of a request by those of tenant b."""
        if name == "leases":
            return [self.lease]
        if name == "settlements":
            return [{**item, "lease": self.lease} for item in value]
        mine = {
            "queue": "shared", "queues": ["shared"], "request": str(uuid.uuid4()),
            "version": self.version, "identity": "zebra", **self.positions,
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
        assert write_letters(lab, WORD, tenant="b") == [1]
        failed, runs = lab.claim(2)
        lab.fail(failed, failure="OutOfMemory", detail=WORD, permanent=True)
        assert [item.answer for item in lab.start(failed)] == [
            "refused"
        ]  # including a row of the ledger
    with Lab(database, "operator") as operator:
        cipher = TenantCipher(operator.run(service_calls.tenant_key("a")))
        operator.run(
            tokens.create(
                tenant="b", name="uploader", token_hash=tokens.new_token().hash, scopes=["read"],
                queues=None, expires_at=datetime.now(UTC) + timedelta(days=1),
            )
        )  # fmt: skip
        for name in ("uploader", "same-name"):
            for call in source_calls(name):
                operator.run(call)
    with HelixQueue(database.dsn("pool"), tenant="b", pooled=POOLED) as helix:
        with pytest.raises(TimeoutError), helix.fence("refund", key=WORD):
            raise TimeoutError("the bank did not answer")
        ledger = helix.ledger("shared", Machine({"REQUESTED": ["CONFIRMED"]}))
        ledger.append("drone-7", 1, "REQUESTED", {"word": WORD}, node=WORD)
        # A feed waits for the older transactions of the server, which other tests may hold open.
        [event] = wait_until(helix.feed("shared", ledger="shared").read)
        [doubt] = backend_of(helix).run(fences.list_fences(name="refund")).rows
    return Loot(
        [str(row.receipt.batch_id) for row in rows],
        cipher.seal_lease(runs),
        key_text(doubt.key),
        doubt.version,
        {"after": cipher.seal(event.after), "to": cipher.seal(event.position)},
    )


def source_calls(name):
    """Create a source of webhooks of tenant b, with a secret."""
    mappings = [{"events": [WORD], "queue": "shared"}]
    definition = json.dumps({"name": name, "scheme": "github", "mappings": mappings})
    return (
        webhooks.apply_source(
            tenant="b", name=name, scheme="github", definition=definition, actor="ann"
        ),
        webhooks.rotate_secret(
            tenant="b", name=name, secret=WORD.encode() * 4, overlap_seconds=0, actor="ann"
        ),
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
    """The example of an operation, with the ids of tenant b."""
    method, path, _ = operation
    response = DOCUMENT["paths"][path][method.lower()]
    if "requestBody" not in response:
        return [None]
    shown = response["requestBody"]["content"]["application/json"]["example"]
    body = {name: loot.in_place_of(name, value) for name, value in shown.items()}
    if path == "/v1/tokens":
        # Not their name: an own token of that name could then be rotated and revoked.
        return [{**body, "name": "eves"}]
    if path in {"/v1/batches/retry", "/v1/batches/cancel"}:
        return [body, {"reason": "curiosity", "batch_ids": loot.batch_ids}]
    if path in {"/v1/ledgers/{ledger}", "/v1/feeds/{feed}"}:
        # Not declared here: an own ledger of that name would answer the other operations.
        return [body | ({"arrows": {}} if "arrows" in body else {"ledger": "shared"})]
    if path == "/v1/work/claim":
        # With a settlement, as in the usual round of a worker.
        done = {"lease": loot.lease, "outcome": "completed", "result": {}}
        return [body, {**body, "settle": [done]}]
    # Not declared here either.
    is_source = (method, path) == ("PUT", "/v1/webhook-sources/{name}")
    return [{"definition": {}} if is_source else body]


@pytest.mark.parametrize("operation", REQUESTS, ids=operation_name)
def test_no_operation_reads_or_changes_another_tenant(site, database, mine, theirs, operation):
    method, path, _ = operation
    before = rows_of_b(database)
    assert all(before.values()), "nothing is there to be seen"
    with site.client(token=mine) as http:
        for batch_id in theirs.batch_ids if "{batch_id}" in path else [None]:
            at = fill_path(path, batch_id, theirs.fence)
            for body in bodies(operation, theirs):
                is_entity = (method, path.count("/")) == ("GET", 4) and "{ledger}" in path
                query = {"entity": "drone-7"} if is_entity else None
                response = http.request(method, at, json=body, params=query)
                assert response.status_code < 500
                assert WORD not in response.text
                named = {
                    "{batch_id}",
                    "{name}",
                    "{fence}",
                    "{letter}",
                    "{ledger}",
                    "{feed}",
                    "{run}",
                }
                if named & set(path.split("/")):
                    # 422: a body that could declare an own ledger or source of that name is
                    # invalid.
                    declares = {"arrows", "definition"} & set(body or {})
                    assert response.status_code == (422 if declares else 404)
                else:
                    # Not even as forbidden: the response is that of an unknown id.
                    assert not [
                        item for item in theirs.batch_ids if item in response.text and not body
                    ]
    assert rows_of_b(database) == before


@pytest.mark.usefixtures("theirs")
def test_source_of_the_same_name_leaves_that_of_another_tenant_unchanged(site, database, mine):
    before = rows_of_b(database)
    path = "/v1/webhook-sources/same-name"
    definition = {"scheme": "github", "mappings": [{"events": "push", "queue": "shared"}]}
    with site.client(token=mine) as http:
        assert http.put(path, json={"definition": definition}).json()["answer"] == "created"
        secret = {"secret": "a secret of tenant a"}
        assert http.post(f"{path}/rotate", json=secret).json()["number"] == 1
        assert WORD not in http.get(path).text
    assert rows_of_b(database) == before


def test_leases_of_another_tenant_are_refused_without_names(site, mine, theirs):
    with site.client(token=mine) as http:
        for verb in ("start", "renew", "release"):
            sent = {"worker": "eve", "leases": [theirs.lease]}
            response = http.post(f"/v1/work/{verb}", json=sent).json()["answers"]
            assert [(item["answer"], item["owner"], item["state"]) for item in response] == [
                ("refused", None, None)
            ]
