"""PostgreSQL from the wheel: private, durable, plain roles, standby; each test names its threat."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from embedded_help import NOBODY, UserProcess, is_gone, until
from tests.support.standby import Standby

from helixqueue.embedded import Postgres
from helixqueue.embedded.account import SERVER_UID
from helixqueue.errors import Unavailable

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
Start = Callable[[Postgres], Postgres]


def ask(dsn: str, question: str) -> tuple[object, ...]:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row


def tcp_listeners(pid: int) -> set[str]:
    """The inodes of TCP sockets among the handles of `pid`."""
    handles = {str(handle.readlink()) for handle in Path(f"/proc/{pid}/fd").iterdir()}
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [row for table in tables if table.exists() for row in table.read_text().splitlines()]
    inodes = {row.split()[9] for row in rows}
    return {inode for inode in inodes if f"socket:[{inode}]" in handles}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_runs_the_server_under_a_dedicated_uid(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    parent = tmp_path_factory.getbasetemp().parent
    assert parent.stat().st_mode & 0o077 == 0, "the point is a parent that others cannot pass"
    assert postgres.pid is not None
    assert Path(f"/proc/{postgres.pid}").stat().st_uid == SERVER_UID
    assert postgres.data.stat().st_uid == SERVER_UID
    groups = Path(f"/proc/{postgres.pid}/status").read_text().partition("Groups:")[2]
    assert groups.splitlines()[0].split() in ([], [str(SERVER_UID)])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_normal_user_can_run_the_server(
    kind: str, nobodys_dir: Path, user: Callable[..., UserProcess]
) -> None:
    process = user(kind, nobodys_dir / "server", uid=NOBODY)
    assert Path(f"/proc/{process.server_pid}").stat().st_uid == NOBODY
    assert stat.S_IMODE((nobodys_dir / "server" / "data").stat().st_mode) == 0o700
    process.leave()
    until(lambda: is_gone(process.server_pid), "the server of the only user to end")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_refuses_a_directory_of_another_user(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 1234, 1234)
    with pytest.raises(Unavailable, match="got uid 1234; run as that user"):
        Postgres(tmp_path).start()


def test_socket_directory_is_private_and_tcp_is_disabled(postgres: Postgres) -> None:
    directory = postgres.socket_dir.stat()
    assert stat.S_IMODE(directory.st_mode) == 0o700
    assert directory.st_uid == postgres.data.stat().st_uid
    socket = (postgres.socket_dir / postgres.socket_name).stat()
    assert stat.S_IMODE(socket.st_mode) == 0o700
    assert postgres.pid is not None
    assert tcp_listeners(postgres.pid) == set()
    assert ask(postgres.dsn, "SHOW listen_addresses") == ("",)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("data_checksums", "on"),
        ("wal_level", "replica"),
        ("server_encoding", "UTF8"),
    ],
)
def test_durability_settings_are_on(postgres: Postgres, setting: str, value: str) -> None:
    assert ask(postgres.dsn, f"SHOW {setting}") == (value,)


def test_sort_order_does_not_depend_on_the_machine(postgres: Postgres) -> None:
    question = "SELECT datlocprovider, datlocale FROM pg_database WHERE datname = 'helix'"
    assert ask(postgres.dsn, question) == ("b", "C.UTF-8")


def test_helix_conf_gives_a_reason_for_every_setting(postgres: Postgres) -> None:
    lines = (postgres.data / "helix.conf").read_text().splitlines()[1:]
    assert len(lines) > 20
    assert all("  # " in line for line in lines)


def test_run_time_roles_are_subject_to_row_level_security(postgres: Postgres) -> None:
    question = (
        "SELECT rolsuper, rolbypassrls, rolcreatedb, rolreplication, rolcreaterole "
        "FROM pg_roles WHERE rolname = current_user"
    )
    assert ask(postgres.dsn, question) == (False, False, False, False, False)
    assert ask(postgres.migrator_dsn, question) == (False, False, False, False, True)
    owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
    assert ask(postgres.dsn, owner) == ("helix_migrator",)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(postgres.dsn, "CREATE TABLE public.mine () ")


def test_after_kill_9_the_next_start_waits_for_the_orphans_and_works(
    tmp_path: Path, running: Start
) -> None:
    server = running(Postgres(tmp_path, supervised=False))
    with psycopg.connect(server.migrator_dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    first = server.pid
    # A session that is busy is what outlives its postmaster longest.
    with closing(psycopg.connect(server.bootstrap_dsn, autocommit=True)) as connection:
        connection.pgconn.send_query(b"SELECT pg_sleep(60)")
        server.kill()
        server.start()
    assert server.pid not in {None, first}
    assert ask(server.migrator_dsn, "SELECT answer FROM kept") == (42,)


def test_supervisor_restarts_after_kill_9_with_the_same_dsn(tmp_path: Path, running: Start) -> None:
    server = running(Postgres(tmp_path))
    first, dsn = server.pid, server.dsn
    server.kill()
    until(lambda: server.pid not in {None, first} and server.is_ready(), "the supervisor")
    assert server.dsn == dsn
    assert ask(dsn, "SELECT 1") == (1,)


def test_supervisor_does_not_restart_a_cleanly_stopped_server(tmp_path: Path) -> None:
    server = Postgres(tmp_path).start()
    first = server.pid
    assert first is not None
    server.stop()
    server.stop()
    until(lambda: is_gone(first), "the stopped server to end")
    assert server.pid is None
    assert "database system is shut down" in server.log.read_text().splitlines()[-1]
    assert not list(server.socket_dir.glob(".s.PGSQL*"))


def test_reused_pid_in_lock_files_does_not_block_the_start(tmp_path: Path, running: Start) -> None:
    """After a container restart the old postmaster's pid may be any process of the same uid."""
    server = running(Postgres(tmp_path / "a", supervised=False))
    other = running(Postgres(tmp_path / "b"))
    server.kill()
    until(lambda: server.pid is None, "the orphans to end")
    sockets = server.socket_dir / f"{server.socket_name}.lock"
    for lock in (server.data / "postmaster.pid", sockets):
        lines = lock.read_text().splitlines()
        lock.write_text("\n".join([str(other.pid), *lines[1:], ""]))
    server.start()
    assert server.is_ready()


def test_invalid_setting_fails_at_once_with_the_server_message(tmp_path: Path) -> None:
    server = Postgres(tmp_path, settings={"no_such_setting": "1"})
    with pytest.raises(Unavailable, match='unrecognized configuration parameter "no_such_setting"'):
        server.start()
    assert server.pid is None


def test_failed_creation_leaves_no_data_directory(
    tmp_path: Path, running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixqueue.embedded.postgres.ROLES", "CREATE NONSENSE\n")
    with pytest.raises(Unavailable, match="syntax error"):
        Postgres(tmp_path).start()
    assert not (tmp_path / "data").exists()
    monkeypatch.undo()
    assert running(Postgres(tmp_path)).is_ready()


def test_server_starts_in_a_path_too_long_for_a_socket(tmp_path: Path, running: Start) -> None:
    deep = tmp_path / ("d" * 100) / "with a blank, a comma and a 'quote'" / "postgres"
    server = running(Postgres(deep))
    assert len(os.fsencode(server.socket_dir / server.socket_name)) <= 107
    assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
    assert ask(server.dsn, "SELECT current_user") == ("helix_local",)


def test_normal_user_can_use_a_path_too_long_for_a_socket(
    nobodys_dir: Path, user: Callable[..., UserProcess]
) -> None:
    uid = NOBODY if os.geteuid() == 0 else None
    process = user("postgres", nobodys_dir / ("d" * 120), uid=uid)
    assert process.server_pid
    process.leave()


def test_moved_directory_gets_a_new_socket(tmp_path: Path, running: Start) -> None:
    with Postgres(tmp_path / "before") as before:
        old = before.socket_dir
    (tmp_path / "before").rename(tmp_path / "after")
    after = running(Postgres(tmp_path / "after"))
    assert after.socket_dir != old
    assert ask(after.dsn, "SELECT 1") == (1,)


def test_promoted_standby_has_a_new_timeline(tmp_path: Path, running: Start) -> None:
    primary = running(Postgres(tmp_path / "primary"))
    standby = running(Standby(primary, tmp_path / "standby"))
    with psycopg.connect(primary.migrator_dsn) as connection:
        connection.execute("CREATE TABLE sent AS SELECT 7 AS number")
    found = "SELECT count(*) FROM pg_class WHERE relname = 'sent'"
    until(lambda: ask(standby.migrator_dsn, found) == (1,), "the table to arrive at the standby")
    primary.kill()
    standby.promote()
    timeline = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
    assert ask(standby.bootstrap_dsn, timeline) == ("00000002",)
    with psycopg.connect(standby.migrator_dsn) as connection:
        connection.execute("INSERT INTO sent VALUES (8)")


def test_is_ready_returns_for_a_frozen_server(tmp_path: Path, running: Start) -> None:
    server = running(Postgres(tmp_path))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert not server.is_ready()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert server.is_ready()


def test_postgresql_15_is_supported(tmp_path: Path, running: Start) -> None:
    if not DEBIAN_15.exists():
        message = f"no PostgreSQL 15 in {DEBIAN_15}: apt-get install postgresql-15"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    server = running(Postgres(tmp_path, bin_dir=DEBIAN_15))
    version, checksums = ask(
        server.dsn,
        "SELECT current_setting('server_version_num')::int / 10000, "
        "current_setting('data_checksums')",
    )
    assert (version, checksums) == (15, "on")
    question = "SELECT datcollate, datctype FROM pg_database WHERE datname = 'helix'"
    assert ask(server.dsn, question) == ("C.UTF-8", "C.UTF-8")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_replaces_a_planted_symbolic_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("root's")
    with Postgres(tmp_path / "server") as server:
        planted = server.data / "helix.conf"
    planted.unlink()
    planted.symlink_to(precious)
    with Postgres(tmp_path / "server"):
        assert precious.read_text() == "root's"
        assert not planted.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_does_not_signal_processes_of_another_uid(tmp_path: Path, running: Start) -> None:
    server = running(Postgres(tmp_path))
    lock = server.data / server.pid_file
    output = lock.read_text()
    lock.write_text("1\n" + output.partition("\n")[2])
    assert server.pid is None
    lock.write_text(output)
    assert server.pid is not None
