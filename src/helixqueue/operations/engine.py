"""The engine's calls, for operations that run on a database.

A module is loaded when an operation first uses it: a client of a service runs none, and loads
neither SQL nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "calls", "check_runs", "devices", "duties", "fences", "identities", "ledgers", "letters",
    "metrics", "outputs", "overview", "reads", "runs", "seals", "service_calls", "tokens",
    "webhooks",
]  # fmt: skip

if TYPE_CHECKING:
    from helixqueue.engine import (
        calls,
        check_runs,
        devices,
        duties,
        fences,
        identities,
        ledgers,
        letters,
        metrics,
        outputs,
        overview,
        reads,
        runs,
        seals,
        service_calls,
        tokens,
        webhooks,
    )
else:
    from importlib import import_module

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(name)
        return import_module(f"helixqueue.engine.{name}")
