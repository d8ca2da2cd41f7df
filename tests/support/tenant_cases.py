"""Two tenants at work in one database, and a call of every function with what is one tenant's."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from tests.support.lab import WORK_LOCATION
from tests.support.ledger_traffic import (
    FAR,
    SqlLease,
    fence_every_way,
    letters,
    sql_client,
)

# Everything that tenant b wrote carries this word.
WORD = "zebra"


@dataclass(frozen=True)
class Loot:
    """What an intruder would have had to steal: ids, live tokens, a request id."""

    ids: list[uuid.UUID]
    keys: list[bytes]
    held: list[SqlLease]
    request: uuid.UUID
    fences: dict[str, bytes]
    fence_numbers: dict[str, tuple[int, int]]  # epoch and number of their tokens
    event: tuple[int, int]  # the position of the feed's next event
    manifest: uuid.UUID  # sealed
    published: uuid.UUID  # its batch
    runs: list[tuple[int, str]]  # id and name: one that expands, one without datums


def deliver_for_b(b):
    """A source, a dead letter, a counted try and a report of an intake."""
    b.call("submit_from_v1", **from_stream(f"{WORD}-1-1", f"{WORD}-21") | {"actor": WORD})
    b.call("write_letters_v1", **letters(f"{WORD}-stream", WORD, f"{WORD}-2-1", tenant="b"))
    b.call("count_try_v1", tenant="b", kind="stream", name=f"{WORD}-stream", source="3-1")
    b.call("report_stream_v1", **report())
    b.call("look_stream_v1", **group("b"), seconds=0, figures='{"lag": 1}')
    hook = {"tenant": "b", "name": f"{WORD}-hook", "actor": WORD}
    b.call("apply_webhook_v1", **hook, scheme="stripe", definition=f'{{"of":"{WORD}"}}')
    b.call("rotate_webhook_v1", **hook, secret=WORD.encode() * 4, overlap_seconds=0)
    b.call("submit_delivery_v1", **submitted_delivery(f"{WORD}-1") | {"actor": WORD})


def from_stream(entry, identity):
    return {
        "tenant": "b", "queue": "shared", "actor": "eve", "profile": "text-v1",
        "kind": ["stream"], "name": [f"{WORD}-stream"], "id": [entry], "identity": [identity],
        "payload": ["{}"],
    }  # fmt: skip


def delivery(event):
    """A row of helix.delivery: of an entity with versions, whose body must be new."""
    body = '"{""of"":""' + WORD + '""}"'
    return (
        f"(b,{WORD}-hook,{event},{event},{body},7,604800,t,version,m,{WORD},{len(event)},"
        f'"\\\\x{"00" * 32}",shared,"\\\\x00")'
    )


def submitted_delivery(event):
    return {
        "delivery": delivery(event), "actor": "eve", "profile": "text-v1",
        "identity": f"{WORD}-hook-{event}", "payload": "{}", "raw": None, "revision": None,
    }  # fmt: skip


def group(tenant):
    return {"tenant": tenant, "stream": f"{WORD}-stream", "group": f"{WORD}-group"}


def report(problem=None):
    return {
        "tenant": "b", "stream": f"{WORD}-stream", "group": "g", "consumer": "c",
        "started_at": "2026-01-01Z", "problem": problem, "figures": "{}",
    }  # fmt: skip


def batches_of_b(b, op):
    """Batches of b in every state; returns their ids and the leases that b holds."""

    def submit(*names, **options):
        options.setdefault("payload", f'{{"of":"{WORD}"}}')
        return b.submit(*(f"{WORD}-{n}" for n in names), tenant="b", **options)

    ids = submit(1, 2, 3, 4, 5, 6, 7, 8, queue="shared")
    ids += submit(9, queue=f"{WORD}-queue")
    ids += submit(10, queue=f"{WORD}-paused")
    ids += submit(11, queue="shared", run_at=FAR)
    ids += submit(12, 13, queue="shared", limit_key=f"{WORD}-key")
    submit(1, queue="shared")
    submit(2, queue="shared", payload=f'{{"other":"{WORD}"}}')
    b.call("note_refused_v1", tenant="b", queue="shared", actor=WORD, raw=[b"x"], why=[WORD])
    b.call("note_check_v1", tenant="b", actor=WORD, seconds=1.0, results="[]")

    def work(count, **options):
        return b.claim(count, worker=f"{WORD}-worker", queue="shared", **options)

    retired, failed, cancelled, completed = work(4)
    b.complete([retired])
    assert b.rows("select helix.retire_v1('b', 'shared', 'COMPLETED', 'infinity')") == [(1,)]
    register_for_b(b, completed)
    b.complete([completed])
    b.fail([failed], permanent=True)
    op.decide("cancel", [cancelled.public_id])
    assert b.complete([cancelled]) == ["refused"]
    # The last is overdue at once, so that a reaper has something to do.
    held = work(1) + work(1, start=False) + work(1, seconds=0.05)
    b.call("open_outputs_v1", worker=f"{WORD}-worker", **token(held[0]))
    return ids, held


def register_for_b(b, lease):
    """Outputs of b that are sealed when the lease is completed and `seal_for_b` was called."""
    b.call("open_outputs_v1", worker=f"{WORD}-worker", **token(lease))
    b.call("register_outputs_v1", **page(lease, 1))


def token(lease):
    return {name: getattr(lease, name) for name in ("batch", "epoch", "nonce", "number")}


def page(lease, files=None):
    return {
        "worker": f"{WORD}-worker", **token(lease), "first": 0, "path": [f"{WORD}/file"],
        "size": [1], "sha256": [b"h" * 32], "files": files,
    }  # fmt: skip


def run_of_b(key, datums):
    return {
        "tenant": "b", "queue": f"{WORD}-runs", "key": key, "name": "run", "digest": b"d" * 32,
        "datums": datums, "spec": f'{{"of":"{WORD}"}}', "received": "{}", "egress": "",
        "layout": "names", "tries": 1, "timeout_seconds": None, "priority": 5, "actor": WORD,
    }  # fmt: skip


def datum_of_b(run, name, first):
    return {
        "tenant": "b", "run": run, "first": first, "identity": [f"{name}\x1f{WORD}-{first}"],
        "payload": ['{"inputs":[]}'], "raw": None, "actor": WORD,
    }  # fmt: skip


def tenants_at_work(database):
    """Tenants a and b at work in queues of the same name; b in every state and every table."""
    with (
        sql_client(database, "app_a") as a,
        sql_client(database, "app_b") as b,
        sql_client(database, "operator") as op,
    ):
        a.queue("a", "shared")
        a.submit("mine-1", "mine-2", queue="shared")
        root = {"tenant": "b", "uri": f"memory://{WORD}-root"}
        op.call("set_output_root_v1", **root, actor=WORD, reason="x")
        b.queue("b", "shared", key_limit=1, backoff_seconds=0, outputs=root["uri"])
        b.queue("b", f"{WORD}-queue", requires=f'{{"labels":{{"{WORD}":"1"}}}}')
        b.queue("b", f"{WORD}-paused", paused=True)
        b.queue("b", f"{WORD}-empty")
        described = {"gpus": 1, "host": f"{WORD}-host", "devices": [{"uuid": f"GPU-{WORD}"}]}
        b.call("hello_v1", worker=f"{WORD}-worker", free=json.dumps(described))
        with sql_client(database, "service") as service, service.connection.transaction():
            service.rows("select set_config('helix.tenant', 'b', true)")
            service.call("hello_v1", worker=f"{WORD}-far", free='{"gpus":1}')

        ids, held = batches_of_b(b, op)
        [(sealed, published)] = b.call("take_outputs_v1", "manifest, batch_id", limit=1)
        b.call("end_outputs_v1", manifest=sealed, outcome="sealed", files=1)
        b.queue("b", f"{WORD}-runs")
        b.call("start_run_v1", **run_of_b(f"{WORD}-1", 2))
        b.call("start_run_v1", **run_of_b(f"{WORD}-2", 0))
        [(run, name)] = database.rows("select id, name from helix.run where datums > 0")
        b.call("append_run_v1", **datum_of_b(run, name, 0))
        fences = fence_every_way(b, "b", WORD)
        b.call(
            "declare_ledger_v1", tenant="b", ledger="shared", actor=WORD, machine='{"A": []}',
            initial=["A"], strict=True, bound=False, ignored=[],
        )  # fmt: skip
        b.call(
            "append_v1", tenant="b", ledger="shared", actor=WORD, entity=[f"{WORD}-e"], seq=[1],
            kind=["A"], payload=[f'{{"of":"{WORD}"}}'], node=None,
        )  # fmt: skip
        b.call(
            "declare_feed_v1", tenant="b", feed="shared", actor=WORD, ledger="shared", queue=None,
            now=False,
        )  # fmt: skip
        b.call("hold_feed_v1", tenant="b", feed="shared", holder=WORD, seconds=3600)
        deliver_for_b(b)
        op.call(
            "create_token_v1", tenant="b", name=f"{WORD}-token", hash=b"t" * 32, scopes=["read"],
            queues=None, expires_at=FAR, actor=WORD,
        )  # fmt: skip
    numbers = {
        state: (epoch, number)
        for state, epoch, number in database.rows(
            "select state::text, epoch, number from helix.fence where tenant = 'b'"
        )
    }
    places = database.rows(
        f"select distinct {WORK_LOCATION} from helix.work w join helix.queue q on q.id = w.queue"
        " where q.tenant = 'b'"
    )
    assert {place for (place,) in places} == {"ready", "waiting", "active", "outcome"}
    request = database.value(
        "select r.id from helix.request r join helix.work w on w.number = r.number"
        " where w.batch = %s",
        held[0].batch,
    )
    keys = database.rows(
        "select b.key from helix.batch b join helix.queue q on q.id = b.queue where q.tenant = 'b'"
    )
    [event] = database.rows("select feed_position, id from helix.ledger_event where tenant = 'b'")
    keys = [key for (key,) in keys]
    runs = database.rows("select id, name from helix.run order by key")
    return Loot(ids, keys, held, request, fences, numbers, event, sealed, published, runs)


# Each function that reads, asked for what is b's, and for everything.
CHECKS = (
    "steps", "entries", "results", "batches", "counters", "records", "fences", "findings",
    "outputs",
)  # fmt: skip
READS = {
    "read_batch_v1": lambda loot: [
        {"ids": loot.ids, "keys": None, "payload": True},
        {"ids": None, "keys": loot.keys, "payload": True},
    ],
    "read_batches_v1": lambda _: (
        [
            {"scan": scan, "state": state, "tenant": tenant, "limit": 1000}
            for scan, state in (
                ("all", None),
                ("finished", "COMPLETED"),
                ("finished", "FAILED"),
                ("finished", "CANCELLED"),
                ("leased", "RUNNING"),
                ("pending", "PENDING"),
            )
            for tenant in (None, "b")
        ]
        + [
            {"scan": "finished_by", "state": "COMPLETED", "worker": f"{WORD}-worker"},
            {"scan": "finished_by", "state": "FAILED", "failure": "Broken"},
            {"scan": "finished_by", "state": "FAILED", "tenant": "b", "failure": "Broken"},
            {"scan": "leased", "worker": f"{WORD}-worker"},
            {"scan": "identity", "tenant": "b", "queue": "shared", "identity": [f"{WORD}-5"]},
            {"scan": "identity", "identity": [f"{WORD}-5"]},
        ]
    ),
    "read_outcomes_v1": lambda loot: [{"ids": loot.ids, "results": True}],
    "read_contents_v1": lambda loot: [{"ids": loot.ids}],
    "read_events_v1": lambda loot: [{"ids": loot.ids}],
    "read_changes_v1": lambda _: [
        {"position": 0, "batch": 0, "version": 0, "span": 2**61, "limit": 1000, "queue": queue}
        for queue in (None, "shared", f"{WORD}-queue")
    ],
    "read_queue_v1": lambda _: [{"tenant": "b", "queue": f"{WORD}-queue"}],
    "read_queues_v1": lambda _: [
        {"tenant": None, "queue": None},
        {"tenant": "b", "queue": None},
        {"tenant": "b", "queue": f"{WORD}-queue"},
    ],
    "read_workers_v1": lambda _: [{}, {"tenant": "b"}],
    "read_devices_v1": lambda _: [{"tenant": "b"}],
    "read_ledgers_v1": lambda _: [{"tenant": "b"}],
    "read_ledger_events_v1": lambda _: [
        {"tenant": "b", "ledger": "shared"},
        {"tenant": "b", "ledger": "shared", "entity": f"{WORD}-e"},
    ],
    "read_entity_v1": lambda _: [{"tenant": "b", "ledger": "shared", "entity": f"{WORD}-e"}],
    "read_ledger_head_v1": lambda _: [{"tenant": "b", "ledger": "shared"}],
    "read_feeds_v1": lambda _: [{"tenant": "b"}],
    "read_feed_v1": lambda _: [{"tenant": "b", "feed": "shared"}],
    "read_fence_v1": lambda loot: [{"key": key} for key in loot.fences.values()],
    "read_fences_v1": lambda _: [
        {"scan": "age"},
        {"scan": "name", "name": f"{WORD}-name"},
        {"scan": "doubt", "tenant": "b"},
    ],
    "read_fence_history_v1": lambda loot: [{"key": key} for key in loot.fences.values()],
    "read_fence_counts_v1": lambda _: [{}],
    "read_tokens_v1": lambda _: [{}, {"tenant": "b"}],
    "read_letters_v1": lambda _: [
        {
            "tenant": "b",
            "status": None,
            "reason": None,
            "queue": None,
            "before": 2**60,
            "look": 1000,
            "limit": 100,
        }
    ],
    "read_letter_v1": lambda _: [{"letter": 1, "body": True}],
    "read_overview_v1": lambda _: [{"tenant": "b", "limit": 500}],
    "read_rollup_v1": lambda _: [
        {"tenant": "b", "queue": queue, "seconds": 60, "since": "-infinity", "until": "infinity"}
        for queue in ("", "shared")
    ],
    "read_manifests_v1": lambda loot: [{"ids": loot.ids}, {"ids": None, "tenant": "b"}],
    "read_outputs_v1": lambda loot: [{"id": loot.published}],
    "read_runs_v1": lambda loot: [
        {"tenant": "b", "specs": True},
        {"run": str(loot.runs[0][0]), "specs": True},
    ],
    "read_run_text_v1": lambda loot: [{"run": loot.runs[0][0]}],
    "read_run_outputs_v1": lambda loot: [{"run": loot.runs[0][0]}],
    "read_run_roots_v1": lambda _: [{"tenant": "b"}],
    "read_refusals_v1": lambda _: [{"tenant": "b", "queue": None}],
    "read_waiting_v1": lambda _: [{"tenant": "b", "queue": "shared"}],
    "read_proof_v1": lambda loot: [{"id": item} for item in loot.ids],
    "read_activity_v1": lambda _: [{"tenant": "b"}],
    "read_search_v1": lambda _: [
        {
            "tenant": "b",
            "text": text,
            "from": b"\x01",
            "to": b"\x02",
            "letter": 1,
            "limit": 50,
        }
        for text in ("shared", f"{WORD}-name", WORD)
    ],
    "read_webhooks_v1": lambda _: [{"tenant": "b", "name": None}],
    "read_deliveries_v1": lambda _: [
        {"tenant": "b", "source": f"{WORD}-hook", "before": 2**60, "limit": 100}
    ],
    "read_worker_days_v1": lambda _: [{"tenant": "b", "worker": [f"{WORD}-worker"]}],
    "read_check_runs_v1": lambda _: [{"tenant": "b"}],
    "read_intakes_v1": lambda _: [{"tenant": None}, {"tenant": "b"}],
    "read_chains_v1": lambda _: [{"after": 0, "limit": 1000}],
    "read_batch_states_v1": lambda _: [{"after": 0, "limit": 1000}],
    # About everything or about the login itself.
    "read_entries_v1": lambda _: [{"id": 0, "part": 0, "limit": 1000}],
    "read_check_v1": lambda _: [{"set": name} for name in CHECKS],
    "read_changes_lost_v1": lambda _: [
        {"position": 0, "batch": 0, "version": 0, "since": "1970-01-01Z"}
    ],
    "read_fence_holder_v1": lambda loot: [{"key": key} for key in loot.fences.values()],
    "read_fence_lag_v1": lambda _: [{}],
    "read_duties_v1": lambda _: [{}],
    "read_metrics_v1": lambda _: [{}],
    "read_refused_v1": lambda _: [{"tenant": "b", "queue": "shared"}],
    "read_identities_v1": lambda _: [{"tenant": "b", "queue": "shared"}],
    "read_findings_v1": lambda _: [{"open": False}],
    "read_tenants_v1": lambda _: [{}],
    "read_bindings_v1": lambda _: [{}],
    "read_can_serve_v1": lambda _: [{}],
    "read_every_tenant_v1": lambda _: [{}],
}


def tokens(loot, prefix=""):
    return {
        f"{prefix}{name}": [getattr(item, name) for item in loot.held]
        for name in ("batch", "epoch", "nonce", "number")
    }


def fence_token(loot, state):
    epoch, number = loot.fence_numbers[state]
    return {"key": loot.fences[state], "epoch": epoch, "nonce": 7, "number": number}


# How each function is called with what was stolen from b.
CASES = {
    "delete_queue_v1": lambda _: {
        "tenant": "b", "queue": f"{WORD}-empty", "actor": "eve", "reason": "x",
    },
    "set_queue_v1": lambda _: {"tenant": "b", "queue": "shared", "actor": "eve", "paused": True},
    "queue_requires_v1": lambda _: {"tenant": "b", "queue": f"{WORD}-queue"},
    "bind_v1": lambda _: {"role": "app_a", "tenant": "b"},
    "unbind_v1": lambda _: {"role": "app_b", "tenant": "b"},
    "submit_v1": lambda _: {
        "tenant": "b", "queue": "shared", "actor": "eve", "profile": "text-v1",
        "identity": [f"{WORD}-1", f"{WORD}-2", "new"], "payload": ["{}", "{}", "{}"],
    },
    "note_check_v1": lambda _: {"tenant": "b", "actor": "eve", "seconds": 1.0, "results": "[]"},
    "note_refused_v1": lambda _: {
        "tenant": "b", "queue": "shared", "actor": "eve", "raw": [b"x"], "why": ["x"],
    },
    "submit_from_v1": lambda _: from_stream("9-1", "new-21"),
    "write_letters_v1": lambda _: letters("eve", "x", "9-2", tenant="b"),
    "count_try_v1": lambda _: {
        "tenant": "b", "kind": "stream", "name": f"{WORD}-stream", "source": "3-1",
    },
    "clear_tries_v1": lambda _: {
        "tenant": "b", "kind": "stream", "name": f"{WORD}-stream", "source": "3-1",
    },
    "report_stream_v1": lambda _: report("eve"),
    "redrive_letter_v1": lambda _: {
        "letter": 1, "actor": "eve", "reason": "x", "queue": "shared", "profile": "text-v1",
        "identity": "new-22", "payload": "{}", "raw": None, "revision": None, "priority": None,
    },
    "discard_letters_v1": lambda _: {"ids": [1], "actor": "eve", "reason": "x"},
    "hello_v1": lambda _: {"worker": f"{WORD}-worker", "free": '{"gpus":8}'},
    "wait_v1": lambda _: {"worker": f"{WORD}-worker", "queues": ["shared"], "seconds": 60},
    "claim_v1": lambda loot: {
        "worker": f"{WORD}-worker", "request": loot.request,
        "queues": ["shared", f"{WORD}-queue", f"{WORD}-paused"], "count": 100,
        "free": f'{{"gpus":8,"labels":{{"{WORD}":"1"}}}}', "start": True,
        **tokens(loot, "done_"), "done_outcome": ["completed"] * 3, "done_result": ["1"] * 3,
    },
    "tenant_key_v1": lambda _: {"tenant": "b"},
    "start_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "renew_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "settle_v1": lambda loot: {
        "worker": f"{WORD}-worker", **tokens(loot), "outcome": ["completed", "failed", "failed"],
    },
    "release_v1": lambda loot: {"worker": f"{WORD}-worker", **tokens(loot)},
    "reap_v1": lambda _: {"actor": "eve"},
    "promote_v1": lambda _: {},
    "cancel_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "retry_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "erase_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "retire_v1": lambda _: {
        "tenant": "b", "queue": "shared", "state": "COMPLETED", "before": "infinity",
    },
    "recover_v1": lambda _: {"actor": "eve", "detail": "x"},
    "rotate_secret_v1": lambda _: {},
    "seal_witness_v1": lambda _: {"kind": "entry", "from": 0, "to": 2**61, "place": 0},
    "seal_position_v1": lambda _: {},
    "seals_v1": lambda _: {},
    "add_seal_v1": lambda _: {
        "number": 1, "actor": "eve", "digest": b"d" * 32, "to_position": 1, "document": "{}",
    },
    "change_mark_v1": lambda _: {},
    "seal_pages_v1": lambda _: {"from": 0, "to": 2**61},
    "claim_fence_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-name", "identity": f"{WORD}-sealed", "request": "{}",
        "actor": "eve", "nonce": 1, "start": True, "lease_seconds": 60, "quiet_seconds": 60,
    },
    "preview_fence_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-name", "identity": f"{WORD}-sealed", "request": "{}",
    },
    "seal_fence_v1": lambda loot: {
        **fence_token(loot, "EFFECT_STARTED"), "actor": "eve", "effect": "e", "form": "json",
        "answer": b"1", "omitted": False, "answer_seconds": 1, "tombstone_seconds": 1,
    },
    "step_fence_v1": lambda loot: {
        **fence_token(loot, "EFFECT_STARTED"), "to": "IN_DOUBT", "actor": "eve", "detail": "x",
    },
    "renew_fences_v1": lambda loot: {
        name: [value] for name, value in fence_token(loot, "EFFECT_STARTED").items()
    },
    "probe_fence_v1": lambda loot: {
        "key": loot.fences["IN_DOUBT"], "version": 2, "found": "applied", "actor": "eve",
        "nonce": 1, "lease_seconds": 60, "quiet_seconds": 60, "form": "json", "answer": b"1",
    },
    "resolve_fence_v1": lambda loot: {
        "key": loot.fences["IN_DOUBT"], "version": 2, "applied": False, "actor": "eve",
        "reason": "x",
    },
    "resolve_by_token_v1": lambda loot: {
        "hash": b"x" * 32, "key": loot.fences["IN_DOUBT"], "version": 2, "applied": False,
        "reason": "x",
    },
    "withdraw_device_v1": lambda _: {"host": "gpu-1", "device": "GPU-1", "reason": "x"},
    "sweep_fences_v1": lambda _: {"actor": "eve"},
    "release_by_id_v1": lambda loot: {"ids": loot.ids, "actor": "eve", "detail": "x"},
    "create_token_v1": lambda _: {
        "tenant": "b", "name": "eve", "hash": b"e" * 32, "scopes": ["admin"], "queues": None,
        "expires_at": "infinity", "actor": "eve",
    },
    "rotate_token_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-token", "hash": b"e" * 32, "expires_at": "infinity",
        "overlap_seconds": 60, "actor": "eve",
    },
    "revoke_token_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-token", "actor": "eve", "reason": "x",
    },
    # Who has a token's hash has the token; an intruder has not.
    "authenticate_v1": lambda _: {"hash": b"x" * 32},
    "assume_v1": lambda _: {"hash": b"x" * 32},
    "offer_login_v1": lambda _: {
        "tenant": "b", "hash": b"e" * 32, "scopes": ["admin"], "seconds": 60, "token_seconds": 60,
        "actor": "eve", "person": None,
    },
    "redeem_login_v1": lambda _: {"hash": b"x" * 32, "token_hash": b"e" * 32},
    "end_session_v1": lambda _: {"hash": b"x" * 32},
    "run_duty_v1": lambda _: {"actor": "eve"},
    "declare_ledger_v1": lambda _: {
        "tenant": "b", "ledger": "new", "actor": "eve", "machine": '{"A": []}', "initial": ["A"],
        "strict": True, "bound": False, "ignored": [],
    },
    "append_v1": lambda _: {
        "tenant": "b", "ledger": "shared", "actor": "eve", "entity": ["e"], "seq": [1],
        "kind": ["A"], "payload": ["{}"], "node": None,
    },
    "append_one_v1": lambda _: {
        "tenant": "b", "ledger": "shared", "actor": "eve", "entity": "e", "seq": 1, "kind": "A",
        "payload": "{}", "node": None,
    },
    "ledger_hint_key_v1": lambda _: {"tenant": "b", "ledger": "shared"},
    "declare_feed_v1": lambda _: {
        "tenant": "b", "feed": "new", "actor": "eve", "ledger": "shared", "queue": None,
        "now": False,
    },
    "take_feed_v1": lambda _: {"tenant": "b", "feed": "shared", "limit": 10},
    "advance_feed_v1": lambda loot: {
        "tenant": "b", "feed": "shared", "position": 0, "number": 0, "version": 0,
        "to_position": loot.event[0], "to_number": loot.event[1], "to_version": 0, "count": 1,
    },
    "hold_feed_v1": lambda _: {
        "tenant": "b", "feed": "shared", "holder": WORD, "seconds": 60,
    },
    "set_feed_v1": lambda _: {
        "tenant": "b", "feed": "shared", "actor": "eve", "reason": "x", "paused": True,
    },
    "set_duty_v1": lambda _: {"duty": "reap", "every_seconds": 86400},
    "knows_group_v1": lambda _: group("b"),
    "count_stream_v1": lambda _: group("b") | {"deliveries": 9},
    "look_stream_v1": lambda _: group("b") | {"seconds": 0, "figures": '{"lag": 9}'},
    "stream_groups_v1": lambda _: {"seconds": 0},
    "start_run_v1": lambda _: run_of_b("eve", 1),
    "append_run_v1": lambda loot: datum_of_b(*loot.runs[0], 1),
    "cancel_run_v1": lambda loot: {
        "tenant": "b", "run": loot.runs[0][0], "actor": "eve", "reason": "x",
    },
    "retry_run_v1": lambda loot: {
        "tenant": "b", "run": loot.runs[1][0], "actor": "eve", "reason": "x",
    },
    "open_outputs_v1": lambda loot: {"worker": f"{WORD}-worker", **token(loot.held[1])},
    "register_outputs_v1": lambda loot: page(loot.held[0]),
    "take_outputs_v1": lambda loot: {"limit": 10, "manifest": [loot.manifest]},
    "output_files_v1": lambda loot: {"manifest": loot.manifest, "after": "", "limit": 10},
    "end_outputs_v1": lambda loot: {"manifest": loot.manifest, "outcome": "cleaned"},
    "read_known_outputs_v1": lambda loot: {"manifest": [loot.manifest], "uri": []},
    "set_output_root_v1": lambda _: {
        "tenant": "b", "uri": "file:///eve", "actor": "eve", "reason": "x",
    },
    "apply_webhook_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-hook", "scheme": "github", "definition": "{}",
        "actor": "eve",
    },
    "rotate_webhook_v1": lambda _: {
        "tenant": "b", "name": f"{WORD}-hook", "secret": b"e" * 32, "overlap_seconds": 0,
        "actor": "eve",
    },
    "assume_webhook_v1": lambda _: {"tenant": "b", "name": f"{WORD}-hook"},
    "webhook_v1": lambda _: {"tenant": "b", "name": f"{WORD}-hook"},
    "begin_delivery_v1": lambda _: {"delivery": delivery("9"), "actor": "eve"},
    "end_delivery_v1": lambda _: {
        "delivery": delivery(f"{WORD}-1"), "actor": "eve", "key": b"\x01" + b"x" * 32, "epoch": 1,
        "number": 1, "effect": "e",
    },
    "submit_delivery_v1": lambda _: submitted_delivery("9"),
}  # fmt: skip
