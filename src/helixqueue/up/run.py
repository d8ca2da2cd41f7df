"""Service, duties and children in one event loop, from ready to the signal that ends it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from helixqueue.errors import HelixError
from helixqueue.service.run import HttpServer, config_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    import uvicorn

    from helixqueue.service.settings import ServiceSettings
    from helixqueue.up.processes import Processes

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Server(HttpServer):
    """One whose signals are ours: children stop before it, and the databases after it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()

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
    """Serve until a signal, or for so long; `ready` is called when requests are answered."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in SIGNALS:
        loop.add_signal_handler(one, stop.set)
    server = _Server(config_of(settings))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    # Also if it ends by itself, be it before it began.
    serving.add_done_callback(lambda _: server.answers.set())
    serving.add_done_callback(lambda _: stop.set())
    try:
        await server.answers.wait()
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
        raise HelixError("the service did not start; its words are above")


async def _until(stop: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
