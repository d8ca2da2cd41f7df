from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from embedded_help import NOBODY, UserProcess

from helixqueue.embedded import Postgres, Valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.embedded.server import EmbeddedServer


@pytest.fixture
def user() -> Iterator[Callable[..., UserProcess]]:
    """Start user processes; none outlives its test."""
    with ExitStack() as stack:

        def start(*arguments: str | Path, uid: int | None = None) -> UserProcess:
            process = UserProcess(str(arguments[0]), Path(arguments[1]), *arguments[2:], uid=uid)
            stack.callback(process.close)
            return process

        yield start


@pytest.fixture
def running() -> Iterator[Callable[[EmbeddedServer], EmbeddedServer]]:
    """Start a server that the test need not stop."""
    with ExitStack() as stack:

        def start(server: EmbeddedServer) -> EmbeddedServer:
            stack.callback(server.stop)
            return server.start()

        yield start


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One server for the tests that only look at it."""
    with Postgres(tmp_path_factory.mktemp("look") / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("look") / "valkey") as server:
        yield server


@pytest.fixture
def nobodys_dir() -> Iterator[Path]:
    """A directory that an unprivileged user owns; pytest's own are root's, 0700."""
    directory = Path(tempfile.mkdtemp(prefix="helix-test-"))
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
