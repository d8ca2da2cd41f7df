"""A login for several tenants without --tenant: reads show all of them, changes ask for one."""

import pytest

from helixqueue import HelixQueue, InvalidIdentity, Queue
from helixqueue.cli.exits import Exit
from tests.support.cli import Helixq
from tests.support.lab import Lab
from tests.support.letters import write_letters

WIDE = Queue("wide")


@pytest.fixture
def several(fresh_database):
    """Queue `wide` in tenants a and b, each with a batch, a refused identity and twins."""
    with fresh_database.connect("operator") as operator:
        operator.execute("select helix.bind_v1('app_a', 'b')")
    for tenant in ("a", "b"):
        with HelixQueue(fresh_database.dsn("pool"), tenant=tenant) as helix:
            for name in ("Sample-1", "sample-1"):
                helix.submit(WIDE, identity=name, payload={})
            with pytest.raises(InvalidIdentity):
                helix.submit(WIDE, identity="S\u200b1", payload={})
    helixq = Helixq(fresh_database, "app_a")
    helixq.default_environment = {}
    return helixq


def tenants_of(rows):
    return sorted({row["tenant"] for row in rows})


LISTS = [
    ("batch", "list", "--queue", "wide"), ("batch", "list", "--identity", "Sample-1"),
    ("queue", "list"), ("identity", "refused", "wide"), ("letter", "list"),
]  # fmt: skip


@pytest.mark.parametrize("role", ["app_a", "operator"])
@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_list_of_a_login_for_several_tenants_shows_all_of_them(
    several, fresh_database, command, role
):
    with Lab(fresh_database) as lab:
        for tenant in ("a", "b"):
            lab.queue("letters", tenant=tenant)
            write_letters(lab, "1-0", tenant=tenant)
    found = several(*command, "--json", role=role).json["rows"]
    assert tenants_of(found) == ["a", "b"]
    table = several(*command, role=role, terminal=True, COLUMNS="160").out
    assert "tenant" in table.splitlines()[0]
    assert tenants_of(several(*command, "--tenant", "b", "--json", role=role).json["rows"]) == ["b"]


@pytest.mark.parametrize(
    "command", [("queue", "list"), ("letter", "list"), ("intake", "status")], ids=" ".join
)
def test_list_of_a_login_without_tenant_is_an_error_and_no_empty_list(several, command):
    done = several(*command, role="service")
    assert done.code == Exit.REFUSED
    assert "this one acts for none" in done.err


def test_twins_of_several_tenants_are_searched_in_each(several):
    done = several("identity", "twins", "wide", "--json").json
    assert [(group["kind"], group["tenant"]) for group in done["twins"]] == [
        ("case", "a"), ("case", "b"),
    ]  # fmt: skip
    assert done["identities"] == 4


NAMED = [
    ("batch", "list", "--queue", "wdie"), ("batch", "causes", "--queue", "wdie"),
    ("identity", "refused", "wdie"), ("identity", "twins", "wdie"), ("queue", "show", "wdie"),
    ("letter", "list", "--queue", "wdie"), ("queue", "pause", "wdie", "--reason", "x"),
    ("batch", "retry", "--queue", "wdie", "--reason", "x"),
]  # fmt: skip


@pytest.mark.parametrize("tenant", ["", "a"])
@pytest.mark.parametrize("command", NAMED, ids=" ".join)
def test_misspelled_queue_is_an_error_and_no_empty_list(several, command, tenant):
    done = several(*command, HELIX_TENANT=tenant)
    asks = "--tenant" in done.err and not tenant
    assert done.code in {Exit.NO, Exit.REFUSED} if asks else done.code == Exit.NO
    assert asks or "no queue wdie" in done.err
    assert done.out == ""
    assert "wdie" not in several("queue", "list").out


CHANGES = [
    ("queue", "set", "fresh", "--reason", "x"), ("queue", "pause", "wide", "--reason", "x"),
    ("queue", "delete", "wide", "--reason", "x"), ("submit", "fresh", "S-1"),
    ("batch", "cancel", "--queue", "wide", "--reason", "x"),
    ("batch", "retry", "--failure", "executor", "--reason", "x"),
]  # fmt: skip


@pytest.mark.parametrize("role", ["app_a", "operator"])
@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_change_without_tenant_is_refused_and_changes_nothing(
    several, fresh_database, command, role
):
    def stored():
        return fresh_database.rows("select tenant, name, paused from helix.queue order by 1, 2"), (
            fresh_database.rows("select state, count(*) from helix.work group by 1")
        )

    before = stored()
    done = several(*command, role=role)
    assert done.code == Exit.REFUSED, done.err
    assert "expected a tenant" in done.err
    assert "a, b" in done.err
    assert stored() == before


def test_queue_of_two_tenants_is_shown_with_tenant_only(several):
    done = several("queue", "show", "wide")
    assert done.code == Exit.REFUSED
    assert "queue wide exists for a, b" in done.err
    assert several("queue", "show", "wide", "--tenant", "b", "--json").json["tenant"] == "b"


def test_batch_of_an_id_needs_no_tenant(several):
    [row] = several("batch", "list", "--identity", "Sample-1", "--tenant", "b", "--json").json[
        "rows"
    ]
    done = several("batch", "cancel", row["batch_id"], "--reason", "x", "--json")
    assert done.json["rows"][0]["answer"] == "ok"


def test_operator_of_one_tenant_called_default_needs_no_tenant(fresh_database):
    """As with the embedded fresh_database."""
    helixq = Helixq(fresh_database, "operator")
    helixq.default_environment = {}
    created = helixq("queue", "set", "fresh", "--lease", "60", "--reason", "x")
    assert created.code == Exit.OK, created.err
    assert created.out == "queue fresh of tenant default: created, lease_seconds 60\n"
    again = helixq("queue", "set", "fresh", "--lease", "90", "--reason", "x")
    assert again.out == "queue fresh of tenant default: lease_seconds 90\n"


def test_letter_is_redriven_in_its_own_tenant(several, fresh_database):
    with Lab(fresh_database) as lab:
        [letter] = write_letters(lab, "1-0", tenant="b")
    redriven = several("letter", "redrive", letter, "--queue", "wide", "--identity", "S-9",
                       "--reason", "the queue exists now", role="operator")  # fmt: skip
    assert redriven.code == Exit.OK, redriven.err
    [row] = several("batch", "list", "--identity", "S-9", "--json").json["rows"]
    assert row["tenant"] == "b"
