"""The OpenAPI document: what routes say of themselves, with examples and every problem they know.

An operation names the problems that are its own (`demands`); the rest follows from what it takes:
a body may not be JSON, parameters may be wrong, and the gate refuses alike everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi

from helixqueue.fence.http import describe
from helixqueue.fence.http.problem import PREFIX
from helixqueue.fence.http.problem import PROBLEMS as FENCE_PROBLEMS
from helixqueue.fence.http.problem import USUAL as FENCE_USUAL
from helixqueue.service import examples, problem_examples
from helixqueue.service.problems import PROBLEMS, USUAL, ProblemAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastapi import FastAPI

    from helixqueue.fence.policy import Policy

# What the gate and the framework may answer whatever is asked.
ALWAYS: Final = (
    "not-http", "not-found", "method-not-allowed", "too-slow", "body-too-large", "head-too-large",
    "internal", "unavailable", "retryable",
)  # fmt: skip
GUARDED: Final = (
    "unauthenticated", "forbidden", "too-many-requests", "too-busy", "not-ready",
    "invalid-request",
)  # fmt: skip
PROBLEM_JSON: Final = "application/problem+json"
_TEXT: Final = {"type": "string"}
_SECONDS: Final = {"type": "integer", "minimum": 1, "maximum": 60}
# The request's id goes with every answer but the two that are given before there is a request.
REQUEST_ID: Final = {
    "description": "Under this id it stands in the log; a client may send its own.",
    "required": True,
    "schema": _TEXT,
    "example": examples.REQUEST,
}
RETRY_AFTER: Final = {"description": "Seconds to wait.", "schema": _SECONDS, "example": 1}
# What else a status is told with.
HEADERS: Final[dict[str, dict[str, Any]]] = {
    "401": {"WWW-Authenticate": {"required": True, "schema": _TEXT, "example": "Bearer"}},
    "405": {"Allow": {"required": True, "schema": _TEXT, "example": "GET"}},
    "409": {"Retry-After": RETRY_AFTER},
    "429": {"Retry-After": {**RETRY_AFTER, "required": True}},
    "503": {"Retry-After": RETRY_AFTER},
}
_ABOUT = """\
Work is submitted to queues, workers claim it, and each piece takes effect once. The answers to \
refusals are problems (RFC 9457) with stable types. Every operation but health and login needs a \
token (`Authorization: Bearer hx_...`), which names the tenant; `x-scope` is the scope it must have.
"""


def plain_document(app: FastAPI) -> dict[str, Any]:
    """As the routes have it."""
    return get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        summary="Every piece of work takes effect once, and you can prove it.",
        description=_ABOUT,
        routes=app.routes,
    )


def document(plain: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """As clients read it, made of the plain one."""
    parts = plain.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"] = ProblemAnswer.model_json_schema()
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's; we answer problems
        schemas.pop(name, None)
    parts["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "`helixq token create`"}
    }
    parts["examples"] = _problem_examples(policy)
    for operation in _operations(plain):
        _tell_problems(operation, _kinds(operation))
    described = describe(plain, policy)  # the header, and statuses that only it answers with
    described["components"]["schemas"].pop("IdempotencyProblem", None)  # a Problem is more
    for operation in _operations(described):
        if operation["x-fenced"]:
            _tell_fence_problems(operation, policy)
        _show(operation, examples.OPERATIONS[operation["operationId"]])
        _tell_headers(operation)
    return described


def _operations(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in whole["paths"].values():
        yield from methods.values()


def _kinds(operation: dict[str, Any]) -> list[str]:
    """Every problem that an operation may answer with."""
    kinds = [*operation["x-problems"], *ALWAYS]
    if operation["x-scope"] != "open":
        kinds += GUARDED
    if "requestBody" in operation:
        kinds += ["not-json", "unsupported-media-type"]
    if "requestBody" in operation or operation.get("parameters"):
        kinds += ["invalid-request", "refused"]
    return sorted(set(kinds), key=list(PROBLEMS).index)


def _tell_problems(operation: dict[str, Any], kinds: Iterable[str]) -> None:
    operation["responses"].pop("422", None)  # the framework's own
    operation["x-problems"] = []
    for kind in kinds:
        status, title, _ = PROBLEMS[kind]
        _tell(operation, kind, status, title)


def _tell_fence_problems(operation: dict[str, Any], policy: Policy) -> None:
    """What the idempotency middleware may answer when a request comes with a key."""
    for kind, (usual, title) in FENCE_PROBLEMS.items():
        status = policy.on_conflict.status if kind == "key-reused" else usual
        _tell(operation, kind, status, title)


def _tell(operation: dict[str, Any], kind: str, status: int, title: str) -> None:
    told = operation["responses"].setdefault(str(status), {"description": ""})
    if PREFIX + kind not in operation["x-problems"]:
        operation["x-problems"].append(PREFIX + kind)
        told["description"] = f"{told['description']} `{kind}`: {title}.".strip()
    content = told.setdefault("content", {}).setdefault(PROBLEM_JSON, {})
    content["schema"] = {"$ref": "#/components/schemas/Problem"}
    content.setdefault("examples", {})[kind] = {"$ref": f"#/components/examples/{kind}"}


def _tell_headers(operation: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        always = {**REQUEST_ID, "required": status not in {"400", "431"}}
        response.setdefault("headers", {}).update(
            {"X-Request-Id": always, **HEADERS.get(status, {})}
        )


def _problem_examples(policy: Policy) -> dict[str, Any]:
    """One of each kind, which operations refer to."""
    found = {}
    for kind, (usual, title) in FENCE_PROBLEMS.items():
        status = policy.on_conflict.status if kind == "key-reused" else usual
        said = dict(zip(("expected", "got", "remedy"), FENCE_USUAL[kind], strict=True))
        found[kind] = _example(kind, status, title, {"detail": title, **said})
    for kind, more in problem_examples.PROBLEMS.items():
        status, title, remedy = PROBLEMS[kind]
        said = {"request": examples.REQUEST, "remedy": remedy}
        said |= dict(zip(("expected", "got"), USUAL.get(kind, ()), strict=False)) | more
        found[kind] = _example(kind, status, title, said)
    return found


def _example(kind: str, status: int, title: str, more: dict[str, Any]) -> dict[str, Any]:
    value = {"type": PREFIX + kind, "title": title, "status": status, **more}
    return {"summary": title, "value": value}


def _show(operation: dict[str, Any], example: examples.Example) -> None:
    if "requestBody" in operation:
        for media in operation["requestBody"]["content"].values():
            media["example"] = example.request
    good = [status for status in operation["responses"] if status < "300"]
    for status in good:
        shown = example.others.get(status, example.answer)
        for media in operation["responses"][status].get("content", {}).values():
            media["example"] = shown
    for parameter in operation.get("parameters", []):
        if parameter["name"] in examples.PARAMETERS:
            parameter["example"] = examples.PARAMETERS[parameter["name"]]
