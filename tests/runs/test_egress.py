"""Final names of runs: egress and relative path, of one datum each, below roots, never twice."""

from __future__ import annotations

import hashlib

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import outputs
from helixqueue.errors import Refused
from helixqueue.records.lease import LeaseRef
from helixqueue.records.output import StagedFile
from tests.support.lab import new_database, pass_time
from tests.support.runs import Runs, allow


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def runs(database):
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        made = Runs(database, helix)
        with made.lab:
            yield made


def register(runs, lease, *paths):
    """Register files under the token of a lease, as a worker does."""
    ref, worker = LeaseRef(lease.batch, lease.token), runs.lab.worker
    opened = runs.lab.run(outputs.open_outputs(worker=worker, lease=ref))
    if opened.answer != "ok":
        return opened
    staged = [StagedFile(path, 1, hashlib.sha256(b"x").digest()) for path in paths]
    return runs.lab.run(
        outputs.register_outputs(
            worker=worker, lease=ref, first=0, staged=staged, files=len(staged)
        )
    )


def seal(runs):
    """Publish everything that is granted, without a store."""
    for task in runs.lab.run(outputs.take_outputs(limit=20)):
        if task.task == "publish":
            runs.lab.run(
                outputs.end_outputs(manifest=task.manifest, outcome="sealed", files=task.files)
            )


def test_run_ends_when_the_files_of_its_completed_datums_have_their_names(runs):
    run = runs.start("a", "b")
    first, second = runs.lab.claim(2)
    assert register(runs, first, "100%/résumé.txt").answer == "ok"
    runs.lab.complete(first, second)
    assert runs.advance(run).state == "running"
    seal(runs)
    assert runs.advance(run).state == "done"
    [file] = runs.helix.run_outputs(run.name)
    assert (file.uri, file.datum) == (f"{run.egress}/100%/résumé.txt", first.identity[-1])


def test_second_datum_that_writes_a_name_is_refused_and_both_are_named(runs):
    runs.start("a", "b", tries=2)
    first, second = runs.lab.claim(2)
    assert register(runs, first, "words.txt").answer == "ok"
    refused = register(runs, second, "words.txt")
    assert refused.answer == "conflict"
    for datum in (first, second):
        assert datum.identity.replace("\x1f", "/") in refused.note
    # The next attempt of the first datum has the same name.
    pass_time(runs.lab.database, first.batch)
    [again] = runs.lab.claim(1)
    assert (again.batch, again.attempt) == (first.batch, 2)
    assert register(runs, again, "words.txt").answer == "ok"
    assert register(runs, first, "words.txt").answer == "refused"


def test_egress_with_names_of_another_run_is_refused_with_their_list(runs):
    run = runs.start("a", egress="memory://lab/shared")
    [lease] = runs.lab.claim()
    register(runs, lease, "x/1.txt")
    for egress in ("memory://lab/shared", "memory://lab/shared/x/"):
        with pytest.raises(Refused, match=rf"memory://lab/shared/x/1.txt \(run {run.name}\)"):
            runs.start("a", egress=egress)
    assert runs.start("a", egress="memory://lab/shared2").name != run.name
    assert runs.start("a", egress="memory://lab/shared/y").name != run.name
    apart = runs.start("a", egress="memory://lab/shared", layout="run")
    assert apart.destination == f"memory://lab/shared/{apart.name}"
    # A repeat of the first start finds its own names.
    repeated = runs.helix.start_run(**runs.values("a", egress="memory://lab/shared", key=run.key))
    assert repeated.run == run.run


def test_occupied_names_are_found_where_two_uris_are_stored_in_one_place(runs, database):
    allow(database, "gs://twice", stored_at="memory://lab/once")
    runs.start("a", egress="memory://lab/once/out")
    [lease] = runs.lab.claim()
    register(runs, lease, "1.txt")
    with pytest.raises(Refused, match=r"memory://lab/once/out/1\.txt"):
        runs.start("a", egress="gs://twice/out")


@pytest.mark.parametrize("path", [".helix/x", "a/.helix/0000001", "é" * 128])
def test_path_that_would_be_staged_or_impossible_is_refused(runs, path):
    runs.start("a")
    [lease] = runs.lab.claim()
    with pytest.raises(Refused, match=r"without \.helix"):
        register(runs, lease, path)


def test_run_without_egress_has_no_outputs(runs):
    runs.start("a", egress=None)
    [lease] = runs.lab.claim()
    assert register(runs, lease, "1.txt").answer == "none"


def test_files_of_a_failed_attempt_never_get_a_name(runs):
    run = runs.start("a", tries=2)
    [lease] = runs.lab.claim()
    register(runs, lease, "1.txt")
    runs.lab.fail(lease)
    [again] = runs.lab.claim()
    register(runs, again, "2.txt")
    runs.lab.complete(again)
    seal(runs)
    assert runs.advance(run).state == "done"
    assert [file.path for file in runs.helix.run_outputs(run.name)] == ["2.txt"]


def test_clean_up_of_a_lost_attempt_leaves_the_next_one_alone(runs):
    """Two clean-ups at once, the slower one while the next attempt has registered its files."""
    run = runs.start("a", tries=2)
    [lost] = runs.lab.claim()
    register(runs, lost, "1.txt")
    pass_time(runs.lab.database, lost.batch)
    [again] = runs.lab.claim()
    assert register(runs, again, "1.txt", "2.txt").answer == "ok"
    [old] = [row for row in runs.helix.manifests(batch=lost.batch_id) if row.attempt == 1]
    for _ in range(2):
        runs.lab.run(outputs.take_outputs(limit=20, manifests=[old.manifest]))
        runs.lab.run(outputs.end_outputs(manifest=old.manifest, outcome="cleaned"))
    runs.lab.complete(again)
    seal(runs)
    assert runs.advance(run).state == "done"
    assert sorted(file.path for file in runs.helix.run_outputs(run.name)) == ["1.txt", "2.txt"]


def test_token_of_one_datum_registers_nothing_for_another(runs):
    run = runs.start("a", "b")
    first, second = runs.lab.claim(2)
    stolen = first._replace(token=second.own_token)
    assert register(runs, stolen, "1.txt").answer == "refused"
    runs.lab.complete(first, second)
    assert runs.advance(run).state == "done"
    assert list(runs.helix.run_outputs(run.name)) == []
