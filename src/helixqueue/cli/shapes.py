"""The JSON of `--json`: scripts depend on it, so a name never changes its meaning.

An identity is a string, a list of strings when it has several parts, or null. A time is ISO 8601.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.cli.unicode_diff import differences
from helixqueue.records.batch import identity_value
from helixqueue.records.submission import Accepted, Receipt

if TYPE_CHECKING:
    from helixqueue.records.batch import ActionResult, BatchContent, BatchDetail, BatchRow
    from helixqueue.records.worker import WorkerRow


def batch(row: BatchRow) -> dict[str, Any]:
    return plain_members(asdict(row)) | {
        "identity": identity_value(row.identity),
        "raw": identity_value(row.raw),
    }


def batch_detail(detail: BatchDetail, *, payload: bool) -> dict[str, Any]:
    shape = plain_members(asdict(detail)) | {
        "identity": identity_value(detail.identity),
        "raw": identity_value(detail.raw),
        "differences": differences(detail.raw, detail.identity),
    }
    for name in ("payload", "result"):
        text = shape.pop(name)
        if payload:
            shape[name] = None if text is None else json.loads(text)
    return shape


def batch_content(content: BatchContent) -> dict[str, Any]:
    shape = plain_members(asdict(content)) | {
        "identity": identity_value(content.identity),
        "raw": identity_value(content.raw),
    }
    for name in ("payload", "result"):
        shape[name] = None if shape[name] is None else json.loads(shape[name])
    return shape


def worker(row: WorkerRow) -> dict[str, Any]:
    return plain_members(asdict(row))


def action_result(result: ActionResult) -> dict[str, Any]:
    return plain_members(asdict(result)) | {"identity": identity_value(result.identity)}


def plain_members(members: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in members.items()}


def plain(record: Any) -> Any:  # noqa: ANN401 - any record
    """The JSON of a record, or of a list of them."""
    if isinstance(record, list):
        return [plain(item) for item in record]
    if isinstance(record, Accepted):
        members = record._asdict()
        del members["error"]
        return members | {
            "receipt": dict(zip(Receipt.__match_args__, record.receipt.texts, strict=True))
        }
    return plain_members(asdict(record))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any member of a record
    if isinstance(value, dict):
        return plain_members(value)
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def setting_text(name: str, value: object) -> str:
    """A setting of a queue for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("keep_") and not value:
        return "forever"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)
