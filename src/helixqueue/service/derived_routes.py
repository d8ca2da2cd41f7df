"""Routes made from operations: FastAPI reads a signature that is made of the declaration.

A route checks the request, opens the cursor, runs the operation for the principal, redacts the
answer if the token lacks the scope payloads, and seals the cursor of the next page.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Strict, create_model

from helixqueue.operations.operation import UNCHANGED, Operation, Parameter, operations_of
from helixqueue.records.page import Page
from helixqueue.records.parameter import ABSENT, kind_of
from helixqueue.records.submission import Accepted
from helixqueue.service.models import responses
from helixqueue.service.models.requests import RequestModel
from helixqueue.service.routing import PrincipalDep, RequestLogDep, router
from helixqueue.service.routing import operation as requirements

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from helixqueue.log.requests import RequestLog
    from helixqueue.service.principal import Principal

# Parameters that the request log shows.
LOGGED: Final = ("queue", "ledger", "feed", "fence", "reason")


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
    ) -> Any:  # noqa: ANN401 - of the operation's type
        if body is not None:
            members = {name: getattr(body, name) for name in body.model_fields_set}
            values |= {
                name: value
                for name, value in members.items()
                if value is not None or operation.parameters[name].default is ABSENT
            }
        request_log.add(**{name: values[name] for name in LOGGED if values.get(name) is not None})
        answer = await run_operation(operation, values, principal)
        if isinstance(answer, Accepted):  # as the hot route of submit encodes it
            request_log.add(batch=answer.receipt.batch_id, decision=answer.decision)
            content = responses.submitted(
                answer, values=principal.sees_payloads, request_id=request_log.request_id
            )
            return responses.json_response(content)
        return answer

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
    steps = operation.function(principal.operations, **values)
    answer = await principal.run_steps(steps, in_thread=operation.computes)
    redact = None if principal.sees_payloads else operation.redact
    if isinstance(answer, Page):
        rows = answer.rows if redact is None else tuple(map(redact, answer.rows))
        names = _sealed(get_type_hints(get_args(operation.answer)[0], include_extras=True))
        if names:
            seal = cache((await principal.cipher()).seal)  # neighbours share a position
            rows = tuple(
                replace(row, **{name: seal(getattr(row, name)) for name in names}) for row in rows
            )
        return Page(rows, await principal.seal_cursor(answer.next))
    return answer if redact is None else redact(answer)


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
