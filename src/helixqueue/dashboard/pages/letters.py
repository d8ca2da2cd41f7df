"""Dead letters: messages that could not become batches; redrive or discard them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, action, go_to, page_router, view
from helixqueue.dashboard.rendering import url
from helixqueue.operations import letters as operations
from helixqueue.records.letter import STATUSES

routes = page_router()
LetterNumber = Annotated[int, Path(ge=1, lt=2**63)]
Status = Literal["open", "redriven", "discarded", "expired", "all"]
Act = Annotated[Literal["redrive", "discard"] | None, Query()]
HEX_BYTES = 512


@view(routes, "/letters")
async def letters(page: PageDep, status: Status = "open", after: After = None) -> Response:
    found = await page.ask(operations.list_letters, status=status, after=after)
    return await page.show("letters.html", found=found, status=status, tabs=(*STATUSES, "all"))


@view(routes, "/letters/{letter}")
async def letter(page: PageDep, letter: LetterNumber, act: Act = None) -> Response:
    found = await page.ask(operations.show_letter, letter=letter, raw=True)
    body = found.body
    return await page.show(
        "letter.html",
        letter=found,
        act=act,
        dump=[] if body is None else hex_dump(body[:HEX_BYTES]),
        cut=body is not None and len(body) > HEX_BYTES,
    )


def hex_dump(body: bytes) -> list[tuple[str, str, str]]:
    """Rows of offset, hexadecimal bytes and printable characters."""
    return [
        (
            f"{at:04x}",
            body[at : at + 16].hex(" "),
            "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in body[at : at + 16]),
        )
        for at in range(0, len(body), 16)
    ]


@action(routes, "/letters/{letter}/redrive")
async def redrive(page: PageDep, letter: LetterNumber) -> Response:
    """Submit the message again, with corrections if there are any."""
    changes: dict[str, Any] = {
        name: page.form[name].strip()
        for name in ("queue", "identity", "revision")
        if page.form.get(name, "").strip()
    }
    accepted = await page.ask(
        operations.redrive_letter, letter=letter, reason=page.reason, **changes
    )
    return go_to(url("batches", accepted.receipt.batch_id))


@action(routes, "/letters/{letter}/discard")
async def discard(page: PageDep, letter: LetterNumber) -> Response:
    await page.ask(operations.discard_letter, letter=letter, reason=page.reason)
    return go_to(url("letters", letter))
