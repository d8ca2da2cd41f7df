"""Schemas are bounded when they are set, and every check against them in time and memory."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.queues.pattern_size import pattern_size
from helixqueue.queues.schema_bounds import MAX_COST, check_bounds, expanded_cost
from helixqueue.schemas import Schema
from helixqueue.schemas.check_process import CPU_SECONDS
from helixqueue.schemas.processes import CheckProcesses

TREE = {
    "$defs": {"node": {"properties": {"children": {"items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
}


def doubled_references(levels):
    definitions = {"d0": {"type": "integer"}}
    for level in range(1, levels):
        reference = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"allOf": [reference, reference]}
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"description": "x" * 70_000}, "bytes"),
        (nested(80), "nested"),
        (doubled_references(25), "steps per value"),
        (doubled_references(60), "deep"),
        ({"allOf": [{"$ref": "#/$defs/a"} for _ in range(501)], "$defs": {"a": {}}}, "500 ref"),
        ({"allOf": [{"pattern": "a"} for _ in range(201)]}, "200 patterns"),
        ({"pattern": r"([\w-]{99}){99}"}, "steps per value"),
        ({"$ref": "https://example.org/schema"}, "#/[$]defs/name"),
        ({"$ref": "#/$defs/missing"}, "#/[$]defs/name"),
        ({"items": {"$id": "https://example.org/inner"}}, "[$]id"),
        ({"$schema": "http://json-schema.org/draft-04/schema"}, "[$]schema"),
    ],
)
def test_schema_beyond_a_bound_is_refused_when_it_is_set(schema, reason):
    with pytest.raises(Refused, match=reason):
        check_bounds(schema)


@pytest.mark.parametrize("schema", [{}, TREE, {"pattern": "^S-[0-9]{1,6}$"}, {"enum": [1, 2]}])
def test_ordinary_schema_is_within_the_bounds(schema):
    check_bounds(schema)
    Schema(schema).check_compiles()


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        ("a{5000}", 5000),
        ("(a{70}){70}", 4970),
        ("a{2}b{3}", 5),
        ("a{2,}", 3),
        (r"\{9\}", 21),
        ("(?i)a", None),
        ("(?x)# [\n(a{99}){99}", None),
        ("[[a]]", None),
    ],
)
def test_size_of_a_pattern_counts_repetitions(pattern, size):
    assert pattern_size(pattern) == size


def test_cost_of_references_is_the_cost_of_their_copies():
    assert expanded_cost(doubled_references(10)) > 2**9
    assert expanded_cost(doubled_references(20)) > MAX_COST
    assert expanded_cost(TREE) is None


ANY_OF = {"anyOf": [{"items": {"type": "integer"}}, {"items": {"type": "null"}}]}


@pytest.mark.parametrize(
    ("schema", "value", "path"),
    [
        ({"items": {"type": "integer"}}, [1, "x", "y"], "/1"),
        (ANY_OF, ["x"] * 100_000, ""),
        ({"properties": {"a": ANY_OF}}, {"a": ["x"]}, "/a"),
        ({"properties": {"a": {"oneOf": [{}, {}]}}}, {"a": 1}, "/a"),
        ({"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "string"}]}, 1, ""),
        ({"not": {"not": {"type": "string"}}}, 1, ""),
        (TREE, {"children": [{"children": 7}, {"children": [{"children": []}]}, 1]}, None),
        ({"properties": {"n": {}}, "unevaluatedProperties": False}, {"m": 1}, ""),
        ({"properties": {"n": {}}, "unevaluatedProperties": False}, {"n": 1}, None),
        ({"anyOf": [{"type": "integer"}], "properties": {"anyOf": {"const": 1}}}, 1, None),
    ],
)
def test_check_reports_the_first_failure(schema, value, path):
    """`path` is None for a value that fits."""
    text = json.dumps(value)
    if path is None:
        Schema(schema).check(text)
        return
    with pytest.raises(InvalidPayload) as refused:
        Schema(schema).check(text)
    assert (refused.value.code, refused.value.path) == ("schema", path)


def test_validation_of_exponential_time_ends_at_its_limit():
    """A recursive schema that applies itself twice, and a value of depth 60."""
    twice = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
    schema = {"properties": {"a": twice}, "required": ["a"]}
    deep = '{"a":' * 60 + "{}" + "}" * 60
    shallow = {"properties": {"a": twice}}
    Schema(shallow).check('{"a": {"a": 1}}')
    began = time.monotonic()
    with pytest.raises(InvalidPayload) as refused:
        Schema(shallow).check(deep)
    assert refused.value.code == "schema-limits"
    assert time.monotonic() - began >= CPU_SECONDS / 2
    with pytest.raises(InvalidPayload):
        Schema(schema).check("{}")


def test_validation_that_needs_much_memory_ends_at_its_limit():
    """References into alternatives keep the errors of all alternatives: a million of them."""
    any_of = [{"items": {"type": "integer"}}, {"items": {"type": "null"}}, {"$ref": "#/anyOf/0"}]
    with pytest.raises(InvalidPayload) as refused:
        Schema({"anyOf": any_of}).check(json.dumps(["x"] * 250_000))
    assert refused.value.code == "schema-limits"


def test_killed_check_process_is_replaced():
    processes = CheckProcesses()
    try:
        assert processes.check("{}", "1") is None
        [process] = processes._idle
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
        assert processes.check("{}", "1") is None
    finally:
        processes.close()


def test_forked_process_starts_its_own_check_processes():
    Schema(TREE).check("{}")
    child = os.fork()
    if child == 0:
        try:
            Schema(TREE).check("{}")
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    Schema(TREE).check("{}")
