"""What the backends of clients of a service have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from helixqueue.client.settings import ResolvedHttpSettings
from helixqueue.errors import Refused
from helixqueue.operations.batches import Operations
from helixqueue.operations.call_set import CallSet
from helixqueue.operations.instructions import Execute, outage_pause
from helixqueue.transport.http import calls
from helixqueue.transport.http.connection import ServiceAddress
from helixqueue.transport.http.derived_calls import request_of
from helixqueue.transport.http.transport import HttpTransport

if TYPE_CHECKING:
    from helixqueue.client.http import HelixClient
    from helixqueue.client.http_async import AsyncHelixClient
    from helixqueue.client.settings import HttpSettings
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

# Connections of a worker besides its claim calls: presence, schemas, waiting for work.
MORE_CONNECTIONS = 3
HTTP_CALLS = CallSet(
    calls,
    calls,
    chunk_rows=calls.SUBMIT_ROWS_MAX,
    chunk_chars=calls.SUBMIT_CHARS_MAX,
    payload_bytes_max=calls.PAYLOAD_BYTES_MAX,
    remote=request_of,
)


class HttpRequests:
    """Where the service is, and what its clients share whether they use threads or tasks."""

    def __init__(self, url: str, token: str, settings: HttpSettings) -> None:
        resolved = ResolvedHttpSettings.of(settings)
        self._origin, self._settings = (url, token), settings
        self.operations = Operations(
            HTTP_CALLS,
            tenant=None,
            actor=None,
            retry_seconds=resolved.retry_seconds,
            outage_pause=outage_pause,
        )
        self.address = ServiceAddress(**resolved.where(url, token))

    def transport(self, options: WorkerOptions) -> Transport:
        if options.all_tenants:
            raise Refused("all_tenants: expected a database, got a token, which has one tenant")
        connections = options.concurrent_calls + MORE_CONNECTIONS
        return HttpTransport(replace(self.address, connections=connections), options.worker)

    def spec(self) -> dict[str, Any]:
        return {"kind": "http", "origin": list(self._origin), "settings": self._settings}

    def sync_client(self) -> HelixClient:
        from helixqueue.client.http import HelixClient  # noqa: PLC0415 - loaded when used

        return HelixClient(*self._origin, **self._settings)

    def async_client(self) -> AsyncHelixClient:
        from helixqueue.client.http_async import AsyncHelixClient  # noqa: PLC0415 - loaded when used

        return AsyncHelixClient(*self._origin, **self._settings)


def refuse_within(instruction: Execute) -> None:
    """A request cannot join a transaction of the caller."""
    if instruction.within is not None:
        raise Refused(
            f"within: expected none, got {type(instruction.within).__name__}; a service cannot "
            "join your transaction, use HelixQueue with the DSN of the database"
        )
