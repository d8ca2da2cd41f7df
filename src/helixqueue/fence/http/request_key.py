"""A keyed request before anything is written: its key, its owner, its body, or what is wrong."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helixqueue.errors import InvalidIdentity, InvalidPayload
from helixqueue.fence.http.asgi import Receive, Scope, text_of, whole_body
from helixqueue.fence.http.header import InvalidKey, digest_fits, key_of, values
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.request import TooLarge, request_text
from helixqueue.fence.protocol import FenceSteps
from helixqueue.identity import PART_SEPARATOR, canonicalize, check_name

if TYPE_CHECKING:
    from helixqueue.fence.policy import Policy, Route

log = logging.getLogger("helixqueue.fence.http")

# From the identity that authentication verified, never from a header that the client writes.
OfScope = Callable[[Scope], Any]


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose request it is: the tenant, and within it the principal, where there are several."""

    actor: str
    default_tenant: str
    tenant: OfScope | None = None
    principal: OfScope | None = None

    async def of(self, scope: Scope) -> tuple[str, str | None] | None:
        """None when nobody was named: there is no shared nobody."""
        tenant: Any = self.default_tenant
        if self.tenant is not None:
            tenant = await _settled(self.tenant(scope))
        principal = None if self.principal is None else await _settled(self.principal(scope))
        if not tenant or (self.principal is not None and not principal):
            return None
        try:
            return check_name("tenant", tenant), _spelled(principal)
        except InvalidIdentity:
            log.exception("idempotency: the verified tenant or principal is no name")
            return None


def _spelled(principal: object) -> str | None:
    """Refused, not repaired: two principals must not become one."""
    if principal is None:
        return None
    text = str(principal)
    if canonicalize(text).text != text:
        raise InvalidIdentity(
            f"expected a principal in its one spelling (NFC, trimmed), got {text!a}",
            code="spelling",
        )
    return text


async def _settled(value: Any) -> Any:  # noqa: ANN401 - whatever the function gives
    return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What is asked, ready to be fenced."""

    plan: FenceSteps
    route: Route
    key: str
    identity: str
    request: str
    body: bytes


async def read(
    policy: Policy, route: Route, owners: Owners, scope: Scope, receive: Receive
) -> RequestKey | FenceProblem:
    """Nothing is written, and no key is used up, by a request that does not get past this."""
    docs = policy.documentation
    try:
        key = key_of(
            values(scope["headers"], policy.header),
            strict=route.strict,
            min_chars=route.min_key_chars,
        )
    except InvalidKey as wrong:
        return FenceProblem("invalid-key", f"{policy.header}: {wrong}", describedby=docs)
    if key is None:
        return FenceProblem("missing-key", f"send the header {policy.header}", describedby=docs)
    owner = await owners.of(scope)
    if owner is None:
        return FenceProblem(
            "scope-unavailable", "expected to know whose request this is, got nobody"
        )
    body = await whole_body(receive, route.max_body_bytes)
    if body is None:
        return FenceProblem("body-too-large", f"expected at most {route.max_body_bytes} bytes")
    text = _text(route, scope, body)
    if isinstance(text, FenceProblem):
        return text
    tenant, principal = owner
    identity = key if principal is None else PART_SEPARATOR.join((principal, key))
    return RequestKey(_plan(policy, route, tenant, owners.actor), route, key, identity, text, body)


def _plan(policy: Policy, route: Route, tenant: str, actor: str) -> FenceSteps:
    return FenceSteps(
        tenant=tenant,
        name=route.name,
        actor=actor,
        times=policy.clocks[route.kind],
        replayable=route.replayable,
        max_attempts=route.max_attempts,
        keep_request=policy.keep_requests,
        wait_seconds=route.wait_ms / 1000,
    )


def _text(route: Route, scope: Scope, body: bytes) -> str | FenceProblem:
    headers = scope["headers"]
    if not digest_fits(values(headers, "content-digest"), body):
        return FenceProblem("digest-mismatch", "Content-Digest does not fit the body")
    try:
        return request_text(
            route,
            method=scope["method"],
            path=scope["path"],
            query=scope.get("query_string", b""),
            media=text_of(headers, "content-type"),
            encoding=text_of(headers, "content-encoding").lower(),
            body=body,
        )
    except TooLarge:
        most = route.max_body_bytes
        return FenceProblem(
            "body-too-large", f"expected at most {most} bytes, decoded, and 1 MiB JSON"
        )
    except InvalidPayload as refused:
        more = {"pointer": refused.path, "code": refused.code}
        return FenceProblem("non-canonical-json", str(refused), more=more)
