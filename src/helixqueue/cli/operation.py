"""Runs an operation on the database or the service of a command."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from helixqueue.cli import connection
from helixqueue.errors import Refused
from helixqueue.operations.batches import Operations
from helixqueue.operations.instructions import Execute, run_instructions

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.cli.connection import Target
    from helixqueue.fence.signing import Signer
    from helixqueue.operations.instructions import Instruction, Instructions

T = TypeVar("T")


class Runner:
    """Runs operations for a tenant; with `every_tenant`, none is all that the login sees."""

    def __init__(
        self,
        target: Target,
        tenant: str | None,
        actor: str | None = None,
        *,
        every_tenant: bool = False,
        retry_seconds: float = 0,
    ) -> None:
        """With `retry_seconds`, wait and ask again while the database or service is away."""
        choose = connection.tenant_to_read if every_tenant else connection.tenant_to_change
        name = choose(target, tenant) or None
        self._target, self._run = target, target.run
        self._sleeps = retry_seconds > 0
        self._operations = Operations(
            target.call_set,
            tenant=name,
            actor=actor,
            retry_seconds=retry_seconds,
            find_signer=_find_signer,
        )

    def __call__(self, operation: Callable[[Operations], Instructions[T]]) -> T:
        return run_instructions(operation(self._operations), self._perform)

    def demand_tenant(self) -> None:
        """Raise an error where the login sees no row, so that an empty list says nothing."""
        if not self._operations.tenant:
            connection.demand_any_tenant(self._target)

    def _perform(self, instruction: Instruction) -> object:
        if isinstance(instruction, Execute):
            return self._run(instruction.call)
        if self._sleeps:
            time.sleep(instruction.seconds)
        elif instruction.seconds:
            raise Refused("the database is busy; run the command again")
        return None


def run(
    target: Target,
    tenant: str | None,
    actor: str | None,
    operation: Callable[[Operations], Instructions[T]],
    *,
    every_tenant: bool = False,
) -> T:
    return Runner(target, tenant, actor, every_tenant=every_tenant)(operation)


def _find_signer() -> Signer | None:
    from helixqueue.fence.key_file import find_signer  # noqa: PLC0415 - few commands sign

    return find_signer()
