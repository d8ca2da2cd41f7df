"""Service processes, and clients that submit to several of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from helixqueue.ledger.replay import replay
from tests.support.cli import HELIXQ
from tests.support.lab import Lab, wait_until
from tests.support.service import TLS

ROOT = Path(__file__).parents[2]


@contextmanager
def replica(dsn, source=ROOT / "src", *, options=(), under=()):
    """Run the release in `source` as a service process; yields the process and its URL.

    `under` is a program that runs it, such as prlimit.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    with subprocess.Popen(
        [*under, HELIXQ, "serve", "--dsn", dsn, "--port", "0", "--json", *options],
        env=inherited | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            wait_until(lambda: status_of(f"{url}/health/ready") == 200, seconds=60)
            yield process, url
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def new_queue(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def status_of(url):
    try:
        return httpx.get(url, verify=TLS, timeout=30).status_code
    except httpx.TransportError:
        return None


class SubmitLoad:
    """Clients that submit in a loop, each time to the first service that responds."""

    def __init__(self, urls, token, queue, clients=4):
        self.urls = urls
        self.acknowledged = {}  # receipts by identity
        self.statuses = []  # (status, seconds) of every response
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = f"/v1/queues/{queue}/batches"
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self):
        with httpx.Client(headers=self._headers, verify=TLS, timeout=30) as http:
            while not self._stop.is_set():
                # Two clients submit each identity.
                self._submit(http, f"S-{next(self._numbers) // 2}")

    def _submit(self, http, identity):
        for url in itertools.cycle(self.urls):
            began = time.monotonic()
            try:
                response = http.post(url + self._path, json={"identity": identity, "payload": 1})
                status = response.status_code
            except httpx.TransportError:
                status = None
            with self._mutex:
                self.statuses.append((status, time.monotonic() - began))
            if status in {200, 201}:
                with self._mutex:
                    receipt = json.dumps(response.json()["receipt"], sort_keys=True)
                    self.acknowledged.setdefault(identity, []).append(receipt)
                return
            if self._stop.wait(0.05):
                return


def assert_each_acknowledged_once(database, load):
    """Every acknowledged batch exists once, with one receipt, and the ledger replays."""
    assert load.acknowledged
    assert {len(set(receipts)) for receipts in load.acknowledged.values()} == {1}
    stored = database.rows("select b.identity, count(*) from helix.batch b group by 1")
    assert {count for _, count in stored} == {1}
    assert set(load.acknowledged) <= {identity for identity, _ in stored}
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean
