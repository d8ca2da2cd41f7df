"""A worker in a thread of the test, and the proof that it left a clean ledger."""

from __future__ import annotations

import threading

from helixqueue.client.backend import backend_of
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check


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
