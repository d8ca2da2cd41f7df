"""Runs the service: one process, one event loop, its log as lines of JSON on standard error."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import uvicorn

from helixqueue.errors import Refused, SchemaMismatch
from helixqueue.service.address import address_of, is_loopback, shown
from helixqueue.service.app import create_app
from helixqueue.service.request_log import MaskingFormatter
from helixqueue.service.service import AWAY, MISFIT, Service
from helixqueue.service.slow_clients import connections_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.errors import HelixError
    from helixqueue.service.settings import ServiceSettings

GRACE_SECONDS: Final = 5
# How many are made before a search among them; a chunk makes that many.
YOUNG_OBJECTS: Final = 20_000
POOLED: Final = (
    "the DSN leads through a pooler: unless that is in session mode, statements that one client "
    "prepared are run for another; run `helixq serve --pooled`, or name the server itself"
)
OWN_FILES: Final = 100  # that a service has open besides its connections


def serve(
    settings: ServiceSettings,
    *,
    host: str,
    port: int,
    listening: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve until a signal ends it; `listening` is told the address."""
    demand_fit(
        settings, warn=warn, away=lambda fault: warn(f"{fault}; serving 503 until it is back")
    )
    log_to(logging.StreamHandler(sys.stderr))
    with listener_on(host, port, warn) as listener:
        listening(address_of(listener))
        HttpServer(config_of(settings)).run(sockets=[listener])


class HttpServer(uvicorn.Server):
    """One that spares what the process is made of by then from its search for garbage.

    A look through all of it takes 100 ms, in which nobody is answered. Long pages and chunks, which
    make many objects, brought on one after another: a fifth of a chunk's time.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        await super().startup(sockets)


class PortTaken(Refused):
    """Somebody else listens there, or the port is not for this user."""


def listener_on(host: str, port: int, warn: Callable[[str], None]) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        what = f"expected an address to listen on, got {shown(host)}:{port}"
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise PortTaken(
                f"{what}: {os.strerror(error.errno).lower()}; "
                "name another with --port, or --port 0 for any that is free"
            ) from error
        raise Refused(f"{what}, which is none of this machine; name one with --host") from error
    if not is_loopback(host):
        warn("tokens travel as plain text: put TLS before this address")
    return listener


def config_of(settings: ServiceSettings) -> uvicorn.Config:
    """What the server is told; every bound on clients that is not the gate's."""
    gate = create_app(_with_room(settings))
    return uvicorn.Config(
        gate,
        http=connections_of(gate),
        access_log=False,  # it would hold queries; the request log has what matters
        log_config=None,
        server_header=False,
        proxy_headers=False,  # anybody can write them
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )


def _with_room(settings: ServiceSettings) -> ServiceSettings:
    """Connections are files, of which the system allows so many: ask for as many as it takes."""
    own = OWN_FILES + settings.connections
    files = _files(settings.max_connections + own)
    return replace(settings, max_connections=max(1, files - own))


def _files(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def demand_fit(
    settings: ServiceSettings, *, warn: Callable[[str], None], away: Callable[[HelixError], None]
) -> None:
    """A login that may not serve is told now; of a database that is away, `away` is told why."""

    async def ask() -> str | None:
        service = Service(settings)
        try:
            reason = await service.why_not_ready()
            if isinstance(service.fault, Refused):
                raise service.fault  # which no waiting mends
            if service.fault is not None:
                away(service.fault)
            elif reason is None and not settings.pooled and await service.served.is_pooled():
                warn(POOLED)
        finally:
            await service.served.close()
        return reason

    reason = asyncio.run(ask())
    if reason == MISFIT:
        raise SchemaMismatch(reason)
    if reason not in {None, AWAY}:
        raise Refused(str(reason))


def log_to(handler: logging.Handler) -> None:
    """Our log, a line of JSON for each request."""
    logger = logging.getLogger("helixqueue")
    handler.setFormatter(MaskingFormatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
