"""requirements.lock: complete, with hashes, and without the address of any index."""

from __future__ import annotations

import re
import sys

import pytest
from packaging.utils import canonicalize_name

from tests.support.lock import LOCK, demanded, locked

LINE = re.compile(r"[a-z0-9-]+==[\w.+!]+ --hash=sha256:[0-9a-f]{64}")


def test_lock_has_names_versions_and_hashes_only():
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#") and not LINE.fullmatch(line)] == []
    assert "://" not in LOCK.read_text(encoding="utf-8")
    assert len(locked()) > 50


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is for Python 3.11")
def test_every_dependency_is_locked_at_a_version_that_it_permits():
    versions = locked()
    wrong = [
        str(requirement)
        for requirement in demanded()
        if requirement.marker is None or requirement.marker.evaluate()
        if not requirement.specifier.contains(
            versions.get(canonicalize_name(requirement.name), "0"), prereleases=True
        )
    ]
    assert wrong == [], "run `make lock` after a change of dependencies"
