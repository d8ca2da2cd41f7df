"""Settings of a caller's session change no stored hash and no comparison.

PostgreSQL writes numbers, times, intervals and bytes as text in the form that the session asks for.
The functions choose that form themselves, so a login cannot make `check` fail or see damage.
"""

from __future__ import annotations

import re

import psycopg
import pytest

from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.identity import derive_key, key_bytes
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.operate.check_seals import check_seals
from helixqueue.operate.seal import make_seal
from tests.support.ledger_traffic import SqlClient, append_events, run_traffic, sql_client
from tests.support.tenant_cases import CASES, READS, tenants_at_work

KEY = Ed25519Signer.from_private(b"k" * 32)
# What changes the text of a value, or the meaning of an expression.
HOSTILE = {
    "extra_float_digits": "-15",
    "datestyle": "'ISO, DMY'",  # psycopg reads no other form; see below
    "intervalstyle": "sql_standard",
    "timezone": "'Asia/Kathmandu'",
    "bytea_output": "escape",
    "lc_monetary": "'C.UTF-8'",
    "lc_numeric": "'C.UTF-8'",
    "lc_time": "'C.UTF-8'",
    "search_path": "pg_temp, public",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
}
ROLES = ("pool", "app_a", "app_b", "service", "operator", "helix_migrator")
COMMENT = re.compile(r"--[^\n]*")
BACKSLASH = re.compile(r"(?<![\wE'])'(?:[^'\\]|'')*\\")
# A third of a GPU's memory: its shortest text depends on extra_float_digits.
THIRD = '{"gpus": 1, "gpu_vram_gb": 5.3333335}'


def make_hostile(database, change="set {} = {}"):
    with database.connect("helix_bootstrap") as connection:
        for role in ROLES:
            for name, value in HOSTILE.items():
                clause = change.format(name, value)
                connection.execute(f"alter role {role} in database {database.name} {clause}")


def broken(database):
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean
        return {result.name for result in check(connection) if not result.holds}


def test_submission_of_a_session_that_shortens_numbers_leaves_check_clean(database):
    with sql_client(database) as client:
        client.queue(backoff_seconds=1 / 3, lease_seconds=100 / 3)
        client.connection.execute("set extra_float_digits = 0")
        client.submit("s1", requires=THIRD)
    assert broken(database) == set()


def test_session_that_reads_backslashes_as_escapes_gets_the_same_keys(database):
    """Its reading of literals applies to the bodies of functions, too."""
    with sql_client(database) as client:
        client.connection.execute("set standard_conforming_strings = off")
        client.queue()
        client.submit("s1")
        append_events(client)
        client.call(
            "claim_fence_v1", "count(*)", tenant="a", name="refund", identity="f1", request="{}",
            actor="w1", nonce=7, start=True, lease_seconds=60, quiet_seconds=60,
        )  # fmt: skip
    assert database.value("select key from helix.batch") == key_bytes(derive_key("a", "q", ("s1",)))
    assert broken(database) == set()


def test_no_function_has_a_literal_that_a_setting_changes(database):
    functions = database.rows(
        "select p.proname, p.prosrc from pg_proc p where p.pronamespace = 'helix'::regnamespace"
    )
    assert {
        name for name, source in functions if BACKSLASH.search(COMMENT.sub("", source))
    } == set()


def test_traffic_under_hostile_settings_leaves_check_replay_and_seals_clean(database):
    make_hostile(database)
    run_traffic(database)
    with sql_client(database, "operator") as operator:
        operator.queue(name="odd", backoff_seconds=1 / 3, lease_seconds=100 / 3)
        operator.submit("odd-1", queue="odd", requires=THIRD, run_at="8999-01-01Z")
        operator.call("set_duty_v1", duty="reap", every_seconds=7384.25)
        operator.call("set_duty_v1", duty="reap", every_seconds=1 / 3)
        sealed = make_seal(operator.connection, KEY)
    assert broken(database) == set()  # the session of `check` is hostile, too
    make_hostile(database, "reset {}")
    assert broken(database) == set()
    with database.connect("helix_migrator") as connection:
        results = check_seals(connection, [sealed], [KEY])
    assert {result.name for result in results if result.count} == set()


def arguments_of(loot):
    for name, arguments in CASES.items():
        yield name, arguments(loot)
    for name, reads in READS.items():
        for arguments in reads(loot):
            yield name, arguments


# Operators may not: these read secrets, or believe that a signature was checked.
WEBHOOKS = {name for name in CASES if re.fullmatch(r"(assume_)?webhook_v1|\w+_delivery_v1", name)}


@pytest.mark.parametrize("role", ["app_b", "operator", "pool"])
def test_every_function_called_under_hostile_settings_leaves_check_clean(database, role):
    loot = tenants_at_work(database)
    before = broken(database)
    make_hostile(database)
    called = set()
    with database.connect(role) as connection:
        client = SqlClient(connection)
        connection.execute("set datestyle = 'SQL, DMY'")
        for name, arguments in arguments_of(loot):
            try:
                client.call(name, "count(*)", **arguments)
            except psycopg.Error as error:
                # 40: the delivery to end is held by no call.
                if error.sqlstate[:2] not in ("42", "QH", "22", "23", "40"):
                    raise  # else refused by a right or a rule
                if error.sqlstate[:2] != "42":
                    called.add(name)
            else:
                called.add(name)
    make_hostile(database, "reset {}")
    assert broken(database) - before == set()
    if role == "operator":
        assert called >= set(CASES) - WEBHOOKS - {"resolve_by_token_v1"}  # which needs a token
    if role == "pool":
        assert called >= WEBHOOKS
