"""`helix.fence` around functions and blocks: keys, results and repeats."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass
from decimal import Decimal

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import fences as calls
from helixqueue.errors import (
    Conflict,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    Refused,
    ResultGone,
)
from helixqueue.fence import Times, current
from tests.support.fence_reads import Refund, counted, fence_of
from tests.support.lab import POOLED


def test_repeat_returns_the_first_result_without_the_expensive_call(helix, name):
    ran = []

    @helix.fence(name, key=lambda order, cents: order)
    def refund(order: str, cents: int) -> Refund:
        ran.append(order)
        return Refund(id=f"re_{len(ran)}", cents=cents)

    assert refund("o1", 500) == refund("o1", cents=500) == Refund(id="re_1", cents=500)
    assert ran == ["o1"]
    assert refund("o2", 500).id == "re_2"
    first, again = refund.outcome("o1", 500), refund.outcome("o1", 500)
    assert first == again
    assert first.repeated
    assert counted(helix, name) == {"new": 2, "duplicate": 3}


@pytest.mark.parametrize("value", [None, [], 0, False, "", {}, b"", b"\x00\xff", 0.5, {"a": [1]}])
def test_empty_and_odd_results_repeat_exactly(helix, name, value):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act():
        ran.append(1)
        return value

    first, again = act(), act()
    assert first == again == value
    assert type(first) is type(again) is type(value)
    assert len(ran) == 1


@dataclass(frozen=True)
class Point:
    x: Decimal
    of: uuid.UUID
    raw: tuple[int, ...]


def test_typed_results_come_back_as_their_type(helix, name):
    point = Point(Decimal("1.10"), uuid.uuid4(), (1, 2))

    @helix.fence(name, key=lambda: "k")
    def act() -> Point:
        return point

    assert act() == act() == point


class Hostile:
    def __eq__(self, other):
        raise RuntimeError("ambiguous")

    __hash__ = None


def _cyclic():
    value = []
    value.append(value)
    return value


# Without an annotation a tuple would come back as a list.
@pytest.mark.parametrize("value", [(1, 2), object(), Hostile(), "\ud800", _cyclic()])
def test_first_caller_gets_a_result_that_cannot_be_serialized_and_repeats_never_execute(
    helix, name, value
):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act():
        ran.append(1)
        return value

    first = act.outcome()
    assert first.result is value
    assert first.receipt.startswith("r2:")
    for _ in range(2):
        with pytest.raises(ResultGone, match="not kept") as gone:
            act()
        assert gone.value.receipt == first.receipt
    assert ran == [1]


@pytest.mark.parametrize("form", ["json", "of a later release"])
def test_unreadable_stored_result_is_not_executed_again(helix, database, name, form):
    def ask(kind):
        def act():
            raise TimeoutError

        act.__annotations__["return"] = kind
        return helix.fence(name, key=lambda: "k")(act)()

    with pytest.raises(TimeoutError):
        ask(Refund)
    row = fence_of(database, name)
    with HelixQueue(database.dsn("operator"), tenant="a", pooled=POOLED) as operator:
        answer = calls.FenceResult(form, b'{"other": "shape"}')
        operator.fences.run(
            calls.resolve(row.key, row.version, Times(), actor="ann", reason="x", result=answer)
        )
    with pytest.raises(ResultGone, match="took place once") as gone:
        ask(Refund)
    assert gone.value.receipt.startswith("r2:")
    if form == "json":
        assert ask(dict[str, str]) == {"other": "shape"}


def test_first_caller_gets_a_result_that_is_too_large_and_repeats_never_execute(helix, name):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> bytes:
        ran.append(1)
        return b"x" * (1024 * 1024 + 1)

    assert act() == b"x" * (1024 * 1024 + 1)
    for _ in range(2):
        with pytest.raises(ResultGone):
            act()
    assert ran == [1]


def test_other_payload_with_the_same_key_is_refused_with_a_diff(helix, name):
    @helix.fence(name, key=lambda order, **_: order)
    def refund(order, cents=0):
        return cents

    refund("o1", cents=5)
    with pytest.raises(Conflict, match="they differ at /cents;") as conflict:
        refund("o1", cents=6)
    assert conflict.value.diff == [{"op": "replace", "path": "/cents", "value": 6, "was": 5}]


def test_payload_option_selects_the_compared_arguments(helix, name):
    @helix.fence(name, key=lambda order, _: order, payload=lambda order, _: {"order": order})
    def refund(order, trace):
        return trace

    assert refund("o1", object.__name__) == refund("o1", "another trace") == "object"
    with pytest.raises(InvalidPayload, match="payload="):
        helix.fence(name, key="x")(lambda thing: thing)(object())


def test_hundred_concurrent_calls_have_one_effect(database, name):
    effects = []
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED, connections=10) as helix:

        @helix.fence(name, key=lambda: "k", wait=60)
        def act() -> int:
            effects.append(1)
            return len(effects)

        barrier = threading.Barrier(25)
        results = []

        def race():
            barrier.wait()
            results.extend(act() for _ in range(4))

        threads = [threading.Thread(target=race) for _ in range(25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [1] * 100
    assert effects == [1]


def test_caller_that_does_not_wait_gets_in_progress(helix, name):
    going, done = threading.Event(), threading.Event()

    @helix.fence(name, key=lambda: "k", wait=0)
    def act() -> str:
        going.set()
        done.wait(60)
        return "done"

    holder = threading.Thread(target=act)
    holder.start()
    going.wait(60)
    with pytest.raises(InProgress) as opened:
        act()
    assert 1 <= opened.value.retry_after <= 30
    done.set()
    holder.join()
    assert act() == "done"


def test_current_outside_of_a_fence_is_refused():
    with pytest.raises(Exception, match="inside a fence"):
        current()


@pytest.mark.parametrize("key", [None, "", "unknown", " Unknown ", ("shop", None), ()])
def test_calls_without_a_key_are_refused_or_executed_and_never_merged(
    helix, database, name, key, caplog
):
    ran = []

    def act() -> int:
        ran.append(1)
        return len(ran)

    with pytest.raises(InvalidIdentity, match="unknown="):
        helix.fence(name, key=lambda: key)(act)()
    accepted = helix.fence(name, key=lambda: key, unknown="accept")(act)
    with caplog.at_level(logging.WARNING, "helixqueue.fence"):
        assert [accepted(), accepted()] == [1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert counted(helix, name) == {"new": 2, "unknown": 2}
    stored = database.rows("select identity from helix.fence where name = %s", name)
    assert stored == [(None,)] * 2


@pytest.mark.parametrize("key", [1.5, True, object(), ("a", b"b")])
def test_unstable_types_are_refused_as_keys(helix, name, key):
    with pytest.raises(InvalidIdentity, match="strings, integers or UUIDs"):
        helix.fence(name, key=lambda: key)(lambda: None)()


def test_two_unicode_spellings_of_a_key_are_one_fence(helix, name):
    ran = []

    @helix.fence(name, key=lambda sample: sample, payload=lambda _: None)
    def act(sample) -> None:
        ran.append(sample)

    act("Sämple")
    act("Sa\u0308mple")
    assert ran == ["Sämple"]


def test_with_block_is_fenced_and_its_result_kept(helix, name):
    for turn in range(3):
        with helix.fence(name, key=("o1", 2), payload={"cents": 5}, result=Refund) as fence:
            assert fence.first is (turn == 0)
            if fence.first:
                fence.seal(Refund(id=fence.downstream_key, cents=5), effect="re_1")
            else:
                with pytest.raises(Exception, match="the first result stays"):
                    fence.seal(None)
        assert fence.result == Refund(id=fence.downstream_key, cents=5)
        assert (fence.effect, fence.receipt[:3]) == ("re_1", "r2:")


@pytest.mark.parametrize(("option", "near"), [("withn", "within"), ("replayble", "replayable")])
def test_unknown_option_is_refused(helix, name, option, near):
    with pytest.raises(TypeError, match=f"did you mean {near}"):
        helix.fence(name, key="k", **{option: True})


def test_generator_function_is_refused(helix, name):
    def rows():
        yield 1

    with pytest.raises(TypeError, match="generator"):
        helix.fence(name, key="k")(rows)


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [("lease", 0), ("quiet", -1), ("answer", 0), ("tombstone", float("nan")), ("limit", 1e12)],
)
def test_durations_out_of_bounds_are_refused_before_the_effect(clock, seconds):
    with pytest.raises(Refused, match=f"seconds for {clock}"):
        Times(**{clock: seconds})


def test_invalid_effect_id_does_not_prevent_the_seal(helix, name, caplog):
    for turn, effect in enumerate(["x" * 1025, "a\0b", "\ud800"]):
        with helix.fence(name, key=turn) as fence:
            fence.seal("done", effect=effect)
        with helix.fence(name, key=turn) as again:
            assert again.result == "done"
        assert again.effect.startswith("hx1-"), "as if it had named none"
    assert len([record for record in caplog.records if "effect id" in record.message]) == 3


def test_function_decisions_are_logged_with_the_effect_of_the_winning_call(helix, name, caplog):
    def pay(order, cents):
        with helix.fence(name, key=(order, 2), payload=cents, source=("kafka", "pay/41")) as fence:
            if fence.first:
                fence.seal(effect="re_1")

    with caplog.at_level(logging.INFO, "helixqueue.fence"):
        pay("o1", 5)
        pay("o1", 5)
        with pytest.raises(Conflict):
            pay("o1", 6)
    expected = {
        "key": "o1/2", "effect_id": "re_1", "source_type": "kafka", "source_id": "pay/41",
    }  # fmt: skip
    lines = [record.event for record in caplog.records]
    assert [line["decision"] for line in lines] == ["new", "duplicate", "conflict"]
    assert all(line.items() >= expected.items() for line in lines)
    assert counted(helix, name) == {"new": 1, "duplicate": 1, "conflict": 1}


def test_source_of_a_decorated_function_comes_from_its_arguments(helix, name, caplog):
    @helix.fence(name, key=lambda message: message["id"], source=lambda m: ("sqs", m["delivery"]))
    def consume(message: dict[str, str]) -> None: ...

    with caplog.at_level(logging.INFO, "helixqueue.fence"):
        consume({"id": "m1", "delivery": "d1"})
        helix.fence(name, key="m2")(lambda: None)()
    sources = [
        (record.event["source_type"], record.event["source_id"]) for record in caplog.records
    ]
    assert sources == [("sqs", "d1"), ("function", "m2")]
