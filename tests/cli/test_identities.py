"""Refused identities and twins, in Python, over HTTP and on the command line."""

from __future__ import annotations

import json
import os

import pytest

from helixqueue import HelixClient, HelixQueue
from helixqueue.errors import InvalidIdentity
from tests.support.lab import Lab
from tests.support.service import Site, serving, settings_for

pytestmark = pytest.mark.module_database

# Each pair: two identities that people take for one another.
SIZE = 100_000 if os.environ.get("HELIX_PROOF") else 6_000
PAIRS = SIZE // 200  # 1 % of the identities are in pairs
FORMS = {
    "case": lambda n: (f"sample-{n:06}", f"Sample-{n:06}"),
    "width": lambda n: (f"Sample-{n:06}", f"\uff33ample-{n:06}"),  # a full-width S
    "letters": lambda n: (f"Sample-{n:06}", f"S\u0430mple-{n:06}"),  # a Cyrillic a
}


@pytest.fixture(scope="module")
def site(module_database):
    with serving(settings_for(module_database)) as url:
        yield Site(module_database, url)


@pytest.fixture
def clients(module_database, site):
    with (
        HelixQueue(module_database.dsn(), "a") as direct,
        HelixClient(site.url, token=site.token()) as remote,
    ):
        yield direct, remote


def test_refused_identities_are_listed_with_their_bytes(clients, module_database, site, helixq):
    direct, remote = clients
    with Lab(module_database) as lab:
        lab.queue()
    for client, identity in ((direct, "S-1\u200b"), (remote, "S-2\u0007")):
        with pytest.raises(InvalidIdentity):
            client.submit(lab.q, identity=identity, payload={})
    direct.submit(lab.q, identity="good", payload={})
    expected = [b"S-2\x07".hex(), "S-1\u200b".encode().hex()]
    for client in clients:
        rows = client.refused(lab.q)
        assert [row.raw_hex for row in rows] == expected
        assert "U+200B" in rows[1].why
        assert [row.raw_hex for row in client.refused(lab.q, limit=1)] == expected[:1]
    for place in (("--dsn", module_database.dsn()), ("--url", site.url, "--token", site.token())):
        tenant = () if place[0] == "--url" else ("--tenant", "a")
        listed = json.loads(helixq("identity", "refused", lab.q, *place, *tenant, "--json").out)
        assert [row["raw_hex"] for row in listed["rows"]] == expected


def test_other_tenants_see_no_refused_identities(module_database, site):
    with Lab(module_database) as lab:
        lab.queue()
    with HelixQueue(module_database.dsn(), "a") as helix, pytest.raises(InvalidIdentity):
        helix.submit(lab.q, identity="S\u200b", payload={})
    with site.client("read", tenant="b") as http:
        assert http.get(f"/v1/queues/{lab.q}/refused").json()["rows"] == []
        assert http.get(f"/v1/queues/{lab.q}/identities").json()["rows"] == []
    with site.client("submit") as http:
        assert http.get(f"/v1/queues/{lab.q}/refused").status_code == 403


def test_twins_of_many_identities_are_exactly_the_seeded_pairs(clients, module_database):
    """1 % of them are in pairs that look alike: by case, width, or letters of another script."""
    direct, _ = clients
    pairs = [
        form(number * 3 + offset)
        for number in range(PAIRS // 3)
        for offset, form in enumerate(FORMS.values())
    ]
    plain = [f"Sample-{number:06}" for number in range(500_000, 500_000 + SIZE - 2 * len(pairs))]
    identities = [*plain, *(name for pair in pairs for name in pair)]
    assert len(identities) == SIZE
    with Lab(module_database) as lab:
        lab.queue()
        for start in range(0, len(identities), 10_000):
            lab.submit(*identities[start : start + 10_000])
        found = direct.twins(lab.q)
        assert {frozenset(m.text for m in group.members) for group in found} == {
            frozenset(pair) for pair in pairs
        }
        assert len(found) == len(pairs)
        assert {group.kind for group in found} == {"case", "look-alike"}


def test_twins_are_the_same_over_http_and_on_the_command_line(clients, module_database, helixq):
    direct, remote = clients
    with Lab(module_database) as lab:
        lab.queue()
        lab.submit("S-7", "s-7", "other", ("plate", "A1"), ("plate", "a1"))
    assert remote.twins(lab.q) == direct.twins(lab.q)
    place = ("--dsn", module_database.dsn(), "--tenant", "a")
    listed = json.loads(helixq("identity", "twins", lab.q, *place, "--json").out)
    assert listed == {
        "identities": 5,
        "twins": [
            {"kind": "case", "members": ["S-7", "s-7"]},
            {"kind": "case", "members": [["plate", "A1"], ["plate", "a1"]]},
        ],
    }
    shown = helixq("identity", "twins", lab.q, *place).out
    assert "S-7" in shown
