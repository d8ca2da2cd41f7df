"""Text from elsewhere, made harmless for a terminal.

What workers, sheets and databases wrote may hold escape sequences that repaint a screen, or
characters that turn the reading direction. They are shown by their numbers, as identities are.
"""

from __future__ import annotations

from helixqueue.identity import escaped


def plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else escaped(char) for char in text)
