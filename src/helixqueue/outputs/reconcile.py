"""Compares the objects at a destination with the database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from helixqueue.engine.outputs import PAGE_FILES, known_outputs
from helixqueue.operations.chunks import chunks
from helixqueue.outputs.store import LOGS, STAGING

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.outputs.store import Store


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a store contains and no batch needs."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    staging: tuple[Unknown, ...]  # prefixes that no attempt needs
    files: tuple[Unknown, ...]  # that no completed batch published


def reconcile(store: Store, uri: str, run: Callable[[Any], Any]) -> Reconciled:
    """List first, ask afterwards: what was staged or published meanwhile is known."""
    staged: Counter[str] = Counter()
    files: list[Unknown] = []
    for page in chunks(store.names(), lambda _: 1, size=PAGE_FILES):
        visible: dict[str, Unknown] = {}
        for name, size in page:
            first, _, rest = name.partition("/")
            if first == STAGING:
                if not rest.startswith(f"{LOGS}/"):
                    staged[rest.partition("/")[0]] += size
            else:
                visible[f"{uri}/{name}"] = Unknown(name, size)
        known = run(known_outputs(manifests=(), uris=list(visible)))
        files += [found for place, found in visible.items() if place not in known.uris]
    needed = run(known_outputs(manifests=list(filter(None, map(_id, staged))), uris=()))
    staging = [
        Unknown(f"{STAGING}/{name}", size)
        for name, size in staged.items()
        if _id(name) not in needed.manifests
    ]
    return Reconciled(tuple(staging), tuple(files))


def _id(name: str) -> UUID | None:
    """The manifest of a staging prefix; None: of a trial of the store."""
    try:
        return UUID(name)
    except ValueError:
        return None
