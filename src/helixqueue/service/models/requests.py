"""Request bodies. Their limits are declared here, so that the OpenAPI document has them too."""

from __future__ import annotations

import unicodedata
from functools import partial
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

from helixqueue.engine.tokens import LOGIN
from helixqueue.errors import Refused
from helixqueue.queues import checked_requires
from helixqueue.records.parameter import iso_text
from helixqueue.service.settings import MAX_LEASES, MAX_ROWS, MAX_WAIT_SECONDS
from helixqueue.service.tenant_cipher import SEALED_CHARS_MAX

NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,62}$"
# Together with the name of its tenant it fits the engine's limit.
MAX_WORKER_CHARS = 190

# A page lists five hundred workers, each with its last health report.
MAX_HEALTH_BYTES: Final = 8_192


def printable(text: str) -> str:
    if not text.strip() or any(unicodedata.category(char) == "Cc" for char in text):
        raise ValueError("expected text without control characters")
    return text


def _limit_size(limit: int, document: dict[str, Any]) -> dict[str, Any]:
    size = len(orjson.dumps(document))
    if size > limit:
        raise ValueError(f"expected at most {limit} bytes of JSON, got {size}")
    return document


SealedLease = Annotated[
    str,
    Field(
        pattern=rf"^[A-Za-z0-9_-]{{1,{SEALED_CHARS_MAX}}}$",
        description="The `lease` of a claim: reference and proof of one lease.",
        examples=["x" * 90],
    ),
]
Time = Annotated[AwareDatetime, BeforeValidator(iso_text)]
Health = Annotated[dict[str, Any], AfterValidator(partial(_limit_size, MAX_HEALTH_BYTES))]


Name = Annotated[str, Field(pattern=NAME_PATTERN, examples=["basecall"])]
Worker = Annotated[
    str,
    Field(min_length=1, max_length=MAX_WORKER_CHARS, examples=["gpu-1"]),
    AfterValidator(printable),
]
IdentityText = Annotated[str, Field(max_length=1024)]
Identity = (
    IdentityText | Annotated[tuple[IdentityText, ...], Field(min_length=1, max_length=16)] | None
)
Json = Any
Seconds = Annotated[StrictFloat, Field(ge=0.05, le=86_400, allow_inf_nan=False)]
Delay = Annotated[StrictFloat, Field(ge=0, le=604_800, allow_inf_nan=False)]
Amount = Annotated[StrictFloat, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class RequestModel(BaseModel):
    """Rejects unknown members: a misspelled option would be silently ignored."""

    model_config = ConfigDict(extra="forbid")


class SourceItem(RequestModel):
    """The delivery that asks for a batch, such as an event of a webhook."""

    kind: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$", examples=["webhook"])]
    name: Annotated[
        str, Field(min_length=1, max_length=255, examples=["orders"]), AfterValidator(printable)
    ]
    id: Annotated[
        str, Field(min_length=1, max_length=255, examples=["evt_1"]), AfterValidator(printable)
    ]


class SubmitRequest(RequestModel):
    identity: Identity = Field(description="Business identifier; null for none.", examples=["S-1"])
    payload: Json = Field(description="Any JSON.", examples=[{"pod5": "a.pod5"}])
    revision: Annotated[str, Field(max_length=255)] | None = Field(None, examples=["2"])
    priority: Annotated[StrictInt, Field(ge=0, le=9)] | None = None
    run_at: Time | None = None
    expires_at: Time | None = None
    limit_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    requires: dict[str, Any] | None = Field(None, examples=[{"gpus": 1}])
    source: SourceItem | None = Field(
        None, description="The delivery that asks; default: the Idempotency-Key, if there is one."
    )


class SubmitManyRequest(RequestModel):
    submissions: Annotated[
        list[SubmitRequest], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)
    ]


class RefusedIdentity(RequestModel):
    """An identity that violates its profile."""

    raw: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,4096}$", examples=["53e28eb031"])]
    why: Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(printable)]


class RefusedIdentitiesRequest(RequestModel):
    refused: Annotated[
        list[RefusedIdentity], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)
    ]


_OF_HOSTS = {"host", "devices", "process", "grace_seconds", "reserve_seconds", "gone"}


class DeviceItem(RequestModel):
    """A GPU of the host of a worker."""

    uuid: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\w.:/-]+$")]
    index: Annotated[StrictInt, Field(ge=0, le=1_000)] = 0
    model: Annotated[str, Field(max_length=100), AfterValidator(printable)] = ""
    vram_gb: Amount = 0
    cc: Amount = 0
    fault: Annotated[str, Field(max_length=200), AfterValidator(printable)] | None = None


class Resources(RequestModel):
    """Free resources of a worker; with `host`, what all workers of that host share."""

    gpus: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 0
    gpu_vram_gb: Amount = 0
    cpu_cores: Amount = 0
    ram_gb: Amount = 0
    disk_gb: Amount = 0
    labels: dict[str, str] = Field(default_factory=dict)
    host: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)] | None = (
        None
    )
    devices: Annotated[list[DeviceItem], Field(max_length=64)] | None = None
    process: Annotated[str, Field(max_length=255), AfterValidator(printable)] | None = None
    grace_seconds: Amount | None = None
    reserve_seconds: Amount | None = None
    gone: Annotated[list[StrictInt], Field(max_length=1_000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Apply the same rules as for workers with a direct connection."""
        try:
            if isinstance(value, dict):
                checked_requires({k: v for k, v in value.items() if k not in _OF_HOSTS}, "free")
        except Refused as refused:
            raise ValueError(str(refused)) from None
        return value


class LoginRequest(RequestModel):
    code: Annotated[str, Field(pattern=f"^{LOGIN.pattern}$", examples=["hl_" + "A" * 43])]


class LeasesRequest(RequestModel):
    worker: Worker
    leases: Annotated[list[SealedLease], Field(min_length=1, max_length=1_000, fail_fast=True)]


class ReleaseRequest(LeasesRequest):
    detail: Annotated[str, Field(max_length=1_000), AfterValidator(printable)] | None = None


class SettlementItem(RequestModel):
    lease: SealedLease
    outcome: Literal["completed", "failed"]
    result: Json = Field(None, description="Any JSON; only if completed.")
    failure: Annotated[str, Field(max_length=255)] | None = None
    detail: Annotated[str, Field(max_length=65_536)] | None = None
    permanent: StrictBool = False
    after_seconds: Delay | None = None


class OpenOutputsRequest(RequestModel):
    worker: Worker
    lease: SealedLease
    size: Annotated[StrictInt, Field(ge=0, le=2**62)] | None = Field(
        None, description="Bytes that the worker is about to stage."
    )


class StagedFileItem(RequestModel):
    path: Annotated[str, Field(min_length=1, max_length=900, examples=["reads/a.fastq"])]
    size: Annotated[StrictInt, Field(ge=0, le=2**62)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class RegisterOutputsRequest(RequestModel):
    worker: Worker
    lease: SealedLease
    first: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] = 0
    staged: Annotated[list[StagedFileItem], Field(max_length=500, fail_fast=True)]
    files: Annotated[StrictInt, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="With the last page: the number of all files."
    )


class SettleRequest(RequestModel):
    worker: Worker
    settlements: Annotated[
        list[SettlementItem], Field(min_length=1, max_length=MAX_LEASES, fail_fast=True)
    ]


class ClaimLeasesRequest(RequestModel):
    worker: Worker
    request: UUID = Field(description="A repeat with the same id returns the same leases.")
    queues: Annotated[list[Name], Field(min_length=1, max_length=64)]
    count: Annotated[StrictInt, Field(ge=1, le=MAX_LEASES)] = 1
    free: Resources | None = None
    start: StrictBool = False
    lease_seconds: Seconds | None = None
    settle: Annotated[list[SettlementItem], Field(max_length=MAX_LEASES, fail_fast=True)] = Field(
        default_factory=list
    )


class Progress(RequestModel):
    """Progress of one batch, for display."""

    batch: UUID
    fraction: Annotated[StrictFloat, Field(ge=0, le=1)] | None = None
    note: Annotated[str, Field(max_length=200)] = ""


class HelloRequest(RequestModel):
    worker: Worker
    free: Resources | None = None
    health: Annotated[Health, Field(max_length=32)] | None = Field(
        None, description="Health report of the worker.", examples=[{"busy": 2}]
    )
    progress: Annotated[list[Progress], Field(max_length=50, fail_fast=True)] | None = None
    ended: StrictBool = Field(default=False, description="The worker ends; its last report stays.")


class ExpectRequest(RequestModel):
    worker: Worker
    queues: Annotated[list[Name], Field(min_length=1, max_length=64)]
    seconds: Annotated[StrictFloat, Field(ge=0, le=300, allow_inf_nan=False)] = Field(
        60.0, description="Duration of the subscription; 0 ends it."
    )


class WaitRequest(RequestModel):
    worker: Worker
    queues: Annotated[list[Name], Field(min_length=1, max_length=64)]
    mark: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="`mark` of the previous response: later submissions count."
    )
    seconds: Annotated[StrictFloat, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = 10.0
