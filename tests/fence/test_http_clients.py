"""Clients as they are: a real server on a real socket, three clients, and whatever else arrives."""

from __future__ import annotations

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
import requests
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fence_shop import KEY, fences_of, fresh, open_shop, run

BODY = json.dumps({"cents": 500}).encode()
PATH = "/orders/o1/refunds"


@asynccontextmanager
async def served(app):
    """The application behind uvicorn, on a port of its own."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await serving


def by_httpx(port, key):
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}{PATH}"
    answer = httpx.post(url, content=BODY, headers=headers, timeout=20)
    return answer.status_code, dict(answer.headers), answer.content


def by_requests(port, key):
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}{PATH}"
    with requests.Session() as session:
        answer = session.post(url, data=BODY, headers=headers, timeout=20)
    return answer.status_code, {n.lower(): v for n, v in answer.headers.items()}, answer.content


def by_hand(port, key):
    """The bytes of a request, in two pieces, and the bytes of its answer."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nidempotency-key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head.encode() + BODY[:5])
        connection.sendall(BODY[5:])
        answer = b"".join(iter(partial(connection.recv, 65536), b""))
    found, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = found.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize("ask", [by_httpx, by_requests, by_hand])
def test_every_http_client_gets_one_effect_and_the_same_response(database, ask):
    async def story():
        async with (
            open_shop(database, fresh(), "fastapi") as fenced,
            served(fenced.middleware) as port,
        ):
            first = await asyncio.to_thread(ask, port, KEY)
            again = await asyncio.to_thread(ask, port, KEY)
            assert (first[0], again[0], first[2]) == (201, 201, again[2])
            assert again[1]["idempotency-replayed"] == "true"
            assert len(fenced.shop.effects) == 1

    run(story())


def test_three_http_clients_with_one_key_have_one_effect(database):
    request = [by_httpx, by_requests, by_hand] * 4

    async def story(threads):
        loop = asyncio.get_running_loop()
        policy = fresh(route={"wait_ms": 20_000})
        async with open_shop(database, policy, "starlette") as fenced:
            async with served(fenced.middleware) as port:
                answers = await asyncio.gather(
                    *(loop.run_in_executor(threads, ask, port, KEY) for ask in request)
                )
            assert {(status, body) for status, _, body in answers} == {(201, answers[0][2])}
            assert len(fenced.shop.effects) == 1

    # Threads of their own: the loop's would all wait for a server that needs one of them.
    with ThreadPoolExecutor(len(request)) as threads:
        run(story(threads))


def test_effect_is_sealed_after_the_client_disconnected(database):
    async def story():
        async with (
            open_shop(database, fresh(), "bare") as fenced,
            served(fenced.middleware) as port,
        ):
            fenced.shop.goes_on.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"POST {PATH} HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: {KEY}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
                + BODY
            )
            await fenced.shop.going.wait()
            writer.transport.abort()
            fenced.shop.goes_on.set()
            async with asyncio.timeout(20):
                while [row.state.value for row in await fences_of(fenced)] != ["SEALED"]:
                    await asyncio.sleep(0.01)
            again = await asyncio.to_thread(by_hand, port, KEY)
            assert again[1]["idempotency-replayed"] == "true"
            assert len(fenced.shop.effects) == 1
            del reader

    run(story())


# What HTTP lets through in a header's value, and what is likely to matter to us.
values = st.one_of(
    st.binary(max_size=60).map(lambda b: bytes(c for c in b if c not in b"\r\n\0")),
    st.sampled_from(
        [b"", b'"', b'"a', b'"a";p=1', b"a, b", b"\xff\xfe", b"a" * 300, b'"\xc3\xa9"']
    ),
)
kinds = st.sampled_from(
    [b"application/json", b"application/x-www-form-urlencoded", b"text/plain; charset=utf-16", b"/",
     b"multipart/form-data; boundary=x", b"multipart/form-data", b"application/json; charset=\xff"]
)  # fmt: skip
bodies = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"", b"{", b'{"a":1,"a":2}', b"[" * 200, b"NaN", b'"\\ud800"', b"1e999"]),
    st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(
        st.text(), s), max_leaves=8).map(lambda v: json.dumps(v).encode()),
)  # fmt: skip


def test_no_header_or_body_causes_a_server_error(database):
    with asyncio.Runner() as runner:
        shop = open_shop(database, fresh(), "bare")
        fenced = runner.run(shop.__aenter__())

        async def ask(headers, body, query):
            found = []
            scope = {
                "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(),
                "query_string": query, "headers": headers, "http_version": "1.1", "scheme": "http",
            }  # fmt: skip

            async def receive():
                return {"type": "http.request", "body": body}

            async def send(message):
                found.append(message)

            await fenced.middleware(scope, receive, send)
            return found[0]["status"]

        @settings(max_examples=150, deadline=None)
        @given(values, kinds, values, bodies, st.binary(max_size=30))
        def never_fails(key, kind, encoding, body, query):
            headers = [(b"idempotency-key", key), (b"content-type", kind)]
            if encoding:
                headers.append((b"content-encoding", encoding))
            assert runner.run(ask(headers, body, query)) < 500

        never_fails()
        runner.run(shop.__aexit__(None, None, None))
