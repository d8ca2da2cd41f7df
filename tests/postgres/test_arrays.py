"""Array literals: PostgreSQL reads back what went in, whatever is inside."""

from __future__ import annotations

import json

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helixqueue.engine.arrays import json_texts, numbers, plain, texts

storable = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@pytest.fixture(scope="module")
def connection(server):
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        yield connection


def read(connection, expression, literal):
    return connection.execute(f"select {expression}", (literal,)).fetchone()[0]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(storable) | st.lists(storable | st.none()))
@example([])
@example([""])
@example(['a"b\\c,{}', "null", "NULL", " ", '","'])
@example([None, ""])
def test_texts_are_read_back_as_they_were(connection, values):
    assert read(connection, "%s::text[]", texts(values)) == values


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(storable.map(json.dumps), min_size=1))
@example(['"\\u001e"', "{}"])
def test_json_texts_are_read_back_as_they_were(connection, values):
    expression = "string_to_array(%s::text, chr(30))"
    assert read(connection, expression, json_texts(values)) == values


def test_no_json_texts_are_an_empty_array(connection):
    assert read(connection, "string_to_array(%s::text, chr(30))", json_texts([])) == []


def test_separator_inside_a_text_does_not_add_an_element():
    assert texts(["a\0b", "c"]) == '{"a\0b","c"}'
    with pytest.raises(ValueError, match="unescaped control character"):
        json_texts(['{"a":1}\x1e{"b":2}', "{}"])


def test_column_of_defaults_is_null():
    assert texts(None) is None
    assert plain(None) is None


def test_numbers_are_read_back_as_they_were(connection):
    values = [0, -1, 2**63 - 1]
    assert read(connection, "%s::bigint[]", numbers(values)) == values
    assert read(connection, "%s::bigint[]", plain([*values, None])) == [*values, None]
