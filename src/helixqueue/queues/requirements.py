"""What work may ask of its worker, checked before it is sent.

The engine refuses unknown words too, but it refuses the whole call: of ten thousand submissions the
one misspelt "gpu" should be the only one that fails.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from helixqueue.errors import Refused

FREE = ("gpus", "gpu_vram_gb", "cpu_cores", "ram_gb", "disk_gb", "labels")
KNOWN = (*FREE, "gpu_model", "gpu_cc_min")
MAX_AMOUNT = 1_000_000
MAX_BYTES = 2048  # of the JSON, as the table has it


def checked_requires(requires: Mapping[str, Any], what: str = "requires") -> dict[str, Any]:
    """Return the requirements as a plain dict, or raise `Refused` with what is wrong.

    `what` names the argument: `requires`, or `free` for the resources of a worker.
    """
    try:
        resources = dict(requires)
    except (TypeError, ValueError):
        raise Refused(
            f'{what}: expected a mapping such as {{"gpus": 1}}, got {type(requires).__name__}'
        ) from None
    known = FREE if what == "free" else KNOWN
    for name, value in resources.items():
        if name not in known:
            raise Refused(f"{what}: unknown {name!r}; known are {', '.join(known)}")
        if name == "labels":
            _check_labels(what, value)
        elif name == "gpu_model":
            _check_globs(what, value)
        else:
            _check_amount(what, name, value)
    if len(json.dumps(resources, ensure_ascii=False).encode()) > MAX_BYTES:
        raise Refused(f"{what}: at most {MAX_BYTES} bytes of JSON; ask for fewer labels")
    return resources


def _check_amount(what: str, name: str, value: object) -> None:
    kinds = (int,) if name == "gpus" else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or not 0 <= value <= MAX_AMOUNT:  # type: ignore[operator, arg-type]
        expected = "a whole number" if name == "gpus" else "a number"
        raise Refused(f"{what}: {name}: expected {expected} from 0 to {MAX_AMOUNT}, got {value!r}")


def _check_labels(what: str, labels: object) -> None:
    fits = isinstance(labels, dict) and all(
        isinstance(name, str) and isinstance(value, str) and _is_text(name + value)
        for name, value in labels.items()
    )
    if not fits:
        raise Refused(
            f'{what}: labels: expected texts by name such as {{"site": "berlin"}}, '
            f"got {ascii(labels)[:80]}"
        )


def _check_globs(what: str, globs: object) -> None:
    patterns = [globs] if isinstance(globs, str) else globs
    if not (
        isinstance(patterns, list)
        and patterns
        and all(isinstance(glob, str) and glob and _is_text(glob) for glob in patterns)
    ):
        raise Refused(
            f'{what}: gpu_model: expected patterns such as ["*A100*", "*H100*"], '
            f"got {ascii(globs)[:80]}"
        )


def _is_text(text: str) -> bool:
    """Whether the database can hold it: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
