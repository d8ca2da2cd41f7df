"""Damage to leases, duties, dead letters and the order of events, as in `damage_ledger`."""

from __future__ import annotations

from tests.support.damage_ledger import SEAL

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
}
