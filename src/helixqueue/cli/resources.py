"""GPUs, memory and labels on the command line, as JSON: what work asks for, what a worker has."""

from __future__ import annotations

from typing import Any

import typer

from helixqueue.errors import InvalidPayload
from helixqueue.identity import loads
from helixqueue.queues import checked_requires


def resources(what: str, text: str) -> dict[str, Any]:
    """Of the option --`what`; the words and their bounds are the same everywhere."""
    try:
        value = loads(text)
    except InvalidPayload as error:
        raise typer.BadParameter(f"--{what}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'--{what}: expected an object such as {{"gpus": 1}}')
    return checked_requires(value, what)
