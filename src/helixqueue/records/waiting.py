"""Why a batch has not been claimed, and whether the ledger entries of a batch are sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from helixqueue.records.batch import Cause, IdentityParts
from helixqueue.records.parameter import Payload


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """A PENDING batch, and what is known about why no worker has it."""

    batch_id: UUID
    identity: IdentityParts
    since: datetime  # when it became PENDING
    attempt: int
    why: str  # such as: no_worker_matches: no worker has gpus 1
    requires: Mapping[str, Any] | None
    workers_alive: int  # that are alive and serve the queue
    workers_fitting: int  # of those: with the resources that it requires
    missing: str | None  # of its requirements: what no worker of the last day has
    detail: Annotated[str | None, Payload]  # of its last step


@dataclass(frozen=True, slots=True)
class EntryProof:
    """The ledger entry of a step; a batch that was claimed and started at once has two of one."""

    version: int
    hash: str
    sound: bool  # the hash covers the entry and the entries before it


@dataclass(frozen=True, slots=True)
class BatchProof:
    entries: tuple[EntryProof, ...]  # of the newest steps
    sound: bool  # all of them, and there are some


def why_waiting(
    *,
    cause: Cause | None,
    due: datetime | None,
    requires: Mapping[str, Any] | None,
    alive: int,
    fitting: int,
    missing: str | None,
) -> str:
    """One sentence part; workers that never reported are not known."""
    if cause == "delay" and due is not None:
        return f"not before {due.isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    if cause == "limit":
        return "its limit key has as many leases as the queue allows"
    if cause == "paused":
        return "the queue is paused"
    if missing:
        return f"no_worker_matches: no worker has {missing}"
    if not fitting:
        needs = f"no worker fits: needs {needs_of(requires or {})}"
        return needs if alive else "no worker is alive"
    return "waits for its turn"


def needs_of(requires: Mapping[str, Any]) -> str:
    """`gpus 1, labels a100`."""
    parts = []
    for name, value in requires.items():
        words = f"{name} {value}"
        if name == "labels" and isinstance(value, Mapping):
            words = f"labels {', '.join(f'{key}={label}' for key, label in value.items())}"
        parts.append(words)
    return ", ".join(parts)
