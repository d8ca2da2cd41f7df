"""Servers that restart, fail over or have no connection left: workers go on, and say so."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from itertools import pairwise
from urllib.parse import quote

import pytest

from helixqueue import HelixQueue, Lease, Queue, State
from helixqueue.client.backend import backend_of
from helixqueue.errors import LeaseLost, Retryable, Unavailable
from helixqueue.worker import retry
from tests.support.database import Database
from tests.support.lab import wait_until
from tests.support.own_server import new_server
from tests.support.shift import proven
from tests.support.standby import Standby
from tests.worker.conftest import effects, make_effects

LONG = 60.0  # on a busy machine


def recorded(queue):
    """A handler that writes its row and completes, when it may; `begun` tells when it is there."""
    begun, go = threading.Event(), threading.Event()
    go.set()

    @queue.handler
    def run(lease: Lease):
        begun.set()
        assert go.wait(LONG)
        with lease.transaction() as tx:
            tx.execute(
                "insert into public.effect (queue, identity) values (%s, %s)",
                (lease.queue, lease.identity),
            )
            tx.complete({})

    return begun, go


def is_done(helix, submitted):
    return lambda: helix.state(submitted.receipt) is State.COMPLETED


@pytest.fixture
def pair(tmp_path_factory):
    """A primary and its standby."""
    directory = tmp_path_factory.mktemp("o")  # short: a socket's path has 107 bytes
    with new_server(directory / "a") as primary:
        make_effects(primary)
        with Standby(primary.server, directory / "b", supervised=False) as standby:
            yield primary, Database(standby, "helix")


def test_restart_and_failover_delay_work_but_lose_and_double_none(pair, shift):
    primary, standby = pair
    hosts = ",".join(quote(str(item.server.socket_dir), safe="") for item in pair)
    queue = Queue("work", lease=10, backoff=0)
    begun, go = recorded(queue)
    with (
        HelixQueue(f"postgresql://pool@/helix?host={hosts}", tenant="a") as helix,
        shift(helix, queue, slots=2, poll_seconds=0.2) as worker,
    ):
        wait_until(is_done(helix, helix.submit(queue, identity="before", payload={})), seconds=LONG)
        begun.clear()
        go.clear()
        during = helix.submit(queue, identity="during the restart", payload={})
        assert begun.wait(LONG)
        primary.server.stop()
        primary.server.start()
        go.set()
        wait_until(is_done(helix, during), seconds=LONG)
        wait_until(lambda: len(effects(standby, "work")) == 2, seconds=LONG)
        primary.server.stop()
        standby.server.promote()
        wait_until(
            is_done(helix, helix.submit(queue, identity="on the other", payload={})), seconds=LONG
        )
        assert worker.worker.health.counts.lost == 0
    assert set(effects(standby, "work").values()) == {1}
    assert len(effects(standby, "work")) == 3
    proven(standby)


@pytest.fixture
def impatient(monkeypatch):
    """A worker is deaf after a moment."""
    monkeypatch.setattr("helixqueue.worker.health.UNREACHABLE_SECONDS", 0.3)


@pytest.mark.usefixtures("impatient")
def test_worker_without_a_connection_reports_unreachable_and_continues(
    helix, database, name, shift, caplog
):
    queue = Queue(name, lease=30, backoff=0)
    recorded(queue)
    backend_of(helix).declare(queue)
    with shift(helix, queue, slots=2, poll_seconds=0.1) as worker, caplog.at_level(logging.ERROR):
        health = worker.worker.health
        wait_until(is_done(helix, helix.submit(queue, identity="before", payload={})))
        with database.connect("helix_bootstrap") as connection:
            connection.execute(f"alter database {database.name} connection limit 0")
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
            wait_until(lambda: health.as_dict()["unreachable_seconds"], seconds=LONG)
            wait_until(lambda: "unreachable: no claim was answered" in caplog.text)
            assert "too many connections" in health.as_dict()["last_error"]
            connection.execute(f"alter database {database.name} connection limit -1")
        after = helix.submit(queue, identity="after", payload={})
        wait_until(is_done(helix, after), seconds=LONG)
        wait_until(
            lambda: (
                not health.as_dict()["unreachable_seconds"] and not health.as_dict()["last_error"]
            )
        )
    assert effects(database, name) == {"before": 1, "after": 1}
    proven(database)


# What a worker repeats, and for how long.


def test_retries_are_bounded_and_end_with_the_last_error():
    tries = []

    async def ask():
        tries.append(time.monotonic())
        raise Unavailable("away")

    began = time.monotonic()
    with pytest.raises(Unavailable):
        asyncio.run(retry.with_retries(ask, seconds=0.4))
    assert tries[-1] - began < 5  # a busy machine is late, and no new patience
    assert len(tries) > 2
    assert retry.TOTAL_SECONDS == 15 * 60


def test_worker_repeats_no_call_before_the_retry_after_of_a_service():
    errors = [Unavailable("too many requests", retry_after=0.3) for _ in range(3)]
    tries = []

    async def ask():
        tries.append(time.monotonic())
        if errors:
            raise errors.pop()

    asyncio.run(retry.with_retries(ask))
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(tries))
    assert len(tries) == 4


def test_lost_calls_are_retried_and_refused_calls_are_not():
    lapsed = Unavailable("a certificate that is not trusted", retry_after=math.inf)
    errors = [Retryable("a deadlock"), Unavailable("away"), lapsed]

    async def ask():
        if errors:
            raise errors.pop()
        return "answered"

    assert asyncio.run(retry.with_retries(ask)) == "answered"
    tries = []

    async def refused():
        tries.append(1)
        raise LeaseLost("not yours")

    with pytest.raises(LeaseLost):
        asyncio.run(retry.with_retries(refused))
    assert tries == [1]
