"""Two spellings of one identity, told apart by their code points: people see no difference."""

from __future__ import annotations

import unicodedata
from difflib import SequenceMatcher
from typing import Any

from helixqueue.identity import PART_SEPARATOR


def differences(raw: tuple[str, ...], canonical: tuple[str, ...]) -> list[dict[str, Any]]:
    """Where they differ: the offset in the raw spelling, and the code points of both."""
    came, kept = PART_SEPARATOR.join(raw), PART_SEPARATOR.join(canonical)
    return [
        {"offset": a0, "raw": _code_points(came[a0:a1]), "canonical": _code_points(kept[b0:b1])}
        for what, a0, a1, b0, b1 in SequenceMatcher(None, came, kept, autojunk=False).get_opcodes()
        if what != "equal"
    ]


def shown(parts: tuple[str, ...], revision: str = "") -> str:
    """For people: parts side by side; nothing at all is said so."""
    name = " / ".join(parts) if parts else "(no identity)"
    return f"{name} (revision {revision})" if revision else name


def told(difference: dict[str, Any]) -> str:
    came, kept = (", ".join(difference[side]) or "nothing" for side in ("raw", "canonical"))
    return f"at {difference['offset']}: {came} is kept as {kept}"


def _code_points(text: str) -> list[str]:
    return [f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip() for char in text]
