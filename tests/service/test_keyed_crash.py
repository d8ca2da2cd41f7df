"""A keyed POST and its fence are one commit: a repeat after a crash is a duplicate or the first."""

from __future__ import annotations

import itertools
import os
import threading
import uuid

import httpx
import pytest

from helixqueue.ledger.replay import replay
from tests.support.lab import Lab, new_database, wait_until
from tests.support.replicas import replica
from tests.support.service import TLS, Site

CLIENTS = 32
ROUNDS = 20 if os.environ.get("HELIX_PROOF") else 1
ANSWERED_BEFORE_THE_KILL = 60
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def scratch(server, template):
    yield from new_database(server, template, None)


class KeyedPosts:
    """Clients that send keyed POSTs until the service is gone.

    Work without identity: only the key keeps a repeat from being a second batch. A cancellation:
    without the stored response its repeat would have another answer.
    """

    def __init__(self, lab, url, token):
        self.lab = lab
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"}
        self.requests = {}  # key -> path and body, noted before they are sent
        self.answers = {}  # key -> status and body of the first response
        self._numbers = itertools.count()

    def run(self, process):
        """Send from all clients at once, and kill the service between two answers."""
        threads = [threading.Thread(target=self._send_until_the_end) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(self.answers) >= ANSWERED_BEFORE_THE_KILL, "answers")
        process.kill()
        for thread in threads:
            thread.join()

    def _send_until_the_end(self):
        with httpx.Client(headers=self.headers, verify=TLS, timeout=30) as http:
            while True:
                key = str(uuid.uuid4())
                self.requests[key] = self._new_request(next(self._numbers))
                try:
                    self.answers[key] = self.send(http, key)
                except httpx.TransportError:
                    return

    def _new_request(self, number):
        if number % 3 == 0:
            rows = [{"identity": None, "payload": n} for n in (number, -number)]
            return f"/v1/queues/{self.lab.q}/chunks", {"submissions": rows}
        if number % 3 == 1:
            return f"/v1/queues/{self.lab.q}/batches", {"identity": None, "payload": number}
        [row] = self.lab.submit(f"{uuid.uuid4()}", queue="to-cancel")
        return f"/v1/batches/{row.receipt.batch_id}/cancel", {"reason": "wrong tube"}

    def send(self, http, key, url=None):
        path, body = self.requests[key]
        response = http.post(
            (url or self.url) + path, json=body, headers={"Idempotency-Key": f'"{key}"'}
        )
        return response.status_code, response.json()


def test_keyed_posts_of_a_killed_service_are_never_in_doubt_and_never_double(scratch):
    dsn = scratch.dsn("service", direct=True)
    unanswered = 0
    with Lab(scratch) as lab:
        lab.queue(unknown="accept")
        lab.queue("to-cancel")
        token = Site(scratch, "").token()
        lab.submit = _locked(lab.submit)
        for _ in range(ROUNDS):
            with replica(dsn) as (doomed, url):
                posts = KeyedPosts(lab, url, token)
                batches = lab.value("select count(*) from helix.batch where queue = 1")
                posts.run(doomed)
            unanswered += len(posts.requests) - len(posts.answers)
            with (
                replica(dsn) as (_, second),
                httpx.Client(headers=posts.headers, verify=TLS, timeout=30) as http,
            ):
                repeats = {key: posts.send(http, key, second) for key in posts.requests}
            assert {status for status, _ in repeats.values()} <= {200, 201}
            assert {key: repeats[key] for key in posts.answers} == posts.answers
            rows = [len(body.get("submissions", "1")) for path, body in posts.requests.values()
                    if "/queues/" in path]  # fmt: skip
            now = lab.value("select count(*) from helix.batch where queue = 1")
            assert now - batches == sum(rows)
            answers = [body["answer"] for _, body in repeats.values() if "answer" in body]
            assert set(answers) == {"ok"}
        assert unanswered >= CLIENTS, "the kill came between two requests; nothing was tested"
        states = lab.rows("select distinct state::text from helix.fence")
        assert states == [("SEALED",)]
    with scratch.connect("helix_migrator") as connection:
        assert replay(connection).clean


def _locked(call):
    """The clients share one connection for preparing batches."""
    lock = threading.Lock()

    def locked(*args, **options):
        with lock:
            return call(*args, **options)

    return locked
