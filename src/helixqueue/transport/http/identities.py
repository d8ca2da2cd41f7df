"""The reads of `helixqueue.engine.identities`, over HTTP."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from helixqueue.records.identity import (
    IdentityPage,
    RefusedIdentityRow,
    RefusedPage,
    StoredIdentity,
)
from helixqueue.transport.http.call import HttpCall, at, get
from helixqueue.transport.http.calls import read_identity


def refused(
    *,
    tenant: str,  # noqa: ARG001 - the token's
    queue: str,
    after: str | None = None,
    limit: int = 50,
) -> HttpCall[RefusedPage]:
    return get(
        at("queues", queue, "refused"),
        lambda document: RefusedPage(
            tuple(
                RefusedIdentityRow(
                    datetime.fromisoformat(item["at"]), item["actor"], item["raw_hex"], item["why"]
                )
                for item in document["refused"]
            ),
            document["next"],
        ),
        _page(after, limit),
    )


def identities(
    *,
    tenant: str,  # noqa: ARG001 - the token's
    queue: str,
    after: str | None = None,
    limit: int = 500,
) -> HttpCall[IdentityPage]:
    return get(
        at("queues", queue, "identities"),
        lambda document: IdentityPage(
            tuple(
                StoredIdentity(
                    UUID(item["batch_id"]),
                    read_identity(item["identity"]),
                    read_identity(item["raw"]),
                )
                for item in document["identities"]
            ),
            document["next"],
        ),
        _page(after, limit),
    )


def _page(after: str | None, limit: int) -> list[tuple[str, str]]:
    return [("limit", str(limit)), *([] if after is None else [("after", after)])]
