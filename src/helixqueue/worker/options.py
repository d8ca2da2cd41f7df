"""What a worker can be told."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict

from helixqueue.errors import Refused
from helixqueue.queues import checked_requires

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS_AT_A_TIME = 2
ROUNDS_MAX = 32


class WorkOptions(TypedDict, total=False):
    slots: int  # handlers at a time: 4
    until_idle: bool  # end when nothing is left to claim
    prefetch: (
        int | None
    )  # at most so many in one claim, 1 for one by one; else as quick work allows
    free: Mapping[str, Any] | None  # what each slot has: {"gpus": 1, "gpu_vram_gb": 24}
    poll_seconds: float  # how often to look unasked: 1
    grace_seconds: float  # for what runs when the worker is stopped: 30
    name: str | None  # of the worker, for people; made up unless said


@dataclass(frozen=True)
class WorkerOptions:
    slots: int = 4
    until_idle: bool = False
    prefetch: int | None = None
    free: Mapping[str, Any] | None = None
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    name: str | None = None
    worker: str = field(init=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("slots", 1, 1_000),
            ("poll_seconds", 0.05, 60),
            ("grace_seconds", 0, 86_400),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise Refused(f"{name}: expected a number, got {value!r}")
            if not least <= value <= most:
                raise Refused(f"{name}: expected {least} to {most}, got {value!r}")
        if self.prefetch is not None and not 1 <= self.prefetch <= 1_000:
            raise Refused(f"prefetch: expected 1 to 1000, got {self.prefetch!r}")
        if self.free is not None:
            object.__setattr__(self, "free", checked_requires(self.free, "free"))
        # Never a host's or a person's name alone: a worker that starts again is another one.
        told = self.name or f"{socket.gethostname()}-{os.getpid()}"
        if not 1 <= len(told.encode()) <= 200:
            raise Refused(f"name: expected 1 to 200 bytes, got {told!r}")
        object.__setattr__(self, "worker", f"{told}-{secrets.token_hex(3)}")

    @classmethod
    def of(cls, worker: str) -> Self:
        """Of the one slot of a worker that has its name already."""
        made = cls(slots=1)
        object.__setattr__(made, "worker", worker)
        return made

    @property
    def rounds(self) -> int:
        """Calls at a time: few, unless every slot asks for itself."""
        one_by_one = self.prefetch == 1 or self.free is not None
        return min(self.slots, ROUNDS_MAX if one_by_one else ROUNDS_AT_A_TIME)
