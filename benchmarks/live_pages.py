"""What open live pages cost the service: CPU time of a running `helixq up --demo`.

    python -m benchmarks.live_pages LINK PID [--pages N] [--seconds S]

LINK is a fresh login link, PID the process of `helixq up`; both are in its `--json` output. Each
page is another view of the batches, so that none is rendered for two readers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import httpx

PAGES = 100
SECONDS = 20.0
START_SECONDS = 5.0
MUST_SHARE = 0.1


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def share_of(pid: int, seconds: float) -> float:
    """The part of a core that a process uses."""
    used, began = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - used) / (time.monotonic() - began)


async def read_page(http: httpx.AsyncClient, url: str, updates: Counter[str]) -> None:
    """Follow a live page until the task is cancelled."""
    async with http.stream("GET", "/live", params={"of": url}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("event: page"):
                updates[url] += 1


def view_of(place: int) -> str:
    """A page of all batches, 50 of them shown, under a URL of its own."""
    since = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=place)
    return f"/batches?{urlencode({'since': since.isoformat()})}"


async def measure(link: str, pid: int, pages: int, seconds: float) -> str:
    address = urlsplit(link)
    base = f"{address.scheme}://{address.netloc}"
    limits = httpx.Limits(max_connections=pages + 1)
    async with httpx.AsyncClient(
        base_url=base, headers={"Origin": base}, limits=limits, timeout=60
    ) as http:
        answer = await http.post("/login", data={"code": address.query.partition("=")[2]})
        if answer.status_code != httpx.codes.SEE_OTHER:
            raise SystemExit("expected a fresh login link")
        before = await share_of(pid, seconds)
        updates: Counter[str] = Counter()
        views = [view_of(place) for place in range(pages)]
        readers = [asyncio.create_task(read_page(http, view, updates)) for view in views]
        await asyncio.sleep(START_SECONDS)
        updates.clear()
        share = await share_of(pid, seconds)
        failed = [reader for reader in readers if reader.done()]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    if failed:
        raise SystemExit(f"{len(failed)} of {pages} streams ended")
    return (
        f"{pages} live pages, {seconds:g} s, load {os.getloadavg()[0]:.1f}: "
        f"{share:.1%} of a core, {before:.1%} without; {updates.total()} updates; "
        f"must be below {MUST_SHARE:.0%}: {'met' if share < MUST_SHARE else 'missed'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_pages", description=__doc__)
    parser.add_argument("link", help="a fresh login link")
    parser.add_argument("pid", type=int, help="the process of `helixq up`")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    print(asyncio.run(measure(options.link, options.pid, options.pages, options.seconds)))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
