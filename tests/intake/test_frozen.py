"""Intakes that freeze inside their transaction, while others read the same stream."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import database as databases
from tests.support.freezing_relay import FreezingRelay
from tests.support.lab import wait_until
from tests.support.pooler import Pooler
from tests.support.streams import StreamLab, intake_process

# The answer to a call with a conflict contains the stored payload, up to one mebibyte.
LARGE = {"text": "x" * 1_000_000}


@pytest.fixture(params=["socket", "pgbouncer"])
def path(request, database, valkey, tmp_path_factory):
    """A stream, and the directory of the socket through which frozen intakes reach the server."""
    with ExitStack() as stack:
        sockets = database.server.socket_dir
        if request.param == "pgbouncer":
            pooler = Pooler(tmp_path_factory.mktemp("bouncer"), database.server, ignored="")
            stack.enter_context(pooler)
            sockets = pooler.socket_dir
            database = databases.Database(database.server, database.name, pooler)
        stream = StreamLab(database, valkey.url)
        stack.callback(stream.close)
        yield stream, sockets, request.param == "pgbouncer"


def freeze_idle(stream, tmp_path, stack, *, pooled):
    marker = tmp_path / "idle"
    process = intake_process(
        stream, tmp_path, consumer="idle", idle=600, pooled=pooled,
        HELIX_FAILPOINTS="intake.commit=stop", HELIX_FAILPOINT_FILE=str(marker),
    )  # fmt: skip
    stack.callback(end, process)
    wait_until(marker.with_suffix(".fired").exists, "the failpoint", 60)
    return process


def freeze_at(place, stream, tmp_path, stack, sockets, *, pooled):
    directory = Path(tempfile.mkdtemp(prefix="helix-")) / "s"  # a socket's path is short
    relay = stack.enter_context(FreezingRelay(Path(sockets), directory, place))
    dsn = relay.dsn("pool", stream.database.name)
    process = intake_process(
        stream, tmp_path, consumer=place, idle=600, pooled=pooled, HELIX_DSN=dsn
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


def test_intakes_frozen_in_their_transactions_delay_their_stream_by_seconds_only(path, tmp_path):
    """Idle, inside an answer of 1 MiB, and in a pipeline before Sync; then they wake up."""
    stream, sockets, pooled = path
    stream.lab.submit("page-0", payload=LARGE)
    with ExitStack() as stack:
        stream.add(*[f"idle-{n}" for n in range(5)])
        frozen = [freeze_idle(stream, tmp_path, stack, pooled=pooled)]
        for place in ("page", "pipeline"):
            stream.add(*[f"{place}-{n}" for n in range(5)])
            options = (place, stream, tmp_path, stack, sockets)
            frozen.append(freeze_at(*options, pooled=pooled))
        stream.add(*[f"new-{n}" for n in range(5)])
        with stream.running(consumer="other", idle=0.2, pooled=pooled):
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
