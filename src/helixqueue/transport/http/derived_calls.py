"""The request of an operation, and how to read its response, from its declaration."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_origin
from urllib.parse import quote, urlencode

from helixqueue.errors import Unavailable
from helixqueue.records.parameter import ABSENT
from helixqueue.records.submission import Accepted
from helixqueue.transport.http.call import HttpCall, Reply, to_json
from helixqueue.transport.http.calls import read_submitted
from helixqueue.transport.http.problem import error_of

if TYPE_CHECKING:
    from helixqueue.operations.operation import Operation

T = TypeVar("T")


def request_of(operation: Operation[..., T], values: dict[str, Any]) -> HttpCall[T]:
    named = {
        name: _plain(value)
        for name, value in values.items()
        if value is not None or operation.parameters[name].default is ABSENT
    }
    in_path = {name: named.pop(name) for name in list(named) if operation.parameters[name].in_path}
    path = operation.path.format(
        **{name: quote(str(value), safe="") for name, value in in_path.items()}
    )

    def read(reply: Reply) -> T:
        if not 200 <= reply.status < 300:
            raise error_of(reply.status, reply.headers, reply.body)
        answer: T = _reader(operation.answer)(reply)
        return answer

    if operation.method == "GET":
        query = urlencode(named, doseq=True)
        return HttpCall("GET", f"{path}?{query}" if query else path, read)
    key = f'"{uuid.uuid4()}"' if operation.fenced else None
    return HttpCall(operation.method, path, read, to_json(named), key)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


@cache
def _reader(answer: Any) -> Callable[[Reply], Any]:
    """What reads a body: pydantic, unless the record has a decoder of its own."""
    decode = DECODERS.get(get_origin(answer) or answer)
    if decode is not None:
        return lambda reply: decode(reply.json())
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - loaded when used
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - loaded when used

    validator = SchemaValidator(_with_any_word(TypeAdapter(answer).core_schema))

    def read(reply: Reply) -> Any:
        try:
            return validator.validate_json(reply.body)
        except ValidationError as error:
            raise Unavailable(
                f"expected {answer} from the service, got {reply.body[:60]!r}: "
                f"{error.error_count()} faults; check the URL and the releases of both sides",
                outcome_unknown=True,
                retry_after=math.inf,  # the repeat would get the same
            ) from error

    return read


def _with_any_word(schema: Any) -> Any:
    """A schema whose lists of words take any text: a newer service may have more of them."""
    if isinstance(schema, dict):
        if schema.get("type") == "literal":
            return {"type": "str"}
        if schema.get("type") == "enum":
            named = {"ref": schema.pop("ref")} if "ref" in schema else {}
            choices = [schema, {"type": "str"}]
            return {"type": "union", "mode": "left_to_right", "choices": choices, **named}
        return {name: _with_any_word(part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_with_any_word(part) for part in schema]
    return schema


def _read_accepted(document: dict[str, Any]) -> Accepted[Any]:
    row = read_submitted(document)
    assert row.receipt is not None  # noqa: S101 - of every accepted submission
    return Accepted(row.receipt, row.decision, row.state, row.differs)


# Records that bulk calls share, whose JSON is not that of their fields.
DECODERS: Final[dict[Any, Callable[[dict[str, Any]], Any]]] = {Accepted: _read_accepted}
