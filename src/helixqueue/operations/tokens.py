"""Tokens of a service. A new token is shown once, so no idempotency key applies."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

from helixqueue.errors import NameTaken, NoSuchToken, NotPermitted, Refused
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.page import Page
from helixqueue.records.parameter import NAME_PATTERN, Cursor, Limit, Param, QueueName, Reason
from helixqueue.records.token import CreatedToken, CurrentToken, LoginCode, RevokedTokens, TokenRow

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

DAYS: Final = 90
DAYS_MAX: Final = 3_650
OVERLAP_SECONDS_MAX: Final = 30 * 86_400.0
TokenName = Annotated[
    str,
    Param(
        "Name of the token, also in the ledger.", "uploader", pattern=NAME_PATTERN, metavar="NAME"
    ),
]
Scope = Literal["submit", "work", "read", "payloads", "operate", "admin", "run", "metrics", "seal"]
Scopes = Annotated[
    list[Scope],
    Param(
        "submit, work, read, payloads, operate, admin, run, metrics or seal; repeat for several.",
        length=9, option="--scope", metavar="SCOPE",
    ),
]  # fmt: skip
PersonName = Annotated[
    str,
    Param("Name of the person, recorded with every action.", "ada", pattern=NAME_PATTERN),
]
LinkScopes = Annotated[
    list[Literal["submit", "work", "read", "payloads", "operate", "admin", "run", "seal"]],
    Param(
        "submit, work, read, payloads, operate, admin, run or seal; all but seal unless given.",
        length=8, option="--scope", metavar="SCOPE",
    ),
]  # fmt: skip
Queues = Annotated[
    list[QueueName],
    Param(
        "Restrict submit and work to this queue; repeat for several.",
        length=100, option="--queue", metavar="NAME",
    ),
]  # fmt: skip
Days = Annotated[int, Param("Days until it expires.", DAYS, least=1, most=DAYS_MAX, metavar="N")]
Overlap = Annotated[
    float,
    Param(
        "How long the previous token stays valid.", 3_600.0, least=0, most=OVERLAP_SECONDS_MAX,
        metavar="SECONDS",
    ),
]  # fmt: skip


@operation("GET /v1/token", scope="any")
def show_token(operations: Operations) -> Instructions[CurrentToken]:
    """Show the token of this request.

    Its tenant, name, scopes and expiry.
    """
    if operations.token_hash is None:
        raise Refused("expected the token of a service, got a login of the database")
    found = yield from operations.ask(engine.tokens.authenticate([operations.token_hash]))
    for grant in found.values():
        queues = None if grant.queues is None else sorted(grant.queues)
        scopes = sorted(grant.scopes)
        return CurrentToken(
            grant.tenant, grant.name, grant.generation, scopes, queues, grant.expires_at
        )
    raise NotPermitted("the token is not valid any more")


@operation("GET /v1/tokens", scope="admin")
def list_tokens(
    operations: Operations, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[TokenRow]]:
    """List tokens with scopes, expiry and last use.

    Without the tokens themselves: only hashes are stored.
    """
    return operations.ask(
        engine.tokens.list_tokens(tenant=operations.tenant or None, after=after, limit=limit)
    )


@operation("POST /v1/tokens", scope="admin", raises=[NameTaken], status=201)
def create_token(
    operations: Operations,
    name: TokenName,
    *,
    scopes: Scopes,
    queues: Queues | None = None,
    days: Days = DAYS,
) -> Instructions[CreatedToken]:
    """Create a token and show it once.

    The ledger identifies token holders by name, so a name is never reused.
    """
    for queue in queues or (None,):
        _require_all_rights(operations, may=operations.may_use(queue))
    new = engine.tokens.new_token()
    created = yield from operations.ask(
        engine.tokens.create(
            tenant=operations.tenant,
            name=name,
            token_hash=new.hash,
            scopes=scopes,
            queues=queues,
            expires_at=_expiry(days),
            actor=operations.actor,
        ),
        repeatable=False,
    )
    if not created:
        raise NameTaken(f"a token {name} exists or existed; rotate it, or choose another name")
    return (yield from _shown_once(operations, name, 1, new.token))


@operation("POST /v1/tokens/{name}/rotate", scope="admin", raises=[NoSuchToken], status=201)
def rotate_token(
    operations: Operations,
    name: TokenName,
    *,
    overlap_seconds: Overlap = 86_400.0,
    days: Days = DAYS,
) -> Instructions[CreatedToken]:
    """Replace a token with a new one and show it once.

    Name, scopes and queues stay the same. The previous token stays valid for `overlap_seconds`.
    """
    _require_all_rights(operations, may=operations.may_use(None) or name == operations.actor)
    new = engine.tokens.new_token()
    generation = yield from operations.ask(
        engine.tokens.rotate(
            tenant=operations.tenant,
            name=name,
            token_hash=new.hash,
            expires_at=_expiry(days),
            overlap_seconds=overlap_seconds,
            actor=operations.actor,
        ),
        repeatable=False,
    )
    if generation is None:
        raise NoSuchToken(
            f"the tenant has no valid token {name}, or another call has just rotated it"
        )
    return (yield from _shown_once(operations, name, generation, new.token))


@operation("POST /v1/tokens/{name}/revoke", scope="admin", raises=[NoSuchToken])
def revoke_token(
    operations: Operations, name: TokenName, *, reason: Reason
) -> Instructions[RevokedTokens]:
    """Revoke every token of a name.

    Takes effect in every replica with the next transaction; the reason is stored.
    """
    revoked = yield from operations.ask(
        engine.tokens.revoke(
            tenant=operations.tenant, name=name, reason=reason, actor=operations.actor
        ),
        repeatable=False,
    )
    if not revoked:
        raise NoSuchToken(f"the tenant has no valid token {name}")
    return RevokedTokens(operations.tenant, name, revoked)


@operation("POST /v1/links", scope="admin", raises=[NameTaken], status=201)
def offer_login(
    operations: Operations, *, name: PersonName | None = None, scopes: LinkScopes | None = None
) -> Instructions[LoginCode]:
    """Create the code of a login link, for one login.

    The dashboard exchanges it within 15 minutes for a session of 12 hours, `POST /v1/login` for a
    token. What the person then does is recorded with `name`. Without `scopes` it has every scope of
    the tenant, which is no escalation: the scope admin can create tokens of any scope.
    """
    _require_all_rights(operations, may=operations.may_use(None))
    code = engine.tokens.new_token("hl_")
    until = yield from operations.ask(
        engine.tokens.offer_login(
            tenant=operations.tenant,
            code_hash=code.hash,
            actor=operations.actor,
            person=name,
            scopes=engine.tokens.TENANT_SCOPES if scopes is None else scopes,
        ),
        repeatable=False,
    )
    if until is None:
        raise NameTaken(f"the name {name} belongs to a token; choose another name for the person")
    return LoginCode(code.token, operations.tenant, until)


def _require_all_rights(operations: Operations, *, may: bool) -> None:
    """A token that is restricted to queues makes no token with more of them."""
    if not may:
        raise NotPermitted(
            f"{operations.actor} is restricted to queues, so it may give only tokens for those; "
            "use a token without that restriction"
        )


def _shown_once(
    operations: Operations, name: str, generation: int, token: str
) -> Instructions[CreatedToken]:
    page = yield from operations.ask(engine.tokens.list_tokens(tenant=operations.tenant, name=name))
    row = next((row for row in page.rows if row.generation == generation), None)
    if row is None:
        raise Refused(f"expected the new token {name}, got none")
    return CreatedToken(**asdict(row), token=token)


def _expiry(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
