"""G10: no read tells one tenant of another, whatever ids, keys and names it is called with.

Everything that tenant b wrote carries one word. Each read is called as b, to see that its case
finds something, and then by intruders, whose answers must not contain the word.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helixqueue.engine import calls, check_runs, fences, letters, outputs, tokens
from helixqueue.identity import derive_key
from helixqueue.records.letter import NewLetter
from tests.support.fence_caller import FenceCaller
from tests.support.lab import Lab, failure, lease_refs, new_database

WORD = "zebra"
SQL = Path(__file__).parents[2] / "src/helixqueue/engine/sql"
IDENTITY = f"{WORD}-00000"
QUEUE = f"{WORD}-queue"
FIRST = "1::bigint << 40"  # the first position of the first epoch

INTRUDERS = {
    "the role of another tenant": ("app_a", ""),
    "a role that names the tenant": ("app_a", "b"),
    "a role that is bound to nothing": ("stranger", "b"),
    "a service that named no tenant": ("service", ""),
    "a service that named another tenant": ("service", "a"),
    "a service that named a list": ("service", "a,b"),
    "a service that named a star": ("service", "*"),
}


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture(scope="module")
def loot(database):
    """What an intruder would have had to steal."""
    with Lab(database, "app_a", q=QUEUE, worker="w-a") as a:
        a.queue(tenant="a")
        a.submit("mine", tenant="a")
    with Lab(database, "app_b", q=QUEUE, worker=f"{WORD}-worker") as b:
        b.queue(tenant="b", max_attempts=1, requires={"labels": {WORD: "1"}})
        ids = [row.receipt.batch_id for row in b.submit_many(7, prefix=f"{WORD}-", tenant="b")]
        b.submit(IDENTITY, tenant="b", revision="2")
        b.submit(IDENTITY, tenant="b", payload={"other": WORD})
        b.set_run(7, f"^{WORD}")
        free = {"labels": {WORD: "1"}}
        done, broken, running = b.claim(3, free=free)
        b.complete(done, result=f'{{"of":"{WORD}"}}')
        b.settle(failure(broken, failure=WORD, detail=WORD))
        b.complete(broken)  # refused, and kept
        lease = lease_refs([running])[0]
        described = json.dumps({"host": f"{WORD}-host", "devices": [{"uuid": f"GPU-{WORD}"}]})
        b.rows_as_client("select helix.hello_v1(%s, %s)", f"{WORD}-worker", described)
        b.decide("cancel", ids[-1], reason=WORD)
        b.run(check_runs.note_check(tenant="b", actor=WORD, seconds=1, results=[]))
        b.run(calls.note_refused(tenant="b", queue=QUEUE, refused=[(b"x", WORD)]))
        message = NewLetter(f"{WORD}-1", "json", WORD, WORD.encode(), len(WORD), b"d" * 32)
        write = letters.write_letters(tenant="b", kind="redis", name=WORD, letters=[message])
        [letter] = b.run(write)
        report = letters.report_intake(
            tenant="b", stream=WORD, group=WORD, consumer=WORD, started_at=datetime.now(UTC),
            problem=WORD, figures={},
        )  # fmt: skip
        b.run(report)
        b.rows_as_client(
            "select helix.apply_webhook_v1('b', %s, 'stripe', %s, %s)", WORD, f'"{WORD}"', WORD
        )
        b.rows_as_client(
            """select helix.submit_delivery_v1(
                 row('b', %s, 'e', %s, '{}', 1, 604800, false, 'none', '', null, null, '', %s,
                     '')::helix.delivery, %s, 'text-v1', null, '{}', null, null, 'json', %s)""",
            WORD, WORD, QUEUE, WORD, WORD,
        )  # fmt: skip
        [(run,)] = b.rows_as_client(
            """select (helix.start_run_v1('b', %s, %s, %s, sha256('x'), 0, %s, '{}', '', 'names', 1,
                                          null, 5::smallint, %s)).run""",
            QUEUE, WORD, WORD, f'"{WORD}"', WORD,
        )  # fmt: skip
    with database.connect("service") as service, service.transaction():
        service.execute("select set_config('helix.tenant', 'b', true)")
        service.execute("select helix.hello_v1(%s)", [f"{WORD}-gpu"])
    with FenceCaller(database, "app_b", tenant="b") as caller:
        doubt = caller.hold(f"{WORD}-key", name=f"{WORD}-fence")
        caller.run(fences.doubt(doubt, actor=WORD, detail=WORD))
    with Lab(database, "operator") as operator:
        made = tokens.create(
            tenant="b", name=f"{WORD}-token", token_hash=b"t" * 32, scopes=["read"], queues=None,
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )  # fmt: skip
        assert operator.run(made)
        operator.run(outputs.set_root(tenant="b", uri=f"s3://{WORD}", reason=WORD))
    key = bytes.fromhex("01" + derive_key("b", QUEUE, (IDENTITY,), "").removeprefix("v1:"))
    return {
        "ids": ids,
        "keys": [key],
        "batch": [lease.batch],
        "epoch": [lease.token.epoch],
        "number": [lease.token.number],
        "fence": doubt.key,
        "queue": QUEUE,
        "identity": [IDENTITY],
        "worker": f"{WORD}-worker",
        "word": WORD,
        "fence_name": f"{WORD}-fence",
        "letter": letter,
        "run": run,
    }


def walk(name, *filters):
    named = "".join(f", {item}" for item in filters)
    return f"helix.read_batches_v1('{name}'{named})"


# How each read is called with what was stolen from b, and by which login of b.
CASES = {
    "read_batch_v1": [
        "helix.read_batch_v1(%(ids)s, '{}', true)",
        "helix.read_batch_v1('{}', %(keys)s, true)",
    ],
    "read_outcomes_v1": ["helix.read_outcomes_v1(%(ids)s, true)"],
    "read_contents_v1": ["helix.read_contents_v1(%(ids)s)"],
    "read_events_v1": ["helix.read_events_v1(%(ids)s)"],
    "read_queue_v1": ["helix.read_queue_v1('b', %(queue)s)"],
    "read_queues_v1": [
        "helix.read_queues_v1('b', null)",
        "helix.read_queues_v1('b', %(queue)s)",
        "helix.read_queues_v1(null, null)",
        "helix.read_queues_v1(null, %(queue)s)",
    ],
    "read_batches_v1": [
        walk("all"),
        walk("all", "p_tenant => 'b'"),
        walk("all", "p_tenant => 'b'", "p_queue => %(queue)s"),
        *(
            walk("finished", f"p_state => '{name}'")
            for name in ("COMPLETED", "FAILED", "CANCELLED")
        ),
        walk("finished", "p_state => 'FAILED'", "p_tenant => 'b'"),
        walk("finished_by", "p_state => 'COMPLETED'", "p_worker => %(worker)s"),
        walk("finished_by", "p_state => 'FAILED'"),
        walk(
            "finished_by",
            "p_state => 'FAILED'",
            "p_tenant => 'b'",
            "p_queue => %(queue)s",
            "p_failure => %(word)s",
        ),
        walk("leased"),
        walk("leased", "p_tenant => 'b'", "p_worker => %(worker)s"),
        walk("pending"),
        walk("pending", "p_tenant => 'b'"),
        walk("identity", "p_identity => %(identity)s"),
        walk("identity", "p_identity => %(identity)s", "p_tenant => 'b'"),
        walk("run", "p_run => 7"),
        walk("run", "p_run => 7", "p_tenant => 'b'"),
    ],
    "read_runs_v1": [
        "helix.read_runs_v1('b', p_specs => true)",
        "helix.read_runs_v1(p_run => %(run)s::text, p_specs => true)",
    ],
    "read_run_text_v1": ["helix.read_run_text_v1(%(run)s)"],
    "read_run_roots_v1": ["helix.read_run_roots_v1('b')"],
    "read_devices_v1": ["helix.read_devices_v1('b')"],
    "read_workers_v1": ["helix.read_workers_v1()", "helix.read_workers_v1('b')"],
    "read_changes_v1": [
        f"helix.read_changes_v1({FIRST}, 0, 0, null, 1000000000)",
        f"helix.read_changes_v1({FIRST}, 0, 0, %(queue)s, 1000000000)",
    ],
    "read_tokens_v1": ["helix.read_tokens_v1()", "helix.read_tokens_v1('b')"],
    "read_fence_v1": ["helix.read_fence_v1(%(fence)s)"],
    "read_fence_history_v1": ["helix.read_fence_history_v1(%(fence)s)"],
    "read_fences_v1": [
        "helix.read_fences_v1('age')",
        "helix.read_fences_v1('age', 'b')",
        "helix.read_fences_v1('name', 'b', %(fence_name)s)",
        "helix.read_fences_v1('doubt')",
        "helix.read_fences_v1('doubt', 'b')",
    ],
    "read_fence_counts_v1": ["helix.read_fence_counts_v1()"],
    "read_refused_v1": ["helix.read_refused_v1('b', %(queue)s)"],
    "read_overview_v1": ["helix.read_overview_v1('b')"],
    "read_waiting_v1": ["helix.read_waiting_v1('b', %(queue)s)"],
    "read_refusals_v1": ["helix.read_refusals_v1('b', null)"],
    "read_activity_v1": ["helix.read_activity_v1('b')"],
    "read_search_v1": [
        "helix.read_search_v1('b', %(queue)s, '\\x01', '\\x02', %(letter)s)",
        "helix.read_search_v1('b', %(fence_name)s, null, null, null)",
    ],
    "read_webhooks_v1": [
        "helix.read_webhooks_v1('b', null)",
        "helix.read_webhooks_v1('b', %(word)s)",
    ],
    "read_deliveries_v1": ["helix.read_deliveries_v1('b', %(word)s, 1000000000, 100)"],
    "read_letters_v1": [
        "helix.read_letters_v1('b', null, null, null, 1000000, 100, 100)",
        "helix.read_letters_v1('b', 'open', 'json', null, 1000000, 100, 100)",
    ],
    "read_letter_v1": [
        "helix.read_letter_v1(%(letter)s)",
        "helix.read_letter_v1(%(letter)s, true)",
    ],
    "read_check_runs_v1": ["helix.read_check_runs_v1('b')"],
    "read_intakes_v1": ["helix.read_intakes_v1('b')", "helix.read_intakes_v1(null)"],
    "read_identities_v1": ["helix.read_identities_v1('b', %(queue)s)"],
}
# These tell no words; the tests below, and those of duties, look at what they tell.
WORDLESS = {
    "change_mark_v1",
    "read_can_serve_v1",
    "read_changes_lost_v1",
    "read_duties_v1",
    "read_fence_holder_v1",
    "read_fence_lag_v1",
    "read_proof_v1",
    "read_rollup_v1",
    "read_run_outputs_v1",
    "read_tenants_v1",
    "read_worker_days_v1",
    "tenant_key_v1",
}


def result_of(database, role, tenant, call, args):
    with database.connect(role) as connection, connection.transaction():
        connection.execute("select set_config('helix.tenant', %s, true)", (tenant,))
        query = f"select t::text from {call} t"  # noqa: S608
        return connection.execute(query, args).fetchall()


def test_every_read_has_a_case():
    text = "".join(path.read_text() for path in sorted(SQL.glob("9[2-68]_*.sql")))
    assert set(re.findall(r"create function helix\.(\w+_v1)\(", text)) == set(CASES) | WORDLESS


@pytest.mark.parametrize("call", [call for calls in CASES.values() for call in calls])
def test_reads_reveal_nothing_of_another_tenant(database, loot, call):
    found = repr(result_of(database, "app_b", "", call, loot))
    assert WORD in found or str(loot["ids"][0]) in found, "the case shows nothing to its owner"
    for value, (intruder, named) in INTRUDERS.items():
        found = repr(result_of(database, intruder, named, call, loot))
        assert WORD not in found.replace(QUEUE, ""), value
        assert WORD.encode().hex() not in found, value
        assert not any(str(item) in found for item in loot["ids"]), value


def test_reads_without_text_reveal_nothing_of_another_tenant(database, loot):
    holder = "helix.read_fence_holder_v1(%(fence)s)"
    lost = "helix.read_changes_lost_v1(0, 0, 0, '-infinity')"
    assert result_of(database, "app_b", "", holder, loot) == [("(2,f)",)]
    for role, tenant in INTRUDERS.values():
        assert result_of(database, role, tenant, holder, loot) == []
        assert result_of(database, role, tenant, lost, loot) == [("false",)]
    tenants = "helix.read_tenants_v1()"
    assert result_of(database, "app_a", "b", tenants, loot) == [("a",)]
    assert result_of(database, "stranger", "b", tenants, loot) == []
