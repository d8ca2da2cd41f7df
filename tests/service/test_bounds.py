"""What one tenant can make a service do at once, and what other tenants notice of it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from helixqueue.postgres.fairness import FairSemaphore
from helixqueue.service.compute_threads import is_large
from helixqueue.service.costs import (
    PASS_MICROSECONDS,
    BodyMemory,
    HeldMemory,
    LoopTime,
    cost_of,
    memory_of,
)
from helixqueue.service.problems import Problem
from helixqueue.service.settings import LEAST_MEMORY, MAX_BODY_BYTES
from helixqueue.service.slow_clients import MAX_HEAD_BYTES
from tests.support.replicas import replica
from tests.support.service import TLS, Site, serving, settings_for
from tests.support.stall_service import stall_service

ROOT = Path(__file__).parents[2]
CONNECTIONS = 200
SECONDS = 6
KIB = 1024
# Of the other tenant. Without shares its requests took seconds.
MEDIAN_SECONDS, LONGEST_SECONDS = 0.15, 1.5


def flood(url, token, kind):
    """Send requests of a kind of `benchmarks.flood` on many connections."""
    command = [sys.executable, "-m", "benchmarks.flood", "send", url, token, kind]
    return subprocess.Popen(
        [*command, str(CONNECTIONS), str(SECONDS)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def probe(url, token):
    command = [sys.executable, "-m", "benchmarks.flood", "probe", url, token, str(SECONDS - 2)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def flooded(database):
    with stall_service(database.dsn("service")) as service:
        site = Site(database, service.url)
        with site.client() as http:
            assert http.put("/v1/queues/bench", json={"reason": "test"}).is_success
        yield site


@pytest.mark.parametrize("kind", ["arrays", "mebibyte-arrays", "openapi"])
def test_two_hundred_connections_of_a_submit_token_do_not_delay_another_tenant(flooded, kind):
    token = flooded.token("submit")
    with flood(flooded.url, token, kind) as sending:
        took = probe(flooded.url, flooded.token(tenant="b"))
        answers = json.loads(sending.communicate()[0])
    assert set(answers) <= {"200", "201", "400", "422", "429", "503"}
    assert sum(answers.values()) > 10
    for seconds in took.values():
        assert sorted(seconds)[len(seconds) // 2] < MEDIAN_SECONDS
        assert max(seconds) < LONGEST_SECONDS


def test_two_hundred_logins_with_large_bodies_do_not_delay_a_tenant(flooded):
    with flood(flooded.url, "", "login") as sending:
        took = probe(flooded.url, flooded.token(tenant="b"))
        answers = json.loads(sending.communicate()[0])
    assert set(answers) <= {"413", "429"}
    assert sum(answers.values()) > 100
    for seconds in took.values():
        assert sorted(seconds)[len(seconds) // 2] < MEDIAN_SECONDS
        assert max(seconds) < LONGEST_SECONDS


def test_expensive_requests_of_a_tenant_queue_behind_its_own():
    served = []

    async def take(loop_time, tenant, cost):
        await loop_time.take(tenant, cost)
        served.append(tenant)

    async def requests():
        loop_time = LoopTime()
        sent = [take(loop_time, "a", PASS_MICROSECONDS) for _ in range(50)]
        await asyncio.gather(*sent, take(loop_time, "b", 100), take(loop_time, "b", 100))

    asyncio.run(requests())
    assert len(served) == 52
    assert served[:5].count("b") == 2, "fifty came before"


def test_turns_end_with_the_pass_of_the_event_loop_in_which_they_were_taken():
    async def requests():
        loop_time, passes = LoopTime(), 0

        async def count_passes():
            nonlocal passes
            while True:
                await asyncio.sleep(0)
                passes += 1

        counting = asyncio.create_task(count_passes())
        await asyncio.gather(*(loop_time.take("a", PASS_MICROSECONDS) for _ in range(20)))
        counting.cancel()
        assert passes >= 20

    asyncio.run(requests())


def test_large_waiter_is_not_passed_by_small_ones_without_end():
    async def requests():
        permits = FairSemaphore(10)
        assert permits.try_acquire("a", 6)
        large = asyncio.create_task(permits.acquire("b", 9))
        await asyncio.sleep(0)
        assert not permits.try_acquire("c"), "what is free is kept for b"
        small = asyncio.create_task(permits.acquire("c"))
        await asyncio.sleep(0)
        permits.release("a", 6)
        await asyncio.wait_for(asyncio.gather(large, small), 5)
        assert permits.taken == 10

    asyncio.run(requests())


def test_costs_are_estimated_from_the_bytes_of_a_body():
    floats = b"[" + b"1e-7," * 6_000 + b"1]"
    assert cost_of(b'{"identity":"a","payload":1}') == 0
    assert cost_of(floats) > 6_000
    assert is_large(floats)
    assert memory_of(floats) > 1_000_000
    text = b'"' + b"x" * 30 * KIB + b'"'
    assert cost_of(text) < cost_of(floats) / 5
    assert cost_of(text.replace(b"xx", b"\\n")) > cost_of(text)


def test_bodies_of_one_tenant_leave_memory_for_another_and_waiters_get_503():
    async def requests():
        memory = BodyMemory(LEAST_MEMORY, wait_seconds=0.05)
        body = b"[" + b"1," * 300_000 + b"1]"
        held, other = HeldMemory(memory, "a"), HeldMemory(memory, "b")
        await held.take_parsed(body)
        with pytest.raises(Problem) as refused:
            await HeldMemory(memory, "a").take_parsed(body)
        assert (refused.value.status_code, refused.value.kind) == (503, "too-busy")
        assert int(refused.value.extra_headers["Retry-After"]) >= 1
        await other.take_parsed(b"[" + b"1," * 10_000 + b"1]")
        held.release()
        other.release()
        assert memory.taken == 0

    asyncio.run(requests())


def resident_mib(pid, field="VmHWM"):
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split(f"{field}:")[1].split()[0]) / KIB


# Items of payloads of almost a mebibyte: of the first the canonical text is too long, the second is
# a wrong number, and one in forty is stored.
REFUSED, STORED = ["1e-6", "9007199254740993"], "[" * 30 + "]" * 30


def mebibyte(connections, number):
    item = REFUSED[number % 2] if number % 40 else STORED
    payload = ",".join([item] * ((MAX_BODY_BYTES - 200) // (len(item) + 1)))
    return f'{{"identity":"{connections}-{number}","payload":[{payload}]}}'


@pytest.mark.parametrize("connections", [24, 200])
def test_bodies_of_a_mebibyte_on_many_connections_stay_within_the_memory(database, connections):
    """The limit of the kernel is that of `--memory`, plus the stacks and arenas of threads."""
    limit = 512 * KIB * KIB
    under = ["prlimit", f"--data={limit}:{limit}"]
    options = ["--memory", "384", "--rate", "100000"]
    with replica(database.dsn("service"), options=options, under=under) as (process, url):
        site = Site(database, url)
        with (
            site.client() as http,
            site.client(tenant="b") as other,
            ThreadPoolExecutor(connections) as pool,
        ):
            assert http.put("/v1/queues/memory", json={"reason": "test"}).is_success

            def send(number):
                headers = {**http.headers, "Content-Type": "application/json"}
                path = f"{url}/v1/queues/memory/batches"
                body = mebibyte(connections, number)
                return httpx.post(path, content=body, headers=headers, timeout=120, verify=TLS)

            sent = [pool.submit(send, number) for number in range(max(connections, 120))]
            while not all(item.done() for item in sent):
                assert other.get("/v1/queues").status_code == 200
            answers = [item.result() for item in sent]
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {201, 400, 422, 429, 503}
        assert statuses.count(201) > 0
        assert all("retry-after" in item.headers for item in answers if item.status_code == 503)
        assert process.poll() is None
        assert resident_mib(process.pid) < 384


def read_all(client):
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_client_that_sends_an_oversize_body_to_its_end_reads_the_problem(database, chunked):
    size = 20 * MAX_BODY_BYTES
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    with serving(settings_for(database)) as url:
        head = (
            f"POST /v1/queues/q/batches HTTP/1.1\r\nHost: x\r\n{framing}\r\n"
            f"Authorization: Bearer {Site(database, url).token()}\r\n\r\n"
        )
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as client:
            client.sendall(head.encode())
            piece = b"1" * MAX_BODY_BYTES
            for _ in range(20):
                client.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            response = read_all(client)
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in response
    assert b"urn:helixqueue:problem:body-too-large" in response


def test_client_that_sends_an_oversize_head_to_its_end_reads_the_problem(database):
    with serving(settings_for(database)) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
            for _ in range(100):
                client.sendall(b"x" * MAX_HEAD_BYTES)
            response = read_all(client)
    assert response.startswith(b"HTTP/1.1 431 ")
    assert b"urn:helixqueue:problem:head-too-large" in response
