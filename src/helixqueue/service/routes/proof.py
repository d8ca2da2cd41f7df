"""Proof for others: the public keys of this service, and seals of the ledger."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt

from helixqueue.records.seal import SealHead
from helixqueue.service.models.requests import RequestModel
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, ServiceDep, operation, router

routes = router("proof")
Number = Annotated[StrictInt, Field(ge=0, le=2**53)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class KeyResponse(BaseModel):
    id: str
    algorithm: str
    public: str
    created_at: str
    retired_at: str | None


class KeysResponse(BaseModel):
    keys: list[KeyResponse]


class SealHeadItem(RequestModel):
    number: Number
    id: Digest
    to_position: Annotated[str, Field(pattern="^[0-9]{1,19}$")]
    counts: Annotated[dict[Annotated[str, Field(max_length=40)], Number], Field(max_length=20)]


class SealRequest(RequestModel):
    after: SealHeadItem | None = Field(
        None, description="Head of the last seal; without it, everything is sealed."
    )


@routes.get(
    "/v1/keys",
    response_model=KeysResponse,
    name="list_keys",
    summary="The public keys that verify receipts and seals",
    **operation("open"),
)
async def list_keys(service: ServiceDep) -> KeysResponse:
    """Needs no token, so that every holder of a receipt can verify it. The last key signs.

    Retired keys verify what they signed. Empty if the service has no key.
    """
    return KeysResponse(keys=[KeyResponse(**key.public()) for key in service.settings.keys])


@routes.post(
    "/v1/seals",
    response_model=dict[str, Any],
    name="seal",
    summary="Seal the ledger: signed digests of everything since the last seal",
    **operation("operate", "no-key", "check-under-way"),
)
async def seal(body: SealRequest, principal: PrincipalDep, service: ServiceDep) -> dict[str, Any]:
    """Signed by the service. Covers all tenants, in digests and counts that disclose no row.

    Keep it outside of the database server; `helixq check --against` compares the database with it.
    """
    await principal.require_valid_token()
    if service.signer is None:
        raise Problem("no-key", "the service has no key to sign with; start it with --key")
    previous = None if body.after is None else SealHead(**body.after.model_dump())
    return await service.check_jobs.seal(service.signer, previous, principal)
