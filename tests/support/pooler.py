"""pgbouncer in transaction mode, before a test server.

It runs as the account that owns the server's socket directory, because that directory is 0700;
its own files it names through an inherited handle, because pytest's directories are 0700 and
root's (see `helixqueue.embedded.account`). pgbouncer refuses to run as root in any case.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Self

import psycopg
import pytest

from helixqueue.embedded.account import Account

if TYPE_CHECKING:
    from pathlib import Path

    from helixqueue.embedded import Postgres

# Roles come and go with the tests, so pgbouncer asks the server which ones exist. `trust` and not
# `any`: with `any` every client would arrive at the server as one and the same role.
CONF = """\
[databases]
* = host={server} auth_user=helix_bootstrap
[pgbouncer]
listen_addr =
unix_socket_dir = {here}
unix_socket_mode = 0777
listen_port = 5432
auth_type = trust
auth_file = {here}/users
auth_query = select rolname, ''::text from pg_catalog.pg_roles where rolname = $1
pool_mode = transaction
default_pool_size = 20
max_client_conn = 400
max_db_connections = 60
server_idle_timeout = 2
logfile = {here}/log
pidfile =
ignore_startup_parameters = {ignored}
admin_users = helix_bootstrap
"""

READY_S = 20.0
HOW_TO_GET_IT = "HELIX_TEST_POOLER=pgbouncer needs the program: apt-get install -y pgbouncer"


class Pooler:
    def __init__(
        self, directory: Path, server: Postgres, ignored: str = "extra_float_digits,options"
    ) -> None:
        self.socket_dir = directory / "s"
        self._ignored = ignored  # of what clients ask for their sessions; else it is refused
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        account = Account.owning(self._server.data)
        account.make_private(self.socket_dir)
        with account.accessible_path(self.socket_dir) as (value, handles):
            conf = CONF.format(server=self._server.socket_dir, here=value, ignored=self._ignored)
            (self.socket_dir / "conf").write_text(conf, encoding="utf-8")
            (self.socket_dir / "users").write_text('"helix_bootstrap" ""\n', encoding="utf-8")
            account.chown_tree(self.socket_dir)
            self._process = subprocess.Popen(
                [_program(), f"{value}/conf"],
                cwd="/",
                user=account.user,
                group=account.group,
                extra_groups=account.groups,
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    @property
    def log(self) -> str:
        """What pgbouncer has to say; nothing when it died before it could."""
        path = self.socket_dir / "log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def _wait_until_it_answers(self) -> None:
        """Until a query has come through to the server and back."""
        assert self._process is not None
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with psycopg.connect(
                    dbname="postgres", user="helix_bootstrap", host=str(self.socket_dir)
                ) as connection:
                    connection.execute("select 1")
            except psycopg.OperationalError as error:
                dead = self._process.poll() is not None
                if dead or time.monotonic() > deadline:
                    pytest.fail(f"pgbouncer does not answer: {error}\n{self.log}")
                time.sleep(0.02)
            else:
                return


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if found is None:
        # Without it a run proves nothing about pgbouncer: a build must not pass that way.
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET_IT)
        pytest.skip(HOW_TO_GET_IT)
    return found
