"""Checks JSON against schemas: `python -m helixqueue.schemas.check_process`.

Standard input is a socket. A request is a line with the lengths of a schema and of a JSON text, and
then both; without a text (length -1) the schema is only compiled. The response is one line of JSON:
null, the first failure, or the reason why the document is no schema. The kernel ends the process if
a request takes more processor time or memory than permitted.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
from collections import OrderedDict
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import Refused
from helixqueue.schemas.schema import compiled, first_failure

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

CPU_SECONDS: Final = 0.5  # per request
MEMORY_BYTES: Final = 512 * 1024 * 1024  # address space of the process
CACHED_SCHEMAS: Final = 32


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have ignored or blocked it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    validators: OrderedDict[bytes, Draft202012Validator] = OrderedDict()
    with socket.socket(fileno=0) as parent, parent.makefile("rb") as requests:
        while request := _read(requests):
            # The default action of SIGPROF ends the process.
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            answer = _answer(validators, *request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            parent.sendall(json.dumps(answer).encode() + b"\n")


def _read(requests: BufferedReader) -> tuple[bytes, bytes | None] | None:
    line = requests.readline()
    if not line:
        return None  # the parent is gone
    schema_bytes, text_bytes = (int(part) for part in line.split())
    schema = requests.read(schema_bytes)
    return schema, None if text_bytes < 0 else requests.read(text_bytes)


def _answer(
    validators: OrderedDict[bytes, Draft202012Validator], schema: bytes, text: bytes | None
) -> dict[str, Any] | None:
    try:
        if schema not in validators:
            validators[schema] = compiled(json.loads(schema))
            if len(validators) > CACHED_SCHEMAS:
                validators.popitem(last=False)
    except Refused as refused:
        return {"refused": str(refused)}
    validators.move_to_end(schema)
    failure = None if text is None else first_failure(validators[schema], json.loads(text))
    return None if failure is None else failure._asdict()


if __name__ == "__main__":
    main()
