"""The code points by which two spellings of one identity differ; they look the same."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from helixqueue.identity import PART_SEPARATOR
from helixqueue.identity.characters import described
from helixqueue.records.overview import PARTS_SHOWN


def differences(raw: tuple[str, ...], canonical: tuple[str, ...]) -> list[dict[str, Any]]:
    """The differences: offset in the raw spelling, and the code points of both."""
    before, after = PART_SEPARATOR.join(raw), PART_SEPARATOR.join(canonical)
    return [
        {"offset": a0, "raw": _code_points(before[a0:a1]), "canonical": _code_points(after[b0:b1])}
        for tag, a0, a1, b0, b1 in SequenceMatcher(
            None, before, after, autojunk=False
        ).get_opcodes()
        if tag != "equal"
    ]


def identity_text(parts: tuple[str, ...], revision: str = "") -> str:
    name = PARTS_SHOWN.join(parts) if parts else "(no identity)"
    return f"{name} (revision {revision})" if revision else name


def difference_text(difference: dict[str, Any]) -> str:
    raw, canonical = (", ".join(difference[side]) or "nothing" for side in ("raw", "canonical"))
    return f"at offset {difference['offset']}: {raw} is stored as {canonical}"


def _code_points(text: str) -> list[str]:
    return [described(char) for char in text]
