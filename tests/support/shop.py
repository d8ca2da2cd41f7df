"""The database of an application, which owns it, and the page that puts HelixQueue beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.support.cli import HELIXQ

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy" / "existing-database.md").read_text(encoding="utf-8")
LOGINS = {"MIGRATE": "shop_helix", "SERVICE": "shop_service", "APP": "shop"}
CUSTOMERS = "create table customers (id int primary key); insert into customers values (1)"


class Shop:
    """A server with the database of an application, which owns it and has a table."""

    def __init__(self, postgres):
        self.postgres = postgres
        with psycopg.connect(postgres.bootstrap_dsn, autocommit=True) as superuser:
            superuser.execute("create role dba login createrole")
            superuser.execute("create role shop login")
            superuser.execute("create database shop owner shop")
        self.run_sql("shop", CUSTOMERS)

    def dsn(self, role):
        return f"postgresql://{role}@/shop?host={quote(str(self.postgres.socket_dir), safe='')}"

    def run_sql(self, role, text):
        with psycopg.connect(self.dsn(role), autocommit=True) as connection:
            connection.execute(text)

    def run(self, command):
        environment = {f"{name}_DSN": self.dsn(role) for name, role in LOGINS.items()}
        environment["PYTHONPATH"] = str(ROOT)
        environment["PATH"] = f"{HELIXQ.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", "-ec", command], env=os.environ | environment,
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def service(self):
        command = [HELIXQ, "serve", "--port", "0", "--json", "--dsn", self.dsn("shop_service")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as service:
            try:
                json.loads(service.stdout.readline())
                yield
            finally:
                service.terminate()

    def duties_that_never_ran(self):
        with psycopg.connect(self.dsn("shop_helix")) as connection:
            rows = connection.execute("select * from helix.read_duties_v1()")
            names = [column.name for column in rows.description]
            return [row for row in rows if row[names.index("last_at")] is None]


def blocks(kind):
    """The blocks of the page; those of a numbered step are indented."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return [text.replace("\n" + indent, "\n").removeprefix(indent) for indent, text in found]
