"""Counts and gauges, as Prometheus reads them: few labels, and none that tells of anybody."""

from __future__ import annotations

import re

import pytest

from helixqueue.engine.fences import SweepLag
from helixqueue.errors import Conflict, LeaseLost
from helixqueue.fence import NotApplied
from helixqueue.fence.counters import Counters
from helixqueue.fence.exposition import exposition
from tests.support.fence_looks import fence_of
from tests.support.fence_passing import let_time_pass
from tests.support.fence_shop import KEY, fresh, open_shop, run

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def value(text, metric, **labels):
    """The one sample of these labels; None when there is none."""
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            assert re.match(r"# (HELP|TYPE) helix_fence_\w+ .", line), line
            continue
        told = {
            name: re.sub(r"\\.", lambda found: _ESCAPES[found[0]], shown)
            for name, shown in _LABEL.findall(sample[2])
        }
        if (sample[1], told) == (f"helix_fence_{metric}", labels):
            return float(sample[3])
    return None


def test_functions_are_counted_by_what_they_were_told(helix, database, name):
    @helix.fence(name, key=lambda order, _: order)
    def act(order: str, cents: int) -> int:
        if cents == 0:
            raise TimeoutError
        return cents

    act("o1", 1)
    act("o1", 1)
    with pytest.raises(Conflict):
        act("o1", 2)
    with pytest.raises(TimeoutError):
        act("o2", 0)
    with pytest.raises(NotApplied), helix.fence(name, key="o3"):
        raise NotApplied
    with helix.fence(name, key="o3"):
        pass
    with pytest.raises(LeaseLost), helix.fence(name, key="o4", replayable=True):
        let_time_pass(database, fence_of(database, name, "o4").key, deadline=True)
        with helix.fence(name, key="o4", replayable=True):
            pass
    text = helix.fences.metrics()
    told = {"surface": "function", "fence": name}
    expected = {
        "executed": 6, "repeated": 1, "key-reused": 1, "doubted": 1, "released": 1,
        "fenced-out": 1,
    }  # fmt: skip
    counted = {word: value(text, "decisions_total", **told, decision=word) for word in expected}
    assert counted == expected
    assert value(text, "retaken_total", **told) == 2
    assert value(text, "seconds_count", **told, what="sealed") == 3
    assert value(text, "seconds_sum", **told, what="sealed") > 0
    assert value(text, "open", fence=name, state="IN_DOUBT") == 1
    assert value(text, "open_oldest_seconds", fence=name, state="IN_DOUBT") >= 0
    assert value(text, "housekeeping_lag_seconds", of="leases") is not None


def test_an_application_behind_the_middleware_reads_its_counts(database):
    async def story():
        async with open_shop(database, fresh()) as door:
            await door.post()
            await door.post()
            text = await door.helix.fences.metrics()
            told = {"surface": "http", "fence": door.middleware.policy.routes[0].name}
            for word in ("executed", "repeated"):
                assert value(text, "decisions_total", **told, decision=word) == 1
            assert KEY not in text

    run(story())


def test_any_name_makes_a_label_that_can_be_read():
    counters = Counters()
    odd = 'a "b" \\ c\nd'
    counters.decided("function", odd, "executed")
    text = exposition(counters.snapshot(), [], SweepLag(0, 0, 0))
    labels = {"surface": "function", "fence": odd, "decision": "executed"}
    assert value(text, "decisions_total", **labels) == 1
