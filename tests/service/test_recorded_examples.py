"""The examples of the OpenAPI document are what a service answers: batch S-1, request by request.

`make examples` runs this test with HELIX_EXAMPLES=write, which replaces the file.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest

from helixqueue import HelixQueue
from helixqueue.client.backend import backend_of
from helixqueue.engine import duties, letters
from helixqueue.engine import fences as fence_calls
from helixqueue.engine.check_runs import note_check
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.fence.key_file import SigningKey
from helixqueue.records.check import CheckOutcome
from helixqueue.service.openapi.examples import RECORDED
from tests.support.duties import make_all_due
from tests.support.lab import POOLED, Lab, time_control
from tests.support.letters import write_letters
from tests.support.outputs import publish_output
from tests.support.recorder import Recorder
from tests.support.runs import allow, datum
from tests.support.service import Site, serving, settings_for
from tests.support.webhooks import signed_headers

KEY = SigningKey(Ed25519Signer.from_private(b"k" * 32), "2026-09-01T08:00:00Z", None)
WORK = {"worker": "gpu-1", "queues": ["basecall"]}
FREE = {"gpus": 1, "gpu_vram_gb": 24}
RULES = {
    "arrows": {"REQUESTED": ["CONFIRMED", "CANCELLED"], "CONFIRMED": [], "CANCELLED": []},
    "initial": ["REQUESTED"],
    "ignore": ["/trace_id"],
}
CHECKED = [
    CheckOutcome("hash_broken", 0, (), None),
    CheckOutcome("pending_stalled", 1, ({"queue": "basecall", "detail": "since 08:00"},), None),
]
DRONE = {"entity": "drone-7", "payload": {"pad": "north"}, "node": "alp-1"}


@pytest.fixture
def site(fresh_database):
    """A service whose duties run only where a scenario runs them."""
    settings = settings_for(fresh_database, duties=False, keys=(KEY,))
    with serving(settings) as url:
        yield Site(fresh_database, url)


@pytest.fixture
def lab(site):
    with Lab(site.database, q="basecall") as lab:
        yield lab


@pytest.fixture
def record(site):
    with site.client(tenant="lab", name="ann") as client:
        yield Recorder(client)


def test_committed_examples_are_what_the_service_answers(record, lab):
    record_work(record, lab)
    record_operator_actions(record)
    record_reads(record, lab)
    record_letters(record, lab)
    record_webhooks(record)
    record_ledgers(record)
    record_fences(record, lab)
    record_tokens(record)
    record_service(record, lab)
    batch = publish_output(lab, "align", "lab")
    record("list_manifests", batch=str(batch))
    record("list_outputs", batch_id=str(batch))
    record_staging(record, lab)
    record_runs(record, lab)
    recorded = record.examples()
    if os.environ.get("HELIX_EXAMPLES") == "write":
        text = json.dumps(recorded, indent=1, ensure_ascii=False)
        RECORDED.write_text(text + "\n", encoding="utf-8")
    assert json.loads(RECORDED.read_text(encoding="utf-8")) == recorded, "run `make examples`"


def record_staging(record, lab):
    """A worker without a database connection stages one file."""
    lab.submit("Sample-08", tenant="lab", queue="align")
    lease, _ = claim(record, 90, queues=["align"])
    record("open_outputs", worker="gpu-1", lease=lease, size=4_180_332)
    staged = [{"path": "reads/a.fastq", "size": 4_180_332, "sha256": "68" * 32}]
    record("register_outputs", worker="gpu-1", lease=lease, staged=staged, files=1)


def record_runs(record, lab):
    """A run of two datums, of which one fails."""
    lab.queue("words", "lab", backoff_seconds=0)
    allow(lab.database, "memory://lab", "lab")
    record("list_roots")
    begun = record(
        "start_run", key="books-2026-11-19", name="words", digest="0" * 64, datums=2, queue="words",
        spec='{"transform":{"cmd":["wc"]}}', egress="memory://lab/words", tries=1,
    )  # fmt: skip
    run = {"run": begun["name"]}
    record("append_run", **run, first=0, datums=[datum("a.txt"), datum("b.txt")])
    with Lab(lab.database, q="words") as worker:
        [lease] = worker.claim(tenant="lab")
        worker.fail(lease, failure="exit 1", detail="wc: invalid option")
    record("show_run_text", run=str(begun["run"]))
    for name in ("list_runs", "show_run", "list_datums", "list_run_outputs"):
        record(name, **(run if name != "list_runs" else {}))
    record("retry_run", **run, reason="fixed the option")
    record("cancel_run", **run, reason="wrong input")


def claim(record, n, **options):
    """Claim a batch as request number n: its lease and its id."""
    request = f"b0c7c4f2-7d3f-4c58-8a0f-0f6b9f5f3a{n:02}"
    claimed = record("claim", **{**WORK, "request": request, "free": FREE, "start": True} | options)
    [lease] = claimed["leases"]
    return lease["lease"], lease["batch_id"]


def settle(record, lease, outcome="completed", worker="gpu-1", **options):
    settlement = {"lease": lease, "outcome": outcome, **options}
    return record("settle", worker=worker, settlements=[settlement])["answers"]


def record_work(record, lab):
    """S-1 is completed by gpu-1, S-2 by gpu-2 after gpu-1 lost it, S-3 fails."""
    record(
        "set_queue", reason="a new assay", profile="lab-id-v1", lease_seconds=120, max_attempts=5,
        requires={"gpus": 1}, keep_completed_seconds=7_776_000, backoff_seconds=0,
    )  # fmt: skip
    begin = record.send("changes", seconds=1).text.partition("id: ")[2].partition("\n")[0]
    record("hello", worker="gpu-1", free=FREE)
    mark = record("expect", **WORK)["mark"]
    record("submit", idempotency_key="upload-2026-09-01-S-1")
    record("submit")
    record("wait", **WORK, mark=mark, seconds=0.5)
    record("changes", seconds=1, last_event_id=begin)
    lease, _ = claim(record, 1)
    record("renew", worker="gpu-1", leases=[lease])
    settle(record, lease, result={"reads": 4_180_332})
    rows = [{"identity": name, "payload": {"pod5": "b.pod5"}} for name in ("S-2", "S-3")]
    record("submit_many", submissions=rows)
    record("note_refused", refused=[{"raw": "532d31e2808b", "why": "a zero-width space (U+200B)"}])
    lease, _ = claim(record, 2, start=False)
    record("release", worker="gpu-1", leases=[lease], detail="the node is drained")
    lease, batch = claim(record, 3, start=False)
    record("start", worker="gpu-1", leases=[lease])
    with time_control(lab.database) as passed:
        passed(lab.batch_number(batch))
    other, _ = claim(record, 4, worker="gpu-2")
    settle(record, other, worker="gpu-2")
    settle(record, lease)  # refused
    for number in (5, 6):
        lease, batch = claim(record, number)
        settle(record, lease, "failed", permanent=True, failure="OutOfMemory", detail="24 GB")
        if number == 5:
            record("list_causes")
            record("retry_batch", batch_id=batch, reason="workers with more memory")


def record_operator_actions(record):
    record("retry_batches", reason="workers with more memory", failure="OutOfMemory")
    _, running = claim(record, 7)
    batch = submitted(record, "S-4")
    record("list_waiting")
    record("cancel_batch", batch_id=batch)
    record("erase_batch", batch_id=batch, reason="consent withdrawn")
    submitted(record, "S-5")
    record("cancel_batches", reason="flow cell replaced", state="PENDING")
    record("release_batch", batch_id=running, reason="the node hangs")
    record("pause_queue", reason="flow cell exchange")
    record("resume_queue", reason="flow cell exchanged")
    record.send("set_queue", queue="basecal", reason="a new assay")
    record("delete_queue", queue="basecal", reason="a typing error")


def submitted(record, identity):
    response = record.send("submit", identity=identity)
    return response.json()["receipt"]["batch_id"]


def record_reads(record, lab):
    batch = submitted(record, "S-1")
    record("show_batch", batch_id=batch, payload=True)
    record("show_outcome", batch_id=batch, result=True)
    record("prove_batch", batch_id=batch)
    record("list_batches", queue="basecall", state="COMPLETED", limit=2)
    for name in (
        "list_identities", "list_refused", "list_queues", "show_queue", "show_settings",
        "list_workers", "list_devices", "list_refusals", "list_activity",
    ):  # fmt: skip
        record(name)
    record("show_worker", worker="gpu-1")
    record("search", text="S-1")
    make_all_due(lab)
    while lab.run(duties.run_duty(actor="service helix-1.7", limit=1000)) is not None:
        pass
    record("show_overview")
    record("list_duties")
    record("show_series", queue="basecall", period="1h")


def record_letters(record, lab):
    write_letters(lab, "1788220800000-0", "1788220800001-0", tenant="lab")
    page = record("list_letters", queue="basecall", status="open")
    second, first = (row["letter"] for row in page["rows"])
    record("show_letter", letter=first)
    record("redrive_letter", letter=first, reason="the producer was corrected", revision="2")
    record("discard_letter", letter=second)


def record_webhooks(record):
    record("apply_source")
    record("rotate_secret")
    body = b'{"id": "evt_1", "type": "invoice.paid", "sample": "S-9"}'
    record(
        "receive_webhook", tenant="lab", content=body,
        headers=signed_headers("stripe", body, secret="whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),  # noqa: S106
    )  # fmt: skip
    record("list_sources")
    record("show_source")
    record("list_deliveries")


def record_ledgers(record):
    ledger = {"ledger": "dispatch"}
    record("declare_ledger", **ledger, **RULES)
    record("append_event", **ledger, **DRONE, seq=1, kind="REQUESTED")
    record("append_events", **ledger, events=[{**DRONE, "seq": 2, "kind": "CONFIRMED"}])
    record("show_ledger", **ledger)
    record("list_ledgers")
    record("show_entity", **ledger, entity=["drone-7"])
    record("list_events", **ledger, entity=["drone-7"], limit=1)
    feed = {"feed": "notify"}
    record("declare_feed", **feed, **ledger, start="beginning")
    [event, *_] = record("read_feed", **feed)["rows"]
    record("confirm_feed", **feed, after=event["after"], to=event["position"], count=1)
    record("show_feed", **feed)
    record("list_feeds")
    record("pause_feed", **feed, reason="the pager was down")
    record("resume_feed", **feed, reason="the pager is up")
    record("rewind_feed", **feed, reason="the pager was down", since=datetime.now(UTC).isoformat())


def record_fences(record, lab):
    dsn, cents = lab.database.dsn("pool"), {"cents": 500}
    with HelixQueue(dsn, tenant="lab", actor="billing", pooled=POOLED) as helix:
        for order in ("order-7", "order-8"):
            with pytest.raises(TimeoutError), helix.fence("refund", key=order, payload=cents):
                raise TimeoutError("the bank did not answer")
        page = backend_of(helix).run(fence_calls.list_fences(name="refund"))
    record(
        "resolve_fences", reason="the bank lists none of them", applied=False, name="refund",
        dry_run=True,
    )  # fmt: skip
    fence = page.rows[-1]
    record(
        "resolve_fence", fence=fence.fence, reason="found in the bank's ledger",
        version=fence.version, applied=True, effect="re_77", result={"id": "re_77"},
    )  # fmt: skip
    record("show_fence", fence=fence.fence)
    record("list_fences", name="refund", state="SEALED")
    record("rehearse", calls=[{"name": "refund", "key": "order-7", "payload": cents}])


def record_tokens(record):
    record("show_token")
    record("create_token", name="uploader", scopes=["submit", "read"], queues=["basecall"], days=90)
    record("rotate_token", name="uploader", overlap_seconds=3600)
    record("revoke_token", name="uploader", reason="the laptop was lost")
    record("list_tokens")
    record("log_in", code=record("offer_login", name="ada")["code"])


def record_service(record, lab):
    report = {"stream": "samples", "group": "helixqueue", "consumer": "node-1", "problem": None}
    figures = {"read": 64, "new": 60, "duplicate": 3, "letters": 1, "vanished": 0}
    lab.run(
        letters.report_intake(tenant="lab", **report, started_at=datetime.now(UTC), figures=figures)
    )
    record("list_intakes")
    record("list_findings")
    for name in ("live", "ready", "list_keys", "replay", "metrics"):
        record(name)
    record("check", invariant=["hash_broken"])
    lab.run(note_check(tenant="lab", actor="ann", seconds=0.4, results=CHECKED))
    record("list_checks", limit=2)
    record("seal")
    record("list_seals")
    record("show_seal", number=1)
    document = record("document")
    document["paths"] = {}
    document.pop("components")
