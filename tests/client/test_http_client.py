"""What is particular to the client of a service: its token, its errors, its connections."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
import uuid
from dataclasses import replace

import pytest

from helixqueue import (
    AsyncHelixClient,
    Conflict,
    HelixClient,
    InDoubt,
    InProgress,
    InvalidPayload,
    NotPermitted,
    Queue,
    Refused,
    Retryable,
    SchemaMismatch,
    State,
    Submission,
    Unavailable,
    errors,
)
from helixqueue.client.settings import ResolvedHttpSettings
from helixqueue.errors import NoSuchQueue
from helixqueue.fence.http.problem import PROBLEMS as FENCE_PROBLEMS
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.policy import Policy, Route
from helixqueue.operations import letters
from helixqueue.operations.instructions import outage_pause, retried
from helixqueue.service.problems import PROBLEMS, Problem, problem_of
from helixqueue.service.tenant_cipher import TenantCipher
from helixqueue.transport.http.call import Reply
from helixqueue.transport.http.derived_calls import request_of
from helixqueue.transport.http.problem import error_of
from tests.support.lab import Lab
from tests.support.service import Site, serving, settings_for

DISCARD = request_of(letters.discard_letter, {"letter": 7, "reason": "x"})
# As the engine and the client make them; each comes back as it was.
RAISED = [
    errors.Conflict("another payload", diff=[{"op": "add", "path": "/a", "value": 1}]),
    errors.InvalidIdentity(
        "a bad one", code="control", code_point=7, offset=3, part=1, suggestion="S-1"
    ),
    errors.InvalidPayload("a bad one", code="schema", path="/a/0"),
    errors.IllegalTransition("not from there"),
    errors.NotPermitted("not you"),
    errors.QueueClosed("closed"),
    errors.Refused("no"),
    errors.InProgress("under way", retry_after=2.0),
    errors.Unavailable("away", outcome_unknown=True, retry_after=1.0),
    errors.Unavailable("away", retry_after=1.0),
    errors.Retryable("a deadlock"),
    errors.SchemaMismatch("too old"),
]


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def lab(database, name):
    with Lab(database, q=name) as lab:
        lab.queue()
        yield lab


@pytest.fixture
def queue(lab):
    """The name of one that is there."""
    return lab.q


def answered(problem):
    answer = problem.response("request-1")
    return error_of(answer.status_code, answer.headers, bytes(answer.body))


@pytest.mark.parametrize("raised", RAISED, ids=lambda error: type(error).__name__)
def test_error_keeps_its_type_and_message_over_http(raised):
    back = answered(problem_of(raised, values=True))
    assert type(back) is type(raised)
    kept = {name: value for name, value in vars(raised).items() if value is not None}
    assert {name: getattr(back, name) for name in kept} == kept
    if isinstance(raised, Refused | InProgress):  # of faults the inside is not told
        assert str(raised) in str(back)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_problem_becomes_an_error_that_says_what_to_do(kind):
    back = answered(Problem(kind, "so it is"))
    assert "so it is" in str(back)
    assert PROBLEMS[kind][2] in str(back)
    transient = PROBLEMS[kind][0] in {408, 429, 503} or kind in {"internal", "in-progress"}
    assert isinstance(back, Refused) is not transient, back


@pytest.mark.parametrize("kind", FENCE_PROBLEMS)
def test_problems_of_the_middleware_become_our_errors(kind):
    status, headers, body = FenceProblem(kind, "so it is").response()
    names = {name.decode(): value.decode() for name, value in headers}
    expected = {
        "in-progress": InProgress,
        "in-doubt": InDoubt,
        "result-expired": errors.ResultGone,
        "storage-unavailable": Unavailable,
        "scope-unavailable": Unavailable,
    }
    assert type(error_of(status, names, body)) is expected.get(kind, Refused)


@pytest.mark.parametrize(
    ("status", "body", "unknown"),
    [
        (502, b"<html>bad gateway</html>", True),
        (503, b"Service Unavailable", True),
        (429, b"", False),
    ],
)
def test_response_of_another_server_counts_as_unavailable(status, body, unknown):
    away = error_of(status, {}, body)
    assert type(away) is Unavailable
    assert away.outcome_unknown is unknown


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 421, 431, 451])
def test_bare_4xx_of_a_proxy_is_permanent_and_not_repeated(status):
    """A proxy that does not know the path, or wants its own login, answers the same again."""
    answer = error_of(status, {}, b"<html>no</html>")
    assert type(answer) is Refused
    steps = retried("call", seconds=900, outage=outage_pause)
    next(steps)
    with pytest.raises(Refused, match="not of the service"):
        steps.throw(answer)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (Reply.json, b"<html>log in</html>"),  # the page of a proxy
        (DISCARD.read, b'{"letter": 7, "answer": 8}'),  # an answer of another release
    ],
)
def test_successful_response_that_the_client_cannot_read_is_not_repeated(read, body):
    with pytest.raises(Unavailable) as unreadable:
        read(Reply(200, {}, body))
    steps = retried("call", seconds=900, outage=outage_pause)
    next(steps)
    with pytest.raises(Unavailable, match="check the URL"):
        steps.throw(unreadable.value)


def test_request_to_an_unavailable_service_is_by_default_repeated_20_times_in_15_minutes():
    pauses = [[outage_pause(n) for _ in range(50)] for n in range(1, 30)]
    for n, drawn in enumerate(pauses, 1):
        bound = min(60, 0.5 * 2**n)
        assert bound / 2 <= min(drawn) < max(drawn) <= bound
    assert min(pauses[0]) >= 0.5
    slow = [max(drawn) for drawn in pauses]
    quick = [min(drawn) for drawn in pauses]
    seconds = ResolvedHttpSettings().retry_seconds
    assert sum(slow[:18]) < seconds == 900 < sum(quick[:34] + quick[-1:] * 6)


def test_request_refused_by_a_proxy_as_too_large_is_not_retried():
    with pytest.raises(Refused, match=r"proxy .* must take 1 MiB"):
        raise error_of(413, {}, b"<html>Request Entity Too Large</html>")


def test_every_kind_of_error_is_raised_over_http():
    assert {type(item) for item in RAISED} >= {Conflict, InvalidPayload, Retryable, SchemaMismatch}


# Tokens.


def test_submit_token_can_submit_and_read_nothing(site, queue):
    with HelixClient(site.url, token=site.token("submit", queues=[queue])) as helix:
        submitted = helix.submit(Queue(queue), identity="s", payload={"n": 1})
        assert helix.submit(queue, identity="s", payload={"n": 1}).receipt == submitted.receipt
        for ask in (helix.state, helix.result, helix.history):
            with pytest.raises(NotPermitted, match="scope read"):
                ask(submitted.receipt)
        with pytest.raises(NotPermitted, match="scope operate"):
            helix.cancel(submitted.receipt, reason="no")
        with pytest.raises(Conflict) as conflict:
            helix.submit(queue, identity="s", payload={"n": 2})
        assert conflict.value.diff == [{"op": "replace", "path": "/n"}]  # the place, not the values
        with pytest.raises(NotPermitted, match="scope operate"):
            helix.submit(Queue(queue, max_attempts=9), identity="s", payload={"n": 1})
        with pytest.raises(NotPermitted, match="does not permit queue"):
            helix.submit("elsewhere", identity="s", payload={})


def test_result_without_payloads_scope_raises_not_permitted(site, lab):
    [row] = lab.submit("s")
    lab.complete(*lab.claim())
    with HelixClient(site.url, token=site.token("read")) as helix:
        assert helix.wait(row.receipt) is State.COMPLETED
        with pytest.raises(NotPermitted, match="scope payloads"):
            helix.result(row.receipt)


def test_invalid_token_is_reported_with_the_remedy_and_never_shown(site):
    with HelixClient(site.url, token="hx_" + "s3cret" * 7) as helix:
        with pytest.raises(NotPermitted, match="helixq token create") as refused:
            helix.state(uuid.uuid4())
        shown = (
            repr(helix) + str(refused.value) + "".join(traceback.format_exception(refused.value))
        )
        assert "s3crets3cret" not in shown + repr(helix._backend.address)


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("ftp://helix", "hx_x", "url: expected"),
        ("helix:8080", "hx_x", "url: expected"),
        ("http://", "hx_x", "url: expected"),
        ("http://user:hunter2@helix", "hx_x", "url: expected"),
        (None, "hx_x", "url: expected"),
        ("http://helix", "", "token: expected"),
        ("http://helix", None, "token: expected"),
        ("http://helix", "ä", "token: expected"),
        ("http://helix", "a\nb", "token: expected"),
    ],
)
def test_invalid_client_settings_are_refused_at_once(url, token, words):
    with pytest.raises(Refused, match=words) as refused:
        HelixClient(url, token)
    assert "hunter2" not in str(refused.value)


def test_invalid_setting_raises_a_programming_error():
    with pytest.raises(TypeError, match="unknown setting 'actor'"):
        HelixClient("http://helix", "hx_x", actor="me")
    with pytest.raises(Refused, match="answer_seconds: expected"):
        HelixClient("http://helix", "hx_x", answer_seconds=0)


# Keys.


def test_client_sends_keys_to_a_service_that_requires_them(database, queue):
    policy = Policy(routes=(Route(required=True, methods=frozenset({"POST", "PUT"})),))
    with (
        serving(settings_for(database, policy=policy)) as url,
        HelixClient(url, token=Site(database, url).token()) as helix,
    ):
        submitted = helix.submit(queue, identity="s", payload={})
        assert helix.submit(queue, identity="s", payload={}).receipt == submitted.receipt
        assert helix.cancel(submitted.receipt, reason="no") is State.CANCELLED


def test_payload_above_the_request_limit_is_refused_alone(site, queue):
    with HelixClient(site.url, token=site.token()) as helix:
        rows = [Submission("big", "x" * 1_045_000), Submission("good", "y" * 1_000_000)]
        big, good = helix.submit_many(queue, rows)
        assert (big.decision, good.decision) == ("refused", "new")
        assert isinstance(big.error, InvalidPayload)
        with pytest.raises(InvalidPayload, match="over HTTP"):
            helix.submit(queue, identity="big", payload="x" * 1_045_000)


# Connections.


def test_forked_child_opens_its_own_connections(site, queue):
    with HelixClient(site.url, token=site.token()) as helix:
        helix.submit(queue, identity="parent", payload={})
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            submitted = helix.submit(queue, identity="child", payload={}).decision
            os.write(writer, submitted.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"new"
        assert helix.submit(queue, identity="parent", payload={}).decision == "duplicate"
        os.close(reader)
        os.close(writer)


def test_event_loops_take_turns(site, queue):
    helix = AsyncHelixClient(site.url, token=site.token())
    for decision in ("new", "duplicate"):
        submitted = asyncio.run(helix.submit(queue, identity="s", payload={}))
        assert submitted.decision == decision
    asyncio.run(helix.close())
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="closed"):
        asyncio.run(helix.state(submitted.receipt))
    assert time.monotonic() - begun < 10  # no patience with what cannot change


def test_many_tasks_share_few_connections(site, queue):
    async def ask():
        async with AsyncHelixClient(site.url, token=site.token(), connections=2) as helix:
            ids = [helix.submit(queue, identity=f"s{n}", payload={}) for n in range(30)]
            return [item.decision for item in await asyncio.gather(*ids)]

    assert asyncio.run(ask()) == ["new"] * 30


def with_hidden_numbers(detail, lab):
    """The detail of a batch as the tokens of tenant a see it."""
    [(key,)] = lab.rows("select helix.tenant_key_v1('a')")
    hide = TenantCipher(bytes(key)).hide

    def hidden(row):
        return row if row.number is None else replace(row, number=hide(row.number))

    events, attempts = map(hidden, detail.events), map(hidden, detail.attempts)
    return replace(detail, events=tuple(events), attempts=tuple(attempts))


def test_http_reads_equal_the_reads_of_the_database(site, lab, name):
    from helixqueue.engine import reads as direct  # noqa: PLC0415
    from helixqueue.operations import queues  # noqa: PLC0415

    [row] = lab.submit(("a", "b"), payload={"n": 1}, revision="2")
    lab.complete(*lab.claim(), result='{"reads":7}')
    with HelixClient(site.url, token=site.token()) as helix:
        answer = helix.batch(row.receipt, payload=True)
        stored = lab.run(direct.batch_detail(row.receipt.batch_id, payload=True))
        # A service hides the numbers that all tenants share; everything else is equal.
        assert answer == with_hidden_numbers(stored, lab) != stored
        do, operations = helix._do, helix._operations
        lab.queue(f"{name}-more")
        [shown] = lab.run(direct.queues(tenant="a", queue=name)).rows
        assert do(queues.show_queue(operations, name)) == shown
        with pytest.raises(NoSuchQueue):
            do(queues.show_queue(operations, "nowhere"))
        first = do(queues.list_queues(operations, count_to=10, limit=1))
        assert first.rows == lab.run(direct.queues(tenant="a", bound=10, limit=1)).rows
        second = do(queues.list_queues(operations, count_to=10, limit=1, after=first.next))
        assert second.rows == lab.run(direct.queues(tenant="a", bound=10, limit=2)).rows[1:]
        [mine] = helix.batches(queue=name)
        assert mine == lab.run(direct.batches(tenant="a", queue=name)).rows[0]
        assert helix.history(row.receipt) == list(answer.events)
