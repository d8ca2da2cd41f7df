"""Reads idempotency.yml. Reports all faults at once: line, place, expected, got."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from helixqueue.fence.decision_log import DEFAULT_FIELDS
from helixqueue.fence.policy import (
    HeaderName,
    LogField,
    Matching,
    OnConflict,
    Policy,
    Route,
    Ttl,
    Unlisted,
    unreachable,
)
from helixqueue.yaml_document import InvalidYaml, Loc, YamlDocument, read_document, read_text

log = logging.getLogger("helixqueue.fence")
_CONFIG = ConfigDict(extra="forbid")
_Store = Literal["postgresql", "postgres", "redis", "valkey"]


def _must_be_true(value: bool) -> bool:  # noqa: FBT001 - pydantic's
    if not value:
        raise PydanticCustomError(
            "expected", "true: another body under the same key is never applied nor answered"
        )
    return value


class _Stores(BaseModel):
    model_config = _CONFIG
    fence: _Store = "postgresql"
    seal: _Store = "postgresql"


class _Logging(BaseModel):
    model_config = _CONFIG
    include_fields: tuple[LogField, ...] = DEFAULT_FIELDS


class _PolicyFile(BaseModel):
    model_config = _CONFIG
    version: Literal[1] = 1
    require_headers: Annotated[tuple[HeaderName, ...], Field(min_length=1, max_length=1)] = (
        "Idempotency-Key",
    )
    reject_on_body_mismatch: Annotated[bool, AfterValidator(_must_be_true)] = True
    stores: _Stores = _Stores()
    ttl: Ttl = Ttl()
    logging: _Logging = _Logging()
    on_conflict: OnConflict = OnConflict()
    keep_requests: bool = True
    documentation: Annotated[str, Matching(r"https?://\S+|/\S*", "a URL")] | None = None
    status_path: (
        Annotated[str, Matching(r"(/[^/\s{}]+)+", "a path such as /idempotency")] | None
    ) = None
    unlisted: Unlisted = "refuse"
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] = (Route(),)

    def policy(self) -> Policy:
        return Policy(
            header=self.require_headers[0],
            routes=self.routes,
            ttl=self.ttl,
            on_conflict=self.on_conflict,
            log_fields=self.logging.include_fields,
            keep_requests=self.keep_requests,
            documentation=self.documentation,
            status_path=self.status_path,
            unlisted=self.unlisted,
        )


# The names that each mapping may have; the key is the member of the file that it is.
_NAMES: Final[dict[int | str | None, list[str]]] = {
    None: list(_PolicyFile.model_fields),
    "stores": list(_Stores.model_fields),
    "logging": list(_Logging.model_fields),
    **{
        member: [field.name for field in fields(kind)]
        for member, kind in (("ttl", Ttl), ("on_conflict", OnConflict), ("routes", Route))
    },
}


class InvalidPolicy(InvalidYaml):
    """The policy file is invalid; `faults` has every place."""


def read_policy(source: str | Path) -> Policy:
    """The policy in a file."""
    return parse_policy(read_text(source, "a policy file"), str(Path(source)))


def parse_policy(text: str, source: str = "idempotency.yml") -> Policy:
    """The policy in a text; raises `InvalidPolicy` with all faults."""
    document = read_document(text, source, _names_around, InvalidPolicy)
    if document is None:
        return Policy()
    file = document.model(_PolicyFile)
    for index, hidden in unreachable(file.routes).items():
        document.add(("routes", index), "a route that can match", hidden)
    document.demand_no_fault()
    _explain_stores(file, document, source)
    return file.policy()


def _names_around(loc: Loc) -> list[str]:
    return _NAMES[loc[0] if len(loc) > 1 else None]


def _explain_stores(file: _PolicyFile, document: YamlDocument, source: str) -> None:
    for name, store in file.stores:
        if store in {"redis", "valkey"}:
            log.warning(
                "%s: line %d: stores.%s: %s is read as postgresql: only PostgreSQL grants and "
                "seals fences. Pass hint=SealedCache(url, secret) to the middleware to repeat "
                "sealed answers from %s",
                *(source, document.line(("stores", name)), name, store, store.capitalize()),
            )
