"""What `helixqueue.testing` gives to the tests of others."""

from __future__ import annotations

import pytest

from helixqueue import Lease, LeaseLost, Queue, State, testing
from tests.worker.conftest import effects

pytest_plugins = ["pytester"]


def declared(name):
    queue = Queue(name, payload=dict, max_attempts=2, backoff=0)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute("insert into public.effect (queue, identity) values (%s, 's')", (name,))
            return tx.complete({"n": 1})

    return queue, run


def test_drain_runs_all_work_in_the_test_process(helix, database, name):
    queue, _ = declared(name)
    for number in range(3):
        helix.submit(queue, identity=f"s{number}", payload={})
    assert testing.drain(helix, queue).completed == 3
    assert testing.drain(helix, queue).completed == 0
    assert effects(database, name) == {"s": 3}


def test_assert_submitted_compares_canonical_identities_and_payloads(helix, name):
    queue, _ = declared(name)
    helix.submit(queue, identity="Sämple", payload={"a": 1})
    found = testing.assert_submitted(helix, queue, identity="Sa\u0308mple", payload={"a": 1})
    assert found.state is State.PENDING
    with pytest.raises(AssertionError, match="expected the payload"):
        testing.assert_submitted(helix, queue, identity="Sämple", payload={"a": 2})
    with pytest.raises(AssertionError, match="expected 1 batches"):
        testing.assert_submitted(helix, queue, identity="other")


def test_expired_lease_of_an_application_test_cannot_write(helix, database, name):
    queue, run = declared(name)
    submitted = helix.submit(queue, identity="s", payload={})
    with testing.leased(helix, queue) as lease:
        testing.expire(helix, lease)
        with pytest.raises(LeaseLost):
            run(lease)
    assert effects(database, name) == {}
    with testing.leased(helix, queue) as lease:
        assert run(lease) == {"n": 1}
    assert helix.state(submitted.receipt) is State.COMPLETED
    assert effects(database, name) == {"s": 1}


def test_frozen_holder_cannot_write_after_it_wakes(helix, database, name):
    queue, run = declared(name)
    submitted = helix.submit(queue, identity="s", payload={})
    with testing.leased(helix, queue) as lease:
        with testing.freeze(helix, queue, lease) as other:
            assert other.batch_id == lease.batch_id
            assert other.fencing > lease.fencing
            run(other)
        with pytest.raises(LeaseLost) as lost:
            run(lease)
        assert lost.value.owner == other.worker
    assert helix.state(submitted.receipt) is State.COMPLETED
    assert effects(database, name) == {"s": 1}


def test_pytest_plugin_gives_each_test_its_own_tenant(pytester):
    pytester.makeconftest('pytest_plugins = ["helixqueue.testing.plugin"]')
    pytester.makepyfile(
        """
        from helixqueue import Queue, testing

        queue = Queue("work")

        @queue.handler
        def run(lease):
            return lease.payload

        def test_one(helix):
            helix.submit(queue, identity="s", payload={"a": 1})
            assert testing.drain(helix, queue).completed == 1

        def test_two(helix):
            assert list(helix.batches()) == []
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:xdist")
    done.assert_outcomes(passed=2)
