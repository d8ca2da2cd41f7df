"""Examples of fences."""

from __future__ import annotations

from typing import Any, Final

from helixqueue.records.fence import MEANS

FENCE: Final = "v1:4c0d9e1f6b2a7d5e8c3f0a9b4d1e6c7f2a5b8d0e3c6f9a1b4d7e0c3f6a9b2d5e"
_CREATED = "2026-09-01T08:00:00Z"

FENCED: Final[dict[str, Any]] = {
    "fence": FENCE,
    "tenant": "lab",
    "name": "http /v1/queues/{queue}/batches",
    "identity": ["uploader", "upload-2026-09-01-S-1"],
    "state": "SEALED",
    "version": 2,
    "attempt": 1,
    "actor": "uploader",
    "reason": "sealed",
    "detail": None,
    "first_at": _CREATED,
    "changed_at": _CREATED,
    "deadline": "2026-09-01T08:00:30Z",
    "effect": None,
    "form": "http",
    "digest": "1b" * 32,
    "answer_kept": True,
    "answer_until": "2026-09-02T08:00:00Z",
    "until": "2026-10-01T08:00:00Z",
    "quiet_seconds": 90.0,
    "fingerprint": "6f" * 32,
    "receipt": "r2:" + "5e" * 32,
    "sealed_at": _CREATED,
}
FENCE_DETAIL: Final[dict[str, Any]] = {
    **FENCED,
    "means": MEANS["SEALED"],
    "receipt_document": {
        "tenant": "lab",
        "name": FENCED["name"],
        "identity": FENCED["identity"],
        "key": FENCE,
        "fingerprint": "6f" * 32,
        "effect": None,
        "form": "http",
        "digest": "1b" * 32,
        "first_at": "2026-09-01T08:00:00.000000Z",
        "sealed_at": "2026-09-01T08:00:00.000000Z",
        "id": "r2:" + "5e" * 32,
    },
    "history": [
        {
            "at": _CREATED,
            "what": "claimed",
            "from_state": None,
            "to_state": "EFFECT_STARTED",
            "attempt": 1,
            "actor": "uploader",
            "detail": None,
        }
    ],
}
RESOLVE: Final[dict[str, Any]] = {
    "reason": "found in the bank's ledger",
    "version": 2,
    "applied": True,
    "effect": "re_77",
    "result": {"id": "re_77"},
}
RESOLVE_MANY: Final[dict[str, Any]] = {
    "reason": "the bank lists none of them",
    "applied": False,
    "name": "refund",
    "age_seconds": 3600,
    "dry_run": True,
}
RESOLVED: Final[dict[str, Any]] = {
    "rows": [
        {name: FENCED[name] for name in ("fence", "name", "identity", "changed_at")}
        | {"answer": "dry_run"}
    ],
    "next": None,
}
FENCE_CALL: Final[dict[str, Any]] = {
    "name": "refund",
    "key": ["order-7", 2],
    "payload": {"cents": 500},
}
FENCE_PREVIEW: Final[dict[str, Any]] = {
    "fence": FENCE,
    "decision": "repeated",
    "means": "the effect happened; the kept answer is returned",
}
FENCE_EXAMPLES: Final[dict[str, tuple[Any, Any]]] = {
    "list_fences": ({"rows": [FENCED], "next": None}, None),
    "show_fence": (FENCE_DETAIL, None),
    "resolve_fence": (FENCE_DETAIL, RESOLVE),
    "resolve_fences": (RESOLVED, RESOLVE_MANY),
    "rehearse": ({"rows": [FENCE_PREVIEW], "next": None}, {"calls": [FENCE_CALL]}),
}
FENCE_PARAMETERS: Final[dict[str, Any]] = {
    "fence": FENCE,
    "list_fences.state": "SEALED",
    "list_fences.name": FENCED["name"],
}
