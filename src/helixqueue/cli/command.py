"""A program and its arguments in one word of the command line, quoted as shells have it."""

from __future__ import annotations

import shlex

import typer


def command(given: str) -> str:
    """As it came, once it can be taken apart."""
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected a command as shells read it, got one with {str(error).lower()}"
        ) from None
    if not words:
        raise typer.BadParameter("expected a command, got none")
    return given
