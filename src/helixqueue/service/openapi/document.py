"""Completes the OpenAPI document of FastAPI with problems, headers and examples.

An operation declares its own problems (`routing.operation`). The others follow from what it takes:
a body may not be JSON, parameters may be invalid, and admission is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi

from helixqueue import __version__
from helixqueue.fence.http import describe
from helixqueue.fence.http.problem import PREFIX
from helixqueue.fence.http.problem import PROBLEMS as FENCE_PROBLEMS
from helixqueue.fence.http.problem import USUAL as FENCE_DEFAULTS
from helixqueue.service.openapi import examples
from helixqueue.service.problems import DEFAULTS, PROBLEMS, ProblemResponse

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from helixqueue.fence.policy import Policy

# Problems of every operation.
COMMON: Final = (
    "not-http", "invalid-host", "not-found", "method-not-allowed", "too-slow", "body-too-large",
    "head-too-large", "internal", "unavailable", "retryable",
)  # fmt: skip
AUTHENTICATED: Final = (
    "unauthenticated", "forbidden", "too-many-requests", "too-busy", "not-ready",
    "invalid-request",
)  # fmt: skip
PROBLEM_JSON: Final = "application/problem+json"
_TEXT: Final = {"type": "string"}
_SECONDS: Final = {"type": "integer", "minimum": 1, "maximum": 60}
# Every response has the request id, except those to bytes that are not a request (400, 431).
REQUEST_ID: Final = {
    "description": "Id of the request in the log; a client may send its own.",
    "required": True,
    "schema": _TEXT,
    "example": examples.REQUEST,
}
RETRY_AFTER: Final = {"description": "Seconds to wait.", "schema": _SECONDS, "example": 1}
# Further headers, by status.
HEADERS: Final[dict[str, dict[str, Any]]] = {
    "401": {"WWW-Authenticate": {"required": True, "schema": _TEXT, "example": "Bearer"}},
    "405": {"Allow": {"required": True, "schema": _TEXT, "example": "GET"}},
    "409": {"Retry-After": RETRY_AFTER},
    "429": {"Retry-After": {**RETRY_AFTER, "required": True}},
    "503": {"Retry-After": RETRY_AFTER},
}
_DESCRIPTION = """\
Clients submit batches to queues, workers claim them, and each batch takes effect once. Errors are \
problems (RFC 9457) with stable types. Every operation except health and login needs a token \
(`Authorization: Bearer hx_...`), which belongs to a tenant; `x-scope` is the scope it must have.
"""


def plain_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document that FastAPI makes of the routes."""
    return get_openapi(
        title="HelixQueue",
        version=__version__,
        summary="Every piece of work takes effect once, and you can prove it.",
        description=_DESCRIPTION,
        routes=routes,
    )


def document(plain: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """The document for clients, made from the plain one."""
    components = plain.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = ProblemResponse.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):  # of FastAPI; replaced by Problem
        schemas.pop(name, None)
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "`helixq token create`"}
    }
    components["examples"] = _problem_examples(policy)
    for operation in _operations(plain):
        _add_problems(operation, _kinds(operation))
    described = describe(plain, policy)  # adds the header and the statuses of the middleware
    described["components"]["schemas"].pop("IdempotencyProblem", None)  # Problem covers it
    for operation in _operations(described):
        if operation["x-fenced"]:
            _add_fence_problems(operation, policy)
        _add_examples(operation)
        _add_headers(operation)
    return described


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in schema["paths"].values():
        yield from methods.values()


def _kinds(operation: dict[str, Any]) -> list[str]:
    """Every kind of problem that an operation may return."""
    kinds = [*operation["x-problems"], *COMMON]
    if operation["x-scope"] != "open":
        kinds += AUTHENTICATED
    if "requestBody" in operation:
        kinds += ["not-json", "unsupported-media-type"]
    if "requestBody" in operation or operation.get("parameters"):
        kinds += ["invalid-request", "refused"]
    return sorted(set(kinds), key=list(PROBLEMS).index)


def _add_problems(operation: dict[str, Any], kinds: Iterable[str]) -> None:
    operation["responses"].pop("422", None)  # of FastAPI
    operation["x-problems"] = []
    for kind in kinds:
        status, title, _ = PROBLEMS[kind]
        _add_problem(operation, kind, status, title)


def _add_fence_problems(operation: dict[str, Any], policy: Policy) -> None:
    """Problems of the idempotency middleware, for requests with a key."""
    for kind, (default, title) in FENCE_PROBLEMS.items():
        status = policy.on_conflict.status if kind == "key-reused" else default
        _add_problem(operation, kind, status, title)


def _add_problem(operation: dict[str, Any], kind: str, status: int, title: str) -> None:
    response = operation["responses"].setdefault(str(status), {"description": ""})
    if PREFIX + kind not in operation["x-problems"]:
        operation["x-problems"].append(PREFIX + kind)
        response["description"] = f"{response['description']} `{kind}`: {title}.".strip()
    content = response.setdefault("content", {}).setdefault(PROBLEM_JSON, {})
    content["schema"] = {"$ref": "#/components/schemas/Problem"}
    content.setdefault("examples", {})[kind] = {"$ref": f"#/components/examples/{kind}"}


def _add_headers(operation: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        request_id = {**REQUEST_ID, "required": status not in {"400", "431"}}
        response.setdefault("headers", {}).update(
            {"X-Request-Id": request_id, **HEADERS.get(status, {})}
        )


def _problem_examples(policy: Policy) -> dict[str, Any]:
    """An example of each kind, which operations refer to."""
    result = {}
    for kind, (default, title) in FENCE_PROBLEMS.items():
        status = policy.on_conflict.status if kind == "key-reused" else default
        members = dict(zip(("expected", "got", "remedy"), FENCE_DEFAULTS[kind], strict=True))
        result[kind] = _example(kind, status, title, {"detail": title, **members})
    for kind, (status, title, remedy) in PROBLEMS.items():
        members = {"detail": title, "request": examples.REQUEST, "remedy": remedy}
        members |= dict(zip(("expected", "got"), DEFAULTS.get(kind, ()), strict=False))
        members |= examples.PROBLEM_MEMBERS.get(kind, {})
        result[kind] = _example(kind, status, title, members)
    return result


def _example(kind: str, status: int, title: str, members: dict[str, Any]) -> dict[str, Any]:
    value = {"type": PREFIX + kind, "title": title, "status": status, **members}
    return {"summary": title, "value": value}


def _add_examples(operation: dict[str, Any]) -> None:
    example = examples.recorded().get(operation["operationId"])
    if example is None:
        return  # a new operation; `make examples` needs the document
    for media in operation.get("requestBody", {}).get("content", {}).values():
        media["example"] = example["request"]
    for status, value in example["responses"].items():
        for media in operation["responses"][status].get("content", {}).values():
            media["example"] = value
    for parameter in operation.get("parameters", []):
        if parameter["name"] in example["parameters"]:
            parameter["example"] = example["parameters"][parameter["name"]]
