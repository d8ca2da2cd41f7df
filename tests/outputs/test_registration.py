"""Manifests and names: whose token registers, which batch a name belongs to, what grants."""

from __future__ import annotations

import itertools
import json
import logging
import os
import time

import pytest

from helixqueue import Queue, State
from helixqueue.engine import calls, outputs
from helixqueue.errors import HelixError, Refused, Unavailable
from helixqueue.outputs.scratch import check_path, output_path, survey
from helixqueue.records.lease import LeaseRef
from tests.outputs.conftest import (
    Destination,
    demand_complete,
    due_now,
    files,
    leased,
    manifests,
    publish,
    register,
)
from tests.support.lab import Lab

_numbers = itertools.count(1)


@pytest.fixture
def lab(database):
    with Lab(database, q=f"reg{next(_numbers)}") as lab:
        lab.queue(max_attempts=9, backoff_seconds=0)
        yield lab


def names_of(lab, lease):
    """The final names of the manifest of this lease, as a publisher gets them."""
    [(manifest,)] = lab.rows(
        "select id from helix.manifest where batch = %s and number = %s",
        lease.batch, lease.token.number,
    )  # fmt: skip
    return {
        file.path: file.name for file in lab.run(outputs.output_files(manifest=manifest, after=""))
    }


def decide(lab, lease):
    """Let a publisher look at the manifests of this batch."""
    rows = lab.rows("select id from helix.manifest where batch = %s", lease.batch)
    publish(lab.database, [manifest for (manifest,) in rows])


def states(lab, lease):
    return [
        state for (state,) in lab.rows(
            "select state from helix.manifest where batch = %s order by opened_at", lease.batch
        )
    ]  # fmt: skip


# --- who registers -------------------------------------------------------------------------------


def test_stale_token_cannot_register_after_reassignment(lab, directory):
    directory.use(lab.database, lab.q)
    zombie = leased(lab)
    assert register(lab, zombie, files("a")).answer == "ok"
    lab.pass_time(zombie.batch)
    [heir] = lab.claim(worker="w2")
    assert register(lab, heir, files("a"), files=1, worker="w2").answer == "ok"
    for _ in range(2):
        answer = register(lab, zombie, files("b"), files=2)
        assert (answer.answer, answer.owner) == ("refused", "w2")
    lab.settle(calls.Settlement(heir.batch, heir.token, "completed"), worker="w2")
    answer = register(lab, zombie, files("b"), files=2)
    assert answer.answer == "refused"
    [(operation, worker, owner)] = lab.rows(
        "select operation, worker, owner from helix.refusal where batch = %s", zombie.batch
    )
    assert (operation, worker, owner) == ("outputs", "w1", "w2")
    decide(lab, zombie)
    # Nothing was staged here, so what was granted cannot be published.
    assert sorted(states(lab, zombie)) == ["granted", "lost"]


def test_two_zombies_and_a_new_worker_end_with_one_manifest(lab, directory):
    directory.use(lab.database, lab.q)
    leases = [leased(lab)]
    for worker in ("w2", "w3"):
        assert (
            register(lab, leases[-1], files("a"), files=1, worker=f"w{len(leases)}").answer == "ok"
        )
        lab.pass_time(leases[-1].batch)
        leases += lab.claim(worker=worker)
    assert register(lab, leases[2], files("a", "b"), files=2, worker="w3").answer == "ok"
    for number, lease in enumerate(leases, 1):
        [answer] = lab.settle(
            calls.Settlement(lease.batch, lease.token, "completed"), worker=f"w{number}"
        )
        assert answer.answer == ("ok" if number == 3 else "refused")
    decide(lab, leases[0])
    found = [row for row in manifests(lab.database) if row.queue == lab.q]
    assert sorted(row.state for row in found if row.worker != "w3") == ["lost", "lost"]
    [granted] = [row for row in found if row.state != "lost"]
    assert (granted.worker, granted.files) == ("w3", 2)


def test_completion_grants_only_a_manifest_that_is_complete(lab, directory):
    directory.use(lab.database, lab.q)
    lease = leased(lab)
    register(lab, lease, files("a"))
    lab.complete(lease)
    decide(lab, lease)
    assert states(lab, lease) == ["blocked"]


def test_settlement_writes_nothing_about_outputs(lab, directory):
    """The hot path is the same with and without outputs: COMPLETED is the grant."""
    directory.use(lab.database, lab.q)
    lease = leased(lab)
    register(lab, lease, files("a"), files=1)
    before = lab.rows("select xmin, m from helix.manifest m where batch = %s", lease.batch)
    lab.complete(lease)
    assert lab.rows("select xmin, m from helix.manifest m where batch = %s", lease.batch) == before
    [row] = [row for row in manifests(lab.database) if row.queue == lab.q]
    assert row.state == "granted"


def test_repeated_pages_register_once_and_a_missing_page_is_refused(lab, directory):
    directory.use(lab.database, lab.q)
    lease = leased(lab)
    for _ in range(2):
        assert register(lab, lease, files("a", "b"), first=0).answer == "ok"
    with pytest.raises(HelixError, match="expected 4 registered files, got 3"):
        register(lab, lease, files("d"), first=3, files=4)
    assert register(lab, lease, files("c"), first=2).answer == "ok"
    for _ in range(2):
        assert register(lab, lease, files("d"), first=3, files=4).answer == "ok"
    with pytest.raises(HelixError, match="expected an open manifest, got registered"):
        register(lab, lease, files("e"), first=4, files=5)


def test_publisher_that_saw_too_few_files_cannot_seal(lab, directory):
    """Row-level security hides rows without an error: a number decides."""
    directory.use(lab.database, lab.q)
    lease = leased(lab)
    register(lab, lease, files("a", "b"), files=2)
    lab.complete(lease)
    [(manifest,)] = lab.rows("select id from helix.manifest where batch = %s", lease.batch)
    assert lab.run(outputs.take_outputs(limit=1, manifests=[manifest]))
    for count in (0, 1, 3, None):
        with pytest.raises(HelixError, match="expected 2 published files"):
            lab.run(outputs.end_outputs(manifest=manifest, outcome="sealed", files=count))
    with Lab(lab.database, "app_b") as other:
        assert other.run(outputs.output_files(manifest=manifest, after="")) == []
        assert other.run(outputs.end_outputs(manifest=manifest, outcome="sealed", files=2)) is None
    assert states(lab, lease) == ["granted"]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("../a", "without empty"), ("a/../b", "without empty"), ("/etc/x", "relative"),
        ("a//b", "without empty"), ("a/", "without empty"), ("", "relative"),
        (".", "without empty"), ("a\0b", "control"), ("a\nb", "control"),
        ("x" * 256, "255 bytes"), ("/".join(["y" * 200] * 5), "900 bytes"), ("\udcff", "UTF-8"),
    ],
)  # fmt: skip
def test_name_without_a_place_is_refused_by_name(lab, directory, path, problem):
    with pytest.raises(Refused, match=problem) as refused:
        check_path(path)
    assert ascii(path[:200]) in str(refused.value)
    if "\0" in path or "\udcff" in path or problem == "255 bytes":
        return  # the driver, or the directory, refuses
    # A worker that does not check is refused by the engine.
    directory.use(lab.database, lab.q)
    with pytest.raises(HelixError, match="relative path in NFC"):
        register(lab, leased(lab), files(path))


def test_file_systems_tricks_are_refused_by_name(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("secret")
    cases = {
        "leaves the directory": lambda home: (home / "way").symlink_to(outside),
        "leaves": lambda home: (home / "way").symlink_to(tmp_path),
        "regular file": lambda home: (home / "way").symlink_to(home / "d"),
        "No such file": lambda home: (home / "way").symlink_to(home / "gone"),
        "expected a regular file": lambda home: os.mkfifo(home / "way"),
        "UTF-8": lambda home: (home / "way\udcff").write_text("x"),
        "same name in NFC": lambda home: [
            (home / f"way{e}").write_text("x") for e in ("é", "e\u0301")
        ],
        "a file and a directory": lambda home: [
            (home / "wayé").mkdir(), (home / "waye\u0301").write_text("x")
        ],
    }  # fmt: skip
    for number, (problem, make) in enumerate(cases.items()):
        home = tmp_path / f"home{number}"
        (home / "d").mkdir(parents=True)
        make(home)
        with pytest.raises(Refused, match=problem) as refused:
            survey(home)
        assert "way" in str(refused.value), problem
    home = tmp_path / "good"
    (home / "d").mkdir(parents=True)
    (home / "d" / "a").write_text("x")
    (home / "link").symlink_to(home / "d" / "a")
    assert [file.path for file in survey(home)] == ["d/a", "link"]


def test_output_that_is_file_and_directory_is_refused(tmp_path):
    output_path(tmp_path, "q").write_text("x")
    with pytest.raises(Refused, match="q/r"):
        output_path(tmp_path, "q/r")
    output_path(tmp_path, "d/e").write_text("x")
    with pytest.raises(Refused, match="name of a directory"):
        output_path(tmp_path, "d")


def test_unreadable_directory_is_refused_by_name(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # the superuser reads every directory
    with pytest.raises(Refused, match="closed"):
        survey(tmp_path)


def test_final_names_are_injective_and_short(lab, directory):
    directory.use(lab.database, lab.q)
    identities = [
        "a/b", "a%2Fb", "a@1", ".helix", "..", "A", "a", "x" * 250, "x" * 251, "é" * 120,
        ("a", "b"),
    ]  # fmt: skip
    folders = set()
    for identity in identities:
        lease = leased(lab, identity)
        register(lab, lease, files("f%", "f%25", "g/" + "z" * 250, "g/" + "z" * 251), files=4)
        names = names_of(lab, lease)
        assert len(set(names.values())) == 4
        for name in names.values():
            assert all(
                len(part.encode()) <= 200 and part not in {"", ".", ".."}
                for part in name.split("/")
            )
            assert not any(part.startswith(".") for part in name.split("/")[:3])
        folders |= {name.rsplit("/", 1)[0] for path, name in names.items() if path == "f%"}
        lab.complete(lease)
    assert len(folders) == len(identities)


def test_name_of_another_batch_is_refused_naming_both(helix, database, directory, name, caplog):
    """Two destinations overlap: one queue publishes inside the folder of the other."""
    inner = Destination(f"{directory.uri}/a/{name}/s")
    first, second = Queue(name), Queue(f"{name}.inner")
    first.handler(lambda lease: lease.output(f"a/{name}.inner/s/f").write_text("first") and None)
    second.handler(lambda lease: lease.output("f").write_text("second") and None)
    directory.use(database, name)
    inner.use(database, f"{name}.inner")
    winner = helix.submit(first, identity="s", payload={}).receipt
    helix.work(first, until_idle=True)
    loser = helix.submit(second, identity="s", payload={}).receipt
    with caplog.at_level(logging.ERROR):
        helix.work(second, until_idle=True)
    assert demand_complete(database, directory, winner.batch_id) == {
        f"a/{name}.inner/s/f": b"first"
    }
    batch = helix.batch(loser)
    assert (batch.state, batch.attempt, batch.failure) == ("FAILED", 1, "outputs")
    assert str(winner.batch_id) in batch.detail
    [(operation, worker, owner)] = database.rows(
        "select r.operation, r.worker, r.owner from helix.refusal r "
        "join helix.locate(array[%s::uuid]) l on l.batch = r.batch", loser.batch_id
    )  # fmt: skip
    assert operation == "outputs"
    assert worker != owner
    [record] = [r for r in caplog.records if "belongs to batch" in r.getMessage()]
    line = json.loads(record.getMessage())
    assert (line["level"], line["batch"]) == ("error", str(loser.batch_id))
    assert (line["worker"], line["conflicting_worker"]) == (worker, owner)


def test_names_of_a_failed_batch_are_free_after_its_clean_up(lab, directory, database):
    """Else a batch that published nothing would keep them from all others for good."""
    directory.use(database, lab.q)
    (directory.root / ".helix").mkdir()
    failed = leased(lab, "s")
    path = f"a/{lab.q}.inner/t/f"
    assert register(lab, failed, files(path), files=1).answer == "ok"
    lab.fail(failed, permanent=True)
    with Lab(database, q=f"{lab.q}.inner") as other:
        other.queue(max_attempts=9, backoff_seconds=0)
        Destination(f"{directory.uri}/a/{lab.q}/s").use(database, other.q)
        other.submit("t")
        [lease] = other.claim()
        assert register(other, lease, files("f"), files=1).answer == "conflict"
        other.release(lease)
        decide(lab, failed)
        due_now(database)
        decide(lab, failed)
        [lease] = other.claim()
        assert register(other, lease, files("f"), files=1).answer == "ok"


def test_clean_up_of_a_lost_attempt_keeps_the_names_of_the_attempt_in_progress(lab, directory):
    directory.use(lab.database, lab.q)
    (directory.root / ".helix").mkdir()
    lost = leased(lab)
    register(lab, lost, files("a"), files=1)
    lab.pass_time(lost.batch)
    [heir] = lab.claim(worker="w2")
    assert register(lab, heir, files("a"), files=1, worker="w2").answer == "ok"
    decide(lab, lost)
    due_now(lab.database)
    decide(lab, lost)
    assert states(lab, lost) == ["lost", "registered"]
    cleaned = "select count(*) from helix.manifest where due_at is null and batch = %s"
    assert lab.value(cleaned, lost.batch) == 1
    assert lab.value("select count(*) from helix.output_name where batch = %s", lost.batch) == 1


def test_name_of_another_tenant_is_refused_without_naming_it(lab, directory, database):
    directory.allow(database, "b")
    directory.use(database, lab.q)
    mine = leased(lab, "s")
    register(lab, mine, files(f"b/{lab.q}/t/f"), files=1)
    with Lab(database, "app_b", q=lab.q) as other:
        other.queue(tenant="b")
        Destination(f"{directory.uri}/a/{lab.q}/s").allow(database, "b").use(database, lab.q, "b")
        other.submit("t", tenant="b")
        [lease] = other.claim()
        answer = register(other, lease, files("f"), files=1)
    assert (answer.answer, answer.owner) == ("conflict", None)
    assert "another tenant" in answer.note
    assert str(mine.batch_id) not in answer.note


# --- destinations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    ["file:///", "file:///a/../b", "s3://", "s3://b/../c", "http://x/y", "file:///a//b", "file:///a/",
     "s3://b/.helix/x", "file:///a b", "s3://b/p?x=1"],
)  # fmt: skip
def test_destination_without_a_proper_form_is_refused(database, uri):
    with pytest.raises(HelixError):
        Destination(uri).allow(database)


def test_destination_outside_of_the_roots_is_refused(lab, directory, database):
    for uri in ("file:///elsewhere", f"{directory.uri}2", "s3://other/x"):
        with pytest.raises(HelixError, match="below a root"):
            Destination(uri).use(database, lab.q)
    Destination(f"{directory.uri}/deep/er").use(database, lab.q)
    with pytest.raises(HelixError, match="below a root"):
        Destination(f"{directory.uri}/x").use(database, lab.q, tenant="b")
    Destination("memory://shared").allow(database, "*")
    Destination("memory://shared/x").use(database, lab.q, tenant="b")


def test_only_operators_set_roots(database):
    with Lab(database) as lab, pytest.raises(HelixError, match="permission denied"):
        lab.run(outputs.set_root(tenant="a", uri="file:///x", reason="r"))


# --- ends ----------------------------------------------------------------------------------------


def finished(helix, database, directory, name, **settings):
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("d/f").write_text("x") and None)
    directory.use(database, name, **settings)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    demand_complete(database, directory, receipt.batch_id)
    return receipt


def test_erase_removes_staging_then_objects_then_rows(helix, database, destination, name):
    receipt = finished(helix, database, destination, name)
    [manifest] = manifests(database, ids=[receipt.batch_id])
    destination.write(f".helix/{manifest.manifest}/0000000", b"left")
    with_operator(database, calls.erase(ids=[receipt.batch_id], reason="r", actor="ann"))
    publish(database, [manifest.manifest])
    assert destination.names() == set()
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert (manifest.state, manifest.folder) == ("removed", "")
    assert (
        database.value("select count(*) from helix.output where manifest = %s", manifest.manifest)
        == 0
    )


@pytest.mark.parametrize("after", ["keep", "remove"])
def test_retention_keeps_or_removes_files_as_the_queue_says(
    helix, database, directory, name, after
):
    receipt = finished(helix, database, directory, name, outputs_after=after)
    with_operator(
        database, calls.retire(tenant="a", queue=name, state=State.COMPLETED, before="infinity")
    )
    publish(database, [row.manifest for row in manifests(database, ids=[receipt.batch_id])])
    assert bool(directory.names()) == (after == "keep")
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert manifest.state == ("sealed" if after == "keep" else "removed")


def test_publisher_that_wakes_after_erasure_publishes_nothing(lab, destination, tmp_path):
    """Removing staging revokes it, at whatever point it stood."""
    destination.use(lab.database, lab.q)
    store = destination.store
    (tmp_path / "f").write_bytes(b"x")
    lease = leased(lab)
    opened = lab.run(outputs.open_outputs(worker="w1", lease=LeaseRef(lease.batch, lease.token)))
    store.stage(str(tmp_path / "f"), f".helix/{opened.manifest}/0000000")
    register(lab, lease, files("f"), files=1)
    lab.complete(lease)
    [task] = lab.run(outputs.take_outputs(limit=1, manifests=[opened.manifest]))
    [file] = lab.run(outputs.output_files(manifest=task.manifest, after=""))
    with_operator(lab.database, calls.erase(ids=[task.batch_id], reason="r", actor="ann"))
    publish(lab.database, [opened.manifest])
    with pytest.raises(Unavailable, match="neither"):
        store.publish(f".helix/{opened.manifest}/0000000", file.name, file.size, file.sha256)
    assert (
        lab.run(outputs.end_outputs(manifest=task.manifest, outcome="sealed", files=1)) == "removed"
    )
    assert destination.names() == set()


def test_hundred_thousand_files_are_registered_in_pages(lab, directory):
    """Small here; `make proof` has the full number."""
    count = 100_000 if "HELIX_PROOF" in os.environ else 5_000
    directory.use(lab.database, lab.q)
    lease = leased(lab)
    ref = LeaseRef(lease.batch, lease.token)
    opened = lab.run(outputs.open_outputs(worker="w1", lease=ref))
    names = [f"d{number % 100}/file{number}" for number in range(count)]
    began = time.monotonic()
    for first in range(0, count, 1_000):
        page = files(*names[first : first + 1_000])
        last = count if first + 1_000 >= count else None
        answer = lab.run(
            outputs.register_outputs(worker="w1", lease=ref, first=first, staged=page, files=last)
        )
        assert answer.answer == "ok"
    seconds = time.monotonic() - began
    lab.complete(lease)
    seen, after = set(), ""
    while page := lab.run(outputs.output_files(manifest=opened.manifest, after=after)):
        seen |= {(file.path, file.number) for file in page}
        after = page[-1].path
    assert seen == {(name, number) for number, name in enumerate(names)}
    assert seconds < count / 500


def with_operator(database, call):
    with Lab(database, "operator") as operator:
        return operator.run(call)
