"""Several processes, one server: who starts it, who stops it, and who dies meanwhile."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from embedded_help import UserProcess, is_gone, until

from helixqueue.embedded import Postgres
from helixqueue.embedded.sharing import Sharing

if TYPE_CHECKING:
    from helixqueue.embedded.server import EmbeddedServer

Start = Callable[..., UserProcess]
KINDS = pytest.mark.parametrize("kind", ["postgres", "valkey"])


@KINDS
def test_concurrent_starts_share_one_server(kind: str, tmp_path: Path, user: Start) -> None:
    users = [user(kind, tmp_path) for _ in range(4)]
    assert len({each.server_pid for each in users}) == 1
    for each in users:
        assert not is_gone(each.server_pid)
        each.leave()
    until(lambda: is_gone(users[0].server_pid), "the stopped server to end")


def test_server_keeps_running_after_its_starter_leaves(tmp_path: Path, user: Start) -> None:
    first = user("postgres", tmp_path)
    pid = first.server_pid
    with Postgres(tmp_path) as second:
        assert second.pid == pid
        first.leave()
        with psycopg.connect(second.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert second.pid == pid
    until(lambda: is_gone(pid), "the stopped server to end")


def test_killing_the_starter_does_not_stop_the_server_for_other_users(
    tmp_path: Path, user: Start
) -> None:
    first = user("postgres", tmp_path)
    pid = first.server_pid
    with Postgres(tmp_path) as second:
        first.kill()
        assert second.pid == pid
        assert second.is_ready()
    until(lambda: is_gone(pid), "the stopped server to end")


@KINDS
def test_server_stops_cleanly_after_its_only_user_is_killed(
    kind: str, tmp_path: Path, user: Start
) -> None:
    only = user(kind, tmp_path)
    pid = only.server_pid
    only.kill()
    until(lambda: is_gone(pid), "the sentinel to stop the server nobody uses")
    ended = {"postgres": "database system is shut down", "valkey": "bye bye"}
    assert ended[kind] in (tmp_path / "log").read_text()


def test_remaining_user_restarts_a_server_it_did_not_start(
    tmp_path: Path, user: Start, running: Callable[[EmbeddedServer], EmbeddedServer]
) -> None:
    starter = user("postgres", tmp_path)
    pid = starter.server_pid
    server = running(Postgres(tmp_path))
    starter.kill()
    server.kill()
    until(lambda: server.pid not in {None, pid} and server.is_ready(), "the supervisor")


def test_concurrent_supervisors_restart_the_server_once(
    tmp_path: Path, user: Start, running: Callable[[EmbeddedServer], EmbeddedServer]
) -> None:
    others = [user("postgres", tmp_path, "supervised") for _ in range(2)]
    pid = others[0].server_pid
    server = running(Postgres(tmp_path))
    server.kill()
    until(lambda: server.pid not in {None, pid} and server.is_ready(), "one of three supervisors")
    started = (tmp_path / "log").read_text().count("ready to accept connections")
    assert started == 2
    for other in others:
        other.leave()
    assert server.is_ready()


def test_two_objects_in_one_process_count_as_two_users(tmp_path: Path) -> None:
    first, second = Postgres(tmp_path).start(), Postgres(tmp_path).start()
    pid = first.pid
    assert pid is not None
    assert second.pid == pid
    first.stop()
    assert second.is_ready()
    second.stop()
    until(lambda: is_gone(pid), "the stopped server to end")


def test_forked_child_does_not_stop_the_server_of_its_parent(tmp_path: Path) -> None:
    with Postgres(tmp_path, supervised=False) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert server.is_ready()
        pid = server.pid
        # The membership is still there too: another user comes and goes without ending it.
        with Postgres(tmp_path, supervised=False):
            pass
        assert server.pid == pid


def test_sentinel_ends_with_the_server(tmp_path: Path) -> None:
    with Postgres(tmp_path):
        until(lambda: sentinels(tmp_path) == 1, "the sentinel")
    until(lambda: sentinels(tmp_path) == 0, "the sentinel to end")


def sentinels(directory: Path) -> int:
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += any(word.endswith(b"sentinel.py") for word in words) and (
            os.fsencode(directory) in words
        )
    return found


def test_starter_killed_during_start_leaves_no_server_and_no_files(
    tmp_path: Path, user: Start
) -> None:
    """Killed as soon as the new data, then as soon as the new server shows itself."""
    for sign in ("data.partial.*/base", "data/postmaster.pid"):
        starter = user("postgres", tmp_path)
        until(lambda sign=sign: list(tmp_path.glob(sign)), f"{sign} of a start under way")
        starter.kill()
    watcher = Postgres(tmp_path, supervised=False)
    until(lambda: watcher.pid is None, "the server whose starter was killed to end")
    with watcher:
        assert watcher.is_ready()
    until(lambda: not list(tmp_path.glob("data.partial.*")), "the debris to be removed")


def test_leave_does_not_count_the_sentinel_as_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `stop` would return while the server still runs, and leave the rest to the sentinel."""
    sharing = Sharing(tmp_path)
    taken = threading.Event()

    def sentinel() -> None:
        with (tmp_path / "users").open("r+") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            taken.set()
            inode = f":{os.fstat(users.fileno()).st_ino} "
            # The kernel lists those who wait for a lock behind an arrow.
            until(lambda: _waited_for(inode), "whoever leaves to wait", timeout_s=60)

    def forget() -> None:
        # Called when the membership is given up, just before the look for other users.
        Sharing.forget(sharing)
        assert taken.wait(60)

    monkeypatch.setattr(sharing, "forget", forget)
    with sharing.exclusive(print), ThreadPoolExecutor(1) as threads:
        sharing.join()
        waiting = threads.submit(sentinel)
        assert sharing.leave()
        waiting.result()


def _waited_for(inode: str) -> bool:
    locks = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    return any("->" in line and inode in line for line in locks)
