"""Examples of a dead letter, a source, an outcome, a cause of failures and a worker."""

from __future__ import annotations

from typing import Any, Final

from helixqueue.service.openapi.problem_examples import BATCH

LETTER: Final[dict[str, Any]] = {
    "letter": 7,
    "tenant": "lab",
    "queue": "basecall",
    "kind": "stream",
    "name": "samples",
    "source": "1788220800000-0",
    "reason": "json",
    "detail": "expected JSON text; got an unexpected end at offset 1",
    "status": "open",
    "size": 34,
    "complete": True,
    "deliveries": 1,
    "digest": "6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a",
    "first_at": "2026-09-01T08:00:00Z",
    "last_at": "2026-09-01T08:00:00Z",
    "actor": "intake helixqueue/node-1",
    "batch_id": None,
    "closed_at": None,
    "closed_by": None,
    "closed_for": None,
}
LETTER_DETAIL: Final = {**LETTER, "fields": {"identity": "S-1", "payload": "{"}, "body": None}
REDRIVE: Final = {"reason": "the producer was corrected", "revision": "2"}
SOURCE: Final[dict[str, Any]] = {
    "kind": "http",
    "name": "uploader",
    "id": "upload-2026-09-01-S-1",
    "decision": "new",
    "times": 1,
    "first_at": "2026-09-01T08:00:00Z",
    "last_at": "2026-09-01T08:00:00Z",
    "actor": "uploader",
}
OUTCOME: Final[dict[str, Any]] = {
    "batch_id": BATCH,
    "state": "COMPLETED",
    "attempt": 1,
    "finished_at": "2026-09-01T08:31:40Z",
    "finished_by": "gpu-1",
    "failure": None,
    "detail": None,
    "has_result": True,
    "result": {"reads": 4_180_332},
    "late": False,
    "queue": "basecall",
}
CAUSE: Final[dict[str, Any]] = {
    "tenant": "lab",
    "queue": "basecall",
    "failure": "OutOfMemory",
    "text": "N GB are not enough",
    "batches": 2,
    "example": "S-1",
    "revision": "",
    "newest": "2026-09-01T08:31:40Z",
}
WORKER: Final[dict[str, Any]] = {
    "name": "gpu-1",
    "role": None,
    "free": {"gpus": 1, "gpu_vram_gb": 24},
    "first_seen": "2026-09-01T08:00:00Z",
    "last_seen": "2026-09-01T08:31:40Z",
    "leases": 1,
}
