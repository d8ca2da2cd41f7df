"""Random histories of several writers fold equally in the database and in Python."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helixqueue import HelixQueue, NewEvent
from helixqueue.engine import ledgers
from tests.user_ledger.conftest import DISPATCH

pytestmark = pytest.mark.module_database
KINDS = sorted(DISPATCH.arrows)


@dataclass
class Entity:
    """The independent fold of one entity of a strict ledger."""

    events: list[tuple[int, str, int]] = field(default_factory=list)

    def append(self, seq: int, kind: str, payload: int) -> str:
        for known_seq, known_kind, known_payload in self.events:
            if (known_seq, known_kind) == (seq, kind):
                return "duplicate_suppressed_by_db" if known_payload == payload else "conflict"
        last = self.events[-1][1] if self.events else None
        legal = kind in (DISPATCH.arrows[last] if last else DISPATCH.initial)
        if seq != len(self.events) + 1 or not legal:
            return "illegal"
        self.events.append((seq, kind, payload))
        return "written"


EVENTS = st.tuples(
    st.sampled_from(["x", "y"]),
    st.integers(1, 5),
    st.sampled_from(KINDS),
    st.integers(0, 1),
)
# Each chunk is one call of one writer; a crashed writer's call is rolled back.
CHUNKS = st.lists(
    st.tuples(st.lists(EVENTS, min_size=1, max_size=5), st.sampled_from([0, 1]), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(CHUNKS)
def test_random_histories_fold_equally_in_database_and_model(database, chunks):
    name = "fold-" + hashlib.sha256(repr(chunks).encode()).hexdigest()[:16]
    model = {"x": Entity(), "y": Entity()}
    with (
        HelixQueue(database.dsn("app_a"), tenant="a") as first,
        HelixQueue(database.dsn("pool"), tenant="a") as second,
        database.connect("app_a", autocommit=False) as crashing,
    ):
        writers = [client.ledger(name, DISPATCH) for client in (first, second)]
        if first.ledger(name, DISPATCH).history("x") or first.ledger(name, DISPATCH).history("y"):
            return  # the same example again
        for events, writer, crash in chunks:
            rows = [NewEvent(*event[:3], {"n": event[3]}) for event in events]
            if crash:
                writers[writer].append_many(rows, within=crashing)
                crashing.rollback()
                continue
            expected = [model[entity].append(*rest) for entity, *rest in events]
            answers = writers[writer].append_many(rows)
            assert [answer.decision for answer in answers] == expected
        for entity, folded in model.items():
            history = writers[0].history(entity)
            stored = [(event.seq, event.kind, event.payload["n"]) for event in history]
            assert stored == folded.events
            state = writers[1].state(entity)
            assert (state.state if state else None) == (stored[-1][1] if stored else None)


def test_chain_of_an_entity_is_recomputed_from_its_rows(helix, database, dispatch):
    dispatch.append("h", 1, "REQUESTED", {"pad": "north"}, node="alp-1")
    dispatch.append("h", 2, "CONFIRMED")
    call = ledgers.stored_events(tenant="a", ledger=dispatch.name, entity="h")
    with database.connect("app_a") as connection:
        events = call.read(connection.execute(call.sql, call.args).fetchall())
    before = None
    for event in events:
        expected = database.value(
            "select helix.event_hash(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, "
            "convert_to(%s, 'UTF8'))",
            *(before, event.key, event.version, event.at, event.position, event.feed_position),
            *(event.fingerprint, event.node, event.actor, event.violations, event.payload),
        )
        assert event.hash == expected
        before = event.hash
