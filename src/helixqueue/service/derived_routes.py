"""Routes made from operations: FastAPI reads a signature that is made of the declaration.

A route checks the request, opens the cursor, runs the operation for the principal, redacts the
answer if the token lacks the scope payloads, and seals the cursor of the next page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin, get_type_hints

import orjson
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Strict, TypeAdapter, create_model
from starlette.responses import Response

from helixqueue.operations.operation import UNCHANGED, Operation, Parameter, operations_of
from helixqueue.records.batch import ActionResult, JsonText
from helixqueue.records.page import Page
from helixqueue.records.parameter import ABSENT, kind_of
from helixqueue.records.submission import Accepted
from helixqueue.service.models import responses
from helixqueue.service.models.requests import RequestModel
from helixqueue.service.routing import PrincipalDep, RequestLogDep, router
from helixqueue.service.routing import operation as requirements

if TYPE_CHECKING:
    from helixqueue.log.requests import RequestLog
    from helixqueue.service.principal import Principal
    from helixqueue.service.tenant_cipher import TenantCipher

# Parameters that the request log shows, and their fields.
LOGGED: Final = {
    "queue": "queue", "ledger": "ledger", "feed": "feed", "fence": "fence", "reason": "reason",
    "batch_id": "batch",
}  # fmt: skip


def routes_of(subject: ModuleType, tag: str | None = None) -> APIRouter:
    """The routes of the operations that a module declares; its name is their tag unless given."""
    routes = router(tag or subject.__name__.rpartition(".")[2])
    for operation in operations_of(subject):
        routes.add_api_route(
            operation.path,
            _endpoint(operation),
            methods=[operation.method],
            name=operation.name,
            summary=operation.summary.removesuffix("."),
            description=operation.description,
            response_model=_model(operation.answer),
            status_code=operation.status,
            **requirements(
                operation.scope,
                *(error.kind for error in operation.raises),
                fenced=operation.fenced,
            ),
        )
    return routes


def _endpoint(operation: Operation[..., Any]) -> Callable[..., Any]:
    async def endpoint(
        *,
        principal: Principal,
        request_log: RequestLog,
        body: BaseModel | None = None,
        **values: Any,  # noqa: ANN401
    ) -> Response:
        if body is not None:
            members = {name: getattr(body, name) for name in body.model_fields_set}
            values |= {
                name: value
                for name, value in members.items()
                if value is not None or operation.parameters[name].default is ABSENT
            }
        request_log.add(**{field: values.get(name) for name, field in LOGGED.items()})
        answer = await run_operation(operation, values, principal)
        if isinstance(answer, Accepted):  # as the hot route of submit encodes it
            request_log.add(batch=answer.receipt.batch_id, decision=answer.decision)
            content = responses.submitted(
                answer, values=principal.sees_payloads, request_id=request_log.request_id
            )
            return responses.json_response(content)
        _log(operation, answer, request_log)
        # FastAPI would validate and copy each row first.
        text = _encoded(operation, answer)
        return Response(text, operation.status, media_type="application/json")

    endpoint.__signature__ = _signature(operation)  # type: ignore[attr-defined]
    return endpoint


async def run_operation(
    operation: Operation[..., Any], values: dict[str, Any], principal: Principal
) -> Any:  # noqa: ANN401 - of the operation's type
    """Run an operation for a principal; the caller has checked its scope and the values."""
    sealed = _sealed(
        {name: parameter.annotation for name, parameter in operation.parameters.items()}
    )
    for name in sealed & values.keys():
        values[name] = await principal.open_cursor(values[name])
    instructions = operation.function(principal.operations, **values)
    answer = await principal.run_instructions(instructions, in_thread=operation.computes)
    redact = None if principal.sees_payloads else operation.redact
    record: Any = operation.answer
    if isinstance(answer, Page):
        [record] = get_args(record)
    rows = answer.rows if isinstance(answer, Page) else (answer,)
    if redact is not None:
        rows = tuple(map(redact, rows))
    if _sealed_fields(record):
        rows = _hidden(rows, await principal.cipher())
    if isinstance(answer, Page):
        return Page(rows, await principal.seal_cursor(answer.next))
    return rows[0]


def _log(operation: Operation[..., Any], answer: object, request_log: RequestLog) -> None:
    """The answer of each batch that an operator changed."""
    if isinstance(answer, ActionResult):
        request_log.add(decision=answer.answer)
    if operation.answer != Page[ActionResult]:
        return
    verb = operation.name.partition("_")[0]
    results: tuple[ActionResult, ...] = answer.rows  # type: ignore[attr-defined]
    for row in results:
        request_log.add_line(verb, batch=row.batch_id, decision=row.answer, state=row.state)
    decisions = sorted({row.answer for row in results})
    request_log.add(count=len(results), decision=decisions or None)


def _encoded(operation: Operation[..., Any], answer: Any) -> bytes:  # noqa: ANN401 - a record
    """The JSON of an answer; payloads are inserted as their texts, which may have a mebibyte."""
    members = {name: getattr(answer, name, None) for name in ("payload", "result")}
    texts = {name: value for name, value in members.items() if isinstance(value, JsonText)}
    if texts:
        answer = replace(answer, **dict.fromkeys(texts))
    encoded: bytes = _adapter(operation.answer).dump_json(answer, warnings=False)
    if not texts:
        return encoded
    fragments = {name: orjson.Fragment(text.encode()) for name, text in texts.items()}
    return orjson.dumps(orjson.loads(encoded) | fragments)


@cache
def _adapter(answer: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a type
    return TypeAdapter(answer)


@cache
def _sealed_fields(record: Any) -> dict[str, bool]:  # noqa: ANN401 - a type
    """Fields that a service encrypts; True: records that have such fields."""
    if not is_dataclass(record):
        return {}
    hints = get_type_hints(record, include_extras=True)
    parts = {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is tuple}
    nested = {name: True for name, part in parts.items() if _sealed_fields(part)}
    return dict.fromkeys(_sealed(hints), False) | nested


def _hidden(rows: tuple[Any, ...], cipher: TenantCipher) -> tuple[Any, ...]:
    """Records with their sealed fields encrypted."""
    seal = cache(cipher.seal)  # neighbours share a position

    def hidden(value: Any, *, nested: bool) -> Any:  # noqa: ANN401 - of any field
        if nested:
            return tuple(map(row_hidden, value))
        if value is None:
            return None
        return cipher.hide(value) if isinstance(value, int) else seal(value)

    def row_hidden(row: Any) -> Any:  # noqa: ANN401 - any record
        record: Any = type(row)
        names = _sealed_fields(record)
        changes = {name: hidden(getattr(row, name), nested=names[name]) for name in names}
        return replace(row, **changes)

    return tuple(map(row_hidden, rows))


def _sealed(annotations: dict[str, Any]) -> set[str]:
    """The names of what a service encrypts."""
    return {name for name, kind in annotations.items() if kind_of(kind).param.sealed}


def _model(answer: Any) -> Any:  # noqa: ANN401 - a type
    return responses.SubmittedResponse if get_origin(answer) is Accepted else answer


def _signature(operation: Operation[..., Any]) -> inspect.Signature:
    """What FastAPI reads: path parameters, then a query or one body."""
    kinds: dict[str, tuple[Any, Any]] = {"principal": (PrincipalDep, UNCHANGED)}
    kinds["request_log"] = (RequestLogDep, UNCHANGED)
    members: dict[str, Any] = {}
    for name, parameter in operation.parameters.items():
        kind, text = parameter.annotation, kind_of(parameter.annotation).param.text
        if parameter.in_path:
            kinds[name] = (Annotated[kind, Path(description=text)], UNCHANGED)
        elif operation.method == "GET":
            query = Annotated[kind, Query(description=text)]  # type: ignore[valid-type]
            kinds[name] = (query, parameter.default)
        else:
            members[name] = _member(parameter)
    if members:
        title = operation.name.title().replace("_", "")
        body = create_model(f"{title}Request", __base__=RequestModel, **members)
        kinds["body"] = (body, UNCHANGED)
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default
            )
            for name, (kind, default) in kinds.items()
        ]
    )


def _member(parameter: Parameter) -> tuple[Any, Any]:
    """A member of a body. JSON has types, so numbers and flags are not read from strings."""
    base, param, optional = kind_of(parameter.annotation)
    kind: Any = Annotated[base, param, *([Strict()] if base in {int, float, bool} else [])]
    if parameter.required:
        return (kind | None if optional else kind), ...
    return kind | None, None if parameter.default in (UNCHANGED, ABSENT) else parameter.default
