"""Counters and gauges in Prometheus' format, without keys or tenants as labels."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute

from helixqueue.engine.fences import SweepLag
from helixqueue.errors import Conflict, LeaseLost
from helixqueue.fence import NotApplied
from helixqueue.fence.http.application import MAX_SERIES
from helixqueue.fence.metrics import Counters, prometheus_text
from tests.support.fence_reads import fence_of
from tests.support.fence_shop import KEY, fresh, open_shop, run
from tests.support.fence_time import expire

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


def value(text, metric, **labels):
    """The sample with these labels; None when there is none."""
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            assert re.match(r"# (HELP|TYPE) helix_fence_\w+ .", line), line
            continue
        answer = {
            name: re.sub(r"\\.", lambda found: _ESCAPES[found[0]], shown)
            for name, shown in _LABEL.findall(sample[2])
        }
        if (sample[1], answer) == (f"helix_fence_{metric}", labels):
            return float(sample[3])
    return None


def test_function_calls_are_counted_by_decision(helix, database, name):
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
        expire(database, fence_of(database, name, "o4").key, deadline=True)
        with helix.fence(name, key="o4", replayable=True):
            pass
    text = helix.fences.metrics()
    found = {"surface": "function", "fence": name}
    expected = {
        "new": 3, "duplicate": 1, "conflict": 1, "doubted": 1, "released": 1,
        "fenced-out": 1,
    }  # fmt: skip
    counted = {word: value(text, "decisions_total", **found, decision=word) for word in expected}
    assert counted == expected
    assert value(text, "retaken_total", **found) == 2
    assert value(text, "seconds_count", **found, what="sealed") == 3
    assert value(text, "seconds_sum", **found, what="sealed") > 0
    assert value(text, "open", fence=name, state="IN_DOUBT") == 1
    assert value(text, "open_oldest_seconds", fence=name, state="IN_DOUBT") >= 0
    assert value(text, "housekeeping_lag_seconds", of="leases") is not None


def test_http_requests_are_counted_by_decision(database):
    async def story():
        async with open_shop(database, fresh()) as fenced:
            await fenced.post()
            await fenced.post()
            text = await fenced.helix.fences.metrics()
            found = {"surface": "http", "fence": fenced.middleware.policy.routes[0].name}
            for word in ("new", "duplicate"):
                assert value(text, "decisions_total", **found, decision=word) == 1
            assert KEY not in text

    run(story())


def test_endpoints_are_counted_apart_under_a_policy_for_every_path(database):
    async def answer(request):
        return JSONResponse({})

    def routes(paths):
        return [StarletteRoute(path, answer, methods=["POST"]) for path in paths]

    inner = routes(["/notes/{note:int}/edits"])
    many = routes(f"/many/{number}" for number in range(MAX_SERIES))
    app = Starlette(routes=[*routes(["/orders/{order}"]), Mount("/shop", routes=inner), *many])

    async def story():
        sent = {"/orders/7": 2, "/shop/notes/8/edits": 1, f"/many/{MAX_SERIES - 1}": 1, "/no": 1}
        async with open_shop(database, fresh(route={"path": "*"}), app=app) as fenced:
            for path, times in sent.items():
                headers = {"Idempotency-Key": f"{KEY}{path}"}
                for _ in range(times):
                    await fenced.client.post(path, json={}, headers=headers)
            text = await fenced.helix.fences.metrics()
        counted = {"/orders/{order}": 1, "/shop/notes/{note}/edits": 1, "*": 2}
        for path, times in counted.items():
            labels = {"surface": "http", "fence": f"http {path}", "decision": "new"}
            assert value(text, "decisions_total", **labels) == times, path
        assert text.count("helix_fence_decisions_total{") == 4

    run(story())


def test_any_fence_name_is_escaped_as_a_label():
    counters = Counters()
    odd = 'a "b" \\ c\nd'
    counters.count_decision("function", odd, "new")
    text = prometheus_text(counters.snapshot(), [], SweepLag(0, 0, 0))
    labels = {"surface": "function", "fence": odd, "decision": "new"}
    assert value(text, "decisions_total", **labels) == 1
