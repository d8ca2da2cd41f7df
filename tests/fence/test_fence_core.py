"""G8 and G7 in the database: one holder, and the fingerprint in every state."""

from __future__ import annotations

import itertools
import threading

import psycopg
import pytest

from helixqueue.engine import calls, fences
from helixqueue.engine.fences import FenceLease
from helixqueue.errors import NotPermitted, Refused
from helixqueue.records.fence import FencePreview
from helixqueue.records.lease import Token
from helixqueue.states import FENCE_ARROWS, FENCE_CORRECTIONS, FenceState
from tests.support.fence_caller import TIMES, FenceCaller
from tests.support.lab import end_minute


def test_states_and_arrows_are_equal_in_python_and_sql(database):
    for correction, arrows in ((False, FENCE_ARROWS), (True, FENCE_CORRECTIONS)):
        rows = database.rows(
            "select from_state::text, to_state::text from helix.fence_arrow where correction = %s",
            correction,
        )
        assert {(a and FenceState(a), FenceState(b)) for a, b in rows} == arrows
        assert len(rows) == len(arrows)


def test_first_claim_executes_and_second_gets_its_answer(caller):
    held = caller.hold()
    sealed = caller.seal(held, b'{"id":1}', effect="refund-1")
    again = caller.claim()
    assert (again.decision, again.answer, again.effect) == ("repeated", b'{"id":1}', "refund-1")
    assert again.receipt == sealed.receipt
    assert caller.story(held) == ["claimed", "sealed", "repeated"]


def test_hundred_concurrent_claims_have_one_holder(database, caller):
    """The primary key lets one in, whoever races."""
    barrier = threading.Barrier(20)
    found = []

    def race(identity):
        with FenceCaller(database) as other:
            other.name = caller.name
            barrier.wait()
            found.extend(other.claim(identity).decision for _ in range(5))

    threads = [threading.Thread(target=race, args=("k",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == ["granted", "in_progress"]
    assert found.count("granted") == 1
    assert len(found) == 100


def test_repeated_claim_after_a_lost_reply_gets_the_same_lease(caller):
    first = caller.claim()
    again = caller.claim(nonce=caller.nonce)
    assert (again.decision, again.number) == ("granted", first.number)
    assert caller.claim().decision == "in_progress"


def test_repeated_seal_after_a_lost_reply_gets_the_same_reply(caller):
    held = caller.hold()
    assert caller.seal(held) == caller.seal(held)
    assert caller.seal(held, b"8").decision == "fenced_out"


@pytest.mark.parametrize("state", sorted(set(FenceState) - {FenceState.RELEASED}))
def test_same_key_with_another_body_is_refused_in_every_state_but_released(caller, state):
    held = caller.hold(start=state is not FenceState.CLAIMED)
    if state is FenceState.SEALED:
        caller.seal(held)
    if state is FenceState.IN_DOUBT:
        caller.run(fences.doubt(held, actor="w1", detail="boom"))
    for _ in range(2):
        claimed = caller.claim(request='{"amount":6}')
        assert (claimed.decision, claimed.request) == ("mismatch", '{"amount":5}')
        # The same holds when the lease ran out: the first attempt is untouched.
        caller.expire(held, deadline=True)
    assert caller.state(held) is state


def test_corrected_request_after_a_release_takes_the_key(database, caller):
    """The first request was refused before any effect: its client corrects it and tries again."""
    lease = caller.hold()
    caller.run(fences.release(lease, TIMES, actor="w1", detail="invalid"))
    corrected = caller.hold(request='{"amount":6}')
    assert caller.claim(request='{"amount":5}').request == '{"amount":6}'
    caller.seal(corrected)
    assert caller.claim(request='{"amount":5}').decision == "mismatch"
    assert caller.claim(request='{"amount":6}').decision == "repeated"
    history = caller.run(fences.fence_history(lease.key))
    assert "a corrected request takes the released key" in [event.detail for event in history]
    assert caller.seal(lease).decision == "fenced_out"


def test_same_request_after_a_release_is_no_correction(caller):
    caller.run(fences.release(caller.hold(), TIMES, actor="w1", detail="invalid"))
    lease = caller.hold()
    details = [event.detail for event in caller.run(fences.fence_history(lease.key))]
    assert details == [None, "invalid", None]


def test_preview_of_a_corrected_request_after_a_release_is_granted(caller):
    caller.run(fences.release(caller.hold(), TIMES, actor="w1", detail="invalid"))
    call = FencePreview(caller.name, "k1", '{"amount":6}')
    [(_, decision)] = caller.run(fences.preview(tenant="a", calls=[call]))
    assert decision == "granted"


def test_marker_can_follow_the_claim(caller):
    held = caller.hold(start=False)
    assert caller.run(fences.start(held, actor="w1")).state is FenceState.EFFECT_STARTED
    assert caller.run(fences.start(held, actor="w1")).decision == "done"
    assert caller.seal(held).decision == "sealed"
    assert caller.story(held) == ["claimed", "started", "sealed"]


def test_late_seal_is_accepted_while_the_fence_has_no_other_holder(caller):
    """The token decides, not the deadline: nobody knows better than the holder."""
    held = caller.hold()
    caller.expire(held, deadline=True)
    assert caller.claim().decision == "in_doubt"
    assert caller.seal(held).decision == "sealed"


def test_seal_of_a_replaced_holder_is_refused_and_kept_as_evidence(database, caller):
    zombie = caller.hold()
    caller.expire(zombie, deadline=True)
    owner = caller.hold(replayable=True, actor="w2")
    answer = caller.seal(zombie, b'"from the grave"')
    assert (answer.decision, answer.holder) == ("fenced_out", "w2")
    assert caller.seal(owner, b'"right"').decision == "sealed"
    assert caller.seal(zombie, b'"from the grave"').decision == "fenced_out"
    assert caller.claim().answer == b'"right"'
    end_minute(database)
    kept = database.rows(
        "select evidence, sum(times) from helix.fence_decision where kind = 'fenced_out'"
        " and name = %s group by 1",
        caller.name,
    )
    assert kept == [(b'"from the grave"', 2)]


def test_every_part_of_the_fence_token_is_compared(caller):
    held = caller.hold()
    epoch, nonce, number = held.token
    for wrong in (
        (epoch + 1, nonce, number),
        (epoch, nonce + 1, number),
        (epoch, nonce, number + 1),
    ):
        stranger = FenceLease(held.key, Token(*wrong))
        assert caller.seal(stranger).decision == "fenced_out"
        assert caller.run(fences.renew([stranger])) == [held.key]
        assert caller.run(fences.doubt(stranger, actor="x", detail="x")).decision == "fenced_out"
    assert caller.run(fences.renew([held])) == []


def test_rollback_erases_the_fence_with_the_effect(caller):
    with caller.store.connection.transaction(force_rollback=True):
        held = caller.hold(start=False, alone=False)
        caller.seal(held)
    assert caller.run(fences.find_fence(held.key)) is None
    assert caller.claim().decision == "granted"


def test_uncommitted_claim_answers_in_progress_without_waiting(database, caller):
    with caller.store.connection.transaction(), FenceCaller(database) as other:
        held = caller.hold(start=False, alone=False)
        claimed = other.claim(name=caller.name)
        assert (claimed.decision, claimed.retry_after) == ("in_progress", 1)
        caller.seal(held)
        assert other.claim(name=caller.name).decision == "in_progress"
    with FenceCaller(database) as other:
        assert other.claim(name=caller.name).decision == "repeated"


def test_same_key_of_two_tenants_is_two_fences(database, caller):
    with FenceCaller(database, "app_b", "b") as b:
        b.name = caller.name
        assert caller.seal(caller.hold(), b'"of a"').decision == "sealed"
        assert b.claim(request='{"other":1}').decision == "granted"
        with pytest.raises(NotPermitted):
            b.claim(tenant="a")


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_two_fences_never_share_a_life(database, caller, tenant):
    """Of tokens set back by hand: the step of one would pass for a step of the other."""
    first = caller.hold()
    with (
        database.connect("helix_bootstrap") as connection,
        FenceCaller(database, tenant=tenant) as other,
    ):
        [(last,)] = connection.execute("select last_value from helix.fence_number").fetchall()
        connection.execute("select setval('helix.fence_number', %s, false)", (first.token.number,))
        try:
            with pytest.raises(Refused, match="fence"):
                other.claim("another")
        finally:
            connection.execute("select setval('helix.fence_number', %s)", (last,))
    assert caller.story(first) == ["claimed"]


def test_secret_rotation_causes_no_mismatch(database, caller):
    held = caller.hold()
    caller.seal(held)
    with FenceCaller(database, "operator") as operator:
        operator.run(calls.rotate_secret())
    assert caller.claim().decision == "repeated"
    assert caller.claim(request="{}").decision == "mismatch"
    assert caller.claim("new").decision == "granted"
    assert caller.claim("new").decision == "in_progress"


def test_calls_without_a_key_are_stored_and_never_merged(database, caller):
    first, second = caller.claim(None), caller.claim(None)
    assert (first.decision, second.decision) == ("granted", "granted")
    assert first.key != second.key
    end_minute(database)
    kinds = database.rows("select kind from helix.fence_decision where name = %s", caller.name)
    assert kinds == [("unknown",)] * 2


def test_repeat_does_not_wait_for_the_disk_but_a_step_does(caller):
    """Seen by the setting that the statement leaves for its own commit."""
    connection = caller.store.connection
    held = caller.hold()
    with connection.transaction():
        caller.seal(held)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
    with connection.transaction():
        assert caller.claim(alone=False).decision == "repeated"
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        assert caller.claim(alone=True).decision == "repeated"
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
      until = case when p_to in ('SEALED', 'RELEASED') then now() end,
      request = case when p_to <> 'RELEASED' then f.request end
  where f.key = p_key;
end
$$;
alter function helix.test_move_fence owner to helix_engine;
"""


@pytest.mark.parametrize("before", list(FenceState))
def test_illegal_fence_arrow_is_refused(database, caller, before):
    held = caller.hold(start=before is not FenceState.CLAIMED)
    if before is FenceState.SEALED:
        caller.seal(held)
    elif before in {FenceState.RELEASED, FenceState.IN_DOUBT}:
        to = fences.release(held, TIMES, actor="w", detail="x") if before == "RELEASED" else (
            fences.doubt(held, actor="w", detail="x")
        )  # fmt: skip
        caller.run(to)
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
    assert caller.state(held) is before


def test_gauges_count_fences_by_state_and_age(caller):
    caller.seal(caller.hold("done"))
    caller.hold("going")
    caller.run(fences.doubt(caller.hold("doubted"), actor="w", detail="x"))
    found = {c.state: c.number for c in caller.run(fences.count_open()) if c.name == caller.name}
    assert found == {FenceState.EFFECT_STARTED: 1, FenceState.IN_DOUBT: 1}


def test_non_canonical_identity_is_refused(caller):
    with pytest.raises(Refused):
        caller.claim("Sa\u0308mple")


def test_oversized_request_is_refused_before_anything_is_written(caller):
    with pytest.raises(Refused, match="at most 1048576 bytes"):
        caller.claim(request='"' + "x" * 1_048_576 + '"')


def test_mismatch_is_reported_while_another_claim_is_uncommitted(database, caller):
    """Whoever holds the key's lock at this moment: what it stands for does not change."""
    caller.hold()
    with caller.store.connection.transaction(), FenceCaller(database) as other:
        assert caller.claim(alone=False).decision == "in_progress"
        for request, answer in (('{"amount":6}', "mismatch"), ('{"amount":5}', "in_progress")):
            assert other.claim(name=caller.name, request=request).decision == answer
