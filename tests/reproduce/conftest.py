"""A stream on a Valkey of its own."""

from __future__ import annotations

import pytest

from helixqueue.embedded import binaries
from tests.support.streams import RedisServer, StreamLab


@pytest.fixture
def stream(database, tmp_path):
    server = RedisServer(binaries.valkey_programs() / "valkey-server", tmp_path)
    server.start()
    stream = StreamLab(database, server.url)
    yield stream
    stream.close()
    server.kill()
