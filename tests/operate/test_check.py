"""`check` is silent about real traffic and names each kind of damage.

Damage is what only a superuser with DDL can do: triggers off, an edit, triggers on again. Every
case is a copy of a database of which the check was silent.
"""

from __future__ import annotations

import time

import psycopg
import pytest

from helixqueue.errors import SchemaMismatch
from helixqueue.operate.check import check, invariants
from tests.support.ledger_damage import damage, with_batch_ids
from tests.support.ledger_traffic import sql_client

PROMISES = {f"G{number}" for number in range(1, 12)}

# Parts of the statements below: the ledger entries of a batch's last step and of the one before.
LAST = "id = (select entry from helix.work where batch = {COMPLETED})"
BEFORE = "id = (select before from helix.work where batch = {COMPLETED})"
RETIRED = "(select id from helix.batch where retired_at is not null order by id limit 1)"
OTHERS_QUEUE = "(select id from helix.queue where tenant = 'b')"
FORGED = """
    insert into helix.entry (id, part, at, xid, epoch, from_state, to_state, reason, late, hash,
                             actor, batch, queue, version, attempt, before)
    select nextval('helix.entry_id'), 1, now(), 700, w.epoch, w.state, {to}, {reason}, false,
           sha256('x'), 'eve', array[w.batch], array[w.queue], array[w.version + 1],
           array[w.attempt], array[w.entry]
    from helix.work w where w.batch = {batch}"""

# What was done to the rows, and which invariants report it.
EDITS = {
    "a completed batch was made claimable": (
        {"state_not_last_step", "ended_unknown"},
        "update helix.work set state = 'PENDING', pending = true where batch = {COMPLETED}",
    ),
    "a waiting row was deleted": (
        {"batch_without_work", "step_without_batch"},
        "delete from helix.work where batch = {PENDING}",
    ),
    "a finished row was deleted": (
        {"batch_without_work", "step_without_batch", "ended_unknown"},
        "delete from helix.work where batch = {COMPLETED}",
    ),
    "what was asked was deleted": (
        {"work_without_batch"},
        "delete from helix.batch where id = {COMPLETED}",
    ),
    "a failure was turned into a success": (
        {"state_not_last_step", "ended_missing", "ended_unknown"},
        "update helix.work set state = 'COMPLETED' where batch = {FAILED}",
    ),
    "a version was raised": (
        {"version_not_last_step"},
        "update helix.work set version = version + 1 where batch = {COMPLETED}",
    ),
    "the time of an end was edited": (
        {"row_not_last_step", "ended_missing", "ended_unknown"},
        "update helix.work set changed_at = changed_at - interval '1 h' where batch = {COMPLETED}",
    ),
    "the name of a worker was edited": (
        {"row_not_last_step"},
        "update helix.work set actor = 'eve' where batch = {COMPLETED}",
    ),
    "the last entry was deleted": (
        {"state_not_last_step", "version_not_last_step", "row_not_last_step",
         "result_without_step"},
        f"delete from helix.entry where {LAST}",
    ),
    "the whole history of a batch was deleted": (
        {"state_not_last_step", "version_not_last_step", "attempt_not_last_step",
         "row_not_last_step"},
        """delete from helix.entry where id = (select w.entry from helix.work w
           join helix.batch b on b.id = w.batch where b.identity = 'later')""",
    ),
    "an entry in the middle was deleted": (
        {"version_gap", "step_torn", "step_unlinked", "hash_broken"},
        f"delete from helix.entry where {BEFORE}",
    ),
    "an entry of a live batch was archived": (
        {"version_gap", "step_torn", "step_unlinked"},
        f"""update helix.entry set batch = null, queue = null, version = null, attempt = null,
                   before = null, content = null where {BEFORE}""",
    ),
    "the actor of an entry was edited": (
        {"hash_broken"},
        f"update helix.entry set actor = 'nobody' where {BEFORE}",
    ),
    "the actor of an entry was edited, and its hash made anew": (
        {"hash_broken"},
        f"""update helix.entry e set actor = 'eve', hash = helix.entry_hash(
              (select array_agg(p.hash order by p.id, p.part) from helix.entry p
               where p.id = any (e.before)),
              id, part, at, xid, epoch, from_state, to_state, reason, late, 'eve', batch, queue,
              version, attempt, before, content) where {BEFORE}""",
    ),
    "the time of an entry was edited by a microsecond": (
        {"hash_broken"},
        f"update helix.entry set at = at + interval '1 microsecond' where {BEFORE}",
    ),
    "the attempt of a step was edited": (
        {"hash_broken", "attempt_not_last_step"},
        f"update helix.entry set attempt[1] = 9 where {LAST}",
    ),
    "the version of a step was edited": (
        {"hash_broken", "version_gap", "version_not_last_step", "result_missing",
         "result_without_step"},
        f"update helix.entry set version[1] = 9 where {LAST}",
    ),
    "a step was linked to another entry": (
        {"hash_broken", "step_unlinked", "row_not_last_step"},
        f"update helix.entry set before[1] = before[1] - 1 where {LAST}",
    ),
    "a step was given to another queue": (
        {"hash_broken", "step_of_other_queue"},
        f"update helix.entry set queue[1] = {OTHERS_QUEUE} where {LAST}",
    ),
    "the content hash of a step was edited": (
        {"hash_broken", "result_edited", "row_not_last_step"},
        f"update helix.entry set content[1] = sha256('x') where {LAST}",
    ),
    "an array of an entry was made longer": (
        {"hash_broken", "entry_uneven"},
        f"update helix.entry set attempt = attempt || 1::smallint where {LAST}",
    ),
    "a step was forged from PENDING to COMPLETED": (
        {"illegal_arrow", "hash_broken", "state_not_last_step", "version_not_last_step",
         "row_not_last_step"},
        FORGED.replace("{to}", "'COMPLETED'").replace("{reason}", "'completed'")
        .replace("{batch}", "{PENDING}"),
    ),
    "a completed batch was begun anew": (
        {"illegal_arrow", "step_after_end", "hash_broken", "state_not_last_step",
         "version_not_last_step", "row_not_last_step"},
        FORGED.replace("{to}", "'PENDING'").replace("{reason}", "'retried'")
        .replace("{batch}", "{COMPLETED}"),
    ),
    "an arrow was added": (
        {"arrows_edited"},
        "insert into helix.arrow values ('PENDING', 'COMPLETED')",
    ),
    "an arrow was deleted": (
        {"arrows_edited"},
        "delete from helix.arrow where from_state is null",
    ),
    "a result was edited": (
        {"result_edited"},
        """update helix.result set result = '{"reads":8}' where batch = {COMPLETED}""",
    ),
    "a result was emptied and not erased": (
        {"result_edited"},
        "update helix.result set result = null where batch = {COMPLETED}",
    ),
    "the detail of a failure was edited": (
        {"result_edited"},
        "update helix.result set detail = 'nothing' where batch = {FAILED} and detail is not null",
    ),
    "a result was deleted": (
        {"result_missing"},
        "delete from helix.result where batch = {COMPLETED}",
    ),
    "a detail was forged": (
        {"result_without_step"},
        """insert into helix.result (batch, version, queue, detail)
           select batch, version, queue, 'eve' from helix.work where batch = {PENDING}""",
    ),
    "a result was given to another tenant": (
        {"texts_of_other_queue"},
        f"update helix.result set queue = {OTHERS_QUEUE} where batch = {{COMPLETED}}",
    ),
    "a tombstone was edited": (
        {"tombstone_edited"},
        f"update helix.batch set state = 'FAILED' where id = {RETIRED}",
    ),
    "a batch was made to look retired": (
        {"tombstone_edited"},
        "update helix.batch set entry = 1 where id = {COMPLETED}",
    ),
    "the last entry of retired batches was deleted": (
        {"tombstone_not_last_step"},
        f"delete from helix.entry where id = (select entry from helix.batch where id = {RETIRED})",
    ),
    "the payload of a retired batch was put back": (
        {"retired_in_part", "payload_edited"},
        f"update helix.batch set payload = '{{}}' where id = {RETIRED}",
    ),
    "a text of a retired batch was left": (
        {"retired_in_part", "result_without_step"},
        f"""insert into helix.result (batch, version, queue, detail)
            select id, version, queue, 'left' from helix.batch where id = {RETIRED}""",
    ),
    "the identity of a batch was edited": (
        {"key_not_derived"},
        "update helix.batch set identity = identity || '0' where id = {COMPLETED}",
    ),
    "the key of a batch was edited": (
        {"key_not_derived"},
        """update helix.batch set key = set_byte(key, 32, 255 - get_byte(key, 32))
           where id = {COMPLETED}""",
    ),
    "a payload was edited": (
        {"payload_edited"},
        """update helix.batch set payload = '{"tube":3}' where id = {COMPLETED}""",
    ),
    "a fingerprint was edited": (
        {"payload_edited"},
        "update helix.batch set fingerprint = sha256('x') where id = {COMPLETED}",
    ),
    "the secret was deleted": (
        {"fingerprint_without_secret"},
        "delete from helix.secret",
    ),
    "a payload was emptied without a decision": (
        {"payload_gone"},
        "update helix.batch set payload = null where id = {COMPLETED}",
    ),
    "a batch was moved to another lane": (
        {"wrong_lane"},
        """update helix.work set lane = (select l.id from helix.lane l where l.queue = 'limited')
           where batch = {PENDING}""",
    ),
    "a lease was not counted": (
        {"held_count_wrong"},
        "update helix.key_limit set held = 0 where held > 0",
    ),
    "a limit key was removed from its lease": (
        {"held_count_wrong", "options_edited"},
        """update helix.work set limit_key = null
           where limit_key is not null and state in ('ASSIGNED', 'RUNNING')""",
    ),
    "an expiry was edited": (
        {"options_edited"},
        "update helix.work set expires_at = now() + interval '1 d' where batch = {PENDING}",
    ),
    "a claimable batch was hidden from claims": (
        {"work_contradictory"},
        "update helix.work set pending = false where batch = {PENDING}",
    ),
    "the sequence of entries was set back": (
        {"sequence_behind", "token_unknown"},
        "select setval('helix.entry_id', 1)",
    ),
    "the sequence of batches was set back": (
        {"sequence_behind"},
        "select setval('helix.batch_id', 1)",
    ),
    "the sequence of fences was set back": (
        {"sequence_behind"},
        "select setval('helix.fence_number', 1)",
    ),
    "a lease has an epoch that never was": (
        {"token_unknown", "row_not_last_step"},
        "update helix.work set epoch = 99 where batch = {RUNNING}",
    ),
    "a lease has the number of another claim": (
        {"token_not_claim", "lease_unreachable"},
        "update helix.work set number = before where batch = {RUNNING}",
    ),
    "the call that claimed a batch was forgotten": (
        {"lease_unreachable"},
        """delete from helix.request
           where number = (select number from helix.work where batch = {RUNNING})""",
    ),
    "the reaper looks too late": (
        {"lease_unreachable"},
        """update helix.request set due = 'infinity'
           where number = (select number from helix.work where batch = {RUNNING})""",
    ),
    "attempts were set back": (
        {"attempt_not_last_step"},
        "update helix.work set attempt = attempt - 1 where batch = {RUNNING}",
    ),
    "a batch had more attempts than there are": (
        {"attempt_above_max", "attempt_not_last_step"},
        "update helix.work set attempt = 1001 where batch = {RUNNING}",
    ),
    "a lease expired a week ago": (
        {"lease_stuck"},
        "update helix.work set deadline = now() - interval '1 week' where batch = {RUNNING}",
        """update helix.request set due = now() - interval '1 week'
           where number = (select number from helix.work where batch = {RUNNING})""",
    ),
    "a queue was deleted under its batches": (
        {"queue_missing"},
        "delete from helix.queue where name = 'still'",
    ),
    "a batch was given to another tenant": (
        {"queue_differs", "step_of_other_queue", "ended_missing", "ended_unknown"},
        f"update helix.work set queue = {OTHERS_QUEUE} where batch = {{COMPLETED}}",
    ),
    "an end was left out": (
        {"ended_missing"},
        "delete from helix.ended where batch = {COMPLETED}",
    ),
    "an end was listed twice": (
        {"ended_unknown"},
        """insert into helix.ended (queue, ending, at, batch)
           select queue, 2, at, batch from helix.ended where batch = {COMPLETED}""",
    ),
    "a refusal was edited": (
        {"record_edited"},
        "update helix.refusal set worker = 'eve'",
    ),
    "a decision was edited": (
        {"record_edited"},
        "update helix.decision set actor = 'eve' where kind = 'conflict'",
    ),
    "a decision was given to another tenant": (
        {"record_edited", "tenant_differs"},
        "update helix.decision set tenant = 'b' where kind = 'duplicate'",
    ),
    "a fence in doubt was called sealed": (
        {"fence_not_last_event"},
        """update helix.fence set state = 'SEALED', digest = sha256('x'), sealed_at = now(),
                  until = now() where state = 'IN_DOUBT'""",
    ),
    "a step of a fence was deleted": (
        {"fence_event_torn"},
        """delete from helix.fence_event where version = 1
           and life in (select life from helix.fence where state = 'SEALED')""",
    ),
    "a step of a fence was forged": (
        {"fence_illegal_arrow", "fence_not_last_event", "fence_record_edited"},
        """insert into helix.fence_event
           select life, version + 1, tenant, to_state, 'CLAIMED', at, attempt, epoch, number, actor,
                  'claimed', detail, sha256('x')
           from helix.fence_event where to_state = 'SEALED'""",
    ),
    "an arrow of fences was added": (
        {"fence_arrows_edited"},
        "insert into helix.fence_arrow values ('SEALED', 'IN_DOUBT')",
    ),
    "a correction of fences became an ordinary arrow": (
        {"fence_arrows_edited"},
        "update helix.fence_arrow set correction = false where from_state = 'SEALED'",
    ),
    "the name of a fence was edited": (
        {"fence_key_not_derived"},
        "update helix.fence set name = name || '0' where state = 'SEALED'",
    ),
    "the request behind a fence was edited": (
        {"fence_request_edited"},
        """update helix.fence set request = '{"tube":9}' where state = 'SEALED'""",
    ),
    "a sealed answer was edited": (
        {"fence_answer_edited"},
        "update helix.fence set answer = 'x' where state = 'SEALED'",
    ),
    "a step of a fence was given to another tenant": (
        {"fence_tenant_differs", "fence_record_edited"},
        "update helix.fence_event set tenant = 'b' where to_state = 'SEALED'",
    ),
    "the evidence of a late holder was edited": (
        {"fence_record_edited"},
        "update helix.fence_decision set evidence = 'x' where evidence is not null",
    ),
    "a sealed fence was deleted": (
        {"fence_missing"},
        "delete from helix.fence where state = 'SEALED'",
    ),
}  # fmt: skip

# What was done to the schema.
ALTERED = {
    "a guard was disabled": (
        "trigger_tampered",
        "alter table helix.batch disable trigger a_guard",
    ),
    "the guard of the ledger against truncation was dropped": (
        "trigger_tampered",
        "drop trigger a_guard_truncate on helix.entry",
    ),
    "a guard no longer fires for replicas": (
        "trigger_tampered",
        "alter table helix.work enable trigger a_guard",
    ),
    "the trigger that writes the ledger was disabled": (
        "trigger_tampered",
        "alter table helix.work disable trigger record_step",
    ),
    "a guard was told never to fire": (
        "trigger_tampered",
        """create or replace trigger a_guard before insert or update or delete on helix.batch
           for each statement when (false) execute function helix.guard();
           alter table helix.batch enable always trigger a_guard""",
    ),
    "the check of steps was told never to refuse": (
        "trigger_tampered",
        """create or replace trigger next_step after update on helix.work
           for each row when (new.batch <> old.batch) execute function helix.refuse_step();
           alter table helix.work enable always trigger next_step""",
    ),
    "rows of the record are not hashed": (
        "trigger_tampered",
        "alter table helix.refusal disable trigger hash_row",
    ),
    "a guard was given another function": (
        "trigger_tampered",
        """create function public.nothing() returns trigger language plpgsql
           as 'begin return null; end';
           create or replace trigger a_guard before insert or update or delete on helix.batch
           for each statement execute function public.nothing();
           alter table helix.batch enable always trigger a_guard""",
    ),
    "a trigger was added": (
        "trigger_tampered",
        """create function public.nothing() returns trigger language plpgsql
           as 'begin return null; end';
           create trigger z before insert on helix.work for each row
           execute function public.nothing()""",
    ),
    "a table was made without guards": (
        "trigger_tampered",
        "create table helix.scratch (n int); alter table helix.scratch owner to helix_owner",
    ),
    "a rule was added": (
        "rule_present",
        "create rule silence as on delete to helix.request do instead nothing",
    ),
    "the primary key of work was dropped": (
        "unique_missing",
        "alter table helix.work drop constraint work_pkey",
    ),
    "the unique key of batches was dropped": (
        "unique_missing",
        "drop index helix.batch_key",
    ),
    "row-level security was disabled": (
        "row_security_off",
        "alter table helix.work disable row level security",
    ),
    "row-level security of the ledger is not forced": (
        "row_security_off",
        "alter table helix.entry no force row level security",
    ),
    "a policy was dropped": (
        "policy_tampered",
        "drop policy reader on helix.batch",
    ),
    "a policy was added": (
        "policy_tampered",
        "create policy everybody on helix.batch for select to public using (queue > 0)",
    ),
    "a policy was opened": (
        "policy_tampered",
        "alter policy reader on helix.batch using (true)",
    ),
    "a policy was given to clients": (
        "policy_tampered",
        "alter policy operator on helix.batch to helix_operator, helix_client",
    ),
    "a guard's function was replaced": (
        "function_tampered",
        """create or replace function helix.guard() returns trigger language plpgsql
           as 'begin return null; end'""",
    ),
    "an invariant was silenced": (
        "function_tampered",
        """create or replace function helix.read_check_steps() returns setof helix.violation
           language sql stable set work_mem = '128MB' set enable_nestloop = off set jit = off
           as 'select null::text, null::jsonb where false'""",
    ),
    "a function lost its SECURITY DEFINER": (
        "function_tampered",
        "alter function helix.reap_v1 security invoker",
    ),
    "a function lost its search path": (
        "function_tampered",
        "alter function helix.reap_v1 reset search_path",
    ),
    "a function was given to another owner": (
        "function_tampered",
        "alter function helix.reap_v1 owner to helix_migrator",
    ),
    "a function that reads was given to the engine, which sees every row": (
        "function_tampered",
        "alter function helix.read_every_tenant_v1 owner to helix_engine",
    ),
    "a function was added": (
        "function_tampered",
        """create function helix.help_v1() returns int language sql as 'select 1';
           alter function helix.help_v1 owner to helix_engine;
           revoke all on function helix.help_v1 from public""",
    ),
    "the engine was given a function outside of its schema": (
        "function_tampered",
        """create function public.edit() returns void language sql security definer
           as 'delete from helix.batch';
           alter function public.edit owner to helix_engine""",
    ),
    "a table was given to another owner": (
        "table_owner",
        "alter table helix.queue owner to helix_migrator",
    ),
    "a table was opened to everybody": (
        "open_to_public",
        "grant select on helix.queue to public",
    ),
    "a function was opened to everybody": (
        "open_to_public",
        "grant execute on function helix.recover_v1 to public",
    ),
    "a table was opened to clients": (
        "table_granted",
        "grant select on helix.queue to helix_client",
    ),
    "a column was opened to a login": (
        "table_granted",
        "grant select (identity) on helix.batch to app_a",
    ),
    "an operator's function was opened to clients": (
        "function_granted",
        "grant execute on function helix.recover_v1 to helix_client",
    ),
    "a function was opened to a login": (
        "function_granted",
        "grant execute on function helix.settle to app_a",
    ),
    "the tokens were opened to operators": (
        "secret_readable",
        "grant select on helix.work to helix_operator",
    ),
    "the tokens of fences were opened to clients": (
        "secret_readable",
        "grant select (nonce) on helix.fence to helix_client",
    ),
    "the hashes of API tokens were opened to the reader": (
        "secret_readable",
        "grant select (hash) on helix.api_token to helix_reader",
    ),
    "the trigger that writes the steps of fences was disabled": (
        "trigger_tampered",
        "alter table helix.fence disable trigger record",
    ),
    "the primary key of fences was dropped": (
        "unique_missing",
        "alter table helix.fence drop constraint fence_pkey",
    ),
    "the secrets were opened to operators": (
        "secret_readable",
        "grant select on helix.secret to helix_operator",
    ),
}


def broken(database):
    """The invariants that do not hold, by name."""
    with database.connect("helix_migrator") as connection:
        results = check(connection)
    assert [result.skipped for result in results if result.skipped] == []
    return {result.name: result for result in results if not result.holds}


def test_check_finds_nothing_in_real_traffic(busy):
    assert broken(busy) == {}


@pytest.mark.parametrize("what", EDITS)
def test_check_finds_an_edit(busy, what):
    names, *statements = EDITS[what]
    damage(busy, *[with_batch_ids(busy, statement) for statement in statements])
    found = broken(busy)
    assert set(found) == names
    for result in found.values():
        assert 0 < len(result.witnesses) == min(result.count, 10)


@pytest.mark.parametrize("what", ALTERED)
def test_check_finds_an_alteration(busy, what):
    name, statement = ALTERED[what]
    with busy.connect("helix_bootstrap") as connection:
        connection.execute(statement.encode())
    assert name in broken(busy)


def test_check_finds_a_doubled_row_of_work(busy):
    """Only without its primary key can a row be doubled."""
    with busy.connect("helix_bootstrap") as connection:
        connection.execute("alter table helix.work drop constraint work_pkey")
    damage(
        busy,
        with_batch_ids(
            busy, "insert into helix.work select * from helix.work where batch = {PENDING}"
        ),
    )
    assert set(broken(busy)) == {"work_doubled", "unique_missing"}


def test_cases_cover_every_invariant():
    """A new invariant needs damage that it finds, or it is not known to work."""
    covered = {name for names, *_ in EDITS.values() for name in names}
    covered |= {name for name, _ in ALTERED.values()} | {"work_doubled"}
    # Roles belong to the server that all tests share, so no test makes one unsafe.
    assert covered == set(invariants()) - {"role_unsafe"}


@pytest.mark.parametrize("name", list(invariants()))
def test_every_invariant_has_meaning_and_action(name):
    notes = invariants()[name].notes
    assert set(notes) == {"promise", "means", "action"}
    assert notes["promise"] in PROMISES
    assert notes["means"].endswith(".")
    assert notes["action"].endswith(".")


OF_SECRETS = {"payload_edited", "fingerprint_without_secret", "fence_request_edited"}


@pytest.mark.parametrize("role", ["operator", "pool", "app_a"])
def test_only_the_owner_can_check_fingerprints(busy, role):
    with busy.connect(role) as connection:
        results = check(connection)
    skipped = {result.name: result.skipped for result in results if result.skipped is not None}
    assert set(skipped) == OF_SECRETS
    assert all(f"role {role}: permission denied" in reason for reason in skipped.values())
    assert all(result.holds for result in results if result.name not in skipped)


TENANTS_DAMAGE = {
    "its row": (
        {"row_not_last_step"},
        f"update helix.work set actor = 'eve' where queue = {OTHERS_QUEUE}",
    ),
    "its entry": (
        {"hash_broken"},
        f"""update helix.entry set xid = 1
            where part = 1 and reason = 'submitted' and queue[1] = {OTHERS_QUEUE}""",
    ),
    "its result": (
        {"result_missing"},
        f"delete from helix.result where queue = {OTHERS_QUEUE}",
    ),
}


@pytest.mark.parametrize("what", TENANTS_DAMAGE)
def test_tenant_finds_damage_of_its_own_rows_and_of_no_other(busy, what):
    names, statement = TENANTS_DAMAGE[what]
    damage(busy, statement)
    found = {}
    for role in ("app_a", "app_b"):
        with busy.connect(role) as connection:
            found[role] = {result.name: result for result in check(connection) if result.count}
    assert found["app_a"] == {}
    assert set(found["app_b"]) == names
    # Numbers of entries count the calls of all tenants.
    assert not any("entry" in one for r in found["app_b"].values() for one in r.witnesses)


def test_check_takes_time_in_proportion_to_the_ledger(database):
    """The first edition had an invariant that was quadratic; statistics are from an empty table."""

    def seconds(role="helix_migrator"):
        began = time.monotonic()
        with database.connect(role) as connection:
            assert all(result.holds for result in check(connection))
        return time.monotonic() - began

    with sql_client(database) as a:
        a.queue()
        for n in range(20):
            a.submit(*(f"s{n}-{m}" for m in range(500)))
            a.complete(a.claim(500))
    # Nested loops over 10,000 batches would compare 100 million pairs for each invariant.
    assert seconds() < 10


def test_progress_names_each_invariant(busy):
    told = []
    with busy.connect("operator") as connection:
        check(connection, progress=told.append)
    assert told == list(invariants())


def test_database_without_the_schema_says_migrate(server):
    with (
        psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        check(connection)
