"""`idempotency.yml`: everything has a default, and every fault is told at once with its place."""

from __future__ import annotations

import sys

import pytest

from helixqueue.errors import NotInstalled, Refused
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.policy import Policy
from helixqueue.fence.policy_file import InvalidPolicy, parse_policy, read_policy

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


def test_an_empty_file_is_a_policy():
    assert parse_policy("") == parse_policy("{}") == Policy()


def test_a_full_file_says_what_it_says(tmp_path):
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


def test_a_key_outlives_its_answer_at_least_twice():
    ttl = parse_policy("ttl: {webhook_days: 100}").ttl
    assert ttl.times("webhook").tombstone == 200 * 86_400


def test_a_path_is_taken_literally_but_for_its_parameters():
    route = parse_policy("routes: [{path: '/a.b/{id}'}]").routes[0]
    assert route.fits("POST", "/a.b/1")
    assert not route.fits("POST", "/aXb/1")
    assert not route.fits("POST", "/a.b/1/2")
    assert not route.fits("POST", "/a.b/")


def test_every_fault_is_told_at_once_with_line_expected_and_got():
    text = """\
require_headers: []
reject_on_body_mismatch: false
stores: {fence: redis}
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
    ignore: [/a]
    only: [/b]
  - just a word
ttl: {}
"""
    with pytest.raises(InvalidPolicy) as refused:
        parse_policy(text)
    told = {(fault.line, fault.path): fault for fault in refused.value.faults}
    assert set(told) == {
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
        (11, "routes[0]"),
        (16, "routes[1]"),
        (17, "ttl"),
    }
    assert told[5, "ttl.api_hours"].expected == "a number of hours from 24 to 87600"
    assert told[5, "ttl.api_hours"].got == "1"
    assert "did you mean api_hours?" in told[7, "ttl.api_hour"].expected
    assert "line 6: ttl.webhook_days" in str(refused.value)


@pytest.mark.parametrize("text", ["{", "a: b: c", "!!python/object:os.system {}", "- 1", "7"])
def test_what_is_no_policy_is_refused_and_nothing_in_it_runs(text):
    with pytest.raises(InvalidPolicy):
        parse_policy(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Refused, match=r"nothing\.yml"):
        read_policy(tmp_path / "nothing.yml")


def test_without_a_reader_of_yaml_the_middleware_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "helixqueue.fence.policy_file")
    with pytest.raises(NotInstalled, match=r"helixqueue\[http\]"):
        IdempotencyMiddleware(None, helix=None, policy="idempotency.yml")
