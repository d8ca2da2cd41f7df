"""Seals that services made. Making one takes its own connection: service/routes/proof.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from helixqueue.errors import NoSuchSeal
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.page import Page
from helixqueue.records.parameter import Cursor, Limit, Param
from helixqueue.records.seal import SealRow

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

Number = Annotated[int, Param("Number of the seal, from 1.", 1, least=1, most=2**53)]


@operation("GET /v1/seals", scope="seal")
def list_seals(
    operations: Operations, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[SealRow]]:
    """List the seals that services made, newest first.

    Without their documents, of which `GET /v1/seals/{number}` has one.
    """
    return operations.ask(engine.seals.list_seals(after=after, limit=limit))


@operation("GET /v1/seals/{number}", scope="seal", raises=[NoSuchSeal])
def show_seal(operations: Operations, number: Number) -> Instructions[SealRow]:
    """Show a seal with its document, the signed file that `helixq check --against` reads.

    The copy in the database is for callers that missed one: keep seals elsewhere.
    """
    row = yield from operations.ask(engine.seals.find_seal(number=number))
    if row is None:
        raise NoSuchSeal(f"the service has made no seal {number}")
    return row
