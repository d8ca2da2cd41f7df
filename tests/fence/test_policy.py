"""`idempotency.yml`: every field has a default, and all faults are reported with their lines."""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import time

import pytest
from pydantic import ValidationError

from helixqueue.errors import Conflict, NotInstalled, Refused
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.http.problem import problem_of
from helixqueue.fence.http.request import request_text
from helixqueue.fence.policy import OnConflict, Policy, Route
from helixqueue.fence.policy_file import InvalidPolicy, parse_policy, read_policy

MAX_STALL_S = 0.1
FULL = """\
version: 1
require_headers: [Idempotency-Key]
reject_on_body_mismatch: true
stores:
  fence: postgresql
ttl: {webhook_days: 14, api_hours: 72, batch_days: 9, tombstone_days: 60}
logging:
  include_fields: [key, decision, effect_id, source_type, source_id]
on_conflict:
  status: 422
  include_diff: true
  mask: [/card/number]
documentation: https://shop.example/idempotency
routes:
  - path: /webhooks/{provider}
    kind: webhook
    required: false
  - path: /orders/{id}/refunds
    methods: [POST, PUT]
    strict: true
    ignore: [/client_ts]
"""


def test_empty_file_is_the_default_policy():
    assert parse_policy("") == parse_policy("{}") == Policy()


def test_full_file_is_read(tmp_path):
    path = tmp_path / "idempotency.yml"
    path.write_text(FULL)
    policy = read_policy(path)
    assert policy.header == "Idempotency-Key"
    assert (policy.on_conflict.status, policy.on_conflict.include_diff) == (422, "paths")
    webhook, refund = policy.routes
    assert policy.route("POST", "/webhooks/stripe") is webhook
    assert policy.route("PUT", "/orders/7/refunds") is refund
    assert policy.route("POST", "/orders/7/8/refunds") is None
    assert policy.route("GET", "/orders/7/refunds") is None
    assert policy.ttl.times("webhook").answer == 14 * 86_400
    assert policy.ttl.times("api").answer == 72 * 3600
    assert policy.ttl.times("batch").tombstone == 60 * 86_400


def test_tombstone_lasts_at_least_twice_as_long_as_the_answer():
    ttl = parse_policy("ttl: {webhook_days: 100}").ttl
    assert ttl.times("webhook").tombstone == 200 * 86_400


def test_path_matches_literally_except_for_its_parameters():
    policy = parse_policy("routes: [{path: '/a.b/{id}'}]")
    assert policy.route("POST", "/a.b/1")
    assert not policy.route("POST", "/aXb/1")
    assert not policy.route("POST", "/a.b/1/2")
    assert not policy.route("POST", "/a.b/")


@pytest.mark.parametrize(
    "path", ["/{a}", "/x{a}", "/{a}x", "/{a}x{b}", "/{a}{b}", "/x{a}xx{b}x", "/{a}/{b}x", "/x/"]
)
def test_every_path_matches_as_its_regular_expression_says(path):
    policy = Policy(routes=(Route(path=path),))
    expected = re.compile("[^/]+".join(map(re.escape, re.split(r"\{\w+\}", path))))
    for length in range(7):
        for rest in itertools.product("xy/", repeat=length):
            sent = "/" + "".join(rest)
            assert (policy.route("POST", sent) is not None) == bool(expected.fullmatch(sent)), sent


def processor_seconds(act):
    began = time.process_time()
    act()
    return time.process_time() - began


def test_crafted_path_cannot_stall_the_matching_of_a_policy():
    """Any client chooses the path; with several parameters in a segment, a pattern backtracks."""
    policy = Policy(routes=(Route(path="/{a}-{b}-{c}-{d}"),))
    assert processor_seconds(lambda: policy.route("POST", "/" + "-" * 250 + "/x")) < MAX_STALL_S


def test_large_policy_is_matched_within_the_bound():
    paths = [f"/r{number}/{{a}}-{{b}}-{{c}}" for number in range(2_000)]
    policy = Policy(routes=tuple(Route(path=path) for path in paths))
    longest = ["/r1999/" + "-" * 8_000, "/" * 32_000, "/r1/" + "a-" * 8_000 + "/"]
    for path in longest:
        assert processor_seconds(lambda path=path: policy.route("POST", path)) < MAX_STALL_S
    assert policy.route("POST", "/r1999/a-b-c") is policy.routes[1999]


def test_many_ignored_and_masked_members_are_found_within_the_bound():
    names = [f"n{number}" for number in range(3_000)]
    pointers = tuple(f"/{name}" for name in names)
    route = Route(ignore=pointers)
    body = json.dumps(dict.fromkeys(names, 1) | {"kept": {"n1": 2}}).encode()
    read = functools.partial(
        request_text, route, method="POST", path="/x", query=b"", media="application/json",
        encoding="", body=body,
    )  # fmt: skip
    assert processor_seconds(read) < MAX_STALL_S
    assert json.loads(read())["body"] == {"kept": {"n1": 2}}
    rules = OnConflict(include_diff="values", mask=pointers)
    changes = [{"op": "replace", "path": f"/body/{name}/x", "value": 1} for name in names[-100:]]
    conflict, policy = Conflict("x", diff=changes), Policy(on_conflict=rules)
    assert processor_seconds(lambda: problem_of(conflict, policy)) < MAX_STALL_S
    assert {op["value"] for op in problem_of(conflict, policy).more["diff"]} == {"(masked)"}


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        (["/a/b"], {"a": {"c": 2}, "d": 3}),
        (["/a/b", "/a"], {"d": 3}),
        (["/a", "/a/b"], {"d": 3}),
        (["/d/x", "/e"], {"a": {"b": 1, "c": 2}, "d": 3}),
    ],
)
def test_ignored_members_hide_what_is_inside_them(ignore, kept):
    text = request_text(
        Route(ignore=tuple(ignore)), method="POST", path="/x", query=b"", encoding="",
        media="application/json", body=b'{"a": {"b": 1, "c": 2}, "d": 3}',
    )  # fmt: skip
    assert json.loads(text)["body"] == kept


def test_all_faults_are_reported_with_line_expected_and_got():
    text = """\
require_headers: []
reject_on_body_mismatch: false
stores: {fence: mongodb}
ttl:
  api_hours: 1
  webhook_days: a fortnight
  api_hour: 24
on_conflict: {status: 200, mask: [card]}
logging: {include_fields: [key, password]}
routes:
  - path: orders
    methods: [GET]
    required: yes please
  - just a word
  - path: /a
    ignore: [/a]
    only: [/b]
ttl: {}
"""
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(text)
    found = {(fault.line, fault.path): fault for fault in refused.value.faults}
    assert set(found) == {
        (1, "require_headers"),
        (2, "reject_on_body_mismatch"),
        (3, "stores.fence"),
        (5, "ttl.api_hours"),
        (6, "ttl.webhook_days"),
        (7, "ttl.api_hour"),
        (8, "on_conflict.status"),
        (8, "on_conflict.mask[0]"),
        (9, "logging.include_fields[1]"),
        (11, "routes[0].path"),
        (12, "routes[0].methods[0]"),
        (13, "routes[0].required"),
        (14, "routes[1]"),
        (15, "routes[2]"),
        (18, "ttl"),
    }
    assert found[5, "ttl.api_hours"].expected == "a number of hours from 24 to 87600"
    assert found[5, "ttl.api_hours"].got == "1"
    assert "did you mean api_hours?" in found[7, "ttl.api_hour"].expected
    assert "line 6: ttl.webhook_days" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["{", "a: b: c", "a: &a [*a]", "!!python/object:os.system {}", "- 1", "7"]
)
def test_invalid_yaml_is_refused_and_executes_nothing(text):
    with pytest.raises(InvalidPolicy):
        parse_policy(text)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(Refused, match=r"nothing\.yml"):
        read_policy(tmp_path / "nothing.yml")


def test_missing_yaml_parser_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "helixqueue.fence.policy_file")
    monkeypatch.delitem(sys.modules, "helixqueue.yaml_document")
    with pytest.raises(NotInstalled, match=r"helixqueue\[http\]"):
        IdempotencyMiddleware(None, helix=None, policy="idempotency.yml")


def faults_of(text):
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(text)
    return {(fault.line, fault.path): fault for fault in refused.value.faults}


@pytest.mark.parametrize(
    "path", ["/orders/*", "/orders/{id", "/orders/{a:path}", "/a?b", "/*/b", "x"]
)
def test_path_that_would_match_nothing_is_a_fault(path):
    """A rule that fences nothing fails open: the operator believes that the route is fenced."""
    fault = faults_of(f"routes:\n  - path: '{path}'\n")[2, "routes[0].path"]
    assert "{id} is one segment, or * for every path" in fault.expected
    with pytest.raises(ValidationError):
        Route(path=path)


def test_shadowed_and_duplicate_routes_are_faults():
    faults = faults_of("""\
routes:
  - path: /orders/{id}
  - path: /orders/new
  - path: /carts
    methods: [POST]
  - path: /carts
  - path: /carts
    methods: [DELETE]
""")
    assert {place: fault.got for place, fault in faults.items()} == {
        (3, "routes[1]"): "PATCH, POST /orders/new, which /orders/{id} above matches first",
        (6, "routes[3]"): "POST /carts, which /carts above matches first",
    }
    with pytest.raises(ValidationError, match="matches first"):
        Policy(routes=(Route(), Route(path="/orders")))


def test_specific_route_before_a_general_one_is_reachable():
    policy = parse_policy("routes: [{path: /orders/new, kind: batch}, {path: '/orders/{id}'}, {}]")
    kinds = [policy.route("POST", path).kind for path in ("/orders/new", "/orders/7", "/x")]
    assert kinds == ["batch", "api", "api"]


@pytest.mark.parametrize("text", ["routes: []", "routes: [{methods: []}]"])
def test_policy_that_fences_nothing_is_a_fault(text):
    assert [fault.expected for fault in faults_of(text).values()] == ["at least one"]


def test_policy_file_of_another_system_is_mapped_and_explained(caplog):
    """The file of the requirements loads; the store that cannot be chosen is explained."""
    policy = parse_policy("""\
version: 1
require_headers: [Idempotency-Key]
reject_on_body_mismatch: true
stores: {fence: redis}
ttl: {webhook_days: 14, api_hours: 72}
logging:
  include_fields: [idempotency_key, decision, effect_id, source_type, source_id]
on_conflict: {status: 409, include_diff: true}
""")
    assert policy.log_fields == ("key", "decision", "effect_id", "source_type", "source_id")
    [record] = caplog.records
    assert "line 4: stores.fence: redis is read as postgresql" in record.message
    assert "hint=SealedCache" in record.message
