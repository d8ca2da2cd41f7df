"""Runs a background duty now, whether or not it is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.engine import duties
from helixqueue.postgres.database import Database as Store

if TYPE_CHECKING:
    from tests.support.database import Database
    from tests.support.lab import Lab

_ONLY = (
    "update helix.duty set next_at = case when duty = %s then '-infinity' else 'infinity' end"
    "::timestamptz"
)


def make_due(lab: Lab, name: str) -> None:
    """Make one duty due; the others wait until a test makes them due."""
    _edit(lab, _ONLY, name)


def make_all_due(lab: Lab) -> None:
    """Make every duty due, as it is after a pause of all services."""
    _edit(lab, "update helix.duty set next_at = clock_timestamp()")


def _edit(lab: Lab, statement: str, *arguments: str) -> None:
    lab.superuser.execute("alter table helix.duty disable trigger a_guard")
    lab.superuser.execute(statement, arguments)
    lab.superuser.execute("alter table helix.duty enable always trigger a_guard")


def run_duty(lab: Lab, name: str) -> str | None:
    """Run one duty until it has nothing left to do; returns the error of its last run."""
    make_due(lab, name)
    error = None
    while (done := lab.run(duties.run_duty(actor="test", limit=1000))) is not None:
        assert done.duty == name
        error = done.error
    return error


def run_all_duties(database: Database) -> None:
    """Run every due duty, as a service does, so that none is overdue."""
    with Store.connect(database.dsn("pool")) as store:
        while store.run(duties.run_duty(actor="service", limit=1000)) is not None:
            pass
