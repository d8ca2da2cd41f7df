"""`recover`: after a restore no token from before is worth anything."""

from __future__ import annotations

import pytest

from helixqueue.errors import NotPermitted
from helixqueue.ledger.replay import replay
from helixqueue.operate.recover import recover
from tests.support.ledger_traffic import sql_client


def test_every_lease_ends_and_its_token_is_refused(database):
    with sql_client(database) as a, database.connect("operator") as connection:
        a.queue("a")
        a.queue("b")
        a.submit("s1", "s2")
        a.submit("s1", tenant="b")
        held = a.claim(3)
        before = held[0].epoch
        recovered = recover(connection, reason="restored from Tuesday", actor="ann")
        assert recovered.ended == 3
        assert recovered.epoch > before
        assert a.complete(held) == ["refused"] * 3
        again = a.claim(3, worker="w2")
        assert {item.epoch for item in again} == {recovered.epoch}
        assert a.complete(again) == ["ok"] * 3
        assert replay(connection).clean
    steps = database.rows(
        "select h.actor, h.detail from helix.history_of(array(select id from helix.batch)) h "
        "where h.reason = 'recovered'"
    )
    assert steps == [("ann", "restored from Tuesday")] * 3


def test_recover_without_leases_begins_a_new_epoch(database):
    with database.connect("operator") as connection:
        first = recover(connection, reason="drill")
        second = recover(connection, reason="drill")
    assert (first.ended, second.ended) == (0, 0)
    assert second.epoch == first.epoch + 1


def test_recover_requires_a_reason(database):
    with database.connect("operator") as connection, pytest.raises(ValueError, match="a reason"):
        recover(connection, reason=" ")


def test_client_cannot_recover(database):
    with database.connect("app_a") as connection, pytest.raises(NotPermitted):
        recover(connection, reason="because")
