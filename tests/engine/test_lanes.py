"""Lanes: one tenant's thousand requirements do not slow the claims of the others.

Fifty thousand different requirements of one tenant had made everybody's claims twenty times as
slow. A tenant may have so many lanes in use, and those that nobody uses are skipped.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.records.submission import SubmissionRow
from tests.support.lab import Lab, engine_function

pytestmark = pytest.mark.module_database

LATER = timedelta(hours=1)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


@pytest.fixture
def bound(lab):
    return lab.value("select helix.lane_bound()")


def requiring(*numbers):
    """One submission for each, all with different requirements."""
    return [
        SubmissionRow(f"s{n}", "{}", requires=json.dumps({"labels": {"site": str(n)}}))
        for n in numbers
    ]


def lanes(lab, *, idle=False):
    return lab.value("select count(*) from helix.lane where queue = %s and idle = %s", lab.q, idle)


def age(lab):
    """The lanes of this queue were used two hours ago."""
    with engine_function(lab.database) as execute:
        assert execute(
            "update helix.lane set used_at = clock_timestamp() - interval '2 hours'"
            f" where queue = '{lab.q}'"
        ) is None  # fmt: skip


def no_duty_is_due(lab):
    """A sweep would wake lanes."""
    with engine_function(lab.database) as execute:
        later = "update helix.duty set next_at = clock_timestamp() + interval '1 hour'"
        assert execute(later) is None


def sweep(lab):
    """Let the duty be due, and let a claim from nowhere do it."""
    lab.pass_time()
    lab.claim(1, queues=["nowhere"])


def site(number):
    return {"labels": {"site": str(number)}}


# --- the bound ---------------------------------------------------------------------------------


def test_tenant_may_not_cause_more_lanes_than_the_bound(lab, bound):
    # The queue's own lane is one of them.
    lab.submit_rows(*requiring(*range(1, bound)))
    assert lanes(lab) == bound
    classes = lab.value("select count(*) from helix.requirement_class")
    with pytest.raises(HelixError, match=f"has {bound} different requirements"):
        lab.submit_rows(*requiring("one too many"))
    with pytest.raises(HelixError, match=f"has {bound} different requirements"):
        lab.submit("another priority", priority=0)
    assert lanes(lab) == bound
    assert lab.value("select count(*) from helix.requirement_class") == classes
    # What it has may be used on, and plain work is not hindered.
    again = [row._replace(identity=f"again-{row.identity}") for row in requiring(1, 2, 3)]
    assert [submit_row.decision for submit_row in lab.submit_rows(*again)] == ["new"] * 3
    assert [submitted.decision for submitted in lab.submit("plain")] == ["new"]


def test_one_call_may_not_cause_more_lanes_than_the_bound(lab, bound):
    with pytest.raises(HelixError, match=f"has {bound} different requirements"):
        lab.submit_rows(*requiring(*range(bound + 1)))
    assert lanes(lab) == 1
    assert lab.claim(1) == []


def test_lane_limit_applies_per_tenant(lab, bound):
    lab.submit_rows(*requiring(*range(1, bound)))
    lab.queue(tenant="b")
    answers = lab.submit_rows(*requiring("b1", "b2"), tenant="b")
    assert [answer.decision for answer in answers] == ["new", "new"]
    assert len(lab.claim(5, free=site("b1"))) == 1
    # Lanes that another tenant caused are used without a charge.
    answers = lab.submit_rows(*requiring("b1x"), *requiring("b2"), tenant="b")
    assert lanes(lab) == bound + 3


def test_queue_does_not_get_past_the_bound_by_its_settings(lab, bound):
    lab.submit_rows(*requiring(*range(1, bound)))
    with pytest.raises(HelixError, match=f"has {bound} different requirements"):
        lab.queue(requires=site("another"))


# --- rest --------------------------------------------------------------------------------------


def test_unused_lanes_become_idle_and_others_stay_active(lab):
    lab.submit_rows(*requiring(*range(10)))
    assert len(lab.claim(1, free=site(3))) == 1
    lab.queue(tenant="b", requires=site("of b"))
    assert lanes(lab) == 12
    sweep(lab)
    assert lanes(lab) == 12, "they were used a moment ago"
    age(lab)
    sweep(lab)
    # What has nothing claimable rests: lane 3. The queues' own lanes and those with work do not.
    assert (lanes(lab), lanes(lab, idle=True)) == (11, 1)


def test_idle_lane_comes_back_when_it_is_used(lab):
    lab.submit_rows(*requiring(1))
    lab.complete(*lab.claim(1, free=site(1)))
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    [row] = requiring(1)
    lab.submit_rows(row._replace(identity="again"))
    assert lanes(lab, idle=True) == 0
    assert [lease.identity for lease in lab.claim(1, free=site(1))] == ["again"]


def test_idle_lanes_do_not_count_against_the_limit(lab, bound):
    lab.submit_rows(*requiring(*range(1, bound)))
    ids = lab.rows("select helix.public_id(b.key) from helix.batch b join helix.queue q"
                   " on q.id = b.queue where q.name = %s", lab.q)  # fmt: skip
    lab.decide("cancel", *[batch_id for (batch_id,) in ids])
    age(lab)
    sweep(lab)
    assert lanes(lab) == 1
    answers = lab.submit_rows(*requiring(*range(1000, 1000 + bound - 1)))
    assert {answer.decision for answer in answers} == {"new"}
    with pytest.raises(HelixError, match=f"has {bound} different requirements"):
        lab.submit_rows(*[row._replace(identity="x") for row in requiring(1)])


def test_claims_skip_idle_lanes_and_the_sweep_finds_what_was_left_in_one(lab):
    """A submission may use a lane at the very moment when it is put to rest."""
    lab.submit_rows(*requiring(1))
    with engine_function(lab.database) as execute:
        idle = f"update helix.lane set idle = true where queue = '{lab.q}' and class <> 0"
        assert execute(idle) is None
    no_duty_is_due(lab)
    assert lab.claim(5, free=site(1)) == []
    sweep(lab)
    assert len(lab.claim(5, free=site(1))) == 1
    assert lanes(lab, idle=True) == 0


def rested(lab, **options):
    """A batch in a lane of its own, which became idle while the batch was not claimable."""
    [answer] = lab.submit("s1", requires=json.dumps(site(1)), **options)
    return answer.receipt.batch_id


def released(lab):
    rested(lab)
    [lease] = lab.claim(1, free=site(1))
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    lab.release(lease)


def failed(lab):
    rested(lab)
    [lease] = lab.claim(1, free=site(1))
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    lab.fail(lease)


def lost(lab):
    rested(lab)
    [lease] = lab.claim(1, free=site(1))
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    lab.pass_time(lease.batch)
    assert lab.run(calls.reap(actor="reaper")) == 1


def retried(lab):
    batch_id = rested(lab)
    lab.fail(*lab.claim(1, free=site(1)), permanent=True)
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    lab.decide("retry", batch_id)


def delayed(lab):
    batch_id = rested(lab, run_at=datetime.now(UTC) + LATER)
    age(lab)
    sweep(lab)
    assert lanes(lab, idle=True) == 1
    lab.pass_time(lab.number(batch_id))
    lab.run(calls.promote())


@pytest.mark.parametrize(
    "how", [released, failed, lost, retried, delayed], ids=lambda how: how.__name__
)
def test_work_that_comes_back_into_an_idle_lane_is_claimable_at_once(lab, how):
    """A GPU job of two hours that fails is tried again now, and not after the next sweep."""
    how(lab)
    no_duty_is_due(lab)
    assert [lease.identity for lease in lab.claim(1, free=site(1))] == ["s1"]
