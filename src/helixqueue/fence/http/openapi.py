"""Adds the header and the responses of the middleware to an OpenAPI document."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from helixqueue.fence.http.problem import PREFIX, PROBLEMS
from helixqueue.fence.http.request_key import MAX_KEY_BYTES

if TYPE_CHECKING:
    from helixqueue.fence.policy import Policy, Route


def describe(document: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """A copy of `document` whose fenced operations have the key header and its problems.

    ```python
    plain = app.openapi
    app.openapi = lambda: describe(plain(), policy)
    ```
    """
    described = deepcopy(document)
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas["IdempotencyProblem"] = _SCHEMA
    for path, operations in described.get("paths", {}).items():
        for method, operation in operations.items():
            # A template matches itself: {id} is one segment, as in the policy.
            route = policy.route(method.upper(), path)
            if route is not None and isinstance(operation, dict):
                _describe(operation, route, policy)
    return described


def _describe(operation: dict[str, Any], route: Route, policy: Policy) -> None:
    ttl = policy.ttl.times(route.kind)
    operation.setdefault("parameters", []).append(
        {
            "name": policy.header,
            "in": "header",
            "required": route.required,
            "description": (
                "Identifies this request: a repeat with the same key gets the same response "
                f"and has no second effect. Responses are kept {ttl.answer / 3600:g} hours, keys "
                f"{ttl.tombstone / 86_400:g} days."
            ),
            "schema": {
                "type": "string",
                "minLength": route.min_key_chars,
                "maxLength": MAX_KEY_BYTES,
            },
        }
    )
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        if status.startswith("2"):
            response.setdefault("headers", {}).update(_HEADERS)
    for status, kinds in _by_status(policy).items():
        responses.setdefault(
            str(status),
            {
                "description": "; ".join(f"{kind}: {PROBLEMS[kind][1]}" for kind in kinds),
                "content": {
                    "application/problem+json": {
                        "schema": {"$ref": "#/components/schemas/IdempotencyProblem"}
                    }
                },
            },
        )


def _by_status(policy: Policy) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for kind, (usual, _) in PROBLEMS.items():
        status = policy.on_conflict.status if kind == "key-reused" else usual
        found.setdefault(status, []).append(kind)
    return found


# Of a response to a keyed request.
_HEADERS: dict[str, Any] = {
    "Idempotency-Replayed": {
        "description": "The request is a repeat: this is the response of the first.",
        "schema": {"const": "true"},
        "example": "true",
    },
    "Idempotency-Receipt": {
        "description": "Identifies request and outcome; the same on every repeat.",
        "schema": {"type": "string"},
        "example": "r2:" + "5e" * 32,
    },
}

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "enum": [PREFIX + kind for kind in PROBLEMS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "diff": {
            "type": "array",
            "description": "RFC 6902 operations from the first request to this one",
            "items": {"type": "object"},
        },
        "receipt": {"type": "string"},
        "recorded_at": {"type": "string"},
        "fence": {"type": "string", "description": "For `helixq fence show`"},
        "pointer": {"type": "string"},
        "code": {"type": "string"},
    },
}
