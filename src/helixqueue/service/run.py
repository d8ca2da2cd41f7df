"""Runs the service: one process, one event loop, its log as lines of JSON on standard error."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
from typing import TYPE_CHECKING, Final

import uvicorn

from helixqueue.errors import Refused
from helixqueue.service.app import create_app
from helixqueue.service.journal import MaskingFormatter
from helixqueue.service.service import AWAY, Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.service.settings import Settings

MAX_CONNECTIONS: Final = 1_000  # of clients; beyond, they are told 503 at once
MAX_HEAD_BYTES: Final = 32 * 1024
GRACE_SECONDS: Final = 5


def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    listening: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve until a signal ends it; `listening` is told the address."""
    _demand_fit(settings, warn)
    if not _is_loopback(host):
        warn("tokens travel as plain text: put TLS before this address")
    _log_to_stderr()
    try:
        listener = socket.create_server((host, port), backlog=512)
    except OSError as error:
        raise Refused(f"expected an address to listen on, got {host}:{port}: {error}") from error
    config = uvicorn.Config(
        create_app(settings),
        access_log=False,  # it would hold queries; the request log has what matters
        log_config=None,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )
    with listener:
        listening(f"http://{host}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _demand_fit(settings: Settings, warn: Callable[[str], None]) -> None:
    """A login that may not serve is told now; a database that is away may come back."""

    async def ask() -> str | None:
        service = Service(settings)
        try:
            return await service.why_not_ready()
        finally:
            await service.served.close()

    reason = asyncio.run(ask())
    if reason == AWAY:
        warn(f"{reason}; serving 503 until it is back")
    elif reason is not None:
        raise Refused(reason)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_to_stderr() -> None:
    logger = logging.getLogger("helixqueue")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(MaskingFormatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
