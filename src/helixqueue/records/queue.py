"""A queue: its settings and its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from helixqueue.records.parameter import Param, Requirements

# Answer to the deletion of a queue: a queue that has or had batches stays.
QueueDeletion = Literal["deleted", "absent", "not_empty"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Settings of a queue."""

    tenant: str
    name: str
    profile: str
    lease_seconds: float
    max_attempts: int
    backoff_seconds: float
    backoff_max_seconds: float
    key_limit: int
    unknown: Literal["refuse", "accept"]
    paused: bool
    closed: bool
    requires: Mapping[str, object]
    payload_schema: Mapping[str, object] | None
    result_schema: Mapping[str, object] | None
    # How long finished batches are kept, by state; 0: forever. Their keys are always kept.
    keep_completed_seconds: float = 0
    keep_failed_seconds: float = 0
    keep_cancelled_seconds: float = 0
    keep_decisions_seconds: float = 7_776_000  # of submissions without a new batch
    stalled_after_seconds: float = 900  # claimable batches that wait for longer are reported
    # What a new source does to a FAILED batch: nothing, or a retry.
    resubmit_failed: Literal["answer", "retry"] = "answer"
    placeholders: Sequence[str] = ()  # texts that count as no identity
    outputs: str = ""  # destination of output files; empty: none
    outputs_after: Literal["keep", "remove"] = "keep"  # when retention removes the batch
    misfit: Literal["wait", "refuse"] = "wait"  # work that no worker of the last day could do


def _kept(rows: str, option: str) -> Param:
    return Param(
        f"How long to keep {rows}: 30d, or forever.",
        example=7_776_000, least=0, most=1e10, option=option, metavar="DURATION",
    )  # fmt: skip


class QueueSettings(TypedDict, total=False):
    """Settings that can be changed: one description for declarations, HTTP and commands.

    A setting that is left out stays unchanged. Pausing is an operation of its own.
    """

    profile: Annotated[
        Literal["text-v1", "lab-id-v1"],
        Param("Identity rules: text-v1 or lab-id-v1.", metavar="NAME"),
    ]
    lease_seconds: Annotated[
        float, Param("Length of a lease.", 120, least=0.05, most=86_400, metavar="SECONDS")
    ]
    max_attempts: Annotated[
        int, Param("Maximum number of attempts per batch.", 5, least=1, most=1_000, metavar="N")
    ]
    backoff_seconds: Annotated[
        float,
        Param(
            "Wait after the first failed attempt; doubles after each further one.",
            example=2, least=0, most=86_400, metavar="SECONDS",
        ),
    ]  # fmt: skip
    backoff_max_seconds: Annotated[
        float,
        Param("Maximum wait between attempts.", 600, least=0, most=604_800, metavar="SECONDS"),
    ]
    key_limit: Annotated[
        int,
        Param(
            "Maximum number of concurrent leases per limit key.",
            example=1, least=1, most=100_000, metavar="N",
        ),
    ]  # fmt: skip
    unknown: Annotated[
        Literal["refuse", "accept"],
        Param("Work without identity: refuse or accept.", metavar="POLICY"),
    ]
    placeholders: Annotated[
        Sequence[str],
        Param(
            "Text that counts as no identity.",
            example=["unknown", "n/a"], least=0, length=64, option="--placeholder", metavar="TEXT",
        ),
    ]  # fmt: skip
    closed: Annotated[bool, Param("Refuse or accept new submissions.", option="--closed/--open")]
    requires: Requirements
    payload_schema: Annotated[
        Mapping[str, Any], Param("JSON Schema of payloads.", {"type": "object"}, metavar="JSON")
    ]
    result_schema: Annotated[Mapping[str, Any], Param("JSON Schema of results.", metavar="JSON")]
    keep_completed_seconds: Annotated[float, _kept("completed batches", "--keep-completed")]
    keep_failed_seconds: Annotated[float, _kept("failed batches", "--keep-failed")]
    keep_cancelled_seconds: Annotated[float, _kept("cancelled batches", "--keep-cancelled")]
    keep_decisions_seconds: Annotated[
        float, _kept("records of duplicates, conflicts and refusals", "--keep-decisions")
    ]
    stalled_after_seconds: Annotated[
        float,
        Param(
            "Report claimable batches that wait for longer: 15m by default.",
            example=900, least=1, most=1e10, metavar="DURATION",
        ),
    ]  # fmt: skip
    resubmit_failed: Annotated[
        Literal["answer", "retry"],
        Param(
            "What a new source does to a FAILED batch: answer (nothing) or retry.", metavar="RULE"
        ),
    ]
    outputs: Annotated[
        str,
        Param(
            "Destination of output files, below a root of an operator; empty: none.",
            example="s3://lab/runs", least=0, length=500, metavar="URI",
        ),
    ]  # fmt: skip
    outputs_after: Annotated[
        Literal["keep", "remove"],
        Param("Output files of batches that retention removes: keep or remove.", metavar="RULE"),
    ]
    misfit: Annotated[
        Literal["wait", "refuse"],
        Param("New work that no worker of the last day could do: wait or refuse.", metavar="RULE"),
    ]


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """A count; with `more`, a lower bound: counting stops at a limit."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.more else str(self.number)


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Batches of a queue by state."""

    ready: BoundedCount
    waiting: BoundedCount
    assigned: BoundedCount
    running: BoundedCount
    completed: BoundedCount
    failed: BoundedCount
    cancelled: BoundedCount


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary(QueueRow):
    """Settings of a queue, and counts of its batches."""

    counts: QueueCounts


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    tenant: str
    queue: str
