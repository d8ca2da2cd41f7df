"""Intakes that freeze inside their transaction, while others read the same stream."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import database as databases
from tests.support.freezing_relay import FreezingRelay
from tests.support.lab import wait_until
from tests.support.own_server import accept_tcp, loopback_address, new_server
from tests.support.pooler import Pooler
from tests.support.streams import StreamLab, intake_process

# The answer to a call with a conflict contains the stored payload, up to one mebibyte.
LARGE = {"text": "x" * 1_000_000}


@dataclass
class Way:
    """A stream, and how its frozen intakes reach the server."""

    stream: StreamLab
    dsn: str
    target: Path | str  # of relays: the directory of the socket, or an address
    pooled: bool = False


@pytest.fixture(params=["socket", "tcp", "pgbouncer"])
def way(request, server, valkey, tmp_path_factory):
    directory = tmp_path_factory.mktemp("way")
    with ExitStack() as stack:
        if request.param == "tcp":
            address = loopback_address()
            database = stack.enter_context(
                new_server(directory / "postgres", listen_addresses=address, fsync="off")
            )
            dsn = f"postgresql://pool@{address}:5432/{database.name}"
            accept_tcp(database.server, dsn)
            target = address
        else:
            database = request.getfixturevalue("database")
            target = server.socket_dir
            if request.param == "pgbouncer":
                pooler = stack.enter_context(Pooler(directory, server, ignored=""))
                target = pooler.socket_dir
                database = databases.Database(server, database.name, pooler)
            dsn = database.dsn("pool")
        stream = StreamLab(database, valkey.url)
        stack.callback(stream.close)
        yield Way(stream, dsn, target, request.param == "pgbouncer")


def freeze_idle(way, tmp_path, stack):
    marker = tmp_path / "idle"
    process = intake_process(
        way.stream, tmp_path, consumer="idle", idle=600, pooled=way.pooled, HELIX_DSN=way.dsn,
        HELIX_FAILPOINTS="intake.commit=stop", HELIX_FAILPOINT_FILE=str(marker),
    )  # fmt: skip
    stack.callback(end, process)
    wait_until(marker.with_suffix(".fired").exists, "the failpoint", 60)
    return process


def freeze_at(place, way, tmp_path, stack):
    directory = Path(tempfile.mkdtemp(prefix="helix-")) / "s"  # a socket's path is short
    relay = stack.enter_context(FreezingRelay(way.target, directory, place))
    dsn = relay.dsn("pool", way.stream.database.name)
    process = intake_process(
        way.stream, tmp_path, consumer=place, idle=600, pooled=way.pooled, HELIX_DSN=dsn
    )
    stack.callback(end, process)
    relay.process = process.pid
    if not relay.frozen.wait(20):
        process.kill()
        pytest.fail(f"the intake was not frozen: {process.communicate()}")
    return process


def end(process):
    process.kill()
    process.communicate()


def test_intakes_frozen_in_their_transactions_delay_their_stream_by_seconds_only(way, tmp_path):
    """Idle, inside an answer of 1 MiB, and in a pipeline before Sync; then they wake up."""
    stream = way.stream
    stream.lab.submit("page-0", payload=LARGE)
    with ExitStack() as stack:
        stream.add(*[f"idle-{n}" for n in range(5)])
        frozen = [freeze_idle(way, tmp_path, stack)]
        for place in ("page", "pipeline"):
            stream.add(*[f"{place}-{n}" for n in range(5)])
            frozen.append(freeze_at(place, way, tmp_path, stack))
        stream.add(*[f"new-{n}" for n in range(5)])
        with stream.running(consumer="other", idle=0.2, pooled=way.pooled):
            wait_until(stream.is_drained, "the other intake", 45)
            assert stream.batches == 4 * 5
            assert [letter.reason for letter in stream.letters()] == ["conflict"]
            stream.add("after")
            for process in frozen[:1]:
                os.kill(process.pid, signal.SIGCONT)
            wait_until(stream.is_drained)
        frozen[0].send_signal(signal.SIGTERM)
        _, log = frozen[0].communicate(timeout=60)
        assert frozen[0].returncode == 0, log
    assert stream.batches == 4 * 5 + 1
    assert all(decision in {"new", "conflict"} for _, decision, _ in stream.sources())
