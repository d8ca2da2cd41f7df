"""A database a module; workers as threads of this process, or as processes that can be hurt."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest

from helixqueue import HelixQueue, Queue, Settlement
from helixqueue.client.backend import backend_of
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from tests.support.lab import new_database, pass_time, wait_until
from tests.support.processes import ModuleProcess

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def database(server, template, pooler):
    for database in new_database(server, template, pooler):
        make_effects(database)
        yield database


def make_effects(database):
    """Where handlers write what they did."""
    with database.connect("helix_bootstrap") as connection:
        connection.execute(
            "create table public.effect (id bigint generated always as identity, queue text, "
            "identity text, worker text)"
        )
        connection.execute("grant all on public.effect to pool")


@pytest.fixture
def helix(database):
    with HelixQueue(database.dsn("pool"), tenant="a") as client:
        yield client


@pytest.fixture
def name():
    """A queue that no other test uses."""
    return f"work{next(_numbers)}"


@pytest.fixture
def queue(name):
    return Queue(name, lease=30, backoff=0)


class Shift:
    """A worker in a thread of its own, to be watched from outside and stopped."""

    def __init__(self, helix, queues, **options):
        self.summary = None
        self.error = None
        self._stop = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(helix, queues, options))

    def _run(self, helix, queues, options):
        import asyncio  # noqa: PLC0415

        from helixqueue.client import run_worker  # noqa: PLC0415
        from helixqueue.worker.options import WorkerOptions  # noqa: PLC0415
        from helixqueue.worker.worker import Worker  # noqa: PLC0415

        async def run():
            jobs = run_worker.handlers_of(helix, queues)
            for job in jobs.values():
                await asyncio.to_thread(backend_of(helix).declare, job.queue)
            made = WorkerOptions(**options)
            worker = Worker(backend_of(helix).transport(made), jobs, made, helix.submit, None)
            loop = asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(worker.stop)
            self.worker = worker
            self._ready.set()
            return await worker.run()

        try:
            self.summary = asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error
            self._ready.set()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def stop(self):
        self._stop()

    def join(self, seconds=60):
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the worker did not end"
        if self.error is not None:
            raise self.error
        return self.summary

    def __exit__(self, kind, *_):
        if self._thread.is_alive() and self._stop is not None:
            self._stop()
            self._stop()
        self._thread.join(60)
        if kind is None:
            self.join()


@pytest.fixture
def shift():
    return Shift


class Process(ModuleProcess):
    """A worker in a process of its own, with the handler of tests/worker/app.py."""

    def __init__(self, database, queue, *, dsn=None, options=None, **environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_FAIL")}
        kept |= {
            "HELIX_DSN": dsn or database.dsn("pool"),
            "HELIX_APP_QUEUE": queue,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            **environment,
        }
        super().__init__("tests.worker.app", json.dumps(options or {}), environment=kept)


@pytest.fixture
def process(database):
    def start(queue, **options):
        return Process(database, queue, **options)

    return start


def effects(database, queue):
    """How often each identity took effect."""
    rows = database.rows(
        "select identity, count(*)::int from public.effect where queue = %s group by 1", queue
    )
    return dict(rows)


def lease_end(database, batch_id):
    """When the batch's lease runs out, in seconds since 1970."""
    return database.value(
        "select extract(epoch from w.deadline)::float8 "
        "from helix.work w join helix.locate(array[%s::uuid]) l on l.batch = w.batch",
        batch_id,
    )


def proven(database):
    """The ledger replays to the current state, and every invariant holds."""
    with database.connect("helix_migrator") as connection:
        replayed = replay(connection)
        assert replayed.clean, replayed
        # The tests let time pass by a function of their own, which `check` duly finds.
        broken = [
            (result.name, witness)
            for result in check(connection)
            for witness in result.witnesses
            if "test_pass_time" not in str(witness)
        ]
        assert broken == []


def take_over(helix, database, queue, batch_id):
    """Let the lease expire and complete the batch as another worker."""
    batch = database.value("select batch from helix.locate(array[%s::uuid])", batch_id)
    pass_time(database, batch)
    [row] = wait_until(lambda: helix.claim("thief", [queue], start=True))
    settlement = Settlement(row.batch, row.token, "completed", result='{"by":"thief"}')
    [answer] = helix.settle("thief", [settlement])
    assert answer.answer == "ok"
