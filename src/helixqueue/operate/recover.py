"""After a restore or a suspected split: a new epoch, so that every token from before is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.postgres.sqlstate import translate

if TYPE_CHECKING:
    from psycopg import Connection


@dataclass(frozen=True, slots=True)
class Recovered:
    epoch: int  # of every token from now on
    ended: int  # leases that were live
    doubted: int  # fenced effects that had begun


def recover(connection: Connection[Any], *, reason: str, actor: str | None = None) -> Recovered:
    """End every lease, doubt every begun effect, begin a new epoch; needs an operator's role.

    The batches go back to PENDING (or to FAILED when no try is left), each with an event that
    carries `reason`. `actor` names the person; without it, the login role is recorded.
    """
    if not reason.strip():
        raise ValueError("recover: expected a reason for the ledger, got an empty one")
    try:
        with connection.transaction():
            row = connection.execute(
                "select epoch, ended, doubted from helix.recover_v1(%s, %s)", (actor, reason)
            ).fetchone()
    except psycopg.Error as error:
        raise translate(error) from error
    if row is None:  # pragma: no cover - the function always returns one row
        raise AssertionError("helix.recover_v1 returned no row")
    return Recovered(*row)
