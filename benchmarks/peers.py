"""The peers, each in an environment of its own under `.bench/`, made on demand.

Their programs in `peer/` are run by their own interpreters and import nothing of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAMS = Path(__file__).parent / "peer"
_HOMES = Path(__file__).parent.parent / ".bench"
WORKER_STARTS_S = 1.5  # until a worker that was started waits for work


class PeerError(Exception):
    """The peer could not be installed or run; its row is left out, the others are measured."""


@dataclass(frozen=True)
class Peer:
    name: str
    version: str
    package: str  # what pip or npm is asked for
    drains_with: str  # its program in `peer/`

    def install(self, say: Callable[[str], None]) -> None:
        home = _HOMES / self.name
        if (home / "installed").exists():
            return
        say(f"installing {self.package} into {home.parent.name}/{home.name}")
        if self._is_node:
            home.mkdir(parents=True, exist_ok=True)
            (home / "package.json").write_text('{"private": true}', encoding="utf-8")
            _run(["npm", "install", "--silent", "--prefix", str(home), self.package])
        else:
            _run([sys.executable, "-m", "venv", str(home)])
            _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", self.package])
        (home / "installed").touch()

    def run(self, program: str, *arguments: str) -> str:
        return _run(self._command(program, *arguments), self._home_told())

    def drain(self, dsn: str, *, jobs: int, processes: int) -> float:
        """Jobs a second, of no-op jobs queued before; makes its own schema in an empty database."""
        self.run(self.drains_with, "fill", dsn, str(jobs))
        return drained([self._command(self.drains_with, "drain", dsn)] * processes, jobs)

    def waits(self, dsn: str, *, jobs: int) -> list[float]:
        """Seconds from enqueuing a job to its start, of `jobs` that an idle worker gets."""
        self.run(self.drains_with, "fill", dsn, "0")
        process = subprocess.Popen(
            self._command(self.drains_with, "tell", dsn),
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | self._home_told(),
        )
        try:
            time.sleep(WORKER_STARTS_S)
            self.run(self.drains_with, "enqueue", dsn, str(jobs))
            return [float(process.stdout.readline()) for _ in range(jobs)] if process.stdout else []
        finally:
            process.kill()
            process.communicate()

    @property
    def _is_node(self) -> bool:
        return self.drains_with.endswith(".mjs")

    def _command(self, program: str, *arguments: str) -> list[str]:
        interpreter = "node" if self._is_node else str(_HOMES / self.name / "bin" / "python")
        return [interpreter, str(_PROGRAMS / program), *arguments]

    def _home_told(self) -> dict[str, str]:
        return {"PEER_HOME": str(_HOMES / self.name)}


PGQUEUER = Peer("pgqueuer", "1.6.0", "pgqueuer[asyncpg]==1.6.0", "pgqueuer_drain.py")
PROCRASTINATE = Peer("procrastinate", "3.10.0", "procrastinate==3.10.0", "procrastinate_drain.py")
GRAPHILE = Peer("graphile-worker", "0.17.3", "graphile-worker@0.17.3", "graphile_drain.mjs")


def enqueue_in_bulk(dsn: str, *, calls_made: int, rows: int = 1_000) -> float:
    """Rows a second by pgqueuer; makes its own schema in the (empty) database of `dsn`."""
    output = PGQUEUER.run("pgqueuer_bulk.py", dsn, str(calls_made), str(rows))
    return float(json.loads(output)["rows_per_second"])


def drained(commands: list[list[str]], jobs: int) -> float:
    """Jobs per second of processes that drain one queue together; each reports its share and times.

    Monotonic time is one clock for all processes of a machine. Starting up does not count: the
    clock runs from the first job that begins to the last process that has settled everything.
    """
    home = _HOMES / GRAPHILE.name
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PEER_HOME": str(home)},
        )
        for command in commands
    ]
    answers = []
    for command, process in zip(commands, running, strict=True):
        out, errors = process.communicate(timeout=600)
        if process.returncode != 0:
            raise PeerError(f"{' '.join(command[1:-1])} failed: {errors.strip()[-500:]}")
        answers.append(json.loads(out))
    if (done := sum(answer["jobs"] for answer in answers)) != jobs:
        raise PeerError(f"expected {jobs} jobs done, got {done}")
    begin = min(float(answer["begin"]) for answer in answers if answer["jobs"])
    return jobs / (max(float(answer["end"]) for answer in answers) - begin)


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | (environment or {}),
        )
    except FileNotFoundError as error:
        raise PeerError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        raise PeerError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
