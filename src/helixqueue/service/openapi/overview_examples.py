"""Examples of figures over time, late writes, actions and search."""

from __future__ import annotations

from typing import Any, Final

from helixqueue.service.openapi.problem_examples import BATCH

_FIGURES: Final[dict[str, Any]] = {
    "submitted": 27,
    "repeated": 2,
    "completed": 23,
    "failed": 1,
    "cancelled": 0,
    "lost": 1,
    "refused": 1,
    "wait_p50": 0.8,
    "wait_p95": 21.0,
    "run_p50": 200.1,
    "run_p95": 875.4,
}
OVERVIEW: Final[dict[str, Any]] = {
    "now": "2026-09-01T08:31:40Z",
    "kept_at": "2026-09-01T08:31:33Z",
    "queues": [
        {
            "queue": "basecall",
            "condition": "flowing",
            "paused": False,
            "pending": 9,
            "oldest_seconds": 21.4,
            "leased": 18,
            "failed": 0,
            "completed_today": 6412,
            "hour": _FIGURES,
        }
    ],
    "more_queues": 0,
    "hour": _FIGURES,
    "today": _FIGURES,
    "workers_alive": 8,
    "workers_known": 9,
    "slots": 42,
    "leased": 18,
    "fences_in_doubt": 0,
    "oldest_doubt_seconds": None,
    "letters": 0,
    "findings": 0,
    "reconciled_at": "2026-09-01T08:31:12Z",
}
SERIES: Final[dict[str, Any]] = {
    "queue": "basecall",
    "period": "1h",
    "start": "2026-09-01T07:31:00Z",
    "end": "2026-09-01T08:31:00Z",
    "step_seconds": 60,
    "kept_at": "2026-09-01T08:31:33Z",
    "total": _FIGURES,
    "points": [{**_FIGURES, "at": "2026-09-01T07:31:00Z", "pending": 9}],
}
REFUSALS: Final[dict[str, Any]] = {
    "rows": [
        {
            "first_at": "2026-09-01T08:33:02Z",
            "last_at": "2026-09-01T08:33:02Z",
            "operation": "settle",
            "worker": "gpu-2",
            "owner": "gpu-1",
            "why": "the token is stale",
            "times": 1,
            "batch_id": BATCH,
            "queue": "basecall",
            "identity": "S-1",
            "state": "COMPLETED",
            "finished_at": "2026-09-01T08:31:40Z",
            "attempts": [
                {
                    "attempt": 1,
                    "epoch": None,
                    "number": None,
                    "worker": "gpu-2",
                    "claimed_at": "2026-09-01T08:00:02Z",
                    "started_at": "2026-09-01T08:00:02Z",
                    "ended_at": "2026-09-01T08:06:41Z",
                    "end": "lost",
                    "ended_by": "gpu-1",
                    "detail": None,
                    "late": False,
                }
            ],
        }
    ],
    "next": None,
}
ACTIVITY: Final[dict[str, Any]] = {
    "rows": [
        {
            "at": "2026-09-01T08:33:02Z",
            "actor": "lab-operator",
            "action": "retried",
            "subject": "batch",
            "name": "align",
            "batches": 7,
            "batch_id": BATCH,
            "detail": "workers with more memory",
        }
    ],
    "next": None,
}
SEARCH: Final[dict[str, Any]] = {
    "rows": [
        {"kind": "batch", "name": "S-1", "id": BATCH, "queue": "basecall", "state": "COMPLETED"}
    ],
    "next": None,
}
WAITING: Final[dict[str, Any]] = {
    "rows": [
        {
            "batch_id": BATCH,
            "identity": "S-1",
            "since": "2026-09-01T08:00:00Z",
            "attempt": 0,
            "why": "no worker fits: needs gpus 1",
            "requires": {"gpus": 1},
            "workers_alive": 2,
            "workers_fitting": 0,
            "detail": None,
        }
    ],
    "next": None,
}
PROOF: Final[dict[str, Any]] = {
    "entries": [
        {
            "version": 1,
            "hash": "6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a6f5d2b7e3f6c1f5e5d0a5c1b9a510c5a",
            "sound": True,
        }
    ],
    "sound": True,
}
