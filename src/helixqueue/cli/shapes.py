"""The JSON of `--json`: scripts depend on it, so a name never changes its meaning.

An identity is a string, a list of strings when it has several parts, or null. A time is ISO 8601.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import Field, fields, is_dataclass
from datetime import datetime
from typing import Any

from helixqueue.records.batch import identity_value
from helixqueue.records.submission import Accepted, Receipt


def plain(record: Any) -> Any:  # noqa: ANN401 - any record, or a member of one
    """The JSON of a record, or of a list of them."""
    if isinstance(record, Accepted):
        members = record._asdict()
        del members["error"]
        receipt = dict(zip(Receipt.__match_args__, record.receipt.texts, strict=True))
        return members | {"receipt": receipt}
    if is_dataclass(record):
        return {field.name: _member(field, getattr(record, field.name)) for field in fields(record)}
    if isinstance(record, dict):
        return {name: plain(value) for name, value in record.items()}
    if isinstance(record, list | tuple):
        return [plain(item) for item in record]
    if isinstance(record, bytes):
        return b64encode(record).decode()
    return record.isoformat() if isinstance(record, datetime) else record


def _member(field: Field[Any], value: Any) -> Any:  # noqa: ANN401
    return identity_value(value) if field.type == "IdentityParts" else plain(value)


def setting_text(name: str, value: object) -> str:
    """A setting of a queue for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("keep_") and not value:
        return "forever"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)
