"""Recovery after a restore or a suspected split brain: a new epoch refuses all earlier tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.engine import calls
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from psycopg import Connection

    from helixqueue.engine.calls import Recovery


def recover(connection: Connection[Any], *, reason: str, actor: str | None = None) -> Recovery:
    """End every lease, doubt every started effect and begin a new epoch; needs an operator's role.

    The batches return to PENDING, or to FAILED if no attempt is left, each with an event that
    carries `reason`. `actor` names the operator; by default the login role is recorded.
    """
    if not reason.strip():
        raise ValueError("recover: expected a reason for the ledger, got an empty one")
    with connection.transaction():
        return Database(connection).run(calls.recover(actor=actor, reason=reason))
