"""A streaming standby of an embedded server."""

from __future__ import annotations

import os

import psycopg

from helixqueue.embedded import Postgres
from helixqueue.embedded.account import Account


class Standby(Postgres):
    """Copies `primary` on its first `start()`."""

    def __init__(self, primary, data_dir, *, settings=None, supervised=True):
        programs = primary.program("psql").parent
        super().__init__(data_dir, settings=settings, bin_dir=programs, supervised=supervised)
        self._primary = primary

    def _create(self, directory, account):  # noqa: ARG002 - as for a new server
        # pg_basebackup runs as the caller; `_prepare` changes the owner of the copy afterwards.
        caller = Account(os.geteuid(), os.getegid(), switch=False)
        arguments = ["--write-recovery-conf", "--checkpoint", "fast", "-D", str(directory)]
        self._run("pg_basebackup", [*arguments, "--dbname", self._primary.bootstrap_dsn], caller)

    def promote(self):
        """Make it the primary of a new timeline; returns when it accepts writes."""
        with psycopg.connect(self.bootstrap_dsn, autocommit=True) as connection:
            assert connection.execute("select pg_promote()").fetchone() == (True,)
