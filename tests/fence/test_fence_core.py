"""G8 and G7 in the database itself: one holder, and a fingerprint in every state."""

from __future__ import annotations

import itertools
import threading

import psycopg
import pytest

from helixqueue.engine import calls, fences
from helixqueue.engine.fences import FenceLease
from helixqueue.errors import NotPermitted, Refused
from helixqueue.records.lease import Token
from helixqueue.states import FENCE_ARROWS, FenceState
from tests.support.fence_desk import TIMES, Desk


def test_the_words_and_arrows_are_the_same(database):
    arrows = database.rows("select from_state::text, to_state::text from helix.fence_arrow")
    assert {(a and FenceState(a), FenceState(b)) for a, b in arrows} == FENCE_ARROWS
    assert len(arrows) == len(FENCE_ARROWS)


def test_the_first_executes_and_the_second_gets_its_answer(desk):
    held = desk.hold()
    sealed = desk.seal(held, b'{"id":1}', effect="refund-1")
    again = desk.claim()
    assert (again.decision, again.answer, again.effect) == ("repeated", b'{"id":1}', "refund-1")
    assert again.receipt == sealed.receipt
    assert desk.story(held) == ["claimed", "sealed", "repeated"]


def test_a_hundred_claims_at_once_find_one_holder(database, desk):
    """The primary key lets one in, whoever races."""
    barrier = threading.Barrier(20)
    told = []

    def race(identity):
        with Desk(database) as other:
            other.name = desk.name
            barrier.wait()
            told.extend(other.claim(identity).decision for _ in range(5))

    threads = [threading.Thread(target=race, args=("k",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(told)) == ["granted", "in_progress"]
    assert told.count("granted") == 1
    assert len(told) == 100


def test_a_claim_whose_answer_was_lost_finds_itself_again(desk):
    first = desk.claim()
    again = desk.claim(nonce=desk.nonce)
    assert (again.decision, again.number) == ("granted", first.number)
    assert desk.claim().decision == "in_progress"


def test_a_seal_whose_answer_was_lost_is_answered_as_the_first(desk):
    held = desk.hold()
    assert desk.seal(held) == desk.seal(held)
    assert desk.seal(held, b"8").decision == "fenced_out"


@pytest.mark.parametrize("state", list(FenceState))
def test_the_same_key_with_another_body_is_refused_in_every_state_of_a_fence(desk, state):
    held = desk.hold(start=state is not FenceState.CLAIMED)
    if state is FenceState.SEALED:
        desk.seal(held)
    if state is FenceState.RELEASED:
        desk.run(fences.release(held, TIMES, actor="w1", detail="nothing happened"))
    if state is FenceState.IN_DOUBT:
        desk.run(fences.doubt(held, actor="w1", detail="boom"))
    for _ in range(2):
        told = desk.claim(request='{"amount":6}')
        assert (told.decision, told.request) == ("mismatch", '{"amount":5}')
        # The same holds when the lease ran out: the first attempt is untouched.
        desk.pass_time(held, deadline=True)
    assert desk.state(held) is state


def test_the_marker_can_come_later_than_the_claim(desk):
    held = desk.hold(start=False)
    assert desk.run(fences.start(held, actor="w1")).state is FenceState.EFFECT_STARTED
    assert desk.run(fences.start(held, actor="w1")).decision == "done"
    assert desk.seal(held).decision == "sealed"
    assert desk.story(held) == ["claimed", "started", "sealed"]


def test_a_late_seal_of_a_fence_that_nobody_else_was_given_is_accepted(desk):
    """The token decides, not the deadline: nobody knows better than the holder."""
    held = desk.hold()
    desk.pass_time(held, deadline=True)
    assert desk.claim().decision == "in_doubt"
    assert desk.seal(held).decision == "sealed"


def test_a_zombies_seal_is_refused_and_kept_as_evidence(database, desk):
    zombie = desk.hold()
    desk.pass_time(zombie, deadline=True)
    owner = desk.hold(replayable=True, actor="w2")
    told = desk.seal(zombie, b'"from the grave"')
    assert (told.decision, told.holder) == ("fenced_out", "w2")
    assert desk.seal(owner, b'"right"').decision == "sealed"
    assert desk.seal(zombie, b'"from the grave"').decision == "fenced_out"
    assert desk.claim().answer == b'"right"'
    kept = database.rows(
        "select evidence from helix.fence_decision where kind = 'fenced_out' and name = %s",
        desk.name,
    )
    assert kept == [(b'"from the grave"',)] * 2


def test_every_part_of_a_fences_token_is_compared(desk):
    held = desk.hold()
    epoch, nonce, number = held.token
    for wrong in (
        (epoch + 1, nonce, number),
        (epoch, nonce + 1, number),
        (epoch, nonce, number + 1),
    ):
        stranger = FenceLease(held.key, Token(*wrong))
        assert desk.seal(stranger).decision == "fenced_out"
        assert desk.run(fences.renew([stranger])) == [held.key]
        assert desk.run(fences.doubt(stranger, actor="x", detail="x")).decision == "fenced_out"
    assert desk.run(fences.renew([held])) == []


def test_a_rollback_erases_the_fence_with_the_effect(desk):
    with desk.store.connection.transaction(force_rollback=True):
        held = desk.hold(start=False, alone=False)
        desk.seal(held)
    assert desk.run(fences.find_fence(held.key)) is None
    assert desk.claim().decision == "granted"


def test_a_transaction_that_holds_the_key_answers_in_progress_without_waiting(database, desk):
    with desk.store.connection.transaction(), Desk(database) as other:
        held = desk.hold(start=False, alone=False)
        told = other.claim(name=desk.name)
        assert (told.decision, told.retry_after) == ("in_progress", 1)
        desk.seal(held)
        assert other.claim(name=desk.name).decision == "in_progress"
    with Desk(database) as other:
        assert other.claim(name=desk.name).decision == "repeated"


def test_one_key_of_two_tenants_is_two_fences(database, desk):
    with Desk(database, "app_b", "b") as b:
        b.name = desk.name
        assert desk.seal(desk.hold(), b'"of a"').decision == "sealed"
        assert b.claim(request='{"other":1}').decision == "granted"
        with pytest.raises(NotPermitted):
            b.claim(tenant="a")


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_two_fences_never_have_one_life(database, desk, tenant):
    """Of tokens set back by hand: the step of one would pass for a step of the other."""
    first = desk.hold()
    with database.connect("helix_bootstrap") as connection, Desk(database, tenant=tenant) as other:
        [(last,)] = connection.execute("select last_value from helix.fence_number").fetchall()
        connection.execute("select setval('helix.fence_number', %s, false)", (first.token.number,))
        try:
            with pytest.raises(Refused, match="fence"):
                other.claim("another")
        finally:
            connection.execute("select setval('helix.fence_number', %s)", (last,))
    assert desk.story(first) == ["claimed"]


def test_rotating_the_secret_makes_no_repeat_a_mismatch(database, desk):
    held = desk.hold()
    desk.seal(held)
    with Desk(database, "operator") as operator:
        operator.run(calls.rotate_secret())
    assert desk.claim().decision == "repeated"
    assert desk.claim(request="{}").decision == "mismatch"
    assert desk.claim("new").decision == "granted"
    assert desk.claim("new").decision == "in_progress"


def test_calls_without_a_key_are_stored_and_never_merged(database, desk):
    first, second = desk.claim(None), desk.claim(None)
    assert (first.decision, second.decision) == ("granted", "granted")
    assert first.key != second.key
    kinds = database.rows("select kind from helix.fence_decision where name = %s", desk.name)
    assert kinds == [("unknown",)] * 2


def test_a_repeat_of_its_own_does_not_wait_for_the_disk_and_a_step_does(desk):
    """Seen by the setting that the statement leaves for its own commit."""
    connection = desk.store.connection
    held = desk.hold()
    with connection.transaction():
        desk.seal(held)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
    with connection.transaction():
        assert desk.claim(alone=False).decision == "repeated"
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        assert desk.claim(alone=True).decision == "repeated"
        assert connection.execute("show synchronous_commit").fetchone() == ("off",)
    assert connection.execute("show synchronous_commit").fetchone() == ("on",)


# What an engine function could do if it were wrong.
MOVE = """
create or replace function helix.test_move_fence(
  p_key bytea, p_to helix.fence_state, p_steps integer
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  update helix.fence f
  set state = p_to, version = f.version + p_steps, nonce = coalesce(f.nonce, 1),
      digest = case when p_to = 'SEALED' then sha256('x') end,
      sealed_at = case when p_to = 'SEALED' then now() end,
      until = case when p_to in ('SEALED', 'RELEASED') then now() end
  where f.key = p_key;
end
$$;
alter function helix.test_move_fence owner to helix_engine;
"""


@pytest.mark.parametrize("before", list(FenceState))
def test_no_function_takes_an_arrow_that_a_fence_does_not_have(database, desk, before):
    held = desk.hold(start=before is not FenceState.CLAIMED)
    if before is FenceState.SEALED:
        desk.seal(held)
    elif before in {FenceState.RELEASED, FenceState.IN_DOUBT}:
        to = fences.release(held, TIMES, actor="w", detail="x") if before == "RELEASED" else (
            fences.doubt(held, actor="w", detail="x")
        )  # fmt: skip
        desk.run(to)
    refused = 0
    with database.connect("helix_bootstrap") as connection:
        connection.execute(MOVE.encode())
        for after, steps in itertools.product(FenceState, (-1, 0, 1, 2)):
            if (before, after) in FENCE_ARROWS and steps == 1:
                continue
            if before == after and steps == 0:
                continue  # nothing changes: what a renewal does
            with pytest.raises(psycopg.Error) as error:
                connection.execute(
                    "select helix.test_move_fence(%s, %s, %s)", (held.key, after, steps)
                )
            assert error.value.sqlstate == "QH001", (before, after, steps)
            refused += 1
        connection.execute("drop function helix.test_move_fence")
    assert refused > 10
    assert desk.state(held) is before


def test_gauges_count_fences_by_state_and_age(desk):
    desk.seal(desk.hold("done"))
    desk.hold("going")
    desk.run(fences.doubt(desk.hold("doubted"), actor="w", detail="x"))
    found = {c.state: c.number for c in desk.run(fences.count_open()) if c.name == desk.name}
    assert found == {FenceState.EFFECT_STARTED: 1, FenceState.IN_DOUBT: 1}


def test_identities_that_are_not_in_their_one_spelling_are_refused(desk):
    with pytest.raises(Refused):
        desk.claim("Sa\u0308mple")


def test_large_requests_are_refused_before_anything_is_written(desk):
    with pytest.raises(Refused, match="at most 1048576 bytes"):
        desk.claim(request='"' + "x" * 1_048_576 + '"')


def test_a_mismatch_is_told_while_another_claim_of_the_key_is_under_way(database, desk):
    """Whoever holds the key's lock at this moment: what it stands for does not change."""
    desk.hold()
    with desk.store.connection.transaction(), Desk(database) as other:
        assert desk.claim(alone=False).decision == "in_progress"
        for request, told in (('{"amount":6}', "mismatch"), ('{"amount":5}', "in_progress")):
            assert other.claim(name=desk.name, request=request).decision == told
