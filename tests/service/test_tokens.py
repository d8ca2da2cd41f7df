"""Tokens: shown once, valid until revoked or expired, for one tenant only."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import calls, reads, tokens
from helixqueue.errors import NotPermitted, Refused
from helixqueue.postgres.tenant_sessions import InvalidToken, TenantSessions
from tests.support.cli import Helixq
from tests.support.lab import POOLED, Lab, new_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def helixq(database):
    return Helixq(database)


def soon(**span):
    return datetime.now(UTC) + timedelta(**(span or {"days": 1}))


def made(lab, name, *, tenant="a", scopes=("read",), queues=None, expires_at=None):
    token = tokens.new_token()
    call = tokens.create(
        tenant=tenant,
        name=name,
        token_hash=token.hash,
        scopes=scopes,
        queues=queues,
        expires_at=expires_at or soon(),
    )
    assert ruled(lab, call)
    return token


def ruled(lab, call):
    """Calls that need an operator."""
    with Lab(lab.database, "operator") as operator:
        return operator.run(call)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


def run_as_token(database, token_hash, *work, role="service"):
    """Run calls as the service does; returns results or errors."""

    async def ask():
        served = TenantSessions(
            database.dsn(role),
            connections=1,
            connect_seconds=5,
            statement_seconds=10,
            wait_seconds=5,
            pooled=POOLED,
        )
        answers = []
        for call in work:
            try:
                answers.append(await served.run(token_hash, call))
            except Refused as refused:
                answers.append(refused)
        await served.close()
        return answers

    return asyncio.run(ask())


def test_token_acts_for_its_tenant_on_every_connection(database, lab):
    lab.queue("mine")
    lab.queue("theirs", tenant="b")
    token = made(lab, "walls")
    mine, named, again = run_as_token(
        database,
        token.hash,
        reads.queues(),
        calls.set_queue(tenant="b", queue="theirs", paused=True),
        reads.queues(tenant="b"),
    )
    assert {sight.tenant for sight in mine.rows} == {"a"}
    assert isinstance(named, NotPermitted)
    assert again.rows == ()


def test_connection_forgets_the_tenant_between_tokens(database, lab):
    lab.queue("mine")
    token = made(lab, "forgotten")

    async def ask():
        served = TenantSessions(
            database.dsn("service"), connections=1, connect_seconds=5, statement_seconds=10,
            wait_seconds=5, pooled=POOLED,
        )  # fmt: skip
        before = await served.run(token.hash, reads.queues())
        between = await served.run_without_tenant(reads.queues())
        await served.close()
        return before, between

    before, between = asyncio.run(ask())
    assert before.rows
    assert between.rows == ()


def test_unknown_expired_and_revoked_tokens_are_refused(database, lab):
    expired = made(lab, "late", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    revoked = made(lab, "gone")
    assert ruled(lab, tokens.revoke(tenant="a", name="gone", reason="lost")) == 1
    for token_hash in (tokens.new_token().hash, expired.hash, revoked.hash):
        wrote, read = run_as_token(
            database, token_hash, calls.set_queue(tenant="a", queue="forged"), reads.queues()
        )
        assert isinstance(wrote, InvalidToken)
        assert isinstance(read, InvalidToken)
        with Lab(database, "service") as service:
            assert service.run(tokens.authenticate([token_hash])) == {}
    assert lab.run(calls.queue(tenant="a", queue="forged")) is None


@pytest.mark.parametrize("role", ["pool", "operator", "app_a", "app_b", "stranger"])
def test_login_with_a_fixed_tenant_serves_no_token(database, lab, role):
    token = made(lab, f"by-{role.replace('_', '-')}")
    [answer] = run_as_token(database, token.hash, reads.queues(), role=role)
    assert isinstance(answer, InvalidToken)


def test_last_use_is_written_at_most_once_per_minute(database, lab):
    token = made(lab, "used")

    def used():
        [row] = lab.run(tokens.list_tokens(tenant="a", name="used")).rows
        return row.last_used_at

    assert used() is None
    with Lab(database, "service") as service:
        assert service.run(tokens.authenticate([token.hash]))[token.hash].name == "used"
        first = used()
        assert first is not None
        service.run(tokens.authenticate([token.hash]))
        assert used() == first


def test_rotated_token_stays_valid_for_the_overlap(database, lab):
    first, second, third = (
        made(lab, "turning", queues=["q"]),
        tokens.new_token(),
        tokens.new_token(),
    )

    def rotated(token, overlap):
        rotate = tokens.rotate(
            tenant="a",
            name="turning",
            token_hash=token.hash,
            expires_at=soon(),
            overlap_seconds=overlap,
        )
        return ruled(lab, rotate)

    with Lab(database, "service") as service:
        assert rotated(second, 3600) == 2
        hashes = [item.hash for item in (first, second, third)]
        grants = service.run(tokens.authenticate(hashes))
        assert {item: grant.generation for item, grant in grants.items()} == {
            first.hash: 1,
            second.hash: 2,
        }
        assert all(grant.queues == {"q"} for grant in grants.values())
        assert rotated(third, 0) == 3
        assert service.run(tokens.authenticate(hashes)).keys() == {third.hash}


def test_token_names_are_never_reused(lab):
    made(lab, "once")
    assert ruled(lab, tokens.revoke(tenant="a", name="once", reason="x")) == 1
    again = tokens.create(
        tenant="a",
        name="once",
        token_hash=tokens.new_token().hash,
        scopes=["read"],
        queues=None,
        expires_at=soon(),
    )
    assert ruled(lab, again) is False
    rotate = tokens.rotate(
        tenant="a",
        name="once",
        token_hash=tokens.new_token().hash,
        expires_at=soon(),
        overlap_seconds=0,
    )
    assert ruled(lab, rotate) is None


@pytest.mark.parametrize("role", ["app_a", "pool"])
def test_application_login_cannot_create_tokens(database, lab, role):
    """With its own token it could resolve fences, which its login may not."""
    name = f"own-{role.replace('_', '-')}"
    made(lab, name)
    text = {"tenant": "a", "name": name}
    fresh = {"token_hash": tokens.new_token().hash, "expires_at": soon()}
    with Lab(database, role) as program:
        for call in (
            tokens.create(**text | {"name": "mine"}, **fresh, scopes=["operate"], queues=None),
            tokens.rotate(**text, **fresh, overlap_seconds=0),
            tokens.revoke(**text, reason="x"),
            tokens.offer_login(tenant="a", code_hash=tokens.new_token("hl_").hash, actor="eve"),
        ):
            with pytest.raises(NotPermitted, match="may not give or take tokens of tenant a"):
                program.run(call)
        [row] = program.run(tokens.list_tokens(tenant="a", name=name)).rows
    assert (row.generation, row.revoked_at) == (1, None)


def test_workers_of_two_tenants_are_separate(database, lab):
    item, two = made(lab, "workers-a"), made(lab, "workers-b", tenant="b")
    for token, tenant in ((item, "a"), (two, "b")):
        run_as_token(database, token.hash, calls.hello(worker="gpu", free={"gpus": 1}))
        [listed, forged] = run_as_token(
            database,
            token.hash,
            reads.workers(tenant=tenant),
            calls.hello(worker="gpu", tenant="c"),
        )
        assert [(worker.tenant, worker.name) for worker in listed.rows] == [(tenant, "gpu")]
        assert isinstance(forged, NotPermitted)
    [across] = run_as_token(database, item.hash, reads.workers())
    assert {worker.tenant for worker in across.rows} == {"a"}


def test_worker_is_refused_after_an_operator_released_its_lease(lab):
    lab.queue()
    lab.submit("held")
    [lease] = lab.claim()
    take = calls.release_by_id(ids=[lease.batch_id], reason="node is gone", actor="ann")
    [verdict] = lab.run(take)
    assert (verdict.answer, verdict.state) == ("ok", "PENDING")
    assert [item.answer for item in lab.run(take)] == ["repeat"]
    assert [item.answer for item in lab.complete(lease)] == ["refused"]
    assert lab.history(lease.batch_id)[-1] == ("PENDING", "released")
    [next_try] = lab.claim()
    assert next_try.attempt == 1


def test_command_line_creates_lists_rotates_and_revokes_tokens(helixq, database):
    name = f"cli-{helixq.q}"
    assert helixq("token", "create", name, "--scope", "read").code == Exit.REFUSED
    helixq = partial(helixq, role="operator")
    created = helixq("token", "create", name, "--scope", "read", "--scope", "submit", "--json")
    assert tokens.TOKEN.fullmatch(created.json["token"])
    assert created.json["scopes"] == ["read", "submit"]
    assert helixq("token", "create", name, "--scope", "read").code == 1
    assert helixq("token", "create", f"{name}x", "--scope", "root").code == 5
    rotated = helixq("token", "rotate", name, "--overlap", "0", "--json")
    with Lab(database, "service") as service:
        old, new = (tokens.hash_token(item.json["token"]) for item in (created, rotated))
        assert service.run(tokens.authenticate([old, new])).keys() == {new}
    listed = helixq("token", "list", "--json")
    assert created.json["token"] not in listed.out
    assert helixq("token", "revoke", name, "--reason", "lost", "--json").json["revoked"] == 2
    assert helixq("token", "revoke", name, "--reason", "lost").code == 1
    assert "revoked" in helixq("token", "list").out
