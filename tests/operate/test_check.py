"""`check` is silent about real traffic and names each kind of damage.

Damage is what only a superuser with DDL can do: triggers off, an edit, triggers on again. Every
case is a copy of a database of which the check was silent.
"""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.errors import SchemaMismatch
from helixqueue.operate.check import check, invariants
from tests.ledger.damage import damaged, one

PROMISES = {f"G{number}" for number in range(1, 12)}

# What was done to the rows, and which invariants say so.
EDITS = {
    "a ready batch was doubled into waiting": (
        {"two_places"},
        """insert into helix.waiting (batch, tenant, version, attempt, actor, reason, lane, queue,
                                      cause, limit_key)
           select r.batch, r.tenant, r.version, r.attempt, r.actor, r.reason, r.lane, b.queue,
                  'paused', r.limit_key
           from helix.ready r join helix.batch b on b.id = r.batch where r.batch = {PENDING}""",
    ),
    "a completed batch was made claimable": (
        {"two_places", "state_not_last_event"},
        """insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn,
                                    limit_key)
           select o.batch, o.tenant, version, attempt, o.actor, reason, lane, 1, limit_key
           from helix.outcome o join helix.batch b on b.id = o.batch
           where o.batch = {COMPLETED}""",
    ),
    "a ready batch was deleted": (
        {"no_place", "event_without_place"},
        "delete from helix.ready where batch = {PENDING}",
    ),
    "an outcome was deleted": (
        {"no_place", "event_without_place"},
        "delete from helix.outcome where batch = {COMPLETED}",
    ),
    "what was asked was deleted": (
        {"place_without_batch", "identity_without_batch"},
        "delete from helix.batch where id = {COMPLETED}",
    ),
    "a failure was turned into a success": (
        {"state_not_last_event"},
        "update helix.outcome set state = 'COMPLETED', ending = 1 where batch = {FAILED}",
    ),
    "the last event was deleted": (
        {"state_not_last_event", "version_not_last_event"},
        "delete from helix.event where (batch, version) = ({COMPLETED}, 4)",
    ),
    "the whole history of a batch was deleted": (
        {"state_not_last_event", "version_not_last_event"},
        "delete from helix.event where batch = {COMPLETED}",
    ),
    "an event in the middle was deleted": (
        {"version_gap", "event_torn", "hash_broken"},
        "delete from helix.event where (batch, version) = ({COMPLETED}, 2)",
    ),
    "the actor of an event was edited": (
        {"hash_broken"},
        "update helix.event set actor = 'nobody' where (batch, version) = ({COMPLETED}, 4)",
    ),
    "the time of an event was edited by a microsecond": (
        {"hash_broken"},
        """update helix.event set at = at + interval '1 microsecond'
           where (batch, version) = ({COMPLETED}, 4)""",
    ),
    "a step was forged from PENDING to COMPLETED": (
        {"illegal_arrow", "hash_broken", "state_not_last_event", "version_not_last_event"},
        """insert into helix.event (batch, version, tenant, from_state, to_state, at, attempt,
                                    actor, reason, late, hash)
           select batch, version + 1, tenant, 'PENDING', 'COMPLETED', now(), attempt, 'eve',
                  'completed', false, 'x'
           from helix.ready where batch = {PENDING}""",
    ),
    "a completed batch was begun anew": (
        {"illegal_arrow", "event_after_the_end", "hash_broken", "state_not_last_event",
         "version_not_last_event"},
        """insert into helix.event (batch, version, tenant, from_state, to_state, at, attempt,
                                    actor, reason, late, hash)
           select batch, 5, tenant, 'COMPLETED', 'PENDING', now(), attempt, 'eve', 'retried',
                  false, 'x'
           from helix.outcome where batch = {COMPLETED}""",
    ),
    "an arrow was added": (
        {"arrows_edited"},
        "insert into helix.arrow values ('PENDING', 'COMPLETED')",
    ),
    "an event of a retired batch was left": (
        {"retired_left_events", "hash_broken"},
        """insert into helix.event (batch, version, tenant, to_state, at, attempt, actor, reason,
                                    late, hash)
           select batch, 1, tenant, 'PENDING', now(), 0, 'eve', 'submitted', false, 'x'
           from helix.retired limit 1""",
    ),
    "an identity was deleted": (
        {"batch_without_identity"},
        "delete from helix.identity where batch = {COMPLETED}",
    ),
    "an identity was pointed at another batch": (
        {"batch_without_identity"},
        "update helix.identity set batch = {PENDING} where batch = {COMPLETED}",
    ),
    "the identity of a batch was edited": (
        {"key_not_derived"},
        "update helix.batch set identity = identity || '0' where id = {COMPLETED}",
    ),
    "the key of a batch was edited": (
        {"key_not_derived", "batch_without_identity"},
        """update helix.batch set key = set_byte(key, 32, 255 - get_byte(key, 32))
           where id = {COMPLETED}""",
    ),
    "a payload was edited": (
        {"payload_edited"},
        """update helix.batch set payload = '{"tube":3}' where id = {COMPLETED}""",
    ),
    "a fingerprint was edited": (
        {"payload_edited"},
        "update helix.identity set fingerprint = sha256('x') where batch = {COMPLETED}",
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
        """update helix.ready set lane = (select l.id from helix.lane l join helix.batch b
                                          on b.id = {PENDING} and l.queue <> b.queue limit 1)
           where batch = {PENDING}""",
    ),
    "a lease was not counted": (
        {"held_count_wrong"},
        "update helix.key_limit set held = 0 where held > 0",
    ),
    "a limit key was taken off its lease": (
        {"held_count_wrong", "limit_key_edited"},
        "update helix.active set limit_key = null where limit_key is not null",
    ),
    "the sequence of tokens was set back": (
        {"token_ahead"},
        "select setval('helix.lease_number', 1)",
    ),
    "a lease carries an epoch that never was": (
        {"token_ahead"},
        "update helix.active set epoch = 99 where batch = {RUNNING}",
    ),
    "the counter of batches was set back": (
        {"batch_id_behind"},
        "select setval('helix.batch_id', 1)",
    ),
    "attempts were set back": (
        {"attempt_not_last_event"},
        "update helix.active set attempt = attempt - 1 where batch = {RUNNING}",
    ),
    "a batch had more tries than there are": (
        {"attempt_above_max", "attempt_not_last_event"},
        "update helix.active set attempt = 1001 where batch = {RUNNING}",
    ),
    "a lease ran out a week ago": (
        {"lease_stuck"},
        "update helix.active set deadline = now() - interval '1 week' where batch = {RUNNING}",
    ),
    "a queue was deleted under its batches": (
        {"queue_missing"},
        "delete from helix.queue where name = 'still'",
    ),
    "a batch was given to another tenant": (
        {"tenant_differs"},
        "update helix.outcome set tenant = 'b' where batch = {COMPLETED}",
    ),
    "an event was given to another tenant": (
        {"tenant_differs", "hash_broken"},
        "update helix.event set tenant = 'b' where (batch, version) = ({COMPLETED}, 4)",
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
        {"fence_illegal_arrow", "fence_not_last_event"},
        """insert into helix.fence_event
           select life, version + 1, tenant, to_state, 'CLAIMED', at, attempt, epoch, number, actor,
                  'claimed', detail
           from helix.fence_event where to_state = 'SEALED'""",
    ),
    "an arrow of fences was added": (
        {"fence_arrows_edited"},
        "insert into helix.fence_arrow values ('SEALED', 'RELEASED')",
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
        {"fence_tenant_differs"},
        "update helix.fence_event set tenant = 'b' where to_state = 'SEALED'",
    ),
    "a sealed fence was deleted": (
        {"fence_story_left"},
        "delete from helix.fence where state = 'SEALED'",
    ),
}  # fmt: skip

# What was done to the schema.
ALTERED = {
    "a guard was disabled": (
        "trigger_tampered",
        "alter table helix.batch disable trigger a_guard",
    ),
    "leases under some limit keys are not counted": (
        "trigger_tampered",
        (
            "drop trigger count_lease on helix.active; "
            "create trigger count_lease after insert on helix.active for each row "
            "when (new.limit_key = 'gpu-0') execute function helix.count_lease(); "
            "alter table helix.active enable always trigger count_lease"
        ),
    ),
    "the guard of a partition was dropped": (
        "trigger_tampered",
        "drop trigger a_guard_truncate on helix.event_0000",
    ),
    "a guard no longer fires for replicas": (
        "trigger_tampered",
        "alter table helix.identity enable trigger a_guard",
    ),
    "the ledger's trigger was disabled": (
        "trigger_tampered",
        "alter table helix.active disable trigger record_update",
    ),
    "a guard was told never to fire": (
        "trigger_tampered",
        """create or replace trigger a_guard before insert or update or delete on helix.batch
           for each statement when (false) execute function helix.guard();
           alter table helix.batch enable always trigger a_guard""",
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
           create trigger z before insert on helix.ready for each row
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
    "the primary key of leases was dropped": (
        "unique_missing",
        "alter table helix.active drop constraint active_pkey",
    ),
    "row-level security was disabled": (
        "row_security_off",
        "alter table helix.outcome disable row level security",
    ),
    "row-level security of a partition is not forced": (
        "row_security_off",
        "alter table helix.event_0000 no force row level security",
    ),
    "a policy was dropped": (
        "policy_tampered",
        """do $$ begin execute (select format('drop policy %I on helix.batch', polname)
           from pg_policy where polrelid = 'helix.batch'::regclass limit 1); end $$""",
    ),
    "a policy was added": (
        "policy_tampered",
        "create policy everybody on helix.batch for select to public using (tenant <> '')",
    ),
    "a policy was opened": (
        "policy_tampered",
        """do $$ begin execute (
           select format('alter policy %I on helix.batch using (true)', polname) from pg_policy
           where polrelid = 'helix.batch'::regclass limit 1); end $$""",
    ),
    "a guard's function was replaced": (
        "function_tampered",
        """create or replace function helix.guard() returns trigger language plpgsql
           as 'begin return null; end'""",
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
    "the tokens were opened to clients": (
        "secret_readable",
        "grant select on helix.active to helix_client",
    ),
    "the tokens of fences were opened to clients": (
        "secret_readable",
        "grant select (nonce) on helix.fence to helix_client",
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
    "the ledger has no room": (
        "ledger_without_room",
        "alter table helix.event detach partition helix.event_0000; drop table helix.event_0000",
    ),
}


def broken(database):
    """The invariants that do not hold, by name."""
    with database.connect("helix_migrator") as connection:
        results = check(connection)
    assert [result.skipped for result in results if result.skipped] == []
    return {result.name: result for result in results if not result.holds}


def test_check_is_silent_about_real_traffic(busy):
    assert broken(busy) == {}


@pytest.mark.parametrize("what", EDITS)
def test_check_finds_an_edit(busy, what):
    names, statement = EDITS[what]
    damaged(busy, one(busy, statement))
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


def test_two_owners_show(busy):
    """Only without its primary key can a lease be doubled."""
    with busy.connect("helix_bootstrap") as connection:
        connection.execute("alter table helix.active drop constraint active_pkey")
    doubled = "insert into helix.active select * from helix.active where batch = {RUNNING}"
    damaged(busy, one(busy, doubled))
    assert set(broken(busy)) == {"two_owners", "two_places", "unique_missing"}


def test_the_cases_cover_every_invariant():
    """A new invariant needs damage that it finds, or nobody knows whether it works."""
    covered = {name for names, _ in EDITS.values() for name in names}
    covered |= {name for name, _ in ALTERED.values()} | {"two_owners"}
    # Roles belong to the server that all tests share, so nobody makes one unsafe here.
    assert covered == set(invariants()) - {"role_unsafe"}


@pytest.mark.parametrize("name", list(invariants()))
def test_an_invariant_says_what_it_means_and_what_to_do(name):
    notes = invariants()[name].notes
    assert set(notes) == {"promise", "means", "action"}
    assert notes["promise"] in PROMISES
    assert notes["means"].endswith(".")
    assert notes["action"].endswith(".")


def test_an_operator_learns_what_could_not_be_asked(busy):
    with busy.connect("operator") as connection:
        results = check(connection)
    skipped = {result.name: result.skipped for result in results if result.skipped is not None}
    assert set(skipped) == {
        "payload_edited", "fingerprint_without_secret", "token_ahead", "batch_id_behind",
        "fence_request_edited",
    }  # fmt: skip
    assert all("role operator: permission denied" in reason for reason in skipped.values())
    assert all(result.holds for result in results if result.name not in skipped)


def test_progress_names_each_invariant(busy):
    told = []
    with busy.connect("operator") as connection:
        check(connection, progress=told.append)
    assert told == list(invariants())


def test_a_database_without_the_schema_says_migrate(server):
    with (
        psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        check(connection)
