"""The service against its budgets: `python -m benchmarks.service [--quick] [--write FILE]`.

Every rate is a ratio of figures taken back to back on one server, in rounds: over HTTP, then the
same through the Python API. Clients, service and PostgreSQL share the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import ge, lt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from urllib.request import urlopen

from benchmarks.arena import QUEUE, SERVICE_ROLES, Arena, arena, tenant
from benchmarks.rounds import load_average
from benchmarks.service_client import BULK_CONNECTIONS, CONNECTIONS
from helixqueue.engine import tokens
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

TENANT = tenant(0)
BEGIN, END = "<!-- service: begin -->", "<!-- service: end -->"
READY_S = 60.0


@dataclass(frozen=True)
class Size:
    rounds: int
    singles: int
    bulk: int


FULL = Size(rounds=3, singles=6_000, bulk=40_000)
QUICK = Size(rounds=1, singles=2_000, bulk=10_000)


@dataclass(frozen=True)
class Served:
    """A running service."""

    url: str
    tokens: list[str]  # one a tenant
    pid: int


@dataclass(frozen=True)
class Figures:
    """One round."""

    http_single: float
    python_single: float
    http_bulk: float
    python_bulk: float
    load: float


@contextmanager
def served(arena: Arena, database: str, tenants: tuple[str, ...] = (TENANT,)) -> Iterator[Served]:
    """Start a service with its own login and create tokens without a rate limit."""
    with arena.admin(database) as connection:
        for role, group in (("service", SERVICE_ROLES), ("keeper", "helix_operator")):
            connection.execute(
                f"do $$ begin create role {role} login; exception when duplicate_object then end $$"
            )
            connection.execute(f"grant {group} to {role}")
        connection.execute("select helix.bind_v1('service', '*', true)")
    made = {tenant: tokens.new_token() for tenant in tenants}
    with Database.connect(arena.dsn(database, "keeper")) as store:
        for tenant, token in made.items():
            store.run(
                tokens.create(
                    tenant=tenant,
                    name=f"bench-{token.hash.hex()[:8]}",
                    token_hash=token.hash,
                    scopes=tokens.SCOPES,
                    queues=None,
                    expires_at=datetime.now(UTC) + timedelta(days=1),
                )
            )
    command = ["serve", "--dsn", arena.dsn(database, "service"), "--port", "0", "--rate", "1000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "helixqueue.cli.main", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            url = json.loads((process.stdout.readline() if process.stdout else "") or "{}")["url"]
            _ready(url)
            yield Served(url, [made[tenant].token for tenant in tenants], process.pid)
        finally:
            process.terminate()


def _ready(url: str) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urlopen(f"{url}/health/ready", timeout=5) as response:  # noqa: S310 - our own
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"{url} was not ready in {READY_S:g} s")


def run_client(*words: object, lines: str = "") -> str:
    """The output of a `service_client` process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.service_client", *map(str, words)],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _round(arena: Arena, size: Size, number: int) -> Figures:
    with arena.database() as database, served(arena, database) as service:
        dsn = arena.dsn(database)
        places = iter(range(0, 10**9, 10**7))
        [token] = service.tokens
        run_client("http", service.url, token, QUEUE, "single", next(places), 200)

        def http(mode: str, count: int) -> float:
            first = next(places)
            return float(run_client("http", service.url, token, QUEUE, mode, first, count))

        def python(mode: str, count: int) -> float:
            return float(run_client("python", dsn, TENANT, QUEUE, mode, next(places), count))

        def both(mode: str, count: int) -> tuple[float, float]:
            arena.settle_down()
            if number % 2:
                return http(mode, count), python(mode, count)
            reference = python(mode, count)
            return http(mode, count), reference

        http_single, python_single = both("single", size.singles)
        http_bulk, python_bulk = both("bulk", size.bulk)
        return Figures(http_single, python_single, http_bulk, python_bulk, load_average())


def _memory(arena: Arena) -> float:
    """Of an idle service, in MiB."""
    with arena.database() as database, served(arena, database) as service:
        return _resident(service.pid)


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _up() -> float:
    """Seconds from an empty directory to a ready service."""
    with tempfile.TemporaryDirectory(prefix="helix-bench-up-") as directory:
        began = time.monotonic()
        command = ["up", "--data", f"{directory}/lab", "--port", "0", "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "helixqueue.cli.main", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                status = json.loads((process.stdout.readline() if process.stdout else "") or "{}")
                _ready(status["url"])
                return time.monotonic() - began
            finally:
                process.terminate()


def _row(what: str, figures: list[float], form: str, sign: str, bar: float) -> str:
    holds = {">=": ge, "<": lt}[sign]
    middle = median(figures)
    shown = (form.format(n) for n in (middle, min(figures), max(figures)))
    verdict = "met" if holds(middle, bar) else "missed"
    return f"| {' | '.join([what, *shown, f'{sign} {form.format(bar)}', verdict])} |"


def _table(
    rounds: list[Figures], memory: float, up: list[float], conditions: dict[str, str]
) -> str:
    single = [round_.http_single / round_.python_single for round_ in rounds]
    bulk = [round_.http_bulk / round_.python_bulk for round_ in rounds]
    lines = [
        *(f"- {name}: {value}" for name, value in conditions.items()),
        "",
        "| what | median | lowest | highest | must | |",
        "|---|---|---|---|---|---|",
        _row(
            f"single submits, {CONNECTIONS} connections vs. {CONNECTIONS} threads in Python",
            single, "{:.2f}x", ">=", 0.5,
        ),
        _row(
            f"chunks of 1,000, {BULK_CONNECTIONS} at a time vs. submit_many",
            bulk, "{:.2f}x", ">=", 0.6,
        ),
        _row("resident memory of an idle service", [memory], "{:.0f} MiB", "<", 150),
        _row("`helixq up` to ready, new directory", up, "{:.1f} s", "<", 15),
        "",
        "Each round, in batches a second:",
        "",
        "| single, HTTP | Python | chunks, HTTP | Python | load |",
        "|---|---|---|---|---|",
        *(
            f"| {r.http_single:,.0f} | {r.python_single:,.0f} | {r.http_bulk:,.0f} "
            f"| {r.python_bulk:,.0f} | {r.load:.1f} |"
            for r in rounds
        ),
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    with arena(print) as found:
        rounds = [_round(found, size, number) for number in range(size.rounds)]
        memory = _memory(found)
        conditions = found.conditions()
    conditions["run"] = f"{size.rounds} rounds{', quick sizes' if options.quick else ''}"
    table = _table(rounds, memory, [_up() for _ in range(size.rounds)], conditions)
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        write(options.write, table, "Service", BEGIN, END)


def write(page: Path, table: str, title: str, begin: str, end: str) -> None:
    """Replace the table between its markers."""
    text = page.read_text(encoding="utf-8")
    if begin not in text:
        text += f"\n## {title}\n\n{begin}\n{end}\n"
    head, _, rest = text.partition(begin)
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{begin}\n\n{table}\n\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
