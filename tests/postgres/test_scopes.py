"""Rights inside a tenant: a login calls the functions of its scopes, under its own name."""

from __future__ import annotations

import re

import psycopg
import pytest

from helixqueue import HelixQueue, Machine
from helixqueue.engine.tokens import TENANT_SCOPES
from tests.support.lab import Lab, failure, new_database

WORD = "zebra"
# Statements by the scopes that may run them. Each is a call without effect, or of its own batch.
ALLOWED = {
    "select helix.submit_v1('a', 'rights', null, 'text-v1', array['s-1'], array['{}'])": {"submit"},
    "select helix.claim_v1('w', gen_random_uuid(), array['none'], 1)": {"work"},
    "select helix.renew_v1('w', '{}', '{}', '{}', '{}')": {"work"},
    "select helix.settle_v1('w', '{}', '{}', '{}', '{}', '{}')": {"work"},
    "select helix.renew_fences_v1('{}', '{}', '{}', '{}')": {"submit", "work"},
    "select helix.read_batches_v1('all')": {"read"},
    "select helix.read_batch_v1('{}', null)": {"read"},
    "select helix.cancel_v1('{}', null, 'x')": {"operate"},
    "select helix.retry_v1('{}', null, 'x')": {"operate"},
    "select helix.release_by_id_v1('{}', null, 'x')": {"operate"},
    "select helix.erase_v1('{}', null, 'x')": {"operate"},
    "select helix.retire_v1('a', 'rights', 'COMPLETED', now())": {"operate"},
    "select helix.set_queue_v1('a', 'mine', null)": {"operate"},
    "select helix.read_tokens_v1()": {"admin"},
    "select helix.read_queue_v1('a', 'rights')": set(TENANT_SCOPES),
    "select helix.assume_v1(sha256('x'))": {"delegate"},
    "select helix.recover_v1('x', 'x')": set(),
    "select helix.bind_v1('stranger', 'a')": set(),
}  # fmt: skip


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def logins(database):
    """A login per scope, bound to tenant a, and a failed batch whose texts contain the word."""
    scopes = {scope: f"helix_{scope}" for scope in (*TENANT_SCOPES, "delegate")}
    scopes["several"] = "helix_submit, helix_work, helix_operate"
    scopes["gateway"] = "helix_submit, helix_delegate"
    roles = {name: f"only_{name}" for name in scopes}
    with database.connect("helix_bootstrap") as connection:
        for name, role in roles.items():
            connection.execute(f"create role {role} login".encode())
            connection.execute(f"grant {scopes[name]} to {role}".encode())
            connection.execute("select helix.bind_v1(%s, 'a')", (role,))
    with Lab(database, q="rights") as lab:
        lab.queue(max_attempts=1)
        lab.submit("s-0", payload={"patient": WORD})
        lab.fail(*lab.claim(1), detail=WORD)
    yield roles
    with database.connect("helix_bootstrap") as connection:
        for role in roles.values():
            connection.execute("select helix.unbind_v1(%s, 'a')", (role,))
            connection.execute(f"drop role {role}".encode())


@pytest.mark.parametrize("scope", [*TENANT_SCOPES, "delegate"])
def test_login_cannot_call_functions_of_other_scopes(database, logins, scope):
    outcomes = {}
    with database.connect(logins[scope]) as connection:
        for statement in ALLOWED:
            try:
                connection.execute(statement.encode())
                outcomes[statement] = True
            except psycopg.errors.InsufficientPrivilege as error:
                outcomes[statement] = "permission denied for function" not in str(error)
    assert outcomes == {statement: scope in scopes for statement, scopes in ALLOWED.items()}


def test_submitter_learns_nothing_of_the_stored_event_from_a_conflict(database, logins):
    machine = Machine({"NEW": ["END"]})
    append = """select decision, payload from helix.append_v1(
        'a', 'secrets', null, array['e'], array[1], array['NEW'], array['{}'], array[null])"""
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        helix.ledger("secrets", machine).append("e", 1, "NEW", {"patient": WORD})
    assert database.rows(append, role=logins["submit"]) == [("conflict", None)]
    assert WORD in str(database.rows(append, role="app_a"))


def test_submitter_learns_nothing_of_the_stored_payload_from_a_conflict(database, logins):
    submit = """select decision, payload from helix.submit_v1(
        'a', 'rights', null, 'text-v1', array['s-0'], array['{"guess":1}'])"""
    assert database.rows(submit, role=logins["submit"]) == [("conflict", None)]
    assert WORD in str(database.rows(submit, role="app_a"))


def test_reader_without_payloads_reads_neither_payloads_nor_failure_details(database, logins):
    found = "select helix.public_id(key) from helix.batch where identity = 's-0'"
    batch = database.value(found)
    with database.connect(logins["read"]) as connection:
        value = [
            connection.execute(statement, args).fetchall()
            for statement, args in (
                ("select * from helix.read_batches_v1('all')", ()),
                ("select * from helix.read_batch_v1(%s, null)", ([batch],)),
                ("select * from helix.read_outcomes_v1(%s)", ([batch],)),
                ("select * from helix.read_events_v1(%s)", ([batch],)),
                ("select * from helix.read_changes_v1(0, 0, 0, p_span => 1000000000)", ()),
            )
        ]
        assert all(value)
        assert WORD not in str(value)
        for wanted in (
            b"select * from helix.read_batch_v1(%s, null, true)",
            b"select * from helix.read_outcomes_v1(%s, true)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not read payloads"):
                connection.execute(wanted, ([batch],))


def test_login_cannot_write_another_name_into_the_ledger(database, logins):
    """Not by submitting, not by operating, and not as a worker."""
    login = logins["several"]
    submit = "select helix.submit_v1('a', %s, 'operator', 'text-v1', array['x'], array['{}'])"
    with Lab(database, role=login) as lab:
        lab.queue()
        database.rows(submit, lab.q, role=login)
        [lease] = lab.claim(1, worker="operator")
        lab.settle(failure(lease, permanent=True), worker="operator")
        with HelixQueue(database.dsn(login), "a", actor="operator") as helix:
            helix.retry(lease.batch_id, reason="again")
            helix.cancel(lease.batch_id, reason="enough")
        queue = database.value("select id from helix.queue where name = %s", lab.q)
        actors = database.rows("select actor from helix.event where queue = %s", queue)
    assert len(actors) >= 5
    assert {actor for (actor,) in actors} == {f"{login}/operator"}


def test_login_with_the_right_to_act_for_others_writes_the_name_of_its_caller(database, logins):
    submit = "select helix.submit_v1('a', 'rights', 'ann', 'text-v1', array['d-1'], array['{}'])"
    database.rows(submit, role=logins["gateway"])
    assert database.rows("select actor from helix.batch where identity = 'd-1'") == [("ann",)]


def test_every_function_with_an_actor_or_worker_records_the_login(database):
    """A new function that stores p_actor or p_worker as it comes would let logins choose names."""
    functions = database.rows(
        """select p.proname, p.prosrc from pg_proc p
           where p.pronamespace = 'helix'::regnamespace and p.proname like '%%\\_v1'
             and p.proargnames && '{p_actor,p_worker}' and p.provolatile = 'v'"""
    )
    assert {"submit_v1", "claim_v1", "cancel_v1", "erase_v1"} <= {name for name, _ in functions}
    unchecked = {
        name for name, source in functions
        if not re.search(r"helix\.actor_of\(p_(actor|worker)\)", source)
    }  # fmt: skip
    # An operator may name another actor; a waiter is private to its login.
    assert unchecked == {"resolve_fence_v1", "wait_v1"}
