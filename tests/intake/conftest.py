"""A Valkey per session, and a stream with its queue per test."""

from __future__ import annotations

import pytest

from helixqueue.embedded import binaries
from tests.support.streams import RedisServer, StreamLab


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    program = binaries.valkey_programs() / "valkey-server"
    server = RedisServer(program, tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def stream(database, valkey):
    stream = StreamLab(database, valkey.url)
    yield stream
    stream.close()
