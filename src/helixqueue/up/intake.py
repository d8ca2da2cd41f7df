"""The stream intake of `helixq up`: its settings, its login, and the process that runs it.

`python -m helixqueue.up.intake` is that process. It takes settings from HELIX_INTAKE, its login
from HELIX_DSN and the name of its log from HELIX_INTAKE_LOG, so that `ps` shows none of them.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import threading
from dataclasses import asdict
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

from helixqueue.engine.migrate import LOCK
from helixqueue.intake import log_to
from helixqueue.intake.settings import EVERY_QUEUE, IntakeSettings, read_file, read_settings
from helixqueue.up.processes import SupervisedProcess

STREAM: Final = "batches"
CONSUMER: Final = "up"  # not the host name, which may change between two starts on one directory
# Local workers declare their queues when they start, at the same time as the intake.
AWAIT_QUEUES_SECONDS: Final = 30.0
LOG_BYTES: Final = 10_000_000


def default_settings(
    redis: str, tenant: str, *, await_queues: bool, trim: bool = False
) -> IntakeSettings:
    """The intake of the embedded Valkey, whose users own every queue of the database anyway."""
    return IntakeSettings(
        stream=STREAM,
        tenant=tenant,
        queues=EVERY_QUEUE,
        redis=redis,
        consumer=CONSUMER,
        await_queues=AWAIT_QUEUES_SECONDS if await_queues else 0.0,
        trim=trim,
    )


def file_settings(
    file: Path, redis: str | None, tenant: str, embedded: str | None = None
) -> IntakeSettings:
    """The settings of a file; `tenant` and the embedded Valkey where it names no others."""
    defaults: dict[str, Any] = {"redis": embedded, "tenant": tenant}
    named = read_file(file)
    options = {name: text for name, text in defaults.items() if name not in named}
    return read_settings(file, options if redis is None else options | {"redis": redis})


def grant_intake(owner_dsn: str, role: str, tenant: str, *, create: bool = False) -> None:
    """Allow a login to submit and to write dead letters for one tenant, and nothing else."""
    name = sql.Identifier(role)
    with psycopg.connect(owner_dsn) as connection:
        # Concurrent grants fail with "tuple concurrently updated".
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        known = connection.execute("select from pg_roles where rolname = %s", (role,)).fetchone()
        if known is None and create:
            connection.execute(sql.SQL("create role {} login").format(name))
        connection.execute(sql.SQL("grant helix_intake to {}").format(name))
        connection.execute("select helix.bind_v1(%s, %s)", (role, tenant))


def intake_process(settings: IntakeSettings, dsn: str, data: Path | None) -> SupervisedProcess:
    environment = {"HELIX_DSN": dsn, "HELIX_INTAKE": json.dumps(asdict(settings))}
    if data is not None:
        environment["HELIX_INTAKE_LOG"] = str(data / "intake.log")
    return SupervisedProcess("intake", "helixqueue.up.intake", environment=environment)


def xadd_command(settings: IntakeSettings) -> str:
    """A command that submits a batch through the stream, for the banner."""
    parts = urlsplit(settings.redis)
    server = ["-s", unquote(parts.path)] if parts.scheme == "unix" else ["-u", settings.redis]
    queue = "QUEUE" if settings.queue_of(None) is None else settings.queue_of(None)
    words = ["redis-cli", *server, "XADD", settings.stream, "*", "queue", str(queue)]
    return shlex.join([*words, "sample_id", "S-1", "payload", "{}"])


def main() -> None:
    from helixqueue.intake.loop import Intake  # noqa: PLC0415 - needs the extra `intake`

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    file = os.environ.get("HELIX_INTAKE_LOG")
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    log_to(handler, as_json=os.environ.get("HELIX_LOG") == "json")
    values = json.loads(os.environ["HELIX_INTAKE"])
    settings = IntakeSettings(**values | {"queues": tuple(values["queues"])})
    Intake(settings, lambda: os.environ["HELIX_DSN"], stop).run()


if __name__ == "__main__":
    main()
