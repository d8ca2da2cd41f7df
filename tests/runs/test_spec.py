"""The file of a run: every field of Falconeri's, extensions, and what is refused."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.runs.duration import seconds
from helixqueue.runs.spec import InvalidRun, InvalidSpec, json_schema, load_spec, memory_gib

EVERY_FIELD = """
{
  "pipeline": {"name": "book_words"},
  "transform": {
    "cmd": ["python3", "/extract_words.py"],
    "image": "somerepo/my_python_nlp",
    "image_pull_policy": "IfNotPresent",
    "env": {"VARNAME": "value"},
    "secrets": [
      {"name": "ssl", "mount_path": "/ssl"},
      {"name": "s3", "key": "AWS_ACCESS_KEY_ID", "env_var": "AWS_ACCESS_KEY_ID", "optional": true}
    ],
    "service_account": "example-service"
  },
  "parallelism_spec": {"constant": 10},
  "resource_requests": {"memory": "500Mi", "cpu": 1.2},
  "datum_tries": 3,
  "job_timeout": "5m",
  "worker_failure_policy": {"maximum_counted_pod_failures": 40},
  "node_selector": {"node_type": "falconeri_worker"},
  "input": {"cross": [
    {"pfs": {"URI": "gs://b/categories/", "repo": "categories", "glob": "/"}},
    {"union": [
      {"atom": {"URI": "s3://b/books/", "repo": "books", "glob": "/*"}},
      {"group": [{"atom": {"URI": "s3://b/more", "repo": "books", "glob": "/*/text/"}}]}
    ]}
  ]},
  "egress": {"URI": "gs://b/words/"}
}
"""


def changed(old, new):
    assert old in EVERY_FIELD
    return EVERY_FIELD.replace(old, new)


def test_every_field_of_falconeri_is_read():
    spec = load_spec(EVERY_FIELD)
    mount, variable = spec.transform.secrets
    assert (mount.mount_path, variable.env_var, variable.optional) == (
        "/ssl",
        "AWS_ACCESS_KEY_ID",
        True,
    )
    assert [atom.glob for atom in spec.input.atoms()] == ["/", "/*", "/*/text/"]
    assert (spec.job_timeout_seconds, spec.datum_tries) == (300, 3)
    assert spec.requires() == {
        "cpu_cores": 1.2,
        "ram_gb": 500 / 1024,
        "labels": {"node_type": "falconeri_worker", "helix_pfs": "yes"},
    }


def test_defaults_are_those_of_falconeri(words):
    del words["datum_tries"]
    spec = load_spec(json.dumps(words))
    assert (spec.datum_tries, spec.job_timeout_seconds) == (1, 3 * 86_400)


def test_extensions_are_read(words):
    words["resource_requests"]["gpu"] = 2
    words["transform"] |= {"stdin": ["a", "b"], "working_dir": "/srv"}
    words |= {"datum_timeout": "2h 30m", "priority": 1, "queue": "gpu", "pfs": False}
    spec = load_spec(json.dumps(words))
    assert spec.requires() == {"cpu_cores": 1.2, "ram_gb": 500 / 1024, "gpus": 2}
    assert spec.datum_timeout_seconds == 9_000
    assert (spec.transform.stdin, spec.transform.working_dir) == (("a", "b"), "/srv")


WRITTEN = {
    "json": EVERY_FIELD,
    "tabs": EVERY_FIELD.replace("  ", "\t"),
    "yaml": yaml.safe_dump(json.loads(EVERY_FIELD)),
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN.keys())
def test_spec_as_received_and_as_run_load_to_the_same(text):
    spec = load_spec(text)
    again = load_spec(spec.as_run())
    assert again == spec == load_spec(EVERY_FIELD)
    assert again.as_run() == spec.as_run()


REFUSED = [
    ('"image"', '"imge"', "line 6: transform.imge: expected one of .*did you mean image"),
    ('"URI": "s3://b/books/"', '"uri": "s3://b/books/"', "union.0..atom.uri: .*did you mean URI"),
    ('"datum_tries"', '"datum_try"', "did you mean datum_tries"),
    ('"datum_tries": 3', '"datum_tries": 0', "datum_tries: expected greater"),
    ('"datum_tries": 3', '"datum_tries": true', "datum_tries: expected"),
    ('"5m"', '"0s"', "job_timeout: expected a duration above zero"),
    ('"5m"', '"5 minuets"', "job_timeout: expected a duration above zero"),
    ('"5m"', "1.5", "job_timeout: expected a duration above zero"),
    ('"/*"', '"/*.txt"', "atom.glob: expected one of"),
    ('"/*"', '"/*/../x"', "atom.glob: expected one of"),
    ('"repo": "categories"', '"repo": "out"', "pfs.repo: expected a name"),
    ('"gs://b/words/"', '"/words"', "egress.URI: expected a URI"),
    ('"gs://b/words/"', '"gs://b/../words/"', "egress.URI: expected a URI"),
    ('"500Mi"', '"lots"', "memory: expected an amount of memory"),
    ('"/ssl"', '"/ssl", "key": "k"', r"secrets\[0\]: expected either mount_path, or key and"),
    ('"VARNAME"', '"HELIX_BATCH"', "expected the name of a variable"),
    ('["python3", "/extract_words.py"]', "[]", "transform.cmd: expected at least one"),
    ('{"union": [', '{"atom": {"URI": "s3://b/x", "repo": "x", "glob": "/"}, "union": [',
     r"cross\[1\]: expected exactly one of atom, pfs"),
    ('"datum_tries": 3,', '"datum_tries": 3, "datum_tries": 4,', "each name once"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED)
def test_fault_is_refused_with_its_place(old, new, message):
    with pytest.raises(InvalidRun, match=message):
        load_spec(changed(old, new))


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{", "a: &a [*a]", "[" * 5_000, '{"a":' * 50_000, "x: !!python/object:os.system 1",
     r'"\ud800"', "\x00", "a: b: c"],
)  # fmt: skip
def test_text_that_is_no_spec_is_refused(text):
    with pytest.raises(InvalidRun):
        load_spec(text)


def test_all_faults_of_a_spec_are_listed():
    text = changed('"5m"', '"never"').replace('"/*/text/"', '"text"')
    with pytest.raises(InvalidSpec) as raised:
        load_spec(text)
    assert [fault.path for fault in raised.value.faults] == [
        "job_timeout", "input.cross[1].union[1].group[0].atom.glob",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "length"),
    [("5m", 300), ("2h 30m", 9_000), ("1M", 30.44 * 86_400), ("1y", 365.25 * 86_400),
     ("3d", 259_200),
     ("2weeks", 1_209_600), ("1min30sec", 90), ("500ms", 0.5), ("1h 1us", 3_600.000001)],
)  # fmt: skip
def test_duration_has_the_units_of_humantime(text, length):
    assert seconds(text) == pytest.approx(length)


def test_number_of_seconds_is_a_duration(words):
    spec = load_spec(json.dumps(words | {"job_timeout": 90}))
    assert spec.job_timeout_seconds == 90
    assert load_spec(spec.as_run()) == spec


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text):
    try:
        assert seconds(text) > 0
    except ValueError:
        return


@pytest.mark.parametrize(
    ("text", "gib"), [("1Gi", 1), ("512Mi", 0.5), ("1073741824", 1), ("1.5Gi", 1.5)]
)
def test_memory_is_read_as_by_kubernetes(text, gib):
    assert memory_gib(text) == gib


def test_json_schema_names_every_field_of_a_spec():
    text = json.dumps(json_schema())

    def names(value):
        if isinstance(value, dict):
            for name, member in value.items():
                yield name
                if name not in {"env", "node_selector"}:
                    yield from names(member)
        elif isinstance(value, list):
            for member in value:
                yield from names(member)

    assert {name for name in names(json.loads(EVERY_FIELD)) if f'"{name}":' not in text} == set()
