"""A worker serves the tenant it was given; several tenants are an explicit option."""

from __future__ import annotations

import itertools
import uuid

import pytest

from helixqueue import HelixClient, HelixQueue, Lease, NotPermitted, Queue, Refused
from helixqueue.client.backend import backend_of
from helixqueue.engine import calls
from helixqueue.worker.options import WorkerOptions
from tests.support.cli import Helixq

pytestmark = pytest.mark.module_database
_numbers = itertools.count(1)


@pytest.fixture
def queue():
    declared = Queue(f"shared{next(_numbers)}")

    @declared.handler
    def run(lease: Lease):
        return {"tenant": lease.tenant}

    return declared


@pytest.fixture
def tenants(database, queue):
    """Clients of two tenants over one login for all, each with a backlog in the same queue."""
    with (
        HelixQueue(database.dsn("pool"), tenant="a") as first,
        HelixQueue(database.dsn("pool"), tenant="b") as second,
    ):
        for helix in (second, first):  # the batches of `b` come first
            helix.submit_many(queue, [{"identity": f"s-{n}", "payload": {}} for n in range(3)])
        yield first, second


def states(helix, queue):
    return sorted(batch.state for batch in helix.batches(queue=queue))


def test_worker_of_one_tenant_leaves_the_work_of_others(tenants, queue):
    first, second = tenants
    assert first.work(queue, until_idle=True).completed == 3
    assert states(first, queue) == ["COMPLETED"] * 3
    assert states(second, queue) == ["PENDING"] * 3


@pytest.mark.parametrize("count", [1, 5])
def test_claim_returns_batches_of_the_clients_tenant_only(tenants, queue, count):
    first, second = tenants
    leases = []
    while got := first.claim("bench", [queue], count):
        leases += got
    assert [lease.tenant for lease in leases] == ["a"] * 3
    assert states(second, queue) == ["PENDING"] * 3


def test_worker_for_all_tenants_serves_each(tenants, queue):
    first, second = tenants
    assert first.work(queue, until_idle=True, all_tenants=True).completed == 6
    assert states(second, queue) == ["COMPLETED"] * 3


def test_command_serves_one_tenant_or_all(tenants, queue, database, tmp_path):
    helixq = Helixq(database)
    arguments = (
        "work",
        queue.name,
        "--exec",
        "true",
        "--until-idle",
        "--json",
        "--log",
        tmp_path / "log",
    )
    assert helixq(*arguments, HELIX_TENANT="b").json["completed"] == 3
    refused = helixq(*arguments, "--all-tenants", "--tenant", "a")
    assert (refused.code, "got both" in refused.err) == (2, True)
    helixq.default_environment = {}
    assert helixq(*arguments, "--all-tenants").json["completed"] == 3
    assert [states(helix, queue) for helix in tenants] == [["COMPLETED"] * 3] * 2


def test_login_of_one_tenant_cannot_claim_for_another(database, queue, tenants):
    call = calls.claim(
        worker="bench", request=uuid.uuid4(), queues=[queue.name], count=1, tenant="b"
    )
    with (
        HelixQueue(database.dsn("app_a"), tenant="a") as stranger,
        pytest.raises(NotPermitted, match="may not act for tenant"),
    ):
        backend_of(stranger).run(call)
    assert states(tenants[1], queue) == ["PENDING"] * 3


def test_worker_over_http_cannot_request_all_tenants():
    with (
        HelixClient("http://127.0.0.1:1", "hq_token") as client,
        pytest.raises(Refused, match="which has one tenant"),
    ):
        backend_of(client).transport(WorkerOptions(all_tenants=True))
