r"""Makes text from other sources safe to print.

Texts of workers, files and databases may contain escape sequences that repaint the terminal, or
characters that change the reading direction. They are printed as escapes such as \u{1b}.
"""

from __future__ import annotations

from helixqueue.identity import escaped


def plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else escaped(char) for char in text)
