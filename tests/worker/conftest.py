"""A database a module; workers as threads of this process, or as processes that can be hurt."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from helixqueue import HelixQueue, Queue, Settlement
from tests.support.lab import new_database, pass_time, wait_until
from tests.support.processes import ModuleProcess
from tests.support.shift import Shift

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


def take_over(helix, database, queue, batch_id):
    """Let the lease expire and complete the batch as another worker."""
    batch = database.value("select batch from helix.locate(array[%s::uuid])", batch_id)
    pass_time(database, batch)
    [row] = wait_until(lambda: helix.claim("thief", [queue], start=True))
    settlement = Settlement(row.batch, row.token, "completed", result='{"by":"thief"}')
    [answer] = helix.settle("thief", [settlement])
    assert answer.answer == "ok"
