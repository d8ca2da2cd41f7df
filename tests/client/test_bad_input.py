"""Whatever is wrong has a name, is told in words that help, and leaves nothing behind."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from helixqueue import (
    HelixQueue,
    IllegalTransition,
    InvalidIdentity,
    InvalidPayload,
    NotPermitted,
    Queue,
    QueueClosed,
    Refused,
    Submission,
    Unavailable,
)
from helixqueue.client.backend import backend_of
from helixqueue.engine import calls
from helixqueue.worker.options import WorkerOptions
from tests.support.lab import end_minute


class Basecall(BaseModel):
    pod5: str
    kits: list[int] = []


@dataclass
class Trim:
    adapter: str
    least: int = 0


TYPED = Queue("bad.typed", payload=Basecall)
PLAIN = Queue("bad.plain")
LAB = Queue("bad.lab", profile="lab-id-v1")
OPEN = Queue("bad.open", unknown="accept")
NAMED = "bad.typed"  # the same queue, with the stored schema
GOOD = {"pod5": "a.pod5", "kits": []}

cyclic: list[Any] = []
cyclic.append(cyclic)


def submission(queue=PLAIN, identity="s", payload=None, **options):
    return queue, {"identity": identity, "payload": {} if payload is None else payload, **options}


# What is submitted, the error's class, and words of it. `path` follows for payloads.
SUBMISSIONS = {
    # Identities.
    "empty identity": (submission(identity=""), InvalidIdentity, "empty"),
    "spaces only": (submission(identity="   "), InvalidIdentity, "empty"),
    "no identity": (submission(identity=None), InvalidIdentity, "unknown='accept'"),
    "identity is a number": (submission(identity=7), InvalidIdentity, "expected"),
    "identity is bytes": (submission(identity=b"s1"), InvalidIdentity, "expected"),
    "identity is a list": (submission(identity=["a", "b"]), InvalidIdentity, "expected"),
    "identity is an empty tuple": (submission(identity=()), InvalidIdentity, "expected"),
    "a part is a number": (submission(identity=("a", 1)), InvalidIdentity, "expected"),
    "too many parts": (submission(identity=("a",) * 17), InvalidIdentity, "16"),
    "NUL": (submission(identity="a\0b"), InvalidIdentity, "U+0000"),
    "zero width space": (submission(identity="a\u200bb"), InvalidIdentity, "U+200B"),
    "bidi override": (submission(identity="a\u202eb"), InvalidIdentity, "U+202E"),
    "lone surrogate": (submission(identity="a\ud800"), InvalidIdentity, "U+D800"),
    "private use": (submission(identity="a\ue000"), InvalidIdentity, "U+E000"),
    "too long": (submission(identity="a" * 300), InvalidIdentity, "255"),
    "lab id with a space": (submission(LAB, "a b"), InvalidIdentity, "a-b"),
    "lab id of two scripts": (submission(LAB, "s\u0430mple"), InvalidIdentity, "script"),
    "lab id with a ligature": (submission(LAB, "\ufb01lter"), InvalidIdentity, "filter"),
    "second part of a tuple": (submission(identity=("a", "b\0")), InvalidIdentity, "U+0000"),
    "empty revision": (submission(revision=""), InvalidIdentity, "revision"),
    "revision is a number": (submission(revision=2), InvalidIdentity, "revision"),
    "revision too long": (submission(revision="r" * 300), InvalidIdentity, "255"),
    # Payloads.
    "NaN": (submission(payload={"x": float("nan")}), InvalidPayload, "/x"),
    "infinity": (submission(payload={"x": [1, float("inf")]}), InvalidPayload, "/x/1"),
    "a set": (submission(payload={"x": {1}}), InvalidPayload, "/x"),
    "bytes": (submission(payload={"x": b"a"}), InvalidPayload, "/x"),
    "a date": (submission(payload={"a/b": date(2026, 1, 1)}), InvalidPayload, "/a~1b"),
    "a key that is no text": (submission(payload={1: 2}), InvalidPayload, "expected"),
    "an integer doubles cannot hold": (submission(payload={"x": 2**60}), InvalidPayload, "/x"),
    "a lone surrogate": (submission(payload={"x": "\ud800"}), InvalidPayload, "/x"),
    "NUL in a text": (submission(payload={"x": "a\0b"}), InvalidPayload, "/x"),
    "too deep": (submission(payload={"x": cyclic}), InvalidPayload, "expected"),
    "too large": (submission(payload={"x": "a" * 1_100_000}), InvalidPayload, "1048576"),
    "an object of a class": (submission(payload=object()), InvalidPayload, "expected"),
    "typed, missing": (submission(TYPED, payload={"kits": []}), InvalidPayload, "/pod5"),
    "typed, wrong": (submission(TYPED, payload={"pod5": 5}), InvalidPayload, "/pod5"),
    "typed, deep": (
        submission(TYPED, payload=GOOD | {"kits": [1, "x"]}), InvalidPayload, "/kits/1"),
    "typed, another model": (submission(TYPED, payload=Trim("a")), InvalidPayload, "payload of"),
    "typed, a text": (submission(TYPED, payload="pod5"), InvalidPayload, "payload of"),
    "named, missing": (submission(NAMED, payload={"kits": []}), InvalidPayload, "pod5"),
    "named, wrong": (submission(NAMED, payload={"pod5": 5}), InvalidPayload, "/pod5"),
    "named, deep": (
        submission(NAMED, payload=GOOD | {"kits": [1, "x"]}), InvalidPayload, "/kits/1"),
    "named, another model": (submission(NAMED, payload=Trim("a")), InvalidPayload, "pod5"),
    # Options.
    "priority 10": (submission(priority=10), Refused, "priority: expected"),
    "priority -1": (submission(priority=-1), Refused, "priority: expected"),
    "priority True": (submission(priority=True), Refused, "priority: expected"),
    "priority as text": (submission(priority="high"), Refused, "priority: expected"),
    "run_at without zone": (submission(run_at=datetime(2030, 1, 1)), Refused, "time zone"),  # noqa: DTZ001
    "run_at as text": (submission(run_at="tomorrow"), Refused, "run_at: expected"),
    "expires_at is a number": (submission(expires_at=5), Refused, "expires_at: expected"),
    "expired already": (
        submission(expires_at=datetime.now(UTC) - timedelta(days=1)), Refused, "in the past"),
    "empty limit_key": (submission(limit_key=""), Refused, "limit_key: expected"),
    "long limit_key": (submission(limit_key="ä" * 128), Refused, "limit_key: expected"),
    "limit_key with NUL": (submission(limit_key="a\0"), Refused, "limit_key: expected"),
    "limit_key is a number": (submission(limit_key=1), Refused, "limit_key: expected"),
    "misspelt requirement": (submission(requires={"gpu": 1}), Refused, "known are gpus"),
    "negative requirement": (submission(requires={"gpus": -1}), Refused, "gpus: expected"),
    "half a GPU": (submission(requires={"gpus": 0.5}), Refused, "a whole number"),
    "requirement NaN": (submission(requires={"ram_gb": float("nan")}), Refused, "ram_gb"),
    "requirement as text": (submission(requires={"ram_gb": "8"}), Refused, "ram_gb: expected"),
    "labels as a list": (submission(requires={"labels": ["a"]}), Refused, "labels: expected"),
    "too many labels": (
        submission(requires={"labels": {f"l{n}": "x" * 20 for n in range(99)}}), Refused, "2048"),
    "requires as a text": (submission(requires="gpus"), Refused, "a mapping"),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(database):
    with HelixQueue(database.dsn("pool"), tenant="a") as client:
        declare_all(client)
        yield client


def declare_all(client):
    for queue in (TYPED, PLAIN, LAB, OPEN):
        client.submit(queue, identity="first", payload=GOOD if queue is TYPED else {})


def made(client):
    return sum(1 for _ in client.batches())


@pytest.mark.parametrize("case", SUBMISSIONS)
def test_invalid_submission_is_refused_with_its_field_and_creates_no_batch(client, case):
    (queue, value), error, words = SUBMISSIONS[case]
    before = made(client)
    with pytest.raises(Refused) as refused:
        client.submit(queue, **value)
    assert type(refused.value) is error, refused.value
    assert words in str(refused.value)
    if isinstance(refused.value, InvalidPayload) and words.startswith("/"):
        assert refused.value.path == words
    assert made(client) == before


def test_invalid_rows_among_many_are_refused_alone_with_the_same_answer(client):
    for queue in (TYPED, PLAIN, LAB, NAMED):
        bad = {name: row for name, row in SUBMISSIONS.items() if row[0][0] is queue}
        good = [
            Submission(f"crowd-{n}", GOOD if queue in {TYPED, NAMED} else {})
            for n in range(len(bad))
        ]
        rows = [item for pair in zip([row[0][1] for row in bad.values()], good) for item in pair]  # noqa: B905
        answers = client.submit_many(queue, rows)
        assert len(answers) == len(rows)
        for answer, (name, (_, error, words)) in zip(answers[::2], bad.items(), strict=True):
            assert (answer.decision, answer.receipt) == ("refused", None), name
            assert type(answer.error) is error, name
            assert words in str(answer.error), name
        assert {answer.decision for answer in answers[1::2]} <= {"new", "duplicate"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (7, "expected a Submission or a mapping, got int"),
        (("s", {}), "got tuple"),
        ({"identity": "s"}, "no payload"),
        ({"identity": "s", "payload": {}, "priorty": 1}, "unknown 'priorty'"),
    ],
)
def test_row_that_is_no_submission_is_refused_alone(client, row, words):
    bad, good = client.submit_many(PLAIN, [row, {"identity": "beside", "payload": {}}])
    assert (bad.decision, good.error) == ("refused", None)
    assert words in str(bad.error)


def test_unknown_option_raises_a_programming_error(client):
    with pytest.raises(TypeError, match="priorty"):
        client.submit(PLAIN, identity="s", payload={}, priorty=1)


QUEUES = {
    "upper case": ("Basecall", InvalidIdentity, "queue name"),
    "empty": ("", InvalidIdentity, "queue name"),
    "with a space": ("base call", InvalidIdentity, "queue name"),
    "too long": ("q" * 64, InvalidIdentity, "queue name"),
    "not a text": (7, InvalidIdentity, "queue name"),
    "unknown": ("nowhere", Refused, "create=True"),
}


@pytest.mark.parametrize("case", QUEUES)
def test_unknown_or_invalid_queue_is_refused(client, case):
    queue, error, words = QUEUES[case]
    with pytest.raises(Refused) as refused:
        client.submit(queue, identity="s", payload={})
    assert type(refused.value) is error
    assert words in str(refused.value)


DECLARATIONS = {
    "name": ({"name": "Base Call"}, InvalidIdentity, "queue name"),
    "profile": ({"profile": "lab"}, Refused, "text-v1"),
    "lease": ({"lease": 0}, Refused, "lease: expected"),
    "lease as text": ({"lease": "2m"}, Refused, "lease: expected"),
    "lease of a year": ({"lease": timedelta(days=365)}, Refused, "lease: expected"),
    "max_attempts": ({"max_attempts": 0}, Refused, "max_attempts: expected"),
    "max_attempts half": ({"max_attempts": 1.5}, Refused, "max_attempts: expected"),
    "backoff": ({"backoff": -1}, Refused, "backoff: expected"),
    "backoff_max": ({"backoff_max": float("inf")}, Refused, "backoff_max: expected"),
    "key_limit": ({"key_limit": True}, Refused, "key_limit: expected"),
    "unknown": ({"unknown": "maybe"}, Refused, "refuse, accept"),
    "requires": ({"requires": {"gpu": 1}}, Refused, "known are gpus"),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_invalid_declaration_is_refused_at_its_definition(case):
    options, error, words = DECLARATIONS[case]
    with pytest.raises(Refused) as refused:
        Queue(**{"name": "fine", **options})
    assert type(refused.value) is error
    assert words in str(refused.value)


def test_type_without_json_schema_is_refused_at_first_use(client):
    class NoJson:
        pass

    with pytest.raises(Refused, match="expected a pydantic model"):
        client.submit(Queue("bad.nojson", payload=NoJson), identity="s", payload={})


def test_second_handler_of_a_queue_is_refused():
    queue = Queue("handled")

    @queue.handler
    def first(lease):
        return lease

    with pytest.raises(Refused, match=r"already has the handler .*first"):
        queue.handler(first)
    with pytest.raises(Refused, match="expected a function"):
        Queue("other").handler("run")
    assert (queue.handler_function, queue.handler_is_async) == (first, False)


CLIENTS = {
    "a URL of SQLAlchemy": ({"dsn": "postgresql+psycopg://u:hunter2@h/d"}, Refused, "a DSN"),
    "no DSN": ({"dsn": None}, Refused, "a DSN"),
    "tenant": ({"tenant": "Lab A"}, InvalidIdentity, "tenant name"),
    "empty DSN": ({"dsn": ""}, Refused, "got an empty one"),
    "connections": ({"connections": 0}, Refused, "connections: expected"),
    "connections half": ({"connections": 2.5}, Refused, "connections: expected a whole number"),
    "a bound without end": ({"connect_seconds": float("inf")}, Refused, "connect_seconds: expec"),
    "a bound of 0 ms": ({"statement_seconds": 0.0001}, Refused, "statement_seconds: expected"),
    "patience": ({"retry_seconds": "long"}, Refused, "retry_seconds: expected"),
    "patience below 0": ({"retry_seconds": -1}, Refused, "retry_seconds: expected"),
    "statement_seconds": ({"statement_seconds": -1}, Refused, "statement_seconds: expected"),
    "actor": ({"actor": ""}, Refused, "actor: expected"),
    "actor of two bytes a letter": ({"actor": "ä" * 200}, Refused, "actor: expected"),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_invalid_client_settings_are_refused_at_once(case):
    options, error, words = CLIENTS[case]
    with pytest.raises(Refused) as refused:
        HelixQueue(**{"dsn": "postgresql://u@h/d", **options})
    assert type(refused.value) is error
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_unknown_setting_raises_a_programming_error():
    with pytest.raises(TypeError, match="unknown setting 'patience'; known are actor"):
        HelixQueue("postgresql://u@h/d", patience=1)


def test_empty_directory_setting_is_not_the_working_directory():
    with pytest.raises(Refused, match="got an empty name"):
        HelixQueue.embedded("")


@pytest.mark.parametrize("worker", ["", "w" * 256, "a\nb", "a\0b", 7, None])
def test_claim_without_a_worker_name_is_refused(client, worker):
    for act in (
        lambda: client.claim(worker, [PLAIN]),
        lambda: client.renew(worker, []),
        lambda: client.settle(worker, []),
    ):
        with pytest.raises(Refused, match="worker: expected a name"):
            act()


@pytest.mark.parametrize("queues", [PLAIN, "bad.plain"])
def test_single_queue_name_is_not_read_as_a_sequence_of_characters(client, queues):
    with pytest.raises(Refused, match="queues: expected several"):
        client.claim("w", queues)


@pytest.mark.parametrize("free", [{"nope": 1}, {"gpus": -1}, {"gpus": 1.5}, 7])
def test_free_resources_accept_only_known_names(client, free):
    with pytest.raises(Refused, match=r"^free: "):
        client.claim("w", [PLAIN], free=free)
    with pytest.raises(Refused, match=r"^free: "):
        WorkerOptions(free=free)  # as `work` reads them, and `helixq work`


def test_role_bound_to_another_tenant_is_not_permitted(database):
    with (
        HelixQueue(database.dsn("app_b"), tenant="a") as other,
        pytest.raises(NotPermitted, match="may not act for tenant 'a'"),
    ):
        other.submit(Queue("bad.foreign"), identity="s", payload={})


def test_missing_server_is_reported_at_once_without_the_password(tmp_path):
    with HelixQueue(f"postgresql://u:hunter2@/d?host={tmp_path}") as away:
        before = datetime.now(UTC)
        with pytest.raises(Unavailable) as opened:
            away.submit("q", identity="s", payload={})
        assert datetime.now(UTC) - before < timedelta(seconds=5)
    assert "hunter2" not in str(opened.value) + repr(opened.value.__cause__)
    assert opened.value.outcome_unknown is False


def test_closed_client_refuses_calls(database):
    client = HelixQueue(database.dsn("pool"), tenant="a")
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="was closed"):
        client.submit("q", identity="s", payload={})


@pytest.mark.parametrize("within", [object(), "connection", 7, {}])
def test_within_refuses_objects_that_are_no_connection(client, within):
    with pytest.raises(Refused, match=r"within: expected one of sqlalchemy.Session, .* got"):
        client.submit(PLAIN, identity="s", payload={}, within=within)


UNKNOWN_ID = uuid.UUID(int=8)


@pytest.mark.parametrize("ask", ["state", "wait", "result", "history"])
def test_unknown_batch_raises_not_found(client, ask):
    with pytest.raises(Refused, match="has no batch"):
        getattr(client, ask)(UNKNOWN_ID)
    with pytest.raises(Refused, match="expected a receipt or a batch's UUID"):
        getattr(client, ask)("8")
    with pytest.raises(Refused, match=r"pass its \.receipt"):
        getattr(client, ask)(client.submit(PLAIN, identity="whole", payload={}))


@pytest.mark.parametrize("verb", ["cancel", "retry", "erase"])
def test_action_without_batches_or_reason_is_refused(client, verb):
    with pytest.raises(Refused, match="no such batch"):
        getattr(client, verb)(UNKNOWN_ID, reason="because")
    for reason in ("", "  ", None, "a\0b"):
        with pytest.raises(Refused, match="reason: expected"):
            getattr(client, verb)(UNKNOWN_ID, reason=reason)


def test_limit_of_the_database_is_reported_in_words(client):
    batch = client.submit(PLAIN, identity="reasoned", payload={}).receipt
    with pytest.raises(Refused, match="a text of at most 65536 bytes, got a longer one"):
        backend_of(client).run(calls.cancel(ids=[batch.batch_id], reason="r" * 70_000))
    with pytest.raises(Refused, match="reason: expected a text of 1 to 200 characters"):
        client.cancel(batch, reason="r" * 201)


def test_action_that_the_state_forbids_is_refused(client):
    pending = client.submit(PLAIN, identity="pending", payload={}).receipt
    with pytest.raises(IllegalTransition, match="which is PENDING"):
        client.retry(pending, reason="because")
    with pytest.raises(IllegalTransition, match="which is PENDING"):
        client.erase(pending, reason="because")


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"state": "DONE"}, "state: expected one of PENDING"),
        ({"queue": "Base Call"}, "queue name"),
        ({"identity": "\u200b"}, "U+200B"),
        ({"since": "yesterday"}, "since: expected a time with its zone"),
        ({"until": datetime(2026, 3, 1)}, "until: expected a time with its zone"),  # noqa: DTZ001
        ({"state": "PENDING", "worker": "w"}, "no worker"),
    ],
)
def test_invalid_filter_is_refused(client, filters, words):
    with pytest.raises(Refused) as refused:
        next(iter(client.batches(**filters)))
    assert words in str(refused.value)


def test_closed_queue_refuses_new_work_and_answers_duplicates(client, database):
    queue = Queue("bad.closing")
    first = client.submit(queue, identity="first", payload={})
    with database.connect("pool") as connection:
        connection.execute("select helix.set_queue_v1('a', 'bad.closing', 'ann', p_closed => true)")
    with pytest.raises(QueueClosed, match="closed"):
        client.submit(queue, identity="second", payload={})
    assert client.submit(queue, identity="first", payload={}).receipt == first.receipt
    [answer] = client.submit_many(queue, [Submission("third", {})])
    assert type(answer.error) is QueueClosed


def test_refused_identities_are_on_record_with_their_bytes(client, database):
    queue = Queue("bad.noted")
    rows = [Submission("a\u200bb", {}), Submission(7, {}), Submission(("x", "y\ud800"), {})]
    client.submit_many(queue, rows)
    end_minute(database)
    noted = database.rows(
        "select detail::jsonb ->> 'raw_hex' from helix.decision "
        "where queue = 'bad.noted' and kind = 'refused' order by id"
    )
    assert {bytes.fromhex(raw) for (raw,) in noted} == {
        b"a\xe2\x80\x8bb",
        b"7",
        b"x\x1fy\xed\xa0\x80",
    }


def test_table_of_cases_is_complete():
    assert len(SUBMISSIONS) + len(QUEUES) + len(DECLARATIONS) + len(CLIENTS) >= 60
