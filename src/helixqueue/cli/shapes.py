"""The JSON of `--json`: scripts depend on it, so a name never changes its meaning.

An identity is a string, a list of strings when it has several parts, or null. A time is ISO 8601.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.cli.unicode_diff import differences

if TYPE_CHECKING:
    from helixqueue.records.batch import ActionResult, BatchDetail, BatchRow
    from helixqueue.records.queue import BoundedCount, QueueRow, QueueSummary
    from helixqueue.records.worker import WorkerRow


def identity(parts: tuple[str, ...]) -> str | list[str] | None:
    return (parts[0] if len(parts) == 1 else list(parts)) if parts else None


def batch(row: BatchRow) -> dict[str, Any]:
    return _plain_members(row._asdict()) | {
        "identity": identity(row.identity),
        "raw": identity(row.raw),
    }


def batch_detail(detail: BatchDetail, *, payload: bool) -> dict[str, Any]:
    shape = _plain_members(asdict(detail)) | {
        "identity": identity(detail.identity),
        "raw": identity(detail.raw),
        "differences": differences(detail.raw, detail.identity),
    }
    for name in ("payload", "result"):
        text = shape.pop(name)
        if payload:
            shape[name] = None if text is None else json.loads(text)
    return shape


def worker(row: WorkerRow) -> dict[str, Any]:
    return _plain_members(asdict(row))


def action_result(result: ActionResult) -> dict[str, Any]:
    return _plain_members(asdict(result)) | {"identity": identity(result.identity)}


def settings(row: QueueRow) -> dict[str, Any]:
    return asdict(row)


def queue(summary: QueueSummary) -> dict[str, Any]:
    counts: dict[str, BoundedCount] = {name: getattr(summary, name) for name in COUNTS}
    return settings(summary.settings) | {
        "counts": {name: {"number": c.number, "more": c.more} for name, c in counts.items()}
    }


COUNTS = ("ready", "waiting", "assigned", "running", "completed", "failed", "cancelled")


def _plain_members(members: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in members.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any member of a record
    if isinstance(value, dict):
        return _plain_members(value)
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return value.isoformat() if isinstance(value, datetime) else value
