"""Valkey from the wheel: private, and an acknowledged entry stays."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import valkey as client
from embedded_help import is_gone, until

from helixqueue.embedded import Servers, Valkey
from helixqueue.embedded.account import SERVER_UID
from helixqueue.errors import Unavailable

Start = Callable[[Valkey], Valkey]


@contextmanager
def connected(server: Valkey) -> Iterator[client.Valkey]:
    connection = client.Valkey.from_url(server.url)
    try:
        yield connection
    finally:
        connection.close()


def test_valkey_socket_directory_is_private_and_tcp_is_disabled(valkey: Valkey) -> None:
    assert stat.S_IMODE(valkey.socket_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(valkey.socket.stat().st_mode) == 0o700
    with connected(valkey) as connection:
        assert connection.config_get("port") == {"port": "0"}
        assert connection.config_get("tls-port") == {"tls-port": "0"}


def test_durability_settings_are_on(valkey: Valkey) -> None:
    wanted = {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    with connected(valkey) as connection:
        found = {name: connection.config_get(name)[name] for name in wanted}
    assert found == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_runs_the_server_under_a_dedicated_uid(valkey: Valkey) -> None:
    assert Path(f"/proc/{valkey.pid}").stat().st_uid == SERVER_UID


def test_acknowledged_entries_survive_kill_9(tmp_path: Path, running: Start) -> None:
    server = running(Valkey(tmp_path, supervised=False))
    with connected(server) as connection:
        sent = [connection.xadd("intake", {"batch": number}) for number in range(500)]
        server.kill()
    server.start()
    with connected(server) as connection:
        assert [entry for entry, _ in connection.xrange("intake")] == sent


def test_supervisor_restarts_after_kill_9(tmp_path: Path, running: Start) -> None:
    server = running(Valkey(tmp_path))
    first = server.pid
    server.kill()
    until(lambda: server.pid not in {None, first} and server.is_ready(), "the supervisor")


def test_supervisor_does_not_restart_a_cleanly_stopped_server(tmp_path: Path) -> None:
    server = Valkey(tmp_path).start()
    first = server.pid
    assert first is not None
    server.stop()
    server.stop()
    until(lambda: is_gone(first), "the stopped server to end")
    assert server.pid is None
    assert "bye bye" in server.log.read_text()


def test_server_starts_in_a_path_too_long_for_a_socket(tmp_path: Path, running: Start) -> None:
    server = running(Valkey(tmp_path / ("d" * 120) / 'with a blank and a "quote"'))
    with connected(server) as connection:
        assert connection.ping()


def test_invalid_setting_fails_at_once_with_the_server_message(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no-such-setting"):
        Valkey(tmp_path, settings={"no-such-setting": "1"}).start()


def test_both_servers_start_together_and_report_progress(tmp_path: Path) -> None:
    output: list[str] = []
    servers = Servers(tmp_path)
    servers.start(output.append)
    assert any("PostgreSQL: creating" in line for line in output)
    assert any("Valkey: starting" in line for line in output)
    pids = [servers.postgres.pid, servers.valkey.pid]
    servers.stop()
    # The kernel closes what a process has open a moment before it ends it.
    until(
        lambda: all(pid is not None and is_gone(pid) for pid in pids), "both stopped servers to end"
    )
