"""The server of a benchmark run: embedded and durable, with a fresh database per measurement."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from helixqueue.embedded import Postgres
from helixqueue.engine.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The login role of all clients, bound to every tenant as a pool of workers is.
POOL = "pool"
CLIENT_ROLES = "helix_submit, helix_work, helix_read, helix_payloads, helix_operate"
SERVICE_ROLES = f"{CLIENT_ROLES}, helix_admin, helix_delegate"
ADMIN = "helix_bootstrap"
QUEUE = "bench"
TENANTS = 1_000
CLASSES = 20

_TEMPLATE = "bench_template"
# Settings that affect speed and durability, printed with every result.
_TELLING = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "shared_buffers",
    "max_wal_size",
    "autovacuum",
)


class Arena:
    """Databases on one server, each made from a migrated template."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._numbers = itertools.count(1)

    def dsn(self, database: str, role: str = POOL) -> str:
        host = quote(str(self.server.socket_dir), safe="")
        return f"postgresql://{role}@/{database}?host={host}"

    def admin(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(database, ADMIN), autocommit=True)

    def has(self, database: str) -> bool:
        with self.admin("postgres") as connection:
            query = "select from pg_database where datname = %s"
            return connection.execute(query, (database,)).fetchone() is not None

    def create(self, database: str) -> None:
        """A database with the schema, its tenants and classes."""
        with self.admin("postgres") as connection:
            # Copied file by file: the copy writes no WAL, which would be counted as the engine's.
            # The migrator owns it like the template: `check` reports any other member of its role.
            made = "create database {} owner helix_migrator template {} strategy file_copy"
            names = sql.Identifier(database), sql.Identifier(_TEMPLATE)
            connection.execute(sql.SQL(made).format(*names))

    @contextmanager
    def database(self, *, empty: bool = False) -> Iterator[str]:
        """A database with the schema, its tenants and classes (or `empty`), dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        if empty:
            with self.admin("postgres") as connection:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        else:
            self.create(name)
        yield name
        with self.admin("postgres") as connection:
            connection.execute(
                sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            )

    def prepare(self) -> None:
        with self.admin("postgres") as connection:
            connection.execute(f"create role {POOL} login")
            connection.execute(f"create database {_TEMPLATE} owner helix_migrator")
        migrate(self.dsn(_TEMPLATE, "helix_migrator"))
        with self.admin(_TEMPLATE) as connection:
            connection.execute(f"grant {CLIENT_ROLES} to {POOL}")
            connection.execute("select helix.bind_v1(%s, '*')", (POOL,))
        with psycopg.connect(self.dsn(_TEMPLATE), autocommit=True) as connection:
            connection.execute(
                "select count(helix.set_queue_v1(n, %s, 'bench')) from unnest(%s::text[]) n",
                (QUEUE, [tenant(number) for number in range(TENANTS)]),
            )
            # Create the lane of each class, so that every database begins with the same lanes.
            for wanted in [*map(requirement, range(CLASSES)), "{}"]:
                connection.execute(
                    "select helix.set_queue_v1(%s, %s, 'bench', p_requires => %s::jsonb)",
                    (tenant(0), QUEUE, wanted),
                )
        with self.admin(_TEMPLATE) as connection:
            connection.execute("analyze")

    def analyze(self, database: str) -> None:
        """Update statistics after a bulk load; a queue that was never analyzed drains slowly."""
        with self.admin(database) as connection:
            connection.execute("analyze")

    def settle_down(self) -> None:
        """Write what earlier measurements left, so that each begins on equal terms."""
        with self.admin("postgres") as connection:
            connection.execute("checkpoint")

    def conditions(self) -> dict[str, str]:
        """Facts about machine and server, without host names and paths."""
        with self.admin("postgres") as connection:
            facts = {name: _one(connection, f"show {name}") for name in _TELLING}
            version = _one(connection, "show server_version")
        return {
            "CPU": f"{_cpu()}, {os.cpu_count()} cores",
            "system": f"{platform.system()} {platform.machine()}",
            "Python": platform.python_version(),
            "PostgreSQL": f"{version}, the wheel's, on a Unix socket",
            "settings": ", ".join(f"{name}={value}" for name, value in facts.items()),
        }


@contextmanager
def arena(say: Callable[[str], None], keep: Path | None = None) -> Iterator[Arena]:
    """A server in a temporary directory, or in the directory `keep` for later runs."""
    directory = keep or Path(tempfile.mkdtemp(prefix="helix-bench-"))
    # Not supervised: a server that dies during a benchmark must fail the run.
    server = Postgres(directory / "postgres", supervised=False)
    try:
        server.start(say)
        try:
            made = Arena(server)
            if not made.has(_TEMPLATE):
                made.prepare()
            yield made
        finally:
            server.stop()
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def tenant(number: int) -> str:
    return f"t{number % TENANTS:04}"


def requirement(number: int) -> str:
    """One of the requirement classes, as submissions carry it."""
    kind = number % CLASSES
    wanted = {"cpu_cores": 1 + kind // 2, "ram_gb": 4} if kind % 2 else {"gpus": 1, "ram_gb": kind}
    return json.dumps(wanted)


# A worker that fits every class.
EVERYTHING = {
    "gpus": 1_000_000,
    "gpu_vram_gb": 80,
    "cpu_cores": 1_000_000,
    "ram_gb": 1_000_000,
    "disk_gb": 1_000_000,
}


def _one(connection: psycopg.Connection[Any], query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    return "" if row is None else str(row[0])


def _cpu() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or "unknown CPU"
    found = re.search(r"^model name\s*:\s*(.+)$", facts, re.MULTILINE)
    return found[1].strip() if found else "unknown CPU"
