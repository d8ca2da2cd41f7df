"""Workers of the demo: those that an outage of the database ended are replaced."""

from __future__ import annotations

from helixqueue.demo.live import DemoWorkers
from tests.support.lab import wait_until


def test_demo_workers_that_lost_their_database_are_replaced(capfd):
    with DemoWorkers("postgresql://localhost:1/none?connect_timeout=1") as workers:
        first = {workers.frozen, *workers.processes.values()}
        wait_until(lambda: workers.frozen.poll() is not None)
        for process in workers.processes.values():
            process.kill()
            process.wait()
        workers.restart_dead()
        assert first.isdisjoint({workers.frozen, *workers.processes.values()})
        assert len(workers.processes) == 3
    errors = capfd.readouterr().err
    assert "bo lost the database: " in errors
    assert "Traceback" not in errors
