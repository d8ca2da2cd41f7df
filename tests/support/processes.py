"""Processes forked from a server process that has imported the package.

Fifty processes that import it themselves take longer than the test.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pytest",
        "tests.support.engine_traffic",
        "helixqueue.client.http",
        "helixqueue.client.sync",
        "helixqueue.client.run_worker",
        "helixqueue.transport.direct",
        "helixqueue.transport.http.transport",
    ]
)


class ModuleProcess:
    """A process that runs `python -W error -m name arguments` in `environment`."""

    out = err = ""  # its output, once it has ended

    def __init__(self, name: str, *arguments: str, environment: Mapping[str, str]) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="helix-output-"))
        for stream in ("out", "err"):  # also of a process that is killed as it starts
            (self._output / stream).touch()
        self._process = PROCESSES.Process(
            target=_run, args=([name, *arguments], dict(environment), self._output)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60) -> int:
        """Wait for the exit code; negative when a signal ended the process."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"still there after {seconds} s"
        if self._output.exists():
            self.out, self.err = (
                (self._output / name).read_text(encoding="utf-8") for name in ("out", "err")
            )
            shutil.rmtree(self._output)
        return code


def _run(command: list[str], environment: dict[str, str], output: Path) -> None:
    for descriptor, name in enumerate(("out", "err"), start=1):
        handle = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, descriptor)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    # Failpoints are read from the environment at import.
    importlib.reload(importlib.import_module("helixqueue.failpoints"))
    warnings.simplefilter("error")
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
