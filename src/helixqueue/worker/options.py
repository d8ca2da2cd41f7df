"""The options of a worker."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict

from helixqueue.errors import Refused
from helixqueue.queues import checked_requires
from helixqueue.worker.devices import DevicePool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONCURRENT_CALLS = 2
CONCURRENT_CALLS_MAX = 32


class WorkOptions(TypedDict, total=False):
    slots: int  # concurrent handlers; 4
    until_idle: bool  # end when nothing is left to claim
    prefetch: int | None  # 1: claim for free slots only, N: N - 1 ahead; default: by duration
    # Resources of each slot: {"gpus": 1, "gpu_vram_gb": 24}. With `gpus` or `pool`, of the host.
    free: Mapping[str, Any] | None
    # Devices that all slots and workers of this host share: "all", [0, 1], or UUIDs.
    gpus: str | Sequence[int | str] | None
    pool: str | Path | None  # a file that describes what the workers of this host share
    poll_seconds: float  # interval of claims without a wake-up; 1
    grace_seconds: float  # time to finish after stop; 30
    name: str | None  # of the worker, for operators; default: host and process id
    all_tenants: bool  # serve every tenant of the login, not only the client's
    metrics_port: int | None  # serve metrics for Prometheus there; 0 for any free port
    metrics_host: str  # address of that endpoint, which asks for no token; 127.0.0.1


@dataclass(frozen=True)
class WorkerOptions:
    slots: int = 4
    until_idle: bool = False
    prefetch: int | None = None
    free: Mapping[str, Any] | None = None
    gpus: str | Sequence[int | str] | None = None
    pool: str | Path | None = None
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    name: str | None = None
    all_tenants: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    worker: str = field(init=False)
    device_pool: DevicePool | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for option, least, most in (
            ("slots", 1, 1_000),
            ("poll_seconds", 0.05, 60),
            ("grace_seconds", 0, 86_400),
        ):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Refused(f"{option}: expected a number, got {value!r}")
            if not least <= value <= most:
                raise Refused(f"{option}: expected {least} to {most}, got {value!r}")
        if self.prefetch is not None and not 1 <= self.prefetch <= 1_000:
            raise Refused(f"prefetch: expected 1 to 1000, got {self.prefetch!r}")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise Refused(f"metrics_port: expected 0 to 65535, got {self.metrics_port!r}")
        if self.free is not None:
            object.__setattr__(self, "free", checked_requires(self.free, "free"))
        if self.gpus is not None or self.pool is not None:
            object.__setattr__(self, "device_pool", DevicePool(self.gpus, self.pool, self.free))
        # With a random suffix: a worker that restarts under the same name is another worker.
        name = self.name or f"{socket.gethostname()}-{os.getpid()}"
        if not 1 <= len(name.encode()) <= 200:
            raise Refused(f"name: expected 1 to 200 bytes, got {name!r}")
        object.__setattr__(self, "worker", f"{name}-{secrets.token_hex(3)}")

    @classmethod
    def for_worker(cls, worker: str) -> Self:
        """Options of one slot of an existing worker."""
        options = cls(slots=1)
        object.__setattr__(options, "worker", worker)
        return options

    @property
    def concurrent_calls(self) -> int:
        """Few, so that slots which finish together share a call; `free` claims slot by slot."""
        return min(self.slots, CONCURRENT_CALLS_MAX if self.one_by_one else CONCURRENT_CALLS)

    @property
    def one_by_one(self) -> bool:
        """Whether each slot claims what fits its resources."""
        return self.free is not None or self.device_pool is not None
