"""What the examinations of `helixq doctor` share: queries and findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from psycopg import Connection

Verdict = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one examination; `remedy` is empty if the verdict is ok."""

    name: str
    verdict: Verdict
    found: str
    right: str
    remedy: str = ""


class DoctorQueries:
    """Runs the statements of `doctor.sql` on a connection."""

    def __init__(self, connection: Connection[dict[str, Any]]) -> None:
        self.connection = connection

    def row(self, name: str) -> dict[str, Any]:
        [row] = self.rows(name)
        return row

    def rows(self, name: str) -> list[dict[str, Any]]:
        query = statements("helixqueue.operate", "doctor.sql")[name].sql
        return self.connection.execute(query.encode()).fetchall()


def finding_of(
    *, verdict: Verdict, found: object, right: str, remedy: str = "", name: str = ""
) -> Finding:
    """Without a name, the finding gets that of its examination."""
    return Finding(name, verdict, str(found), right, "" if verdict == "ok" else remedy)
