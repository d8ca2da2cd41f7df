"""PostgreSQL 18 from the wheel: private, durable, shared, and never run as root or superuser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import quote

import psycopg
from psycopg import pq

from helixqueue.embedded import binaries
from helixqueue.embedded.account import Account
from helixqueue.embedded.postgres_conf import HBA, helix_conf
from helixqueue.embedded.server import CLEAN_ENVIRONMENT, Server
from helixqueue.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.embedded.sharing import Say

DATABASE = "helix"
BOOTSTRAP = "helix_bootstrap"
MIGRATOR = "helix_migrator"
LOCAL = "helix_local"

# One statement per line: that is how single-user mode reads them.
ROLES = f"""\
CREATE ROLE {MIGRATOR} LOGIN CREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS
CREATE ROLE {LOCAL} LOGIN NOCREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS
CREATE DATABASE {DATABASE} OWNER {MIGRATOR}
"""


class Postgres(Server):
    """A PostgreSQL in `data_dir`; `start()` creates it, launches it or joins it.

    `bin_dir` runs another PostgreSQL (15 or newer) than the wheel's, `settings` adds to
    `helix.conf`, and `supervised=False` lets a killed server stay dead: both for tests.
    """

    title = "PostgreSQL"
    socket_name = ".s.PGSQL.5432"
    # "Fast": sessions are ended, a checkpoint is written. It is what `pg_ctl stop -m fast` sends.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
        supervised: bool = True,
    ) -> None:
        super().__init__(data_dir, supervised=supervised)
        self._settings = dict(settings or {})
        self._bin_dir = bin_dir

    @classmethod
    def replica_of(
        cls,
        primary: Postgres,
        data_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        supervised: bool = True,
    ) -> Self:
        """A streaming standby of `primary`, copied on its first `start()`."""
        replica = cls(data_dir, settings=settings, bin_dir=primary._bin_dir, supervised=supervised)
        replica._primary = primary
        return replica

    _primary: Postgres | None = None

    @property
    def dsn(self) -> str:
        """For run time: a role that owns nothing and that row-level security binds."""
        return self._dsn(LOCAL)

    @property
    def migrator_dsn(self) -> str:
        """For migrations: the database's owner, no superuser."""
        return self._dsn(MIGRATOR)

    @property
    def bootstrap_dsn(self) -> str:
        """For tests and repair only: the superuser."""
        return self._dsn(BOOTSTRAP)

    def _dsn(self, role: str) -> str:
        return f"postgresql://{role}@/{DATABASE}?host={quote(str(self.socket_dir), safe='')}"

    def program(self, name: str) -> Path:
        """The path of `psql`, `pg_dump` or another program of this PostgreSQL."""
        return (self._bin_dir or binaries.postgres_programs()) / name

    def promote(self) -> None:
        """Make a standby the primary of a new timeline; returns when it takes writes."""
        with psycopg.connect(self.bootstrap_dsn, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote()").fetchone()
        if row != (True,):
            raise Unavailable(f"the standby in {self.directory} was not promoted; see {self.log}")

    def answers(self) -> bool:
        with suppress(Unavailable):
            return pq.PGconn.ping(self.bootstrap_dsn.encode()) == pq.Ping.OK
        return False

    # Creation.

    def _create(self, directory: Path, account: Account, say: Say) -> None:
        if self._primary is not None:
            say(f"{self.title}: copying {self._primary.directory}")
            self._copy(self._primary, directory)
            return
        maker = account.setting_up()
        maker.give(directory)
        here = maker.name_of(directory)
        initdb = ["--pgdata", here, "--username", BOOTSTRAP, "--encoding", "UTF8"]
        initdb += ["--data-checksums", "--auth", "trust", *self._locale()]
        self._run("initdb", initdb, directory, maker)
        single = ["--single", "-D", here, "-c", "exit_on_error=on", "postgres"]
        self._run("postgres", single, directory, maker, ROLES)
        with (directory / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write("include 'helix.conf'\n")
        (directory / "pg_hba.conf").write_text(HBA, encoding="utf-8")

    def _locale(self) -> Sequence[str]:
        """Sorting by code point, the same on every machine and after every upgrade of its libc."""
        if self.version >= 17:
            return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        return ["--locale=C.UTF-8"]

    @property
    def version(self) -> int:
        """The major version of the programs."""
        told = self._run("postgres", ["--version"], Path("/"), Account.owning(self.data))
        found = re.search(r"(\d+)", told)
        if found is None:
            raise Unavailable(f"{self.program('postgres')} does not tell its version: {told!r}")
        return int(found[1])

    def _copy(self, primary: Postgres, directory: Path) -> None:
        arguments = ["--pgdata", str(directory), "--write-recovery-conf", "--checkpoint", "fast"]
        # Unlike the others, this program runs as root; its copy is handed over afterwards.
        caller = Account(os.geteuid(), os.getegid(), switch=False)
        self._run(
            "pg_basebackup", [*arguments, "--dbname", primary.bootstrap_dsn], directory, caller
        )

    def _run(
        self,
        program: str,
        arguments: Sequence[str],
        directory: Path,
        account: Account,
        text: str = "",
    ) -> str:
        done = subprocess.run(
            [self._programs(account) / program, *arguments],
            cwd=directory,
            user=account.user,
            group=account.group,
            extra_groups=account.groups,
            umask=0o077,
            env=CLEAN_ENVIRONMENT,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(
                f"{program} ended with {done.returncode} for {self.directory}:\n"
                f"{done.stdout}{done.stderr}"
            )
        return done.stdout

    def _programs(self, account: Account) -> Path:
        return binaries.reachable(self.program("postgres").parent, "postgres", account)

    # Launch.

    def _command(self, account: Account) -> list[str | Path]:
        inside = self.socket_dir == self.data
        sockets = account.name_of(self.data) if inside else str(self.socket_dir)
        conf = self.data / "helix.conf"
        conf.write_text(helix_conf(sockets, self._settings), encoding="utf-8")
        account.give(conf)
        return [self._programs(account) / "postgres", "-D", account.name_of(self.data)]

    def _forget_the_dead(self) -> None:
        """Also remove the `postmaster.pid` of a killed server when its pid is somebody else's now.

        PostgreSQL would take that process for a postmaster and refuse to start for ever: after a
        container restart the pid may be Valkey's, and under an init that does not reap it stays a
        zombie. The FIFO says that no server of ours lives; a server started by hand stands in
        the data directory and is left alone.
        """
        super()._forget_the_dead()
        lock = self.data / "postmaster.pid"
        try:
            pid = int(lock.read_text(encoding="utf-8").split("\n", 1)[0])
            someone_elses = not Path(f"/proc/{pid}/cwd").samefile(self.data)
        except FileNotFoundError:
            someone_elses = Path("/proc/self").exists()
        except (ValueError, PermissionError):
            return
        if someone_elses:
            lock.unlink(missing_ok=True)
