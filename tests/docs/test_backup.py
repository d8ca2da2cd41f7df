"""docs/deploy/backup.md: after dump and restore, tokens issued before are refused."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from psycopg import sql

from tests.support.cli import HELIXQ
from tests.support.database import Database
from tests.support.lab import Lab

GUIDE = Path(__file__).parents[2] / "docs" / "deploy" / "backup.md"


@pytest.fixture
def restored(database):
    """An empty database of the same owner on the same server."""
    name = f"{database.name}_restored"
    target = Database(database.server, name)
    with Database(database.server, "postgres").connect("helix_bootstrap") as connection:
        create = sql.SQL("create database {} owner helix_migrator").format(sql.Identifier(name))
        connection.execute(create)
        yield target
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_tokens_issued_before_a_restore_are_refused_after_it(database, restored, tmp_path):
    with Lab(database) as lab:
        lab.queue()
        [done, running] = lab.submit("a", "b")
        first, second = lab.claim(), lab.claim(worker="w2")
        lab.complete(*first)
        programs = Path(database.server.program("pg_dump")).parent
        environment = os.environ | {
            "ADMIN_DSN": database.dsn("helix_bootstrap"),
            "RESTORED_ADMIN_DSN": restored.dsn("helix_bootstrap"),
            "RESTORED_OWNER_DSN": restored.dsn("helix_migrator"),
            "PATH": f"{programs}:{Path(HELIXQ).parent}:{os.environ['PATH']}",
        }
        for block in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
            result = subprocess.run(
                ["/bin/sh", "-e"], input=block, env=environment, cwd=tmp_path,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert result.returncode == 0, result.stdout + result.stderr
        queue = lab.q
    with Lab(restored, q=queue) as after:
        assert after.location(done.receipt.batch_id)[0] == "COMPLETED"
        assert after.location(running.receipt.batch_id)[0] == "PENDING"
        [late] = after.complete(*second)
        assert late.answer == "refused"
        [again] = after.submit("b")
        assert (again.decision, again.receipt) == ("duplicate", running.receipt)
