"""Damage to records, settings and other rows, and forgeries that fit, as in `damage_ledger`.

The forgeries recompute every hash, so that the database contradicts itself nowhere. Only a seal
that was made before shows them.
"""

from __future__ import annotations

from tests.support.damage_ledger import MISSED, OTHERS_QUEUE, RETIRED, SEAL

# The hash of an entry that has been edited; `e` is the entry.
REHASHED = """helix.entry_hash(
    (select array_agg(p.hash order by p.id, p.part) from helix.entry p where p.id = any (e.before)),
    e.id, e.part, e.at, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.late, e.actor,
    e.batch, e.queue, e.version, e.attempt, e.before, e.content)"""
LAST_ENTRY = "e.id = (select entry from helix.work where batch = {COMPLETED})"
# A step from RUNNING to COMPLETED that the ledger, the row and the list of ends agree on.
FORGED_END = """
    with forged as (
      insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late,
                               hash, actor, batch, queue, version, attempt, before)
      select nextval('helix.entry_id'), 1, now(), {position}, w.epoch, 'RUNNING', 'COMPLETED',
             'completed', false, sha256('x'), w.actor, array[w.batch], array[w.queue],
             array[w.version + 1], array[w.attempt], array[w.entry]
      from helix.work w where w.batch = {RUNNING} returning id)
    update helix.work w
    set entry = f.id, before = w.entry, came_from = 'RUNNING', state = 'COMPLETED',
        reason = 'completed', version = w.version + 1, version_before = w.version,
        changed_at = now()
    from forged f where w.batch = {RUNNING}"""
FORGED_END_REST = (
    f"""update helix.entry e set hash = {REHASHED}
        where e.id = (select entry from helix.work where batch = {{RUNNING}})""",
    """insert into helix.ended (queue, ending, at, batch)
       select queue, 1, changed_at, batch from helix.work where batch = {RUNNING}""",
)
OLD_POSITION = "(select e.position from helix.entry e where e.id = w.entry)"
NEW_POSITION = "helix.current_position()"
REHASH_ROW = "hash = helix.row_hash(to_jsonb(r))"

FORGERIES = {
    "the actor of a last step was edited in ledger and row, hash recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.work set actor = 'eve' where batch = {COMPLETED}",
        f"update helix.entry e set actor = 'eve' where {LAST_ENTRY}",
        f"update helix.entry e set hash = {REHASHED} where {LAST_ENTRY}",
    ),
    "the result of a completed batch was rewritten, hashes recomputed": (
        SEAL | {"sealed_record_changed"},
        """update helix.result set result = '{"reads":1}' where batch = {COMPLETED}""",
        """update helix.work w set content = helix.content_hash(r.failure, r.detail, r.result::text)
           from helix.result r where w.batch = {COMPLETED} and r.batch = w.batch
           and r.version = w.version""",
        f"""update helix.entry e set content = array[w.content] from helix.work w
            where w.batch = {{COMPLETED}} and {LAST_ENTRY}""",
        f"update helix.entry e set hash = {REHASHED} where {LAST_ENTRY}",
    ),
    "the tail of the ledger was cut, and the row set back": (
        SEAL | {"sealed_record_missing"},
        """delete from helix.request
           where number = (select number from helix.work where batch = {RUNNING})""",
        "delete from helix.entry where id = (select entry from helix.work where batch = {RUNNING})",
        """update helix.work w
           set state = 'PENDING', reason = 'submitted', version = 1, attempt = 0, pending = true,
               entry = e.id, actor = e.actor, changed_at = e.at, before = null, came_from = null,
               version_before = null,
               number = null, nonce = null, epoch = null, deadline = null, lease_seconds = null
           from helix.entry e where w.batch = {RUNNING} and e.id = w.before""",
    ),
    "a batch was removed with its whole history": (
        SEAL | {"sealed_record_missing"},
        """delete from helix.entry e using helix.work w, helix.batch b
           where b.identity = 'later' and w.batch = b.id and e.id = w.entry""",
        """delete from helix.work w using helix.batch b
           where b.identity = 'later' and w.batch = b.id""",
        "delete from helix.batch where identity = 'later'",
    ),
    "a completion was forged into an old transaction": (
        SEAL | {"sealed_record_added"},
        FORGED_END.replace("{position}", OLD_POSITION),
        *FORGED_END_REST,
    ),
    "a completion was forged as a new step": (
        MISSED | {"a step since the last seal; seal often, and ask the worker that it names"},
        FORGED_END.replace("{position}", NEW_POSITION),
        *FORGED_END_REST,
    ),
    "the header of an archived entry was edited": (
        SEAL | {"sealed_record_changed"},
        "update helix.entry set actor = 'eve' where batch is null and reason = 'completed'",
    ),
    "the hash of an archived entry was edited": (
        SEAL | {"sealed_record_changed"},
        "update helix.entry set hash = sha256('x') where batch is null and reason = 'completed'",
    ),
    "an archived entry was deleted": (
        SEAL | {"sealed_record_missing"},
        "delete from helix.entry where batch is null and reason <> 'completed'",
    ),
    "the time of a submission was edited": (
        SEAL | {"sealed_request_changed"},
        "update helix.batch set created_at = created_at - interval '1 d' where id = {COMPLETED}",
    ),
    "the submitter of a batch was edited": (
        SEAL | {"sealed_request_changed"},
        "update helix.batch set actor = 'eve' where id = {COMPLETED}",
    ),
    "a batch was moved into a run": (
        {"options_edited"},
        "update helix.batch set run = 7 where id = {COMPLETED}",
    ),
    "the start time of a submission was edited": (
        SEAL | {"sealed_request_changed"},
        "update helix.batch set run_at = now() where id = {COMPLETED}",
    ),
    "the fingerprint of an erased batch was edited": (
        SEAL | {"sealed_request_changed"},
        """update helix.batch set fingerprint = sha256('x')
           where payload is null and retired_at is null""",
    ),
    "a payload was edited with its fingerprint, by the secret": (
        SEAL | {"sealed_request_changed"},
        """update helix.batch b set payload = '{"tube":3}',
                  fingerprint = helix.fingerprint(s, '{"tube":3}')
           from helix.secret s where s.id = b.secret and b.id = {COMPLETED}""",
    ),
    "the spelling that was submitted was edited": (
        MISSED | {"a copy for display; identity and key decide, and erasing removes it"},
        "update helix.batch set raw = 'x' where id = {COMPLETED}",
    ),
    "a tombstone was edited, and its hash recomputed": (
        {"tombstone_not_recorded_so"},
        f"""update helix.batch b set ended_at = ended_at - interval '1 d', tombstone =
              helix.tombstone_hash(b.key, b.fingerprint, b.queue, b.entry, b.version, b.state,
                                   b.attempt, b.ended_at - interval '1 d', b.retired_at,
                                   b.revision)
            where id = {RETIRED} and not exists (
              select from helix.entry e where e.id = b.entry and e.batch is not null)""",
    ),
    "a tombstone was deleted": (
        {"tombstone_missing", "step_without_batch"},
        f"""delete from helix.batch b where id = {RETIRED} and not exists (
              select from helix.entry e where e.id = b.entry and e.batch is not null)""",
    ),
    "the record of a retirement was deleted": (
        {"tombstone_unrecorded"},
        "delete from helix.decision where kind = 'retired'",
    ),
    "a refusal was edited, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        """update helix.refusal set worker = 'eve'
           where batch = (select min(batch) from helix.refusal)""",
        f"update helix.refusal r set {REHASH_ROW} where worker = 'eve'",
    ),
    "a conflict was edited, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.decision set actor = 'eve' where kind = 'conflict'",
        f"update helix.decision r set {REHASH_ROW} where actor = 'eve'",
    ),
    "the record of an erasure was edited, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.decision set actor = 'eve' where kind = 'erased'",
        f"update helix.decision r set {REHASH_ROW} where actor = 'eve'",
    ),
    "a duplicate was forged into an old transaction": (
        SEAL | {"sealed_record_changed"},
        """insert into helix.decision (batch, kind, tenant, queue, actor, position, hash)
           select batch, kind, tenant, queue, 'eve', position, hash from helix.decision
           where kind = 'duplicate'""",
        f"update helix.decision r set {REHASH_ROW} where actor = 'eve'",
    ),
    "the time of a fence's step was edited, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.fence_event set at = at - interval '1 h' where to_state = 'SEALED'",
        f"update helix.fence_event r set {REHASH_ROW} where to_state = 'SEALED'",
    ),
    "a repeat of a fenced call was edited, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.fence_decision set actor = 'eve' where kind = 'repeated'",
        f"update helix.fence_decision r set {REHASH_ROW} where actor = 'eve'",
    ),
    "the effect of a fence was edited with its event, hashes recomputed": (
        SEAL | {"sealed_record_changed"},
        "update helix.fence set effect = 're_2' where state = 'SEALED'",
        """update helix.fence_event r set content = helix.fence_content(
             f.key, f.tenant, f.name, f.identity, f.fingerprint, f.secret, f.effect, f.form,
             f.digest, f.omitted, f.first_at, f.sealed_at, f.answer_until, f.until)
           from helix.fence f where f.life = r.life and r.to_state = 'SEALED'""",
        f"update helix.fence_event r set {REHASH_ROW} where r.to_state = 'SEALED'",
    ),
}  # fmt: skip

RECORDS = {
    "the present owner in a refusal was edited, with state and reason, and its hash recomputed": (
        SEAL | {"sealed_record_changed"},
        """update helix.refusal set owner = 'eve', state = 'FAILED', why = 'x'
           where batch = (select min(batch) from helix.refusal)""",
        f"update helix.refusal r set {REHASH_ROW} where why = 'x'",
    ),
    "a refusal was deleted": (
        MISSED | {"retention deletes the refusals of a batch with it"},
        "delete from helix.refusal",
    ),
    "a count of the present minute was edited": (
        MISSED | {"it has no hash before its minute is over"},
        "update helix.answer_count set times = 99",
    ),
    "a seal was put into the database": (
        MISSED | {"no service continues a seal that it did not sign; callers keep copies"},
        """insert into helix.seal (number, actor, digest, to_position, document)
           values (1, 'eve', sha256('x'), 1, '{}')""",
    ),
    "a duplicate was deleted": (
        MISSED | {"retention deletes such answers after `keep_decisions_seconds`"},
        "delete from helix.decision where kind = 'duplicate'",
    ),
    "a fence was deleted with its events and calls": (
        MISSED | {"housekeeping deletes a fence when its tombstone expires"},
        """delete from helix.fence_event e using helix.fence f
           where f.state = 'SEALED' and e.life = f.life""",
        """delete from helix.fence_decision d using helix.fence f
           where f.state = 'SEALED' and d.life = f.life""",
        "delete from helix.fence where state = 'SEALED'",
    ),
    "a link from a fence to a batch was forged": (
        MISSED | {"it only tells erasing where copies are; one too many empties a stored request"},
        """insert into helix.fence_batch (fence, batch, tenant, conflict)
           select key, 1, tenant, false from helix.fence where state = 'SEALED'""",
    ),
    "the record of an erasure was deleted": (
        {"payload_gone", "result_edited"},
        "delete from helix.decision where kind = 'erased'",
    ),
    "the effect of a fence was edited": (
        {"fence_edited"},
        "update helix.fence set effect = 're_2' where state = 'SEALED'",
    ),
    "the time of a seal of a fence was edited": (
        {"fence_edited"},
        "update helix.fence set sealed_at = sealed_at - interval '1 d' where state = 'SEALED'",
    ),
    "the key of a fence was set to expire early": (
        {"fence_edited"},
        "update helix.fence set until = now() + interval '1 s' where state = 'SEALED'",
    ),
    "the fingerprint of a fence was edited": (
        {"fence_edited", "fence_request_edited"},
        "update helix.fence set fingerprint = sha256('x') where state = 'SEALED'",
    ),
    "a call of a fence was forged": (
        {"fence_record_edited"},
        """insert into helix.fence_decision (life, tenant, name, kind, actor, hash)
           select life, tenant, name, 'repeated', 'eve', sha256('x') from helix.fence
           where state = 'SEALED'""",
    ),
    "the attempts of a queue were edited": (
        {"setting_edited"},
        "update helix.queue set max_attempts = 1000 where name = 'brief'",
    ),
    "the retention of a queue was edited": (
        {"setting_edited"},
        "update helix.queue set keep_completed_seconds = 1 where name = 'brief'",
    ),
    "the time after which waiting batches are reported was edited": (
        {"setting_edited"},
        "update helix.queue set stalled_after_seconds = 1e9 where name = 'brief'",
    ),
    "a queue was made to retry failed batches of new sources": (
        {"setting_edited"},
        "update helix.queue set resubmit_failed = 'retry' where name = 'brief'",
    ),
    "a queue was inserted": (
        {"setting_edited"},
        "insert into helix.queue (tenant, name) values ('a', 'forged')",
    ),
    "a login was bound to all tenants": (
        {"setting_edited"},
        "insert into helix.role_tenant (role, tenant) values ('app_b', '*')",
    ),
    "a binding was deleted": (
        {"setting_edited"},
        "delete from helix.role_tenant where role = 'app_b'",
    ),
    "a service was freed from naming its tenant": (
        {"setting_edited"},
        "update helix.role_tenant set by_setting = false where role = 'service'",
    ),
    "an API token was inserted": (
        {"setting_edited"},
        """insert into helix.api_token
             (tenant, name, generation, hash, scopes, created_by, expires_at)
           values ('a', 'eve', 1, sha256('eve'), '{admin}', 'ann', now() + interval '1 d')""",
    ),
    "a source of webhooks was inserted": (
        {"setting_edited"},
        """insert into helix.webhook_source (tenant, name, scheme, definition, applied_by)
           values ('a', 'stripe', 'stripe', '{}', 'eve')""",
    ),
    "a secret of webhooks was inserted": (
        {"setting_edited"},
        """insert into helix.webhook_secret (tenant, source, number, secret, created_by)
           values ('a', 'stripe', 1, 'a secret of some length', 'eve')""",
    ),
    "a mark of webhooks was inserted": (
        MISSED | {"newer versions look older; the fence of each delivery says what came of it"},
        """insert into helix.webhook_mark (key, tenant, source, version, digest, effect, at)
           values (sha256('x'), 'a', 'stripe', 9, sha256('x'), 'none', now())""",
    ),
    "a login code was inserted": (
        MISSED | {"a code lives an hour at most; the token that it buys is audited"},
        """insert into helix.login (hash, tenant, scopes, token_seconds, created_by, expires_at)
           values (sha256('eve'), 'a', '{admin}', 60, 'ann', now() + interval '1 h')""",
    ),
    "the secret was replaced": (
        {"setting_edited", "payload_edited", "limit_key_edited", "fence_request_edited"},
        "update helix.secret set inner_pad = outer_pad",
    ),
    "the reason of an epoch was edited": (
        {"setting_edited"},
        "update helix.epoch set reason = 'nothing'",
    ),
    "a duty was put off for a year": (
        {"setting_edited"},
        "update helix.duty set every = '1 year' where duty = 'reap'",
    ),
    "a requirement class was edited": (
        {"setting_edited"},
        "update helix.requirement_class set gpus = 8 where id = 0",
    ),
    "a lane was edited": (
        {"setting_edited"},
        "update helix.lane set gpus = 8 where queue = 'brief'",
    ),
    "the record of a setting was deleted": (
        {"setting_edited"},
        "delete from helix.decision where kind = 'audit' and queue = 'duty'",
    ),
    "a lease was made endless": (
        {"lease_endless"},
        "update helix.work set deadline = 'infinity' where batch = {RUNNING}",
    ),
    "the secret part of a token was edited": (
        MISSED | {"a live token has no copy; its holder is refused, and that is recorded"},
        "update helix.work set nonce = 7 where batch = {RUNNING}",
    ),
    "a batch was moved to the front of its lane": (
        MISSED | {"the order of waiting work is no record; every batch is still assigned once"},
        "update helix.work set turn = 0 where batch = {PENDING}",
    ),
    "an event of a user ledger was edited": (
        {"ledger_event_edited"},
        """update helix.ledger_event set payload = '{"n":9}' where version = 2""",
    ),
    "an event of a user ledger was deleted": (
        {"ledger_event_missing"},
        "delete from helix.ledger_event where version = 1",
    ),
    "the last event of a user ledger was deleted": (
        SEAL | {"sealed_record_missing"},
        "delete from helix.ledger_event where version = 2",
    ),
    "the rules of a user ledger were edited": (
        {"setting_edited"},
        "update helix.ledger set is_strict = false",
    ),
    "a feed was pointed at the steps of batches": (
        {"setting_edited"},
        "update helix.feed set ledger = null",
    ),
    "the position of a feed was edited": (
        MISSED | {"a cursor of a consumer; its own effects have the fence that decides"},
        "update helix.feed set number = number + 1",
    ),
    "a feed was moved ahead of the ledger": (
        {"position_ahead"},
        "update helix.feed set position = position + (1::bigint << 60)",
    ),
    "the mark of a duty was moved ahead of the ledger": (
        {"position_ahead"},
        "update helix.duty set mark = mark + (1::bigint << 60) where duty = 'metrics'",
    ),
    "two details were swapped": (
        {"result_edited"},
        """update helix.result r set detail = o.detail from helix.result o
           where r.detail is not null and o.detail is not null and r.detail <> o.detail""",
    ),
    "two payloads were swapped": (
        {"payload_edited"},
        f"""update helix.batch b set payload = o.payload from helix.batch o
            where b.id = {{COMPLETED}} and o.payload::text <> b.payload::text
            and o.queue = {OTHERS_QUEUE}""",
    ),
    "the ledger was emptied": (
        {"state_not_last_step", "version_not_last_step", "attempt_not_last_step",
         "row_not_last_step", "result_without_step", "tombstone_not_last_step"},
        "truncate helix.entry",
    ),
    "work was emptied": (
        {"batch_without_work", "step_without_batch", "ended_unknown", "held_count_wrong"},
        "truncate helix.work",
    ),
    "results were emptied": ({"result_missing"}, "truncate helix.result"),
    "ends were emptied": ({"ended_missing"}, "truncate helix.ended"),
    "claim calls were emptied": ({"lease_unreachable"}, "truncate helix.request"),
    "counts of limit keys were emptied": (
        {"held_count_wrong"},
        "truncate helix.key_limit",
    ),
    "the revision of a tombstone was edited": (
        {"tombstone_edited"},
        f"update helix.batch set revision = 'x' where id = {RETIRED}",
    ),
    "a duty was put off, and its last run made long": (
        {"duty_put_off"},
        "update helix.duty set next_at = now() + interval '90 days', seconds = 1e7",
    ),
    "a sequence was set near its end": (
        {"sequence_near_end"},
        "select setval('helix.fence_number', 9223372036854775000)",
    ),
    "the list of workers was emptied": (
        MISSED | {"for display only; no rule depends on it"},
        "truncate helix.worker",
    ),
    "the list of waiting workers was emptied": (
        MISSED | {"a hint; idle workers poll"},
        "truncate helix.waiter",
    ),
    "results were replaced by ALTER COLUMN ... USING": (
        {"result_edited"},
        """alter table helix.result alter column result type helix.document
           using '{"reads":0}'::json::helix.document""",
    ),
    "results were replaced by a role that took the engine's name for a moment": (
        {"result_edited"},
        """alter role helix_engine rename to helix_engine_away;
           create role helix_engine;
           grant usage on schema helix to helix_engine;
           grant select, update on helix.result to helix_engine;
           create policy eve on helix.result to helix_engine using (true);
           create function public.eve() returns void language sql security definer
             as 'update helix.result set result = ''{"reads":9}'' where result is not null';
           alter function public.eve owner to helix_engine;
           select public.eve();
           drop function public.eve();
           drop policy eve on helix.result;
           revoke all on helix.result from helix_engine;
           revoke all on schema helix from helix_engine;
           drop role helix_engine;
           alter role helix_engine_away rename to helix_engine""",
    ),
}  # fmt: skip
