# Generated from http_backend_async.py by `make twins`: change that file.
"""The backend of clients that connect to a service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.client.http_requests import HttpRequests, refuse_within
from helixqueue.operations.instructions import Instruction, Sleep, run_instructions
from helixqueue.transport.http.connection import HttpConnection

if TYPE_CHECKING:
    from helixqueue.client.settings import HttpSettings
    from helixqueue.queues import Queue
    from helixqueue.transport.http.call import HttpCall

T = TypeVar("T")


class HttpBackend(HttpRequests):
    """Connections that threads share."""

    def __init__(self, url: str, token: str, settings: HttpSettings) -> None:
        super().__init__(url, token, settings)
        self._connection = HttpConnection(self.address)

    def open(self) -> None:
        pass

    def close(self) -> None:
        self._connection.close()

    disconnect = close

    def run(self, call: HttpCall[T]) -> T:
        return self._connection.run(call)

    def perform(self, instruction: Instruction) -> Any:
        if isinstance(instruction, Sleep):
            time.sleep(instruction.seconds)
            return None
        refuse_within(instruction)
        return self._connection.run(instruction.call)

    def declare(self, queue: Queue[Any, Any] | str) -> None:
        run_instructions(self.operations.known(queue), self.perform)
