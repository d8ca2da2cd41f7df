"""Dead letters for tests, written as an intake writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.engine import letters
from helixqueue.operations.message import Poison, encode_fields, letter_of, message_fields

if TYPE_CHECKING:
    from tests.support.lab import Lab


def write_letters(lab: Lab, *entries: str, tenant: str = "a") -> list[int | None]:
    """Write one letter per entry of a stream named like the queue; its message is valid."""
    new = []
    for entry in entries:
        fields = message_fields(queue=lab.q, identity=f"letter-{entry}", payload='{"n":1}')
        poison = Poison("refused", f"the queue was closed at {entry}", lab.q)
        new.append(letter_of(entry, encode_fields(fields), poison))
    call = letters.write_letters(tenant=tenant, kind="stream", name=lab.q, letters=new)
    return lab.run(call)
