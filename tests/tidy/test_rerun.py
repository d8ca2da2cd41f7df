"""The second run of failed tests runs each of them, also those of a group."""

from __future__ import annotations

import json

from tests.support.rerun import failed_ids


def test_group_of_a_failed_test_is_not_part_of_its_id():
    failed = {
        "tests/up/test_up.py::test_up@up": True,
        "tests/worker/test_failpoints.py::test_kill[kill]@client outages": True,
        "tests/identity/test_keys.py::test_name[a@b]": True,
    }
    assert failed_ids(json.dumps(failed)) == [
        "tests/identity/test_keys.py::test_name[a@b]",
        "tests/up/test_up.py::test_up",
        "tests/worker/test_failpoints.py::test_kill[kill]",
    ]
