"""Damage to leases, limits, duties, identities and letters, as in `damage_ledger`."""

from __future__ import annotations

from tests.support.damage_ledger import SEAL

# A completed batch with a limit key; it holds no lease.
LIMITED = """(select min(w.batch) from helix.work w
               where w.limit_key is not null and w.state = 'COMPLETED')"""
OTHER_LIMIT_KEY = (
    """insert into helix.key_limit (queue, key)
       select id, 'sequencer-8' from helix.queue where name = 'limited' on conflict do nothing""",
    f"update helix.batch set limit_key = 'sequencer-8' where id = {LIMITED}",
    f"update helix.work set limit_key = 'sequencer-8' where batch = {LIMITED}",
)

LEASES = {
    "the order of the events of a user ledger was edited": (
        SEAL | {"sealed_record_changed"},
        "update helix.ledger_event set id = id + 1000000 where version = 1",
        "select setval('helix.ledger_event_id', 2000000)",
    ),
    "the sequence of events was set back": (
        {"sequence_behind"},
        "update helix.ledger_event set id = id + 1000000 where version = 2",
    ),
    "a duty was made due in a year": (
        {"duty_put_off"},
        "update helix.duty set next_at = now() + interval '1 year' where duty = 'reap'",
    ),
    "the lease of a fence was made endless": (
        {"fence_endless"},
        "update helix.fence set deadline = 'infinity' where state = 'EFFECT_STARTED'",
    ),
    "the holder of a fence was edited": (
        {"fence_edited"},
        "update helix.fence set actor = 'eve' where state = 'IN_DOUBT'",
    ),
    "a device was marked as held by a lease that has ended": (
        {"allocation_wrong"},
        """insert into helix.allocation (host, device, batch, number, queue, worker, process)
           select 'gpu-1', 'GPU-1', batch, number, queue, actor, 'x' from helix.work
           where state = 'COMPLETED' limit 1""",
    ),
    "a device was withdrawn by hand": (
        {"setting_edited"},
        "insert into helix.host (name, withdrawn) values ('gpu-1', '{\"GPU-1\": \"x\"}')",
    ),
    "a live lease lost its device": (
        {"allocation_wrong"},
        "update helix.work set allocated = number where state = 'RUNNING'",
    ),
    "a dead letter was given to another tenant": (
        {"letter_edited"},
        "update helix.dead_letter set tenant = 'b'",
    ),
    "a record was made unreadable": (
        {"record_edited", "setting_edited", "duty_put_off"},
        "update helix.decision set detail = '{' where kind = 'audit' and queue = 'duty'",
    ),
    "the start time of a waiting batch was edited": (
        {"options_edited"},
        "update helix.work set due = 'infinity' where cause = 'delay' and version = 1",
    ),
    "an archived entry was given steps again": (
        {"entry_uneven"},
        "update helix.entry set version = '{1}' where batch is null and reason = 'completed'",
    ),
    "a batch was given a limit key in both tables": (
        {"limit_key_edited"},
        "update helix.batch set limit_key = 'eve' where id = {COMPLETED}",
        "update helix.work set limit_key = 'eve' where batch = {COMPLETED}",
    ),
    "a limit key was changed in both tables to another that exists": (
        {"limit_key_edited"},
        *OTHER_LIMIT_KEY,
    ),
    "a limit key was changed in both tables, with its fingerprint, by the secret": (
        SEAL | {"sealed_request_changed"},
        *OTHER_LIMIT_KEY,
        """update helix.batch b set limit_print = helix.fingerprint(s, b.limit_key)
           from helix.secret s where s.id = b.secret and b.limit_key is not null""",
    ),
    "a limit key was removed from both tables": (
        {"limit_key_edited"},
        f"update helix.batch set limit_key = null where id = {LIMITED}",
        f"update helix.work set limit_key = null where batch = {LIMITED}",
    ),
    "the identities of all batches were removed": (
        {"identity_gone"},
        "update helix.batch set identity = null where identity is not null",
    ),
    "the identity of an erased batch was removed": (
        {"identity_gone"},
        """update helix.batch set identity = null
           where payload is null and identity is not null and retired_at is null""",
    ),
    "the record of an erased identity was deleted": (
        {"identity_gone", "limit_key_edited"},
        "delete from helix.decision where kind = 'identity_erased'",
    ),
}
