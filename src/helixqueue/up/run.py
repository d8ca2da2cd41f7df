"""Runs service, background duties and child processes in one event loop until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from helixqueue.dashboard.app import create_app
from helixqueue.errors import HelixError
from helixqueue.service.run import HttpServer, config_of

if TYPE_CHECKING:
    import socket

    import uvicorn

    from helixqueue.service.settings import ServiceSettings
    from helixqueue.up.processes import Processes

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _UpServer(HttpServer):
    """A server without signal handlers: `run` stops the children first, then the server."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(
    settings: ServiceSettings,
    listener: socket.socket,
    children: Processes,
    *,
    ready: Callable[[], None],
    stopping: Callable[[], None],
    seconds: float | None = None,
) -> None:
    """Serve until a signal or for `seconds`; call `ready` when the service accepts requests."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    server = _UpServer(config_of(settings, create_app))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    # The server may also end on its own, even before it is ready.
    serving.add_done_callback(lambda _: server.ready.set())
    serving.add_done_callback(lambda _: stop.set())
    try:
        await server.ready.wait()
        if server.started:
            ready()
            children.start()
            await _until(stop, seconds)
            stopping()
    finally:
        await children.stop()
        server.should_exit = True
        await serving
    if not server.started:
        raise HelixError("the service did not start; see its messages above")


async def _until(stop: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
