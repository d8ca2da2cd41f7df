"""Reads webhooks.yml: sources of webhooks, with the line of every fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from helixqueue.errors import Refused
from helixqueue.webhook.source import SignatureLayout, WebhookMapping, WebhookSource
from helixqueue.yaml_document import Loc, read_document, read_text

if TYPE_CHECKING:
    from pathlib import Path


class _SourceFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    version: Literal[1] = 1
    sources: Annotated[tuple[WebhookSource, ...], Field(min_length=1)]


def read_sources(path: str | Path) -> tuple[WebhookSource, ...]:
    """The sources in a file."""
    return parse_sources(read_text(path, "a file with sources of webhooks"), str(path))


def parse_sources(text: str, path: str = "webhooks.yml") -> tuple[WebhookSource, ...]:
    """The sources in a text; raises `InvalidYaml` with all faults."""
    document = read_document(text, path, _names_around)
    if document is None:
        raise Refused(f"expected sources of webhooks in {path}, got an empty file")
    sources = document.model(_SourceFile).sources
    names: set[str] = set()
    for index, source in enumerate(sources):
        if source.name in names:
            document.add(("sources", index, "name"), "each name once", f"{source.name} again")
        names.add(source.name)
    document.demand_no_fault()
    return sources


def _names_around(loc: Loc) -> list[str]:
    kinds: dict[object, type[BaseModel]] = {
        "mappings": WebhookMapping,
        "signature": SignatureLayout,
    }
    around = [part for part in loc[:-1] if isinstance(part, str)]
    kind = kinds.get(around[-1], WebhookSource) if around else _SourceFile
    return list(kind.model_fields)
