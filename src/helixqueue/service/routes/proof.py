"""Proof for others: the public keys of this service, and seals of the ledger."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, ServiceDep, operation, router

routes = router("proof")


class KeyResponse(BaseModel):
    id: str
    algorithm: str
    public: str
    created_at: str
    retired_at: str | None


class KeysResponse(BaseModel):
    keys: list[KeyResponse]


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
    **operation("seal", "no-key", "check-under-way"),
)
async def seal(principal: PrincipalDep, service: ServiceDep) -> dict[str, Any]:
    """Signed by the service. Covers all tenants, in digests and counts that disclose no row.

    It continues the last seal in the database. Keep it outside of the database server, with those
    before it (`GET /v1/seals`); `helixq check --against` compares the database with them.
    """
    await principal.require_valid_token()
    if service.signer is None:
        raise Problem("no-key", "the service has no key to sign with; start it with --key")
    return await service.check_jobs.seal(principal)
