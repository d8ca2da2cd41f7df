"""Examples of the OpenAPI document: batch S-1 is submitted, completed by gpu-1, and read.

Every operation has an entry. A test sends each request to a real service and validates each
response example against its schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from helixqueue.service.openapi import letter_examples, overview_examples
from helixqueue.service.openapi.fence_examples import FENCE_EXAMPLES, FENCE_PARAMETERS
from helixqueue.service.openapi.ledger_examples import LEDGER_EXAMPLES, LEDGER_PARAMETERS
from helixqueue.service.openapi.problem_examples import BATCH
from helixqueue.service.openapi.proof_examples import KEYS, SEAL, SEAL_REQUEST

_KEY = "v1:9b1f0f7c0f5a4f0d8f1b6f2f7c3d5e8a1b4c7d0e3f6a9b2c5d8e1f4a7b0c3d6e"
_FINGERPRINT = "6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a"
_LEASE = "k7Qw" * 24  # not a real lease
_CREATED = "2026-09-01T08:00:00Z"
_CLAIMED = "2026-09-01T08:00:02Z"
_ENDED = "2026-09-01T08:31:40Z"
_LATER = "2026-09-01T08:33:02Z"
REQUEST: Final = "7f0c1d7e9a5b4f66"

_SUBMISSION = {"identity": "S-1", "payload": {"pod5": "a.pod5"}}
_RECEIPT = {"batch_id": BATCH, "key": _KEY, "fingerprint": _FINGERPRINT}
_SUBMITTED = {"decision": "new", "receipt": _RECEIPT, "state": "PENDING", "differs": []}
_REASON = {"reason": "reads were contaminated"}
_LEASES = {"worker": "gpu-1", "leases": [_LEASE]}
_SETTLEMENT = {
    "lease": _LEASE,
    "outcome": "completed",
    "result": {"reads": 4_180_332},
}
_WRITTEN = {"state": "RUNNING", "late": False, "mismatch": False}
_WRITE = {"lease": _LEASE, "answer": "ok", "owner": None, **_WRITTEN}
_REFUSED = {"lease": _LEASE[::-1], "answer": "refused", "owner": "gpu-2", **_WRITTEN}
_BATCH = {
    "batch_id": BATCH,
    "key": _KEY,
    "tenant": "lab",
    "queue": "basecall",
    "identity": "S-1",
    "raw": "S-1",
    "revision": "",
    "priority": 5,
    "created_at": _CREATED,
    "state": "COMPLETED",
    "attempt": 1,
    "worker": None,
    "deadline": None,
    "cause": None,
    "due": None,
    "finished_at": _ENDED,
    "finished_by": "gpu-1",
    "failure": None,
    "detail": None,
}
_DUTY = {"duty": "reap", "last_at": _ENDED, "lag_seconds": 0.0, "failed": None}
_STEP = {"actor": "gpu-1", "attempt": 1, "epoch": 1, "number": 7, "detail": None, "late": False}
_SUBMIT_STEP = {**_STEP, "actor": "uploader", "attempt": 0, "epoch": None, "number": None}
_EVENTS = [
    {**_SUBMIT_STEP, "version": 1, "at": _CREATED, "from_state": None, "to_state": "PENDING",
     "reason": "submitted"},
    {**_STEP, "version": 2, "at": _CLAIMED, "from_state": "PENDING", "to_state": "ASSIGNED",
     "reason": "claimed"},
    {**_STEP, "version": 3, "at": _CLAIMED, "from_state": "ASSIGNED", "to_state": "RUNNING",
     "reason": "started"},
    {**_STEP, "version": 4, "at": _ENDED, "from_state": "RUNNING", "to_state": "COMPLETED",
     "reason": "completed"},
]  # fmt: skip
_ATTEMPT = {
    "attempt": 1, "epoch": 1, "number": 7, "worker": "gpu-1", "claimed_at": _CLAIMED,
    "started_at": _CLAIMED, "ended_at": _ENDED, "end": "completed", "ended_by": "gpu-1",
    "detail": None, "late": False,
}  # fmt: skip
_DETAIL = {
    **_BATCH,
    "fingerprint": _FINGERPRINT,
    "profile": "lab-id-v1",
    "run_at": None,
    "expires_at": None,
    "limit_key": None,
    "actor": "uploader",
    "place": "outcome",
    "version": 4,
    "epoch": None,
    "number": None,
    "retired_at": None,
    "erased": False,
    "has_payload": True,
    "payload": {"pod5": "a.pod5"},
    "has_result": True,
    "result": {"reads": 4_180_332},
    "events": _EVENTS,
    "attempts": [_ATTEMPT],
    "refusals": [],
    "decisions": [{"at": _LATER, "kind": "duplicate", "actor": "uploader", "detail": None}],
    "sources": [letter_examples.SOURCE],
}  # fmt: skip
_QUEUE = {
    "tenant": "lab",
    "name": "basecall",
    "profile": "lab-id-v1",
    "lease_seconds": 120.0,
    "max_attempts": 5,
    "backoff_seconds": 10.0,
    "backoff_max_seconds": 600.0,
    "key_limit": 1,
    "unknown": "refuse",
    "paused": False,
    "closed": False,
    "requires": {"gpus": 1},
    "payload_schema": None,
    "result_schema": None,
    "keep_completed_seconds": 7_776_000.0,
    "keep_failed_seconds": 0.0,
    "keep_cancelled_seconds": 0.0,
    "keep_decisions_seconds": 0.0,
    "stalled_after_seconds": 900.0,
    "resubmit_failed": "answer",
    "placeholders": ["unknown", "none", "null", "n/a"],
}
_ZERO = {"number": 0, "more": False}
_COUNTS = dict.fromkeys(("waiting", "assigned", "failed", "cancelled"), _ZERO) | {
    "ready": {"number": 1_000, "more": True},
    "running": {"number": 4, "more": False},
    "completed": {"number": 212, "more": False},
}
_TOKEN = {
    "tenant": "lab",
    "name": "uploader",
    "generation": 1,
    "scopes": ["submit", "read"],
    "queues": ["basecall"],
    "created_at": _CREATED,
    "created_by": "ann",
    "expires_at": "2026-12-01T08:00:00Z",
    "revoked_at": None,
    "revoked_by": None,
    "reason": None,
    "last_used_at": None,
    "good": True,
}
_CURSOR = "vJ7m2kQy0aT4Xn8cW1sBzLr5Eo9uHdGfIpMtKxQvYb3aRw"
_CHANGE = (
    f"id: {_CURSOR}\nevent: change\n"
    f'data: {{"batch_id": "{BATCH}", "version": 2, "to_state": "ASSIGNED"}}\n\n'
)
_METRICS = (
    "# TYPE helix_submissions_total counter\n"
    'helix_submissions_total{queue="basecall",decision="new"} 1.0\n'
)


@dataclass(frozen=True)
class Example:
    response: Any  # of the default status
    request: Any = None
    others: dict[str, Any] = field(default_factory=dict)  # responses of other 2xx statuses


def _action_result(state: str) -> dict[str, Any]:
    return {
        "batch_id": BATCH, "answer": "ok", "state": state, "note": None,
        "queue": "basecall", "identity": "S-1", "revision": "",
    }  # fmt: skip


def _action(state: str) -> Example:
    return Example(_action_result(state), request=_REASON)


# By operationId.
OPERATIONS: Final[dict[str, Example]] = {
    "submit": Example(
        _SUBMITTED, request=_SUBMISSION, others={"200": {**_SUBMITTED, "decision": "duplicate"}}
    ),
    "submit_many": Example(
        {"submitted": [_SUBMITTED, {**_SUBMITTED, "decision": "duplicate"}]},
        request={"submissions": [_SUBMISSION, {**_SUBMISSION, "priority": 1}]},
    ),
    "note_refused": Example(
        None,
        request={
            "refused": [{"raw": "532d31e2808b", "why": "a zero-width space (U+200B) at offset 3"}]
        },
    ),
    "list_batches": Example(
        {"rows": [{**_BATCH, "last_worker": None, "refused": False}], "next": None}
    ),
    "list_causes": Example({"rows": [letter_examples.CAUSE], "next": None}),
    "show_batch": Example(_DETAIL),
    "show_outcome": Example(letter_examples.OUTCOME),
    "retry_batch": _action("PENDING"),
    "cancel_batch": _action("CANCELLED"),
    "release_batch": _action("PENDING"),
    "erase_batch": _action("COMPLETED"),
    "retry_batches": Example(
        {"rows": [_action_result("PENDING")], "next": None},
        request={
            "reason": "workers with more memory",
            "queue": "basecall",
            "failure": "OutOfMemory",
        },
    ),
    "cancel_batches": Example(
        {"rows": [_action_result("CANCELLED")], "next": None},
        request={"reason": "flow cell replaced", "queue": "basecall", "state": "PENDING"},
    ),
    "list_queues": Example({"rows": [{**_QUEUE, "counts": _COUNTS}], "next": None}),
    "show_queue": Example({**_QUEUE, "counts": _COUNTS}),
    "show_settings": Example(_QUEUE),
    "set_queue": Example(
        _QUEUE,
        request={
            "reason": "a new assay",
            "profile": "lab-id-v1",
            "lease_seconds": 120,
            "max_attempts": 5,
            "requires": {"gpus": 1},
            "keep_completed_seconds": 7_776_000,
        },
    ),
    "pause_queue": Example({**_QUEUE, "paused": True}, request={"reason": "flow cell exchange"}),
    "resume_queue": Example(_QUEUE, request={"reason": "flow cell exchanged"}),
    "delete_queue": Example(
        {"tenant": "lab", "queue": "basecal"}, request={"reason": "a typing error"}
    ),
    "show_overview": Example(overview_examples.OVERVIEW),
    "show_series": Example(overview_examples.SERIES),
    "list_refusals": Example(overview_examples.REFUSALS),
    "list_activity": Example(overview_examples.ACTIVITY),
    "search": Example(overview_examples.SEARCH),
    "list_waiting": Example(overview_examples.WAITING),
    "prove_batch": Example(overview_examples.PROOF),
    "list_refused": Example(
        {
            "rows": [
                {"at": _CREATED, "actor": "uploader", "raw_hex": "532d31e2808b",
                 "why": "U+200B at 3: zero-width characters are refused"},
            ],
            "next": None,
        }
    ),
    "list_identities": Example(
        {"rows": [{"batch_id": BATCH, "identity": "S-1", "raw": None}], "next": None}
    ),
    "list_workers": Example({"rows": [letter_examples.WORKER], "next": None}),
    "show_worker": Example({**letter_examples.WORKER, "batches": []}),
    "hello": Example(None, request={"worker": "gpu-1", "free": {"gpus": 1, "gpu_vram_gb": 24}}),
    "claim": Example(
        {
            "leases": [
                {"lease": _LEASE, "batch_id": BATCH, "key": _KEY, "tenant": "lab",
                 "queue": "basecall", "identity": "S-1", "revision": "",
                 "payload": {"pod5": "a.pod5"}, "attempt": 1, "state": "RUNNING",
                 "deadline": "2026-09-01T08:02:02Z", "lease_seconds": 120.0},
            ],
            "settled": [],
            "more": False,
        },
        request={
            "worker": "gpu-1",
            "request": "b0c7c4f2-7d3f-4c58-8a0f-0f6b9f5f3a11",
            "queues": ["basecall"],
            "count": 4,
            "free": {"gpus": 1, "gpu_vram_gb": 24},
            "start": True,
        },
    ),
    "start": Example({"answers": [_WRITE]}, request=_LEASES),
    "renew": Example({"answers": [_WRITE, _REFUSED]}, request=_LEASES),
    "settle": Example(
        {"answers": [{**_WRITE, "state": "COMPLETED"}]},
        request={"worker": "gpu-1", "settlements": [_SETTLEMENT]},
    ),
    "release": Example(
        {"answers": [{**_WRITE, "state": "PENDING"}]},
        request={**_LEASES, "detail": "the node is drained"},
    ),
    "expect": Example(
        {"mark": "5e2a90c1.8d1f6b0c4a7e2f93"},
        request={"worker": "gpu-1", "queues": ["basecall"], "seconds": 60},
    ),
    "wait": Example(
        {"woken": True, "mark": "5e2a90c1.03c7e1d58ab96f42"},
        request={
            "worker": "gpu-1",
            "queues": ["basecall"],
            "mark": "5e2a90c1.8d1f6b0c4a7e2f93",
            "seconds": 0.5,
        },
    ),
    "list_letters": Example({"rows": [letter_examples.LETTER], "next": None}),
    "show_letter": Example(letter_examples.LETTER_DETAIL),
    "redrive_letter": Example(_SUBMITTED, request=letter_examples.REDRIVE),
    "discard_letter": Example({"letter": 7, "answer": "ok"}, request=_REASON),
    **{name: Example(*pair) for name, pair in LEDGER_EXAMPLES.items()},
    "changes": Example(_CHANGE),
    **{name: Example(*pair) for name, pair in FENCE_EXAMPLES.items()},
    "check": Example(
        {
            "ok": True,
            "every_tenant": False,
            "results": [
                {"name": "hash_broken", "promise": "G3", "count": 0,
                 "meaning": "An entry was edited.", "remedy": "Compare with a backup.",
                 "witnesses": [], "skipped": None, "late": False, "holds": True},
            ],
        }
    ),
    "replay": Example(
        {"events": 4, "batches": 1, "retired": 0, "violated": 0, "violations": [], "next": None},
    ),
    "show_token": Example(
        {
            "tenant": "lab",
            "name": "uploader",
            "generation": 1,
            "scopes": ["read", "submit"],
            "queues": ["basecall"],
            "expires_at": "2026-12-01T08:00:00Z",
        }
    ),
    "offer_login": Example(
        {"code": "hl_" + "A" * 43, "tenant": "lab", "until": _ENDED}, request={"name": "ada"}
    ),
    "list_tokens": Example({"rows": [_TOKEN], "next": None}),
    "create_token": Example(
        {**_TOKEN, "token": "hx_" + "x" * 43},
        request={
            "name": "uploader",
            "scopes": ["submit", "read"],
            "queues": ["basecall"],
            "days": 90,
        },
    ),
    "rotate_token": Example(
        {**_TOKEN, "generation": 2, "token": "hx_" + "x" * 43}, request={"overlap_seconds": 3600}
    ),
    "revoke_token": Example(
        {"tenant": "lab", "name": "uploader", "revoked": 2},
        request={"reason": "the laptop was lost"},
    ),
    "live": Example({"status": "live"}),
    "ready": Example({"status": "ready", "duties": [_DUTY]}),
    "log_in": Example(
        {
            "token": "hx_" + "A" * 43,
            "tenant": "lab",
            "name": "login-9b1f0f7c0f5a4f0d",
            "scopes": ["read", "submit"],
            "expires_at": "2026-09-01T20:00:00Z",
        },
        request={"code": "hl_" + "A" * 43},
    ),
    "list_keys": Example(KEYS),
    "seal": Example(SEAL, request=SEAL_REQUEST),
    "metrics": Example(_METRICS),
    "document": Example({"openapi": "3.1.0", "info": {"title": "HelixQueue"}, "paths": {}}),
}  # fmt: skip

# Examples of parameters, by name, or by operation and name.
PARAMETERS: Final[dict[str, Any]] = {
    "queue": "basecall",
    "batch_id": BATCH,
    "letter": 7,
    "status": "open",
    "reason": "json",
    **FENCE_PARAMETERS,
    **LEDGER_PARAMETERS,
    "name": "uploader",
    "state": "RUNNING",
    "identity": ["S-1"],
    "worker": "gpu-1",
    "since": _CREATED,
    "until": _ENDED,
    "before": _LATER,
    "failure": "OutOfMemory",
    "limit": 50,
    "payload": True,
    "result": True,
    "count_to": 1_000,
    "seconds": 300,
    "Idempotency-Key": "upload-2026-09-01-S-1",
    "last-event-id": _CURSOR,
}
