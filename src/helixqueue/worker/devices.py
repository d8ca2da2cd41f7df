"""The devices of a worker: GPUs that its slots and the other workers of its host share exclusively.

The worker describes what it owns in every claim, and the database hands out whole devices. After a
lease that did not end by its worker's word, the device waits until its process is gone; this module
looks for it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from helixqueue.records.device import FormerAllocation

READ_SECONDS: Final = 15.0  # how often the health of devices is read
MARK: Final = "HELIX_DEVICES"  # in the environment of a process: the devices that it was given
_Amount = Field(default=0.0, ge=0, le=1_000_000)


class Device(BaseModel):
    """A GPU, as NVML or a file describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uuid: str = Field(min_length=1, max_length=255, pattern=r"^[\w.:/-]+$")
    index: int = 0
    model: str = Field(default="", max_length=100)
    vram_gb: float = _Amount  # 10^9 bytes, so that a card sold with 24 GB has 24
    cc: float = _Amount  # compute capability
    fault: str | None = Field(default=None, max_length=200)  # why it is not to be used


class PoolSpec(BaseModel):
    """The file of `--pool`: what the workers of a host share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default_factory=socket.gethostname, min_length=1, max_length=255)
    gpus: str | tuple[int | str, ...] = ()  # found by NVML: `all`, or indices and UUIDs
    devices: tuple[Device, ...] = Field(default=(), max_length=64)  # described here
    cpu_cores: float = Field(default_factory=lambda: float(os.cpu_count() or 1), ge=0)
    ram_gb: float = Field(
        default_factory=lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, ge=0
    )
    disk_gb: float = _Amount
    labels: dict[str, str] = Field(default_factory=dict)
    # A device of a lost lease is handed out after this time, even if its process may be running.
    grace_seconds: float = Field(default=3600.0, ge=0, le=31_536_000)
    # How long work that needs more than is free waits before it reserves devices.
    reserve_seconds: float = Field(default=60.0, ge=0, le=31_536_000)


class DevicePool:
    """What a worker owns, read again from its source from time to time."""

    def __init__(
        self,
        gpus: str | Sequence[int | str] | None = None,
        file: str | Path | None = None,
        free: Mapping[str, Any] | None = None,
    ) -> None:
        """`gpus` that NVML finds, a `file` that describes the pool, or both.

        `free` has cores, memory and labels of the host that the file does not name.
        """
        self._gpus = gpus
        self._free = dict(free or {})
        self._file = None if file is None else Path(file)
        self._process = process_identity(os.getpid())
        self._read()

    @property
    def host(self) -> str:
        return self._spec.host

    def describe(self) -> dict[str, Any]:
        """What a report of the worker says."""
        if time.monotonic() - self._read_at > READ_SECONDS:
            with suppress(Refused):  # as before, until the file is valid again
                self._read()
        return {
            **self._spec.model_dump(exclude={"gpus", "devices"}),
            "devices": [device.model_dump(exclude_none=True) for device in self._devices],
        }

    def free(self, gone: Iterable[int]) -> dict[str, Any]:
        """What a claim says; `gone` are former allocations whose processes have ended."""
        return {**self.describe(), "process": self._process, "gone": list(gone)}

    def find_gone(self, former: Sequence[FormerAllocation], held: Collection[str]) -> list[int]:
        """Those of `former` that no process uses. `held`: ids of batches that this worker runs."""
        used = _devices_in_use() if former else frozenset()
        return [
            row.id
            for row in former
            if row.device not in used
            and (row.batch_id not in held if row.process == self._process else is_gone(row.process))
        ]

    def _read(self) -> None:
        self._read_at = time.monotonic()
        document = {} if self._file is None else _document(self._file)
        labels = {**self._free.get("labels", {}), **document.get("labels", {})}
        document = {**self._free, **document, "labels": labels}
        if self._gpus is not None:
            document["gpus"] = self._gpus
        self._spec = _checked(document, "gpus" if self._file is None else f"pool {self._file}")
        self._devices = list(self._spec.devices)
        if self._spec.gpus:
            from helixqueue.worker import nvml  # noqa: PLC0415 - only where NVML is used

            self._devices += nvml.find_devices(self._spec.gpus)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Refused(f"pool: expected a JSON file, got {path}: {error}") from None
    if not isinstance(document, dict):
        raise Refused(f"pool: expected a JSON object in {path}, got {type(document).__name__}")
    return document


def _checked(document: Mapping[str, Any], what: str) -> PoolSpec:
    try:
        spec = PoolSpec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{what}: {where}: {first['msg']}") from None
    uuids = [device.uuid for device in spec.devices]
    if len(set(uuids)) < len(uuids):
        raise Refused(f"{what}: expected different UUIDs, got {', '.join(sorted(uuids))}")
    return spec


def device_environment(devices: Sequence[str]) -> dict[str, str]:
    """The variables that show a process its devices, by UUID; empty for work without devices."""
    names = ",".join(devices)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": names,
        "NVIDIA_VISIBLE_DEVICES": names,
        MARK: names,
    }


def process_identity(pid: int) -> str | None:
    """Boot, PID namespace, PID and start time: what no other process has. None: no such process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        # The name of a program may contain blanks and parentheses.
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if state == b"Z":
        return None
    return f"{boot}/{namespace}/{pid}/{int(fields[18])}"


def is_gone(process: str) -> bool:
    """Whether a process has ended; false where this host cannot know, as in another container."""
    boot, _, rest = process.partition("/")
    namespace, _, number = rest.partition("/")
    mine = (process_identity(os.getpid()) or "//").split("/")
    if boot != mine[0]:
        return True
    if namespace != mine[1]:
        return False
    return process_identity(int(number.partition("/")[0])) != process


def _devices_in_use() -> frozenset[str]:
    """The devices that processes of this host were given and still run, also without a worker."""
    mark = f"{MARK}=".encode()
    found: set[str] = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            for variable in environment.read_bytes().split(b"\0"):
                if variable.startswith(mark):
                    found.update(variable[len(mark) :].decode(errors="replace").split(","))
    return frozenset(found)
