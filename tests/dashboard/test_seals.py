"""Seals on the page Proof: the last one of the service, and one that a person asks for."""

from __future__ import annotations

import re

import pytest

from helixqueue.fence.key_file import create
from helixqueue.operate.seal import SEALS
from tests.dashboard.conftest import sign_in
from tests.support.lab import wait_until
from tests.support.service import Site, serving, settings_for


def _form(person):
    return re.search(r'name="form" value="([0-9a-f]+)"', person.get("/proof").text)[1]


@pytest.mark.usefixtures("lab")
def test_operator_sees_the_last_seal_and_gets_one_that_a_reader_does_not(database, tmp_path):
    keys = tuple(create(tmp_path / "key"))
    place = tmp_path / "seals"
    place.mkdir()
    settings = settings_for(database, keys=keys, seal_to=place, seal_seconds=3600)
    with serving(settings) as url:
        site = Site(database, url)
        with sign_in(site, scopes=("read", "operate", "seal")) as person:
            wait_until(lambda: "seal-000001.json" in person.get("/proof").text)
            assert re.search(r">Sealed \d+ s ago<", person.get("/").text)
            answer = person.post("/proof/seal", data={"form": _form(person)})
            assert "Seal 2" in person.get("/proof").text
        [first] = SEALS.read(place)
        assert SEALS.faults(answer.json(), first, [keys[0].signer]) == []
        assert answer.headers["content-disposition"].startswith("attachment")
        with sign_in(site, scopes=("read", "operate")) as reader:
            assert "Seal now" not in reader.get("/proof").text
            assert reader.post("/proof/seal", data={"form": _form(reader)}).status_code == 403
    assert len(list(place.iterdir())) == 1  # a person cannot fill the directory
