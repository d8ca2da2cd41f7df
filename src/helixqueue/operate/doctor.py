"""Examines whether a database is set up so that the guarantees hold: settings and roles, not data.

Run it with the DSN of your applications: most faults are in their role and connection. `check`
examines data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
from psycopg.rows import dict_row

from helixqueue.engine.revision import fits, head, schema_of
from helixqueue.operate.doctor_server import (
    archiving,
    clock,
    dead_rows,
    destinations,
    long_transactions,
    redis_findings,
    trust_authentication,
)
from helixqueue.operate.examination import DoctorQueries, Finding, Verdict, finding_of
from helixqueue.postgres.database import connect_options
from helixqueue.postgres.sqlstate import unreached
from helixqueue.records.duty import START_SERVICE, DutyRow, late_text
from helixqueue.worker import private_mounts

NEWEST_TESTED = 18
# A snapshot this old makes claims noticeably slower on a busy queue.
SNAPSHOT_S = 300
PREPARED_S = 300
FULL = 0.8


def examine(dsn: str, redis_url: str | None = None) -> list[Finding]:
    """Return every finding; raises only if the database or Redis cannot be reached."""
    try:
        options = connect_options(dsn) | {"application_name": "helixq doctor"}
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row, **options) as connection:
            connection.prepare_threshold = None
            findings = list(_findings(DoctorQueries(connection)))
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise unreached(error) from error
    return findings if redis_url is None else [*findings, *redis_findings(redis_url)]


def _findings(queries: DoctorQueries) -> Iterator[Finding]:
    for examination in EXAMINATIONS:
        name = examination.__name__.strip("_").replace("_", " ")
        try:
            yield replace(examination(queries), name=name)
        except (
            psycopg.errors.InvalidSchemaName,
            psycopg.errors.UndefinedFunction,
            psycopg.errors.InsufficientPrivilege,
        ) as error:
            yield Finding(
                name,
                "warn",
                f"could not be examined: {error.diag.message_primary}",
                "a database with HelixQueue's schema, and a role granted a scope: helix_submit",
                "see the findings about schema and grants",
            )


def _server_version(queries: DoctorQueries) -> Finding:
    server = queries.row("server")
    major = server["number"] // 10000
    verdict: Verdict = "ok" if 15 <= major <= NEWEST_TESTED else "bad" if major < 15 else "warn"
    return finding_of(
        verdict=verdict,
        found=server["version"],
        right=f"PostgreSQL 15 to {NEWEST_TESTED}",
        remedy="upgrade the server" if verdict == "bad" else "untested; read the changelog",
    )


def _encoding(queries: DoctorQueries) -> Finding:
    encoding = queries.row("server")["encoding"]
    return finding_of(
        verdict="ok" if encoding == "UTF8" else "bad",
        found=encoding,
        right="UTF8",
        remedy="create a database with encoding 'UTF8' template template0 and migrate it",
    )


def _schema(queries: DoctorQueries) -> Finding:
    got = schema_of(queries.connection)
    expected = head()
    newer = got is not None and got.revision > expected
    return finding_of(
        verdict="ok" if fits(got) else "bad",
        found=got.revision if got else "none",
        right=f"revision {expected}, or a newer one that works with it",
        remedy="upgrade the package helixqueue" if newer else "run `helixq migrate`",
    )


def _primary(queries: DoctorQueries) -> Finding:
    standby = queries.row("server")["standby"]
    return finding_of(
        verdict="bad" if standby else "ok",
        found="a standby, read-only" if standby else "the primary",
        right="the primary",
        remedy="use the primary, or add target_session_attrs=read-write to the DSN",
    )


def _durability(queries: DoctorQueries) -> Finding:
    settings = queries.row("durability")
    wrong = [name for name, value in settings.items() if value == "off"]
    return finding_of(
        verdict="bad" if wrong else "ok",
        found=", ".join(f"{name}={value}" for name, value in settings.items()),
        right="fsync, full_page_writes and synchronous_commit not off",
        remedy=f"set {', '.join(wrong)} on: a crash loses commits that were acknowledged",
    )


def _standbys(queries: DoctorQueries) -> Finding:
    row = queries.row("standbys")
    names, standbys = row["names"], row["standbys"]
    commit = queries.row("durability")["synchronous_commit"]
    asynchronous = standbys > 0 and (not names or commit in {"local", "off"})
    found = f"{standbys} connected, synchronous_standby_names={names or 'empty'}"
    return finding_of(
        verdict="warn" if asynchronous else "ok",
        found=f"{found}, synchronous_commit={commit}",
        right="no standby, or at least one synchronous",
        remedy="set synchronous_standby_names (Patroni: synchronous_mode): "
        "a failover now may lose commits that were acknowledged; afterwards run `helixq recover`",
    )


def _role(queries: DoctorQueries) -> Finding:
    role = queries.row("role")
    # The owner of a database has no right on the objects of other roles in it.
    owns = "owner of the database" if role["owns_database"] else "owns nothing"
    powers = [
        words
        for has, words in (
            (role["superuser"], "superuser"),
            (role["bypassrls"], "BYPASSRLS"),
            (role["owner_by"], f"member of {role['owner_by']}"),
            (role["owner_by"] and role["owns_database"], "owner of the database"),
        )
        if has
    ]
    return finding_of(
        verdict="bad" if powers else "ok",
        found=f"{role['name']}: {', '.join(powers) or f'{owns}, bound by row-level security'}",
        right="a login that is neither superuser nor BYPASSRLS nor member of helix_owner",
        remedy="connect programs with another login than the one that migrates",
    )


def _grants(queries: DoctorQueries) -> Finding:
    grants = queries.row("grants")
    name = queries.row("role")["name"]
    held = grants["roles"]
    return finding_of(
        verdict="ok" if held else "bad",
        found=", ".join(held) or "no role of HelixQueue",
        right="scopes such as helix_submit (applications) or helix_operator (administration)",
        remedy=f'grant helix_submit, helix_read to "{name}"; (the scopes that it needs)',
    )


def _tenants(queries: DoctorQueries) -> Finding:
    bindings = queries.rows("bindings")
    operator = "helix_operator" in queries.row("grants")["roles"]
    name = queries.row("role")["name"]
    words = [
        row["tenant"] + (" (named per transaction)" if row["by_setting"] else "")
        for row in bindings
    ]
    return finding_of(
        verdict="ok" if words or operator else "bad",
        found=", ".join(words) or ("all, as operator" if operator else "none: it sees no row"),
        right="the tenants this role works for",
        remedy=f"an operator binds it: select helix.bind_v1('{name}', 'TENANT')",
    )


def _duties(queries: DoctorQueries) -> Finding:
    rows = [DutyRow(**row) for row in queries.rows("duties")]
    late = late_text(rows)
    return finding_of(
        verdict="bad" if late else "ok",
        found=late or f"none of {len(rows)} is overdue",
        right="every duty runs: some by claims, all by a service",
        remedy=f"no process runs them: {START_SERVICE}",
    )


def _connections(queries: DoctorQueries) -> Finding:
    row = queries.row("connections")
    usable = row["most"] - row["reserved"]
    full = row["used"] > FULL * usable
    return finding_of(
        verdict="warn" if full else "ok",
        found=f"{row['used']} of {usable} in use (max_connections={row['most']})",
        right=f"less than {FULL:.0%} in use",
        remedy="raise max_connections, or put pgbouncer (pool_mode=transaction) in between",
    )


def _pooler(queries: DoctorQueries) -> Finding:
    """A pooler issues its own cancellation keys, so the process ids differ."""
    direct = queries.row("server")["pid"] == queries.connection.info.backend_pid
    return finding_of(
        verdict="ok",
        found="direct connection" if direct else "a pooler such as pgbouncer is in between",
        right="either; in transaction mode for everything but `helixq migrate`",
    )


def _autovacuum(queries: DoctorQueries) -> Finding:
    row = queries.row("autovacuum")
    off = [name for name in ("autovacuum", "track_counts") if row[name] == "off"]
    if row["disabled"]:
        off.append(f"autovacuum_enabled of {row['disabled']}")
    return finding_of(
        verdict="bad" if off else "ok",
        found=f"off: {', '.join(off)}" if off else "on",
        right="on, for every table",
        remedy="enable it: otherwise dead rows accumulate and slow every claim",
    )


def _snapshots(queries: DoctorQueries) -> Finding:
    row = queries.row("horizon")
    held = f"{row['holder']}: {row['age']} transactions" if row["holder"] else "none held"
    if row["seconds"] is not None:
        held += f", {row['seconds']} s"
    old = (row["seconds"] or 0) > SNAPSHOT_S or (row["age"] or 0) > 1_000_000
    right = f"none older than {SNAPSHOT_S} s"
    if not old and not row["visible"]:
        name = queries.row("role")["name"]
        return finding_of(
            verdict="warn",
            found="other roles' sessions are hidden from this role",
            right=right,
            remedy=f'use another role, or: grant pg_read_all_stats to "{name}";',
        )
    return finding_of(
        verdict="warn" if old else "ok",
        found=held,
        right=right,
        remedy="end it (pg_terminate_backend, rollback prepared, drop the slot): "
        "dead rows cannot be removed meanwhile",
    )


def _prepared_transactions(queries: DoctorQueries) -> Finding:
    row = queries.row("prepared")
    old = (row["seconds"] or 0) > PREPARED_S
    verdict: Verdict = "ok" if not row["prepared"] else "bad" if old else "warn"
    return finding_of(
        verdict=verdict,
        found=f"{row['prepared']}" + (f", oldest {row['seconds']} s" if row["prepared"] else ""),
        right="none: HelixQueue creates none",
        remedy="end them (pg_prepared_xacts): they hold locks and snapshots across restarts",
    )


def _unlogged_tables(queries: DoctorQueries) -> Finding:
    tables = queries.row("unlogged")["tables"]
    return finding_of(
        verdict="bad" if tables else "ok",
        found=tables or "none",
        right="none",
        remedy="alter table helix.NAME set logged; crash recovery empties unlogged tables",
    )


def _timezone(queries: DoctorQueries) -> Finding:
    return finding_of(
        verdict="ok",
        found=queries.row("server")["timezone"],
        right="any: times are stored with their zone",
    )


def _mount_namespaces(_: DoctorQueries) -> Finding:
    problem = private_mounts.problem()
    return finding_of(
        verdict="ok" if problem is None else "warn",
        found="allowed" if problem is None else problem,
        right="allowed on machines with `helixq work --runs`: commands of runs read /pfs",
        remedy="allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container: CAP_SYS_ADMIN, or a "
        "seccomp profile that permits unshare and mount), or start runs with --no-pfs",
    )


EXAMINATIONS: tuple[Callable[[DoctorQueries], Finding], ...] = (
    _server_version,
    _encoding,
    _primary,
    _schema,
    _role,
    _grants,
    _tenants,
    _duties,
    _durability,
    _standbys,
    _autovacuum,
    _snapshots,
    _prepared_transactions,
    _unlogged_tables,
    _connections,
    _pooler,
    clock,
    archiving,
    trust_authentication,
    dead_rows,
    long_transactions,
    destinations,
    _timezone,
    _mount_namespaces,
)
