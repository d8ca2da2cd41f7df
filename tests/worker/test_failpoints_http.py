"""The failpoint matrix for workers that reach their engine through a service.

The tests are those of test_failpoints.py; the workers have a token and no database. Kills at every
step; the rest where HTTP could make a difference, because test_lost_replies.py cuts every request.
"""

from __future__ import annotations

import pytest

from helixqueue import HelixClient
from helixqueue.failpoints import POINTS
from tests.support.network_cuts import LossyProxy
from tests.support.service import Site, serving, settings_for
from tests.worker.test_failpoints import (  # noqa: F401 - collected here, with the fixtures below
    Victim,
    pytestmark,
    test_connection_cut_at_any_point_is_reopened,
    test_error_at_any_point_costs_at_most_one_attempt,
    test_worker_frozen_past_its_lease_cannot_write_after_it_wakes,
    test_worker_killed_at_any_point_loses_and_doubles_nothing,
)

# Those of transactions beside the engine cannot be reached.
OVER_HTTP = [point for point in POINTS if not point.startswith("effect")]
SOME = ["claim.before", "settle.after", "renew.before", "release.before"]
WHERE = {"kill": OVER_HTTP, "hold": SOME, "stop": SOME, "raise": SOME}


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def helix(site):
    """Also whoever rescues has no database."""
    with HelixClient(site.url, token=site.token()) as client:
        yield client


class FarVictim(Victim):
    way = "return"

    def __init__(self, site, *output):
        self.site = site
        super().__init__(*output)

    def linked(self):
        cutting = LossyProxy(self.site.url)
        cutting.__enter__()
        return cutting, {"HELIX_URL": cutting.url, "HELIX_TOKEN": self.site.token()}


@pytest.fixture
def victims(site, helix, database, tmp_path_factory, request):
    action = request.param
    directory = tmp_path_factory.mktemp("far")
    made = [FarVictim(site, helix, database, directory, point, action) for point in WHERE[action]]
    yield made
    for item in made:
        item.close()
