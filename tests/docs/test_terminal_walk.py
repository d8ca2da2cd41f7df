"""Three people at a terminal of 80 x 24, beside an application that owns the database.

A lab with a sheet and a script, a FastAPI application with SQLAlchemy, and an engineer on call.
What each command prints names the next one; nothing is typed that only a maintainer knows.
"""

from __future__ import annotations

import os
import re

import pytest
from rich.cells import cell_len

from helixqueue.embedded import Postgres
from tests.support.cli import HELIXQ
from tests.support.shop import LOGINS, Shop, blocks
from tests.support.terminal import COLUMNS, Terminal

SHEET = "tube,flow_cell,pod5\nS-1,FC1,a.pod5\nSämple-2,FC1,b.pod5\nS 3,FC2,c.pod5\n"
SCRIPT = """\
#!/bin/sh
test -e "$HELIX_PAYLOAD_POD5" || { echo "no file $HELIX_PAYLOAD_POD5" >&2; exit 3; }
printf '{"reads": 7}' > "$HELIX_RESULT"
"""
APPLICATION = """\
import os
from fastapi import FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from helixqueue import HelixQueue, Lease, Queue

DSN = os.environ["HELIX_DSN"]
engine = create_engine(DSN.replace("postgresql:", "postgresql+psycopg:"))
helix = HelixQueue(DSN, tenant="shop")
orders = Queue("orders")
api = FastAPI()

@api.post("/orders/{number}")
def order(number: int):
    with Session(engine) as session, session.begin():
        session.execute(text("insert into customers values (:n)"), {"n": number})
        helix.submit(orders, identity=f"order-{number}", payload={"n": number}, within=session)

@orders.handler
def ship(lease: Lease):
    with Session(engine) as session, session.begin():
        customer = 1000 + lease.payload["n"]
        session.execute(text("insert into customers values (:n)"), {"n": customer})
        lease.within(session).complete({"shipped": True})

if __name__ == "__main__":
    from fastapi.testclient import TestClient
    client = TestClient(api)
    print([client.post(f"/orders/{number}").status_code for number in (7, 8)])
"""


class Shell(Terminal):
    """A shell, in which commands are typed."""

    def __init__(self, directory, environment):
        super().__init__(
            "/bin/bash", "--norc", "--noprofile", "--noediting",
            environment=environment | {"PS1": "$ "}, cwd=directory,
        )  # fmt: skip
        self.expect(r"\$")

    def run(self, command, code=0, seconds=60):
        """What a command prints, which fits the terminal; it ends with this exit code."""
        self.screen.reset()
        self.screen.history.top.clear()
        self.output = b""
        self.type(f"{command}; echo \\[exit $?]")
        found = self.expect(r"\[exit (\d+)\]", seconds)
        assert int(found[1]) == code, self.text
        assert "Traceback" not in self.text
        printed = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "\r", self.output.decode().partition("\n")[2])
        # Commands break their lines; the terminal breaks none.
        assert [line for line in re.split(r"[\r\n]", printed) if cell_len(line) > COLUMNS] == []
        return " ".join(self.text.split())


@pytest.fixture
def shell(tmp_path):
    with Postgres(tmp_path / "postgres") as postgres:
        shop = Shop(postgres)
        create_logins, allow_schema, grants = blocks("sql")
        shop.run_sql("dba", create_logins)
        shop.run_sql("shop", allow_schema)
        shop.run('helixq migrate --dsn "$MIGRATE_DSN"')
        shop.run_sql("shop_helix", grants)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        dsns = {f"{name}_DSN": shop.dsn(role) for name, role in LOGINS.items()}
        path = f"{HELIXQ.parent}{os.pathsep}{os.environ['PATH']}"
        directory = tmp_path / "home"
        directory.mkdir()
        environment = kept | dsns | {"PATH": path, "HELIX_DSN": shop.dsn("shop")}
        with shop.service(), Shell(directory, environment) as shell:
            yield shell


@pytest.mark.timeout(180)
def test_three_people_reach_their_results_without_a_dead_end(shell, tmp_path):
    home = tmp_path / "home"
    (home / "sheet.csv").write_text(SHEET, encoding="utf-8")
    (home / "basecall.sh").write_text(SCRIPT, encoding="utf-8")
    (home / "shop.py").write_text(APPLICATION, encoding="utf-8")
    (home / "a.pod5").touch()
    laboratory(shell, home)
    application(shell)
    on_call(shell, home)


def laboratory(shell, home):
    submit = "helixq submit basecall --from sheet.csv"
    assert "create it with `helixq queue set basecall" in shell.run(submit, code=5)
    create = 'helixq queue set basecall --profile lab-id-v1 --max-attempts 1 --reason "a new lab"'
    shell.run(create)
    assert "use --identity-column NAME" in shell.run(f"{submit} --dry-run", code=2)
    submit += " --identity-column tube"
    shown = shell.run(f"{submit} --dry-run", code=1)
    assert "line 4: refused" in shown
    assert "new 2 same 0 changed 0 twin 0 refused 1" in shown
    assert "new 2 duplicate 0" in shell.run(submit, code=1)
    assert "new 0 duplicate 2" in shell.run(submit, code=1)
    work = "helixq work basecall --until-idle --logs logs --exec"
    assert "run `chmod +x basecall.sh`" in shell.run(f"{work} basecall.sh", code=2)
    assert "write ./basecall.sh" in shell.run(f"chmod +x basecall.sh; {work} basecall.sh", code=2)
    shown = shell.run(f"{work} ./basecall.sh")
    assert "exit code 3: no file b.pod5" in shown
    assert "1 completed, 1 failed, 0 lost, 0 released" in shown
    assert re.search(r"Sämple-2-\w{8}\.1", shell.run("ls logs"))
    (home / "b.pod5").touch()
    assert "no file b.pod" in shell.run("helixq batch causes")
    shell.run('helixq batch retry Sämple-2 --reason "the file was copied"')
    assert "1 completed, 0 failed" in shell.run(f"{work} ./basecall.sh")
    assert '{"reads":7}' in shell.run("helixq batch show Sämple-2 --payload")
    assert "exported 2 batches" in shell.run("helixq batch export --queue basecall --out r.csv")


def application(shell):
    assert "[200, 200]" in shell.run("python -W ignore shop.py")
    shown = shell.run("helixq work --app shop --until-idle")
    assert shown.count("completed order-") == 2
    assert "2 completed, 0 failed" in shown
    assert "order-7" in shell.run("helixq batch list --queue orders --state completed")


def on_call(shell, home):
    (home / "b.pod5").unlink()
    shell.run('helixq submit basecall S-9 \'{"pod5": "b.pod5"}\'')
    shell.run("helixq work basecall --until-idle --exec ./basecall.sh")
    shell.screen.reset()
    shell.type("helixq queue list --watch 1; echo \\[exit $?]")
    shell.expect(r"every 1 s[^$]*basecall +shop +open|every 1 s[^$]*basecall +open")
    shell.interrupt()
    shell.expect(r"\[exit 130\]")
    assert "exit code N: no file b.pod" in shell.run("helixq batch causes")
    (home / "b.pod5").touch()
    shell.run('helixq batch retry --failure executor --reason "the disk is back"')
    assert "1 completed, 0 failed" in shell.run(
        "helixq work basecall --until-idle --exec ./basecall.sh"
    )
    assert "ended" in shell.run("helixq worker list")
    shell.run("helixq doctor")
    shell.run("helixq duty list")
    assert "invariants hold" in shell.run('helixq check --dsn "$MIGRATE_DSN"')
