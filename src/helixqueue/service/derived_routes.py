"""Routes made from operations: FastAPI reads a signature that is made of the declaration.

A route checks the request, opens the cursor, runs the operation for the principal, hides what is
marked as `Payload` if the token lacks the scope payloads, and seals the cursor of the next page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
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
from helixqueue.records.parameter import ABSENT, Payload, kind_of
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
    for name, parameter in operation.parameters.items():
        if name in values and _is_sealed(parameter.annotation):
            values[name] = await principal.open_cursor(values[name])
    instructions = operation.function(principal.operations, **values)
    answer = await principal.run_instructions(instructions, in_thread=operation.computes)
    record: Any = operation.answer
    if isinstance(answer, Page):
        [record] = get_args(record)
    rows = answer.rows if isinstance(answer, Page) else answer
    if not principal.sees_payloads and _marked_fields(record, _is_payload):
        rows = _changed(rows, _is_payload, lambda _: None)
    if _marked_fields(record, _is_sealed):
        rows = _changed(rows, _is_sealed, _hiding(await principal.cipher()))
    if isinstance(answer, Page):
        return Page(rows, await principal.seal_cursor(answer.next))
    return rows


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
def _marked_fields(record: Any, is_marked: Callable[[Any], bool]) -> dict[str, bool]:  # noqa: ANN401 - a type
    """Fields with a mark; True: fields with records that have such fields."""
    if not (isinstance(record, type) and is_dataclass(record)):
        return {}
    hints = get_type_hints(record, include_extras=True)
    marked = {name: False for name, hint in hints.items() if is_marked(hint)}
    nested = {
        name: True
        for name, hint in hints.items()
        if any(_marked_fields(part, is_marked) for part in _types_in(hint))
    }
    return nested | marked


def _types_in(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - an annotation
    yield annotation
    for part in get_args(annotation):
        yield from _types_in(part)


def _changed(value: Any, is_marked: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - a record
    """A record, or several, with its marked fields changed, also in the records inside."""
    if value is None:
        return None
    if isinstance(value, tuple | list):
        return type(value)(_changed(item, is_marked, change) for item in value)
    record: Any = type(value)
    changes = {}
    for name, nested in _marked_fields(record, is_marked).items():
        member = getattr(value, name)
        changes[name] = _changed(member, is_marked, change) if nested else change(member)
    return replace(value, **changes)


def _is_payload(annotation: Any) -> bool:  # noqa: ANN401 - an annotation
    return get_origin(annotation) is Annotated and Payload in get_args(annotation)


def _is_sealed(annotation: Any) -> bool:  # noqa: ANN401 - an annotation
    return kind_of(annotation).param.sealed


def _hiding(cipher: TenantCipher) -> Callable[[Any], Any]:
    """Encrypts a value of a sealed field."""
    seal = cache(cipher.seal)  # neighbours share a position

    def hide(value: Any) -> Any:  # noqa: ANN401 - of any field
        if value is None:
            return None
        return cipher.hide(value) if isinstance(value, int) else seal(value)

    return hide


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
