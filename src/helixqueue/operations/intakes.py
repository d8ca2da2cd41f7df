"""Intakes: the processes that submit the entries of Redis Streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.letter import IntakeRow
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations


@operation("GET /v1/intakes", scope="read")
def list_intakes(operations: Operations) -> Instructions[Page[IntakeRow]]:
    """Show intakes, and what Redis said last about their groups.

    An intake reports every few seconds. `gone`: no report for 30 seconds; `waiting`: `problem` says
    why it does not read; `stopped`: it ended after a signal.
    """
    rows = yield from operations.ask(engine.letters.intakes(tenant=operations.tenant or None))
    return Page(tuple(rows), None)
