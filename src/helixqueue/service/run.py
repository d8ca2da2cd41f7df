"""Runs the service: one process, one event loop, a log of JSON lines on standard error."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import uvicorn

from helixqueue.errors import Refused, SchemaMismatch
from helixqueue.log.lines import JsonFormatter
from helixqueue.service.address import address_of, is_loopback, url_host
from helixqueue.service.compute_threads import SWITCH_SECONDS
from helixqueue.service.service import SCHEMA_MISMATCH, UNREACHABLE, Service
from helixqueue.service.slow_clients import connection_class

if TYPE_CHECKING:
    from fastapi import FastAPI

    from helixqueue.errors import HelixError
    from helixqueue.service.settings import ServiceSettings

CreateApp = Callable[["ServiceSettings"], "FastAPI"]
GRACE_SECONDS: Final = 5
# Garbage collection threshold; a bulk submit creates about as many objects.
YOUNG_OBJECTS: Final = 20_000
NEVER: Final = 2**31 - 1
COLLECT_TICKS: Final = 100  # of a tenth of a second
COLLECT_WITH_BODIES_TICKS: Final = 6 * COLLECT_TICKS
POOLED: Final = (
    "the DSN connects through a pooler: unless it is in session mode, prepared statements of one "
    "client run for another; use `helixq serve --pooled`, or the DSN of the server itself"
)
OWN_FILES: Final = 100  # open files besides connections


def serve(
    settings: ServiceSettings,
    create_app: CreateApp,
    *,
    host: str,
    port: int,
    listening: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serve until a signal arrives; calls `listening` with the address."""
    check_database(
        settings,
        warn=warn,
        unreachable=lambda fault: warn(f"{fault}; responding 503 until it is reachable"),
    )
    log_to(logging.StreamHandler(sys.stderr))
    with listener_on(host, port, warn) as listener:
        listening(address_of(listener))
        HttpServer(config_of(settings, create_app)).run(sockets=[listener])


class HttpServer(uvicorn.Server):
    """A server that excludes the objects of the start from garbage collection.

    A full collection takes 100 ms, during which no request is served. Bulk submits, which create
    many objects, triggered one after another: a fifth of their time. Reading a body of half a
    million values triggered several, each over all values read so far. So full collections run on
    a clock, and rarely while a large body is in progress.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, 10, NEVER)
        sys.setswitchinterval(SWITCH_SECONDS)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        service: Service = cast("FastAPI", self.config.app).state.service
        every = COLLECT_WITH_BODIES_TICKS if service.memory.parsed.taken else COLLECT_TICKS
        if counter % every == 0:
            gc.collect()
        return await super().on_tick(counter)


class PortTaken(Refused):
    """Another process listens on the port, or the user may not bind it."""


def listener_on(host: str, port: int, warn: Callable[[str], None]) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        message = f"expected an address to listen on, got {url_host(host)}:{port}"
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise PortTaken(
                f"{message}: {os.strerror(error.errno).lower()}; "
                "choose another with --port, or --port 0 for any free port"
            ) from error
        raise Refused(
            f"{message}, which this machine does not have; choose one with --host"
        ) from error
    if not is_loopback(host):
        warn("tokens are sent in plain text: put a TLS proxy in front of this address")
    return listener


def config_of(settings: ServiceSettings, create_app: CreateApp) -> uvicorn.Config:
    """The server's configuration, with the limits on clients that admission does not have."""
    app = create_app(_fit_connections(settings))
    return uvicorn.Config(
        app,
        http=connection_class(app.state.service),
        access_log=False,  # it would contain queries; see log/requests.py
        log_config=None,
        server_header=False,
        proxy_headers=False,  # any client can send them
        timeout_keep_alive=settings.idle_seconds,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
    )


def _fit_connections(settings: ServiceSettings) -> ServiceSettings:
    """Raise the limit on open files, or lower `max_connections` to it."""
    own = OWN_FILES + settings.connections
    files = _raise_file_limit(settings.max_connections + own)
    return replace(settings, max_connections=max(1, files - own))


def _raise_file_limit(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def check_database(
    settings: ServiceSettings,
    *,
    warn: Callable[[str], None],
    unreachable: Callable[[HelixError], None],
) -> None:
    """Raise if the login or the schema cannot serve; calls `unreachable` if the database is."""

    async def check() -> str | None:
        service = Service(settings)
        try:
            reason = await service.check_ready()
            if isinstance(service.fault, Refused):
                raise service.fault  # waiting does not help
            if service.fault is not None:
                unreachable(service.fault)
            elif reason is None and not settings.pooled and await service.sessions.is_pooled():
                warn(POOLED)
        finally:
            await service.sessions.close()
        return reason

    reason = asyncio.run(check())
    if reason == SCHEMA_MISMATCH:
        raise SchemaMismatch(reason)
    if reason not in {None, UNREACHABLE}:
        raise Refused(str(reason))


def log_to(handler: logging.Handler) -> None:
    """Send the log to `handler`: one JSON line per request, and warnings of every library."""
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    logging.getLogger("helixqueue").setLevel(logging.INFO)
