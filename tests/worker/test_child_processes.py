"""No process of a worker is left when the worker has ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from helixqueue import AsyncHelixQueue, HelixQueue, Queue
from helixqueue.client.backend import backend_of
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.options import WorkerOptions
from helixqueue.worker.worker import Worker
from tests.worker import app


def children():
    """The child processes of this process, those that ended and were not waited for included."""
    threads = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


def test_worker_cancelled_while_its_heartbeat_starts_leaves_no_process(helix, name):
    options = WorkerOptions()

    async def cancel_early():
        transport = backend_of(helix).transport(options)
        handler = QueueHandler(name, Queue(name), None)
        worker = Worker(transport, {name: handler}, options, helix.submit, None)
        running = asyncio.create_task(worker.run())
        while not children() - before:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    before = children()
    asyncio.run(cancel_early())
    assert children() <= before


@pytest.mark.parametrize("client", [HelixQueue, AsyncHelixQueue])
def test_worker_that_ended_leaves_no_handler_process(database, name, monkeypatch, client):
    queue = Queue(name, run_in="process")
    monkeypatch.setenv("HELIX_APP_QUEUE", name)  # for the module in the process
    queue.handler(app.do)
    dsn = database.dsn("pool")
    before = children()
    with HelixQueue(dsn, tenant="a") as helix:
        receipt = helix.submit(queue, identity="s", payload={"way": "return"}).receipt
        if client is HelixQueue:
            helix.work(queue, until_idle=True)
        else:
            asyncio.run(work_async(dsn, queue))
        assert helix.result(receipt)
    assert children() <= before


async def work_async(dsn, queue):
    async with AsyncHelixQueue(dsn, tenant="a") as helix:
        await helix.work(queue, until_idle=True)
