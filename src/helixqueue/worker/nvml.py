"""GPUs as NVIDIA's management library reports them (nvidia-ml-py, extra `gpu`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused
from helixqueue.worker.devices import Device

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_devices(selected: str | Sequence[int | str]) -> list[Device]:
    """The selected GPUs: `all`, or indices and UUIDs. Without NVML they are only named."""
    names = [] if selected == "all" else _names(selected)
    try:
        pynvml = import_module("pynvml")  # an extra without types
    except ImportError:
        if not names:
            raise Refused(
                "gpus: expected nvidia-ml-py to find all of them; pip install 'helixqueue[gpu]', "
                "or name them: --gpus 0,1"
            ) from None
        return [Device(uuid=name, index=place) for place, name in enumerate(names)]
    try:
        pynvml.nvmlInit()
        found = [_describe(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        raise Refused(f"gpus: expected NVIDIA's driver, got: {error}") from None
    if not names:
        return found
    by_name = {str(device.index): device for device in found} | {d.uuid: d for d in found}
    # A device that vanished is not handed out; the others are.
    return [by_name[name] for name in names if name in by_name]


def _names(selected: str | Sequence[int | str]) -> list[str]:
    parts = selected.split(",") if isinstance(selected, str) else selected
    return [str(part).strip() for part in parts]


def _describe(pynvml: Any, index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return Device(
            uuid=uuid,
            index=index,
            model=pynvml.nvmlDeviceGetName(handle),
            vram_gb=round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 1e9, 1),
            cc=float(f"{major}.{minor}"),
            fault=_fault(pynvml, handle),
        )
    except pynvml.NVMLError as error:
        return Device(uuid=uuid, index=index, fault=str(error))


def _fault(pynvml: Any, handle: Any) -> str | None:
    """Memory that could not be repaired; older devices do not report it."""
    try:
        *_, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    except pynvml.NVMLError_NotSupported:
        return None
    return "the remapping of memory rows failed" if failed else None
