"""docs/deploy/existing-database.md: beside an application, as a plain owner, on 15 and 18."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from helixqueue import HelixQueue, NotPermitted, Queue
from helixqueue.embedded import Postgres
from helixqueue.engine.migrate import migrate
from helixqueue.operate.check import check
from tests.support.lab import wait_until
from tests.support.shop import Shop, blocks

ROOT = Path(__file__).parents[2]
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture(params=["15", "18"])
def shop(request, tmp_path):
    bin_dir = DEBIAN_15 if request.param == "15" else None
    with Postgres(tmp_path / "postgres", bin_dir=bin_dir) as postgres:
        assert str(postgres.version) == request.param
        yield Shop(postgres)


def test_plain_owner_follows_the_page_and_every_command_is_content(shop, tmp_path):
    create_logins, allow_schema, grants = blocks("sql")
    run_migration, examine, create_queue = blocks("sh")
    shop.run_sql("dba", create_logins)
    shop.run_sql("shop", allow_schema)
    shop.run(run_migration)
    shop.run_sql("shop_helix", grants)
    with shop.service():
        wait_until(lambda: not shop.duties_that_never_ran())
        shop.run(examine)
        # The application goes on: tables of its own, and the guide's programs with its login.
        shop.run_sql("shop", "create table invoices (id int); alter table customers add name text")
        guide = tmp_path / "sqlalchemy.md"
        text = (ROOT / "docs" / "guides" / "sqlalchemy.md").read_text(encoding="utf-8")
        guide.write_text(text.replace('tenant="lab"', 'tenant="shop"'), encoding="utf-8")
        shop.run(f"cd {tmp_path}; HELIX_DSN=$APP_DSN python -m tests.support.doc_reader {guide}")
        shop.run(examine)

    shop.run_sql("shop_helix", "revoke helix_operate from shop")
    declared = Queue("orders", max_attempts=5)
    with HelixQueue(shop.dsn("shop"), tenant="shop") as helix:
        with pytest.raises(NotPermitted) as denied:
            helix.submit(declared, identity="1", payload={})
        assert str(denied.value) == blocks("text")[0].strip()
        shop.run(create_queue)
        assert helix.submit(declared, identity="1", payload={}).decision == "new"
        with pytest.raises(
            NotPermitted, match=r"other settings \(max_attempts 5, not 6\).*helix_op"
        ):
            helix.submit(Queue("orders", max_attempts=6), identity="2", payload={})
    # The database owner is no operator, and no other tenant's rows are its own.
    with psycopg.connect(shop.dsn("shop")) as application:
        tenants = application.execute("select * from helix.read_tenants_v1()").fetchall()
        assert tenants == [("shop",)]


def test_remedy_that_migrate_prints_leaves_check_content(shop):
    """The administrator who creates the group roles may grant them since PostgreSQL 16."""
    shop.run_sql("dba", "create role shop_helix login")
    shop.run_sql("shop", blocks("sql")[1])
    with pytest.raises(NotPermitted, match="CREATEROLE") as refused:
        migrate(shop.dsn("shop_helix"))
    shop.run_sql("dba", str(refused.value).partition("runs once: ")[2])
    migrate(shop.dsn("shop_helix"))
    with psycopg.connect(shop.dsn("shop_helix")) as connection:
        assert [result.name for result in check(connection) if result.count] == []
        # A program whose login is a member as well, and does not migrate, is found.
        with psycopg.connect(shop.dsn("dba"), autocommit=True) as dba:
            dba.execute("create role program login; grant helix_engine to program")
        assert [r.name for r in check(connection) if r.count] == ["role_member"]
