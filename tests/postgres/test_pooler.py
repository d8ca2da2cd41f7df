"""The test pooler is what it says: transaction mode, and every role arrives as itself."""

from dataclasses import replace

import psycopg
import pytest

from helixqueue import HelixQueue, Queue, Refused
from helixqueue.service import ServiceSettings
from helixqueue.service.run import check_database
from tests.support.database import Database
from tests.support.pooler import Pooler, _program


@pytest.fixture(scope="module")
def bouncer(server, tmp_path_factory):
    with Pooler(tmp_path_factory.mktemp("bouncer"), server) as pooler:
        yield pooler


def connect(bouncer, database, role):
    return psycopg.connect(
        dbname=database.name, user=role, host=str(bouncer.socket_dir), autocommit=True
    )


def test_role_made_after_the_start_arrives_as_itself(bouncer, database):
    with connect(bouncer, database, "app_a") as connection:
        assert connection.execute("select session_user").fetchone() == ("app_a",)


def test_sessions_share_server_connections_between_transactions(bouncer, database):
    with (
        connect(bouncer, database, "app_a") as item,
        connect(bouncer, database, "app_a") as two,
    ):
        [(first,)] = item.execute("select pg_backend_pid()").fetchall()
        [(second,)] = two.execute("select pg_backend_pid()").fetchall()
    assert first == second


def test_role_that_does_not_exist_is_refused(bouncer, database):
    with pytest.raises(psycopg.OperationalError, match=r"no such user|does not exist"):
        connect(bouncer, database, "nobody_here")


def test_client_without_pooled_flag_gets_the_remedy_named(server, database, tmp_path_factory):
    """The one of docs/deploy/pgbouncer.md, which ignores nothing that a client asks for."""
    with Pooler(tmp_path_factory.mktemp("strict"), server, ignored="") as pooler:
        behind = Database(server, database.name, pooler)
        with HelixQueue(behind.dsn("app_a"), tenant="a", pooled=True) as helix:
            helix.submit(Queue("q"), identity="s", payload={})
        with (
            HelixQueue(behind.dsn("app_a"), tenant="a") as helix,
            pytest.raises(Refused, match=r"connects through a pooler.*pooled=True"),
        ):
            helix.submit("q", identity="s", payload={})
        settings = ServiceSettings(behind.dsn("service"), pooled=True)
        check_database(settings, warn=pytest.fail, unreachable=pytest.fail)
        with pytest.raises(Refused, match=r"connects through a pooler.*--pooled"):
            check_database(
                replace(settings, pooled=False), warn=pytest.fail, unreachable=pytest.fail
            )


def test_without_the_program_a_local_run_skips_and_a_build_fails(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install -y pgbouncer"):
        _program()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install -y pgbouncer"):
        _program()
