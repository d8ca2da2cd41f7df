"""Output files: what an attempt staged, tasks of publishers, and what readers see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

ManifestState = Literal[
    "open", "registered", "granted", "sealed", "blocked", "lost", "removing", "removed"
]


class StagedFile(NamedTuple):
    """A file below the staging prefix of an attempt, named by its place in the manifest."""

    path: str
    size: int
    sha256: bytes


class OutputAnswer(NamedTuple):
    """The answer to a worker that opens or extends its manifest."""

    answer: Literal["ok", "refused", "illegal", "conflict", "none"]
    owner: str | None = None
    state: str | None = None
    manifest: UUID | None = None
    destination: str | None = None
    note: str | None = None


class OutputTask(NamedTuple):
    """What a publisher has to do for a manifest."""

    manifest: UUID
    batch_id: UUID
    tenant: str
    queue: str
    task: Literal["publish", "clean", "remove"]
    state: ManifestState
    destination: str
    files: int | None
    sealed: bool  # every file had its final name


class TaskFile(NamedTuple):
    path: str
    name: str  # below the destination
    number: int  # its name below the staging prefix
    size: int
    sha256: bytes


class KnownOutputs(NamedTuple):
    """What of a store the database knows."""

    manifests: frozenset[UUID]  # whose staging is needed
    uris: frozenset[str]  # published files


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """The outputs of one attempt. Readers see the files of sealed manifests."""

    manifest: UUID
    batch_id: UUID
    tenant: str
    queue: str
    state: ManifestState
    worker: str
    attempt: int
    destination: str
    folder: str  # of the files, below the destination
    files: int | None  # null until all files are registered
    bytes: int | None  # until then, what the worker found
    opened_at: datetime
    granted_at: datetime | None
    sealed_at: datetime | None
    problem: str | None  # why it is blocked, or why the last try to publish failed


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A published file."""

    path: str
    uri: str
    size: int
    sha256: str
