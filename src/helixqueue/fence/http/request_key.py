"""Reads the key, the owner and the body of a request, before anything is written."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import InvalidIdentity, InvalidPayload
from helixqueue.fence.http.asgi import Receive, Scope, header_text, header_values, whole_body
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.request import TooLarge, request_text
from helixqueue.fence.protocol import FenceSpec
from helixqueue.identity import PART_SEPARATOR, canonicalize, check_name

if TYPE_CHECKING:
    from helixqueue.fence.policy import Policy, Route

log = logging.getLogger("helixqueue.fence.http")

MAX_KEY_BYTES: Final = 255
# RFC 9651 string: printable ASCII, with \" and \\ escaped; parameters after it are ignored.
_STRING = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"\s*(?:;.*)?', re.DOTALL)
_BARE = re.compile(rb"[\x21-\x7e]+")
_DIGEST = re.compile(r"\s*sha-256\s*=\s*:([A-Za-z0-9+/=]*):\s*")
# Longer bodies are compared in a thread: up to here it takes at most 30 ms.
MAX_LOOP_BYTES: Final = 32 * 1024


class InvalidKey(Exception):
    """The key is invalid; the text goes to the client."""


def parse_key(values: list[bytes], *, strict: bool, min_chars: int) -> str | None:
    """The key as it was sent, never repaired; None without a header. Raises `InvalidKey`."""
    if not values:
        return None
    if len(values) > 1:
        raise InvalidKey(f"expected the header once, got {len(values)} headers")
    raw = values[0].strip(b" \t")
    quoted = _STRING.fullmatch(raw)
    if quoted is not None:
        key = re.sub(rb"\\(.)", rb"\1", quoted[1])
    elif strict or raw.startswith(b'"'):
        raise InvalidKey('expected a quoted string, such as "8e03978e-40d5-43dd-bc93-6894a57f9324"')
    elif _BARE.fullmatch(raw) is None:
        raise InvalidKey("expected printable ASCII without spaces, or a quoted string")
    else:
        key = raw
    if not min_chars <= len(key) <= MAX_KEY_BYTES:
        raise InvalidKey(
            f"expected {min_chars} to {MAX_KEY_BYTES} characters, got {len(key)}; "
            "send a random UUID"
        )
    return key.decode("ascii")


def digest_matches(values: list[bytes], body: bytes) -> bool:
    """Whether the body matches Content-Digest (RFC 9530); other algorithms are ignored."""
    for member in b",".join(values).decode("latin-1").split(","):
        digest = _DIGEST.fullmatch(member)
        if digest is None:
            continue
        try:
            wanted = base64.b64decode(digest[1], validate=True)
        except (binascii.Error, ValueError):
            return False
        if not hmac.compare_digest(wanted, hashlib.sha256(body).digest()):
            return False
    return True


# From the identity that authentication verified, never from a header that the client sets.
OfScope = Callable[[Scope], Any]


@dataclass(frozen=True, slots=True)
class Owners:
    """Finds the owner of a request: the tenant and, where there are several, the principal."""

    actor: str
    default_tenant: str
    tenant: OfScope | None = None
    principal: OfScope | None = None

    async def of(self, scope: Scope) -> tuple[str, str | None] | None:
        """None without a verified owner: there is no shared anonymous owner."""
        tenant: Any = self.default_tenant
        if self.tenant is not None:
            tenant = await _resolved(self.tenant(scope))
        principal = None if self.principal is None else await _resolved(self.principal(scope))
        if not tenant or (self.principal is not None and not principal):
            return None
        try:
            return check_name("tenant", tenant), _principal_text(principal)
        except InvalidIdentity:
            log.exception("idempotency: the verified tenant or principal is not a valid name")
            return None


def _principal_text(principal: object) -> str | None:
    """Refused, not repaired: two principals must not become one."""
    if principal is None:
        return None
    text = str(principal)
    if canonicalize(text).text != text:
        raise InvalidIdentity(
            f"expected a principal in canonical form (NFC, trimmed), got {text!a}",
            code="spelling",
        )
    return text


async def _resolved(value: Any) -> Any:  # noqa: ANN401 - whatever the function returns
    return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request that is ready to be fenced."""

    spec: FenceSpec
    route: Route
    key: str
    identity: str
    request: str
    body: bytes


async def read_request(
    policy: Policy, route: Route, owners: Owners, scope: Scope, receive: Receive
) -> RequestKey | FenceProblem:
    """A request that is refused here writes nothing and does not use its key."""
    docs = policy.documentation
    try:
        key = parse_key(
            header_values(scope["headers"], policy.header),
            strict=route.strict,
            min_chars=route.min_key_chars,
        )
    except InvalidKey as error:
        return FenceProblem("invalid-key", f"{policy.header}: {error}", describedby=docs)
    if key is None:
        return FenceProblem("missing-key", f"send the header {policy.header}", describedby=docs)
    owner = await owners.of(scope)
    if owner is None:
        return FenceProblem(
            "scope-unavailable", "expected a verified owner of this request, got none"
        )
    body = await whole_body(receive, route.max_body_bytes)
    if body is None:
        return FenceProblem("body-too-large", f"expected at most {route.max_body_bytes} bytes")
    # Members of `only` may overlap, so each can repeat the whole body.
    if len(body) * max(1, len(route.only)) <= MAX_LOOP_BYTES:
        text = _request_text(route, scope, body)
    else:
        text = await asyncio.to_thread(_request_text, route, scope, body)
    if isinstance(text, FenceProblem):
        return text
    tenant, principal = owner
    identity = key if principal is None else PART_SEPARATOR.join((principal, key))
    return RequestKey(_spec(policy, route, tenant, owners.actor), route, key, identity, text, body)


def _spec(policy: Policy, route: Route, tenant: str, actor: str) -> FenceSpec:
    return FenceSpec(
        tenant=tenant,
        name=route.name,
        actor=actor,
        times=policy.clocks[route.kind],
        start=route.effect != "marked",
        replayable=route.replayable,
        max_attempts=route.max_attempts,
        keep_request=policy.keep_requests,
        wait_seconds=route.wait_ms / 1000,
    )


def _request_text(route: Route, scope: Scope, body: bytes) -> str | FenceProblem:
    headers = scope["headers"]
    if not digest_matches(header_values(headers, "content-digest"), body):
        return FenceProblem(
            "digest-mismatch", "expected a body that matches Content-Digest, got another"
        )
    try:
        return request_text(
            route,
            method=scope["method"],
            path=scope["path"],
            query=scope.get("query_string", b""),
            media=header_text(headers, "content-type"),
            encoding=header_text(headers, "content-encoding").lower(),
            body=body,
        )
    except TooLarge:
        limit = route.max_body_bytes
        return FenceProblem(
            "body-too-large", f"expected at most {limit} bytes after decoding, and 1 MiB of JSON"
        )
    except InvalidPayload as error:
        more = {"pointer": error.path, "code": error.code}
        return FenceProblem("non-canonical-json", str(error), more=more)
