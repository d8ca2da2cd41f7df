"""Each runbook is followed step by step on a database with its condition: look, fix, verify."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import psycopg
import pytest

from helixqueue import HelixQueue, InvalidIdentity, Queue
from helixqueue.cli.exits import Exit
from helixqueue.engine import metrics
from helixqueue.engine.fences import Times
from helixqueue.operate.alerts import RUNBOOKS
from tests.support.cli import Helixq
from tests.support.database import copy_of
from tests.support.duties import run_duty
from tests.support.lab import Lab, time_control, wait_until
from tests.support.ledger_damage import damage, with_batch_ids
from tests.support.letters import write_letters

PAGES = Path(__file__).parents[2] / RUNBOOKS
CODE = re.compile(r"`([^`]+)`")
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECOND_CLAIM = """
    insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late,
                             hash, actor, batch, queue, version, attempt, before)
    select nextval('helix.entry_id'), 1, now(), helix.current_position(), w.epoch,
           'PENDING', 'RUNNING', 'started', false, sha256('x'), 'eve', array[w.batch],
           array[w.queue], array[w.version + 2], array[w.attempt + 1::smallint], array[w.entry]
    from helix.work w where w.batch = {RUNNING}"""


@pytest.fixture
def scene(server, busy_template):
    with copy_of(busy_template, server, "helix_walk") as database:
        # The template may be older than the 15 minutes after which waiting batches are reported.
        with Lab(database) as lab:
            for tenant, queue in lab.rows("select tenant, name from helix.queue"):
                lab.queue(queue, tenant=tenant, stalled_after_seconds=86400.0)
        yield Scene(database)


class Scene:
    """A database with a condition, and the words of a page that stand for parts of it."""

    def __init__(self, database):
        self.database = database
        # The operator acts for all tenants, and no variable names one.
        self.words = {
            "QUEUE": "basecall", "TENANT": "a", "OWNER_DSN": database.dsn("helix_migrator")
        }  # fmt: skip
        self._helixq = Helixq(database, "operator")

    def steps(self, page, *parts):
        """Commands and statements of these parts of a page, in their order."""
        text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
        sections = dict(
            re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        )
        found = [code for part in parts for code in CODE.findall(sections[part])]
        return [c for c in found if re.match(r"helixq \w+ .|helixq doctor$|select ", c)]

    def filled(self, text):
        for word, value in self.words.items():
            text = re.sub(rf"\$?\b{word}\b", lambda _, value=value: str(value), text)
        return text

    def run(self, step):
        """Run one step as an operator; a statement returns its rows."""
        if step.startswith("helixq "):
            words = shlex.split(self.filled(step))[1:]
            done = self._helixq(*words, HELIX_TENANT="")
            assert done.code in {Exit.OK, Exit.NO}, (step, done.err)
            return done
        with self.database.connect("helix_bootstrap") as connection:
            return connection.execute(self.filled(step).encode()).fetchall()

    def look(self, page):
        return {step: self.run(step) for step in self.steps(page, "Look")}

    def reconcile(self):
        """Run the duties of the loop; returns the kinds of open findings."""
        with Lab(self.database) as lab:
            for name in ("metrics", "reconcile", "audit", "metrics"):
                run_duty(lab, name)
            return {finding.kind for finding in lab.run(metrics.list_findings())}

    def damage(self, *statements):
        damage(self.database, *(with_batch_ids(self.database, text) for text in statements))

    def name_batch(self, kind):
        """BATCH and QUEUE are what the finding shows."""
        shown = self._helixq("duty", "findings", "--json", HELIX_TENANT="").json["rows"]
        [row] = [row for row in shown if row["kind"] == kind]
        self.words |= {
            "BATCH": row["batch_id"], "QUEUE": row["queue"], "TENANT": row["tenant"]
        }  # fmt: skip

    def series(self, name):
        with Lab(self.database, "operator") as lab:
            rows = lab.run(metrics.read_metrics())
        return sum(row.value for row in rows if row.name == name)


def test_duplicate_assignment_is_over_after_the_steps_of_its_page(scene):
    scene.damage(SECOND_CLAIM)
    assert scene.reconcile() == {"duplicate_assignment"}
    assert scene.series("helix_duplicate_active_assignments") == 1
    scene.name_batch("duplicate_assignment")
    seen = scene.look("duplicate-assignments")
    assert "duplicate_assignment" in seen["helixq duty findings"].out
    assert "assigned_twice" in seen['helixq check --dsn "$OWNER_DSN"'].out
    for step in scene.steps("duplicate-assignments", "Fix"):
        assert scene.run(step).code == Exit.OK, step
    assert scene.reconcile() == set()
    assert scene.series("helix_duplicate_active_assignments") == 0


def test_missing_entry_is_named_by_the_steps_of_its_page(scene):
    scene.damage("delete from helix.entry where id = (select entry from helix.work "
                 "where batch = {COMPLETED})")  # fmt: skip
    with scene.database.connect("helix_bootstrap") as connection:
        connection.execute("alter table helix.entry disable trigger a_guard")
    assert scene.reconcile() == {"audit_missing"}
    seen = scene.look("audit-missing")
    assert "audit_missing" in seen["helixq duty findings"].out
    assert seen['helixq check --dsn "$OWNER_DSN"'].code == Exit.NO
    assert seen['helixq replay --dsn "$OWNER_DSN"'].code == Exit.NO
    [rows] = [found for step, found in seen.items() if "pg_trigger" in step]
    assert rows == [("helix.entry", "a_guard")]
    with scene.database.connect("helix_migrator") as owner:
        owner.execute("alter table helix.entry enable always trigger a_guard")
    scene.words["BATCH"] = scene.database.value(
        "select helix.public_id(b.key)::text from helix.batch b join helix.work w on w.batch = b.id"
        " join helix.queue q on q.id = b.queue"
        " where w.state = 'PENDING' and q.tenant = 'a' limit 1"
    )
    for step in scene.steps("audit-missing", "Fix"):
        scene.run(step)


def test_overdue_lease_ends_after_the_steps_of_its_page(scene):
    scene.damage("update helix.work set deadline = now() - interval '3 days' "
                 "where batch = {RUNNING}")  # fmt: skip
    assert scene.reconcile() == {"lease_overdue"}
    scene.name_batch("lease_overdue")
    with psycopg.connect(scene.database.dsn("app_a")) as stranger:
        scene.words["PID"] = stranger.info.backend_pid
        scene.look("leases-overdue")
        for step in scene.steps("leases-overdue", "Fix"):
            scene.run(step)
        with pytest.raises(psycopg.OperationalError):
            stranger.execute("select 1")
    assert scene.reconcile() == set()


def test_stalled_queue_is_explained_by_the_steps_of_its_page(scene):
    scene.damage(
        "update helix.work set changed_at = now() - interval '3 days' where batch = {PENDING}",
        "update helix.queue set updated_at = '2026-01-01', created_at = '2026-01-01'",
    )
    assert scene.reconcile() == {"stalled_pending"}
    scene.name_batch("stalled_pending")
    scene.look("stalled-pending")
    for step in scene.steps("stalled-pending", "Fix"):
        assert scene.run(step).code == Exit.OK, step
    assert scene.reconcile() == set()


def test_doubt_ends_after_the_steps_of_its_page(scene):
    brief = Times(lease=30, quiet=0)
    with HelixQueue(scene.database.dsn("app_a"), tenant="a") as helix:
        for key in ("order-1", "order-2"):
            with (
                pytest.raises(ZeroDivisionError),
                helix.fence("refund", key, payload={}, ttl=brief),
            ):
                raise ZeroDivisionError
    scene.reconcile()
    before = scene.series("helix_fences_in_doubt")
    assert before >= 2
    listed = scene.run("helixq fence list --state IN_DOUBT --json").json["rows"]
    keys = [row["fence"] for row in listed if row["name"] == "refund"]
    scene.words["FENCE"] = keys[0]
    scene.look("in-doubt")
    for key, step in zip(keys, scene.steps("in-doubt", "Fix"), strict=True):
        scene.words["FENCE"] = key
        assert scene.run(step).code == Exit.OK, step
    scene.reconcile()
    assert scene.series("helix_fences_in_doubt") == before - 2


def test_malformed_identities_are_listed_by_the_steps_of_their_page(scene):
    queue = Queue("sheets")
    with HelixQueue(scene.database.dsn("app_a"), tenant="a") as helix:
        helix.submit(queue, identity="S-1", payload={})
        with pytest.raises(InvalidIdentity):
            helix.submit(queue, identity="S\u200b1", payload={})
    scene.words["QUEUE"] = "sheets"
    seen = scene.look("malformed-identities")
    assert "S\u200b1".encode().hex() in seen["helixq identity refused QUEUE"].out
    scene.run("helixq batch list --queue QUEUE")


def test_dead_letters_end_after_the_steps_of_their_page(scene):
    with Lab(scene.database) as lab:
        lab.queue()
        letters = write_letters(lab, "1-0", "2-0")
    scene.reconcile()
    assert scene.series("helix_dead_letters") >= 2
    before = scene.series("helix_dead_letters")
    scene.words["LETTER"] = letters[0]
    scene.look("dead-letters")
    for letter, step in zip(letters, scene.steps("dead-letters", "Fix"), strict=True):
        scene.words["LETTER"] = letter
        assert scene.run(step).code == Exit.OK, step
    scene.reconcile()
    assert scene.series("helix_dead_letters") == before - 2


@pytest.mark.parametrize("page", ["leases-reaped", "refusal-burst"])
def test_lost_leases_are_explained_by_the_steps_of_their_pages(scene, page):
    with Lab(scene.database) as lab:
        lab.queue()
        lab.submit("s")
        [lease] = lab.claim(1, lease_seconds=60)
        with time_control(scene.database) as pass_time:
            pass_time(lease.batch)
        lab.claim(1, lease_seconds=60)
        lab.complete(lease)  # refused
        scene.words |= {"QUEUE": lab.q, "BATCH": lease.batch_id}
    seen = scene.look(page)
    assert "lost" in seen["helixq batch show BATCH"].out
    if page == "refusal-burst":
        [rows] = [found for step, found in seen.items() if "helix.refusal" in step]
        assert rows[0][0] == "settle"
    for step in scene.steps(page, "Fix"):
        assert scene.run(step).code == Exit.OK, step


def test_old_snapshot_is_named_and_ended_by_the_steps_of_its_page(scene):
    with psycopg.connect(scene.database.dsn("helix_bootstrap")) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select pg_current_xact_id()")
        scene.words |= {"PID": holder.info.backend_pid, "NAME": "forgotten"}
        scene.run("select pg_create_physical_replication_slot('NAME')")
        seen = scene.look("old-snapshot")
        assert "helixq doctor" in seen
        pids = [row[0] for step, rows in seen.items() if "backend_xmin" in step for row in rows]
        assert holder.info.backend_pid in pids
        for step in scene.steps("old-snapshot", "Fix"):
            scene.run(step)
        assert wait_until(lambda: _is_closed(holder))
    assert scene.run("select slot_name from pg_replication_slots where slot_name = 'NAME'") == []


def _is_closed(connection):
    try:
        connection.execute("select 1")
    except psycopg.OperationalError:
        return True
    return False


def test_duties_that_fail_are_shown_by_the_steps_of_their_page(scene):
    with Lab(scene.database) as lab:
        lab.superuser.execute("alter function helix.measure_server() rename to lost_function")
    scene.reconcile()
    seen = scene.look("duty-behind")
    done = seen["helixq duty list"]
    assert done.code == Exit.NO
    [row] = [line for line in done.lines if line[0] == "metrics"]
    assert "42883" in row


def test_duty_interval_is_set_by_an_operator_and_recorded(scene):
    done = scene.run('helixq duty set reconcile --every 5m --reason "a slow disk"')
    assert done.out == "reconcile: every 300 s\n"
    [row] = [line for line in scene.run("helixq duty list").lines if line[0] == "reconcile"]
    assert row[1] == "300 s"
    detail = scene.database.value(
        "select detail::jsonb from helix.decision where queue = 'duty/reconcile'"
    )
    assert detail == {"was": 60, "every_seconds": 300, "reason": "a slow disk"}
    helixq = Helixq(scene.database)
    assert helixq("duty", "set", "reap", "--every", "1h", "--reason", "x").code == Exit.REFUSED
    wrong = helixq("duty", "set", "tea", "--every", "1h", "--reason", "x", role="operator")
    assert wrong.code == Exit.REFUSED
    assert "expected one of the duties answers, archive" in wrong.err
    never = helixq("duty", "set", "reap", "--every", "forever", "--reason", "x", role="operator")
    assert never.code == Exit.USAGE
