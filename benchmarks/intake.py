"""The stream intake against its budget: `python -m benchmarks.intake [--quick] [--write FILE]`.

Each round submits the same number of batches with `submit_many`, 1,000 per call, and through a
stream: entries that wait in a durable Valkey, read 512 and 32 at a time by one intake. Both use one
process and one connection. The entries are added before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import redis

from benchmarks.arena import QUEUE, Arena, arena, tenant
from benchmarks.rounds import load_average
from benchmarks.workload import identity, payload
from helixqueue import HelixQueue
from helixqueue.embedded import Valkey
from helixqueue.identity import canonical_text
from helixqueue.intake.loop import Intake
from helixqueue.intake.settings import IntakeSettings

MUST, GOAL = 0.4, 0.7
CALL = 1_000
LARGE, DEFAULT = 512, 32
BEGIN, END = "<!-- intake: begin -->", "<!-- intake: end -->"


@dataclass(frozen=True)
class IntakeRound:
    """Batches per second of one round."""

    submit_many: float
    large: float  # read 512 at a time
    default: float  # read 32 at a time
    growth: float  # MiB that the process grew during both streams
    load: float


def _submit_many(dsn: str, size: int) -> float:
    with HelixQueue(dsn, tenant=tenant(0)) as helix:
        helix.submit_many(QUEUE, [{"identity": "warm", "payload": {}}])
        began = time.perf_counter()
        for first in range(0, size, CALL):
            numbers = range(first, min(first + CALL, size))
            rows = [{"identity": identity(n), "payload": payload(n)} for n in numbers]
            answers = helix.submit_many(QUEUE, rows)
            if any(answer.decision != "new" for answer in answers):
                raise RuntimeError("expected new batches")
        return size / (time.perf_counter() - began)


def _stream(dsn: str, url: str, count: int, size: int) -> float:
    stream = f"bench-{count}-{time.monotonic_ns()}"
    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(size):
            fields = {"identity": identity(number), "payload": canonical_text(payload(number))}
            pipe.xadd(stream, fields)
            if number % CALL == CALL - 1:
                pipe.execute()
        pipe.execute()
    settings = IntakeSettings(
        stream=stream, tenant=tenant(0), queues=(QUEUE,), redis=url, count=count, block=0.01
    )
    intake = Intake(settings, lambda: dsn, threading.Event())
    began = time.perf_counter()
    intake.run(until_idle=True)
    taken = time.perf_counter() - began
    if (intake.counters.new, intake.counters.acknowledged) != (size, size):
        raise RuntimeError(f"expected {size} new batches, got {intake.counters}")
    return size / taken


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _round(found: Arena, url: str, size: int, *, ours_first: bool) -> IntakeRound:
    figures: dict[str, float] = {}
    growth = 0.0
    names = (
        ["large", "default", "submit_many"] if ours_first else ["submit_many", "default", "large"]
    )
    for name in names:
        with found.database() as database:
            with found.admin(database) as connection:
                connection.execute("grant helix_intake to pool")
            found.settle_down()
            dsn, before = found.dsn(database), _resident()
            if name == "submit_many":
                figures[name] = _submit_many(dsn, size)
            else:
                figures[name] = _stream(dsn, url, LARGE if name == "large" else DEFAULT, size)
                growth += _resident() - before
    return IntakeRound(**figures, growth=growth, load=load_average())


def _report(rounds: list[IntakeRound], size: int) -> str:
    large, default = (
        sorted(getattr(r, name) / r.submit_many for r in rounds) for name in ("large", "default")
    )
    verdict = "met goal" if median(large) >= GOAL else "met must"
    verdict = verdict if median(large) >= MUST else "missed"
    bars = f">= {MUST:.1f}x | >= {GOAL:.1f}x"
    lines = [
        f"{size:,} batches per measurement; one intake and one client of `submit_many`.",
        "",
        "| what | median | lowest | highest | must | goal | |",
        "|---|---|---|---|---|---|---|",
        f"| read {LARGE} at a time, vs. `submit_many` | {_spread(large)} | {bars} | {verdict} |",
        f"| the same, read {DEFAULT} at a time (default) | {_spread(default)} | no bar | | |",
        "",
        "Each round, in batches a second:",
        "",
        f"| `submit_many` | stream, {LARGE} | stream, {DEFAULT} | growth, MiB | load |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.submit_many:,.0f} | {r.large:,.0f} | {r.default:,.0f} | {r.growth:.1f} "
        f"| {r.load:.1f} |"
        for r in rounds
    ]
    return "\n".join(lines)


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f}x | {ratios[0]:.2f}x | {ratios[-1]:.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--write", type=Path, help="put the table into this document")
    options = parser.parse_args()
    count, size = (1, 5_000) if options.quick else (3, 20_000)
    with (
        tempfile.TemporaryDirectory(prefix="helix-bench-") as directory,
        Valkey(Path(directory) / "valkey") as valkey,
        arena(print) as found,
    ):
        rounds = [
            _round(found, valkey.url, size, ours_first=bool(number % 2)) for number in range(count)
        ]
    table = _report(rounds, size)
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        if BEGIN not in text:
            text += f"\n## Stream intake\n\n{BEGIN}\n{END}\n"
        head, _, rest = text.partition(BEGIN)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
