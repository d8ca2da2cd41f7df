"""Calls about the devices of hosts; the SQL is in devices.sql."""

from __future__ import annotations

from helixqueue.engine.calls import identity_parts
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.device import DeviceRow

_SQL = sql_texts("helixqueue.engine", "devices.sql")


def devices(*, tenant: str) -> Call[tuple[DeviceRow, ...]]:
    """Read the devices of the hosts that serve a tenant."""

    def read(rows: list[Row]) -> tuple[DeviceRow, ...]:
        found = []
        for row in rows:
            values = (*row[:12], identity_parts(row[12]), *row[13:])
            found.append(DeviceRow(*values))
        return tuple(found)

    return Call(_SQL["devices"], {"tenant": tenant}, read)


def withdraw(*, host: str, device: str, reason: str | None) -> Call[bool]:
    """Withdraw a device, or return it without a reason; whether something was found."""
    return Call(_SQL["withdraw"], (host, device, reason), lambda rows: bool(rows[0][0]))
