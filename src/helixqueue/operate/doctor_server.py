"""Examinations of servers: clock, archive, authentication, dead rows, transactions, stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from helixqueue.errors import HelixError, NotInstalled, Unavailable
from helixqueue.operate.examination import DoctorQueries, Finding, Verdict, finding_of
from helixqueue.outputs.stores import open_store, probe

CLOCK_S = 5.0
DEAD_ROWS = 100_000
TRANSACTION_S = 300
REDIS_S = 5.0


def clock(queries: DoctorQueries) -> Finding:
    before = time.time()
    database = queries.row("clock")["now"]
    after = time.time()
    skew, error = database - (before + after) / 2, (after - before) / 2
    return finding_of(
        verdict="warn" if abs(skew) - error > CLOCK_S else "ok",
        found=f"this machine differs by {skew:+.3f} s, give or take {error:.3f}",
        right=f"less than {CLOCK_S:g} s; only the database's clock decides about leases",
        remedy="synchronize both clocks (NTP): times in logs and expiries of tokens mislead",
    )


def archiving(queries: DoctorQueries) -> Finding:
    row = queries.row("archiving")
    found = f"wal_level={row['wal_level']}, archive_mode={row['archive_mode']}"
    remedy = ""
    if row["wal_level"] == "minimal":
        remedy = "set wal_level=replica: neither standbys nor point-in-time recovery are possible"
    elif row["fails"]:
        found += f", {row['failed_count']} failures, the last after the last success"
        remedy = "repair archive_command: the log accumulates on disk and the backup has a gap"
    return finding_of(
        verdict="warn" if remedy else "ok",
        found=found,
        right="wal_level replica or logical, and no failing archive",
        remedy=remedy,
    )


def trust_authentication(queries: DoctorQueries) -> Finding:
    """Over TCP, `trust` lets every host in that reaches the port, as any role."""
    listens = queries.row("listens")["addresses"]
    connection = queries.connection
    is_tcp = not (connection.info.host or "/").startswith("/")
    may_read = queries.row("may_read_rules")["allowed"]
    rules = queries.row("trust_rules")["rules"] if may_read else None
    trusted = is_tcp and not connection.pgconn.used_password and not connection.pgconn.ssl_in_use
    found = rules or ("no rule that this role can see" if listens else "no TCP")
    verdict: Verdict = "bad" if trusted or (rules and listens) else "warn" if rules else "ok"
    return finding_of(
        verdict=verdict,
        found="this login came in over TCP without a password" if trusted else found,
        right="no method trust for host connections",
        remedy="use scram-sha-256 in pg_hba.conf and reload the server",
    )


def dead_rows(queries: DoctorQueries) -> Finding:
    row = queries.row("dead_rows")
    return finding_of(
        verdict="warn" if row["tables"] else "ok",
        found=row["tables"] or "few",
        right=f"no table with more than {DEAD_ROWS:,} dead rows and half as many live ones",
        remedy="vacuum (analyze) helix.NAME; look for old snapshots and disabled autovacuum",
    )


def long_transactions(queries: DoctorQueries) -> Finding:
    row = queries.row("long_transaction")
    seconds = row["seconds"] or 0
    return finding_of(
        verdict="warn" if seconds > TRANSACTION_S else "ok",
        found=f"{row['holder']}: {seconds} s, {row['state']}" if row["holder"] else "none seen",
        right=f"none longer than {TRANSACTION_S} s",
        remedy="commit or end it (pg_terminate_backend): its locks make others wait",
    )


def destinations(queries: DoctorQueries) -> Finding:
    """Output files that wait although this machine, or none, could publish them."""
    problems, reached = [], []
    for row in queries.rows("destinations"):
        waiting = f"{row['manifests']} of {row['queues']} at {row['destination']}"
        try:
            store = open_store(row["destination"])
            store.require()
            probe(store)
            reached.append(waiting)
        except (HelixError, OSError) as error:
            problems.append(f"{waiting}: {error}")
    return finding_of(
        verdict="warn" if problems else "ok",
        found="; ".join(problems or reached) or "no outputs wait for their publication",
        right="destinations of granted outputs to which this machine can publish",
        remedy="set the credentials of the destination in the environment of the service, or run "
        "`helixq output publish` where they are",
    )


def redis_findings(url: str) -> Iterator[Finding]:
    """Redis must not evict streams: entries that were not read yet would be lost."""
    try:
        from redis import Redis  # noqa: PLC0415 - an extra
        from redis.exceptions import RedisError  # noqa: PLC0415
    except ImportError as error:
        raise NotInstalled(error.name, "hint") from error
    client = Redis.from_url(url, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
    try:
        info: dict[str, Any] = client.info()
    except RedisError as error:
        raise Unavailable(f"Redis cannot be reached: {type(error).__name__}") from error
    finally:
        client.close()
    policy = info.get("maxmemory_policy", "unknown")
    yield finding_of(
        name="redis eviction",
        verdict="ok" if policy == "noeviction" else "bad",
        found=f"maxmemory-policy={policy}",
        right="noeviction",
        remedy="config set maxmemory-policy noeviction: others delete streams when memory is full",
    )
    persistent = info.get("aof_enabled") == 1
    yield finding_of(
        name="redis persistence",
        verdict="ok" if persistent else "warn",
        found=f"appendonly={'yes' if persistent else 'no'}",
        right="yes",
        remedy="config set appendonly yes: a restart loses entries that were not read yet",
    )
