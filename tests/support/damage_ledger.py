"""Damage to batches and their ledger, and what finds it.

Each case is what was done with every trigger off, by a superuser who switched them on again. The
first member is the verdict: a set of invariants that `check` reports, or `SEAL` with those of
`check --against`, or `MISSED` with the reason why nothing can find it. The module
`tests/operate/test_damage.py` runs all cases and writes the table of docs/guarantees.md.
"""

from __future__ import annotations

# Verdicts that are not found by `check`.
SEAL = frozenset({"SEAL"})
MISSED = frozenset({"MISSED"})

# Parts of the statements below: the ledger entries of a batch's last step and of the one before.
LAST = "id = (select entry from helix.work where batch = {COMPLETED})"
BEFORE = "id = (select before from helix.work where batch = {COMPLETED})"
RETIRED = "(select id from helix.batch where retired_at is not null order by id limit 1)"
OTHERS_QUEUE = "(select id from helix.queue where tenant = 'b')"
FORGED = """
    insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late,
                             hash, actor, batch, queue, version, attempt, before)
    select nextval('helix.entry_id'), 1, now(), 700, w.epoch, w.state, {to}, {reason}, false,
           sha256('x'), 'eve', array[w.batch], array[w.queue], array[w.version + 1],
           array[w.attempt], array[w.entry]
    from helix.work w where w.batch = {batch}"""

# What was done to the rows, and what finds it.
LEDGER = {
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
              id, part, at, position, epoch, from_state, to_state, reason, late, 'eve', batch,
              queue, version, attempt, before, content) where {BEFORE}""",
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
        {"fingerprint_without_secret", "setting_edited"},
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
        {"queue_missing", "setting_edited"},
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
    "the id of a source was edited": (
        {"source_edited"},
        "update helix.source set id = '9-9'",
    ),
    "a source was given to another batch": (
        {"source_edited"},
        "update helix.source set batch = (select min(id) from helix.batch)",
    ),
    "the message of a dead letter was edited": (
        {"letter_edited"},
        "update helix.dead_letter set body = 'y' where status = 'open'",
    ),
    "the message of a dead letter was deleted": (
        {"letter_edited"},
        "update helix.dead_letter set body = null, complete = false where status = 'open'",
    ),
    "a redriven letter lost its batch": (
        {"letter_without_batch", "letter_edited"},
        "update helix.dead_letter set batch = null where status = 'redriven'",
    ),
    "a fence in doubt was called sealed": (
        {"fence_not_last_event", "fence_edited"},
        """update helix.fence set state = 'SEALED', digest = sha256('x'), sealed_at = now(),
                  until = now() where state = 'IN_DOUBT'""",
    ),
    "a step of a fence was deleted": (
        {"fence_event_torn"},
        """delete from helix.fence_event where version = 1
           and life in (select life from helix.fence where state = 'SEALED')""",
    ),
    "a step of a fence was forged": (
        {"fence_edited", "fence_illegal_arrow", "fence_not_last_event", "fence_record_edited"},
        """insert into helix.fence_event
           select life, version + 1, tenant, to_state, 'CLAIMED', at, attempt, epoch, number, actor,
                  'claimed', detail, content, position, sha256('x')
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
        {"fence_key_not_derived", "fence_edited"},
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
