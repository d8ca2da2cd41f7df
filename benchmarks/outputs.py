"""What staging and publication cost, compared with copying the same bytes once.

    python -m benchmarks.outputs [--quick] [--write FILE]

Both sides write to one local directory and wait for the disk. The copy has the same threads; ours
also hashes every byte, registers each file in the database, links it to its final name, and removes
the staging. Both are measured in turn, and the table has the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.arena import arena
from benchmarks.service import write
from helixqueue import HelixQueue
from helixqueue.engine import calls, outputs
from helixqueue.outputs.local_store import BLOCK_BYTES
from helixqueue.outputs.publish import Publisher
from helixqueue.outputs.scratch import survey
from helixqueue.outputs.staging import stage
from helixqueue.outputs.stores import open_store
from helixqueue.outputs.threads import THREADS, in_threads
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.records.lease import LeaseRef, Settlement

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from helixqueue.outputs.scratch import ScratchFile

BEGIN, END = "<!-- outputs -->", "<!-- /outputs -->"
ROUNDS = 3


class Load(NamedTuple):
    name: str
    files: int
    size: int
    must: float  # our time divided by that of the copy


LOADS = (
    Load("64 files, 1 GiB in all", 64, 16 * 1024**2, 1.3),
    Load("10,000 files of 10 KiB", 10_000, 10 * 1024, 2.0),
)
QUICK = (Load("8 files, 64 MiB", 8, 8 * 1024**2, 1.3), Load("500 files", 500, 10 * 1024, 2.0))


def prepare(found: Arena, database: str, uri: str) -> None:
    """Allow the destination and give it to the queue."""
    with found.admin(database) as connection:
        connection.execute(
            "select helix.set_output_root_v1('*', %(uri)s, null, 'benchmark')", {"uri": uri}
        )
        connection.execute(
            "select helix.set_queue_v1(p_tenant => 'bench', p_queue => 'files', p_actor => null, "
            "p_lease_seconds => 600, p_outputs => %(uri)s)",
            {"uri": uri},
        )


def make_files(directory: Path, load: Load) -> list[ScratchFile]:
    block = os.urandom(min(load.size, BLOCK_BYTES))
    for number in range(load.files):
        file = directory / f"d{number % 10}" / f"file{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(block * (load.size // len(block)))
    return survey(directory)


def copy_once(files: list[ScratchFile], target: Path) -> float:
    """Copy with fsync of every file and directory, in as many threads."""
    began = time.monotonic()

    def copy(file: ScratchFile) -> None:
        place = target / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        with Path(file.source).open("rb", 0) as source, place.open("xb", 0) as copied:
            while block := source.read(BLOCK_BYTES):
                copied.write(block)
            os.fsync(copied.fileno())

    asyncio.run(in_threads(copy, files))
    for directory in [target, *{(target / file.path).parent for file in files}]:
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.monotonic() - began


async def publish_once(dsn: str, files: list[ScratchFile], identity: str) -> float:
    """Open, stage, register, settle, publish, seal and clean, as a worker does."""
    database = await AsyncDatabase.connect(dsn)
    claimed = await database.run(
        calls.claim(worker="w", request=uuid.uuid4(), queues=["files"], count=1, start=True)
    )
    [row] = claimed.leases
    assert row.identity == identity  # noqa: S101
    lease = LeaseRef(row.batch, row.token)
    began = time.monotonic()
    opened = await database.run(outputs.open_outputs(worker="w", lease=lease))
    assert opened.manifest is not None  # noqa: S101
    assert opened.destination is not None  # noqa: S101
    staged = await stage(open_store(opened.destination), opened.manifest, files)
    for first in range(0, len(staged), outputs.PAGE_FILES):
        page = staged[first : first + outputs.PAGE_FILES]
        total = len(staged) if first + len(page) == len(staged) else None
        await database.run(
            outputs.register_outputs(worker="w", lease=lease, first=first, staged=page, files=total)
        )
    settlement = Settlement(row.batch, row.token, "completed")
    await database.run(calls.settle(worker="w", settlements=[settlement]))
    await Publisher(database.run, outputs).publish([opened.manifest])
    took = time.monotonic() - began
    page_of = await database.run(outputs.manifests(ids=[row.batch_id]))
    assert page_of.rows[0].state == "sealed"  # noqa: S101
    await database.close()
    return took


def measure(dsn: str, load: Load, root: Path) -> tuple[list[float], list[float]]:
    files = make_files(root / "scratch", load)
    copies, ours = [], []
    with HelixQueue(dsn, tenant="bench") as helix:
        for number in range(ROUNDS):
            target = root / "copy"
            target.mkdir()
            os.sync()
            copies.append(copy_once(files, target))
            shutil.rmtree(target)
            helix.submit("files", identity=f"{load.name} {number}", payload={})
            os.sync()
            ours.append(asyncio.run(publish_once(dsn, files, f"{load.name} {number}")))
            shutil.rmtree(root / "store" / "bench")
    return copies, ours


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outputs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and small files")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    options = parser.parse_args()
    with arena(print) as found, found.database() as database:
        lines = []
        dsn = found.dsn(database)
        for load in QUICK if options.quick else LOADS:
            with tempfile.TemporaryDirectory(prefix="helix-bench-") as place:
                root = Path(place)
                (root / "store").mkdir()
                prepare(found, database, f"file://{root / 'store'}")
                copies, ours = measure(dsn, load, root)
            ratio = median(ours) / median(copies)
            verdict = "met" if ratio <= load.must else "**missed**"
            lines.append(
                f"| {load.name} | {median(copies):.2f} s ({min(copies):.2f} s) "
                f"| {median(ours):.2f} s ({min(ours):.2f} s) | {100 * (ratio - 1):+.0f} % "
                f"({100 * (min(ours) / min(copies) - 1):+.0f} %) "
                f"| <= {100 * (load.must - 1):+.0f} % | {verdict} |"
            )
        conditions = found.conditions()
    table = "\n".join([
        *(f"- {name}: {value}" for name, value in conditions.items()),
        f"- rounds: {ROUNDS} each, median (fastest); {THREADS} threads on both sides",
        "",
        "| files | one copy with fsync | staged, registered and published | difference | must | |",
        "|---|---|---|---|---|---|",
        *lines,
    ])  # fmt: skip
    print(table)  # noqa: T201 - the answer
    if options.write is not None:
        write(options.write, table, "Output files", BEGIN, END)


if __name__ == "__main__":
    main()
