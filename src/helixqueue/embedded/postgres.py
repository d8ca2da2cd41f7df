"""PostgreSQL 18 from the wheel: private, durable, shared, and never run as root or superuser."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from psycopg import pq

from helixqueue.embedded import binaries
from helixqueue.embedded.account import Account
from helixqueue.embedded.postgres_conf import HBA, helix_conf
from helixqueue.embedded.server import CLEAN_ENVIRONMENT, EmbeddedServer
from helixqueue.errors import Unavailable

DATABASE = "helix"
BOOTSTRAP = "helix_bootstrap"
MIGRATOR = "helix_migrator"
LOCAL = "helix_local"
SERVICE = "helix_service"
STREAMS = "helix_streams"

# One statement per line: that is how single-user mode reads them.
ROLES = f"""\
CREATE ROLE {MIGRATOR} LOGIN CREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS
CREATE ROLE {LOCAL} LOGIN NOCREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS
CREATE DATABASE {DATABASE} OWNER {MIGRATOR}
"""


class Postgres(EmbeddedServer):
    """A PostgreSQL in `data_dir`; `start()` creates it, launches it or joins it.

    `bin_dir` selects another PostgreSQL (15 or newer) than the wheel's, `settings` adds to
    `helix.conf`, and `supervised=False` disables the restart of a killed server, for tests.
    """

    title = "PostgreSQL"
    socket_name = ".s.PGSQL.5432"
    pid_file = "postmaster.pid"
    # Fast shutdown, as `pg_ctl stop -m fast`: ends sessions and writes a checkpoint.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    fatal_messages: ClassVar[tuple[str, ...]] = (
        "contains errors",
        "incompatible with server",
        "invalid value for parameter",
        "has wrong ownership",
        "has invalid permissions",
    )

    @property
    def dsn(self) -> str:
        """The run-time role, which owns nothing and is subject to row-level security."""
        return self._dsn(LOCAL)

    @property
    def service_dsn(self) -> str:
        """The role of the HTTP service, which sees no rows until it names a tenant."""
        return self._dsn(SERVICE)

    @property
    def intake_dsn(self) -> str:
        """The role of the stream intake of `helixq up`, which submits and writes dead letters."""
        return self._dsn(STREAMS)

    @property
    def migrator_dsn(self) -> str:
        """The owner of the database, for migrations; not a superuser."""
        return self._dsn(MIGRATOR)

    @property
    def bootstrap_dsn(self) -> str:
        """The superuser, for tests and repair only."""
        return self._dsn(BOOTSTRAP)

    def _dsn(self, role: str) -> str:
        return f"postgresql://{role}@/{DATABASE}?host={quote(str(self.socket_dir), safe='')}"

    def program(self, name: str) -> Path:
        """The path of `psql`, `pg_dump` or another program of this PostgreSQL."""
        return (self._bin_dir or binaries.postgres_programs()) / name

    def is_ready(self) -> bool:
        with suppress(Unavailable):
            # A frozen server accepts the connection and never replies: bound the wait.
            dsn = f"{self.bootstrap_dsn}&connect_timeout=2"
            return pq.PGconn.ping(dsn.encode()) == pq.Ping.OK
        return False

    def _create(self, directory: Path, account: Account) -> None:
        maker = account.for_initdb()
        maker.chown_tree(directory)
        initdb = ["--username", BOOTSTRAP, "--auth", "trust", "--encoding", "UTF8"]
        initdb += ["--data-checksums", *self._locale()]
        single = ["--single", "-c", "exit_on_error=on"]
        with maker.accessible_path(directory) as (path, handles):
            self._run("initdb", [*initdb, "-D", path], maker, handles)
            self._run("postgres", [*single, "-D", path, "postgres"], maker, handles, ROLES)
        account.chown_tree(directory)
        # This replaces what initdb wrote; helix.conf contains every setting that is not default.
        account.write(directory / "postgresql.conf", "include 'helix.conf'\n")
        account.write(directory / "pg_hba.conf", HBA)

    def _locale(self) -> Sequence[str]:
        """Sort by code point, independent of the machine and of libc upgrades."""
        if self.version >= 17:
            return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        return ["--locale=C.UTF-8"]

    @property
    def version(self) -> int:
        """The major version of the programs."""
        output = self._run("postgres", ["--version"], Account.owning(self.data))
        match = re.search(r"(\d+)", output)
        if match is None:
            raise Unavailable(
                f"expected a version from {self.program('postgres')} --version, got {output!r}"
            )
        return int(match[1])

    def _run(
        self,
        program: str,
        arguments: Sequence[str],
        account: Account,
        handles: Sequence[int] = (),
        text: str = "",
    ) -> str:
        done = subprocess.run(
            [self._programs(account) / program, *arguments],
            cwd="/",
            user=account.user,
            group=account.group,
            extra_groups=account.groups,
            umask=0o077,
            env=CLEAN_ENVIRONMENT,
            input=text,
            pass_fds=handles,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(
                f"{program} failed with exit code {done.returncode} for {self.directory}:\n"
                f"{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _programs(self, account: Account) -> Path:
        return binaries.accessible_programs(self.program("postgres").parent, "postgres", account)

    def _command(self, account: Account, data: str) -> list[str | Path]:
        sockets = data if self.socket_dir == self.data else str(self.socket_dir)
        account.write(self.data / "helix.conf", helix_conf(sockets, self._settings))
        return [self._programs(account) / "postgres", "-D", data]

    def _remove_stale_files(self) -> None:
        """Also remove the lock files of a killed server whose pid another process uses now.

        PostgreSQL would take that process for a postmaster and never start: after a container
        restart the pid may be Valkey's, and under an init that does not reap, it remains a zombie.
        The FIFO shows that no embedded server runs. A server that was started by hand has the data
        directory as its working directory, and its lock files stay.
        """
        super()._remove_stale_files()
        locks = [self.data / self.pid_file]
        with suppress(Unavailable):
            locks.append(self.socket_dir / f"{self.socket_name}.lock")
        for lock in locks:
            if lock.exists() and not self._is_our_server(lock):
                lock.unlink()

    def _is_our_server(self, lock: Path) -> bool:
        """Whether the process that `lock` names runs in the data directory, or might."""
        try:
            pid = int(lock.read_text(encoding="utf-8").partition("\n")[0])
            return Path(f"/proc/{pid}/cwd").samefile(self.data)
        except FileNotFoundError:
            return not Path("/proc/self/cwd").exists()
        except (ValueError, PermissionError):
            return True
