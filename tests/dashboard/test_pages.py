"""Every page, read without a browser: links lead somewhere, and no text of a client is markup."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest

from helixqueue import HelixQueue, Machine
from helixqueue.dashboard.navigation import SECTIONS
from helixqueue.dashboard.pages import proof
from helixqueue.engine import calls
from helixqueue.operate.check import CheckResult, invariants
from tests.dashboard.conftest import form_of, sign_in
from tests.dashboard.hostile_data import CORPUS, fill
from tests.support.lab import POOLED
from tests.support.outputs import publish_output
from tests.support.runs import Runs
from tests.support.service import submit

PAGES_MAX = 160
VOID = {"meta", "link", "input", "br", "hr", "img"}
NAVIGATION = [entry.path for section in SECTIONS for entry in section.entries]


class Markup(HTMLParser):
    """The elements of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self._open = []
        self.feed(text)
        self.close()
        assert self._open == [], f"elements that are not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def links(self):
        return [attrs["href"] for tag, attrs in self.elements if tag == "a" and "href" in attrs]


@pytest.fixture(scope="module")
def hostile(site, database):
    return fill(site, database)


@pytest.fixture(scope="module")
def crawled(site, hostile):
    """The pages that a person reaches from the navigation, by URL."""
    pages = {}
    with sign_in(site) as person:
        waiting = [*NAVIGATION, f"/queues/{hostile}", f"/batches?queue={hostile}&state=FAILED"]
        while waiting and len(pages) < PAGES_MAX:
            url = waiting.pop(0)
            if url in pages:
                continue
            answer = person.get(url)
            assert answer.status_code in {200, 303}, (url, answer.status_code, answer.text[:2000])
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            pages[url] = answer
            found = [urljoin(url, link.partition("#")[0]) for link in Markup(answer.text).links()]
            waiting += [link for link in dict.fromkeys(found) if not urlsplit(link).netloc]
    return pages


def test_every_link_leads_to_a_page_and_every_template_is_shown(crawled):
    assert len(crawled) > 60
    shapes = {re.sub(r"/[^/?]*[0-9<%].*|\?.*", "/…", url) for url in crawled}
    for path in ("/batches/…", "/fences/…", "/letters/…", "/workers/…", "/queues/…"):
        assert path in shapes or any(url.startswith(path[:-1]) for url in crawled), path


def test_no_text_of_a_client_becomes_markup_on_any_page(crawled):
    shown = "".join(answer.text for answer in crawled.values())
    for url, answer in crawled.items():
        for tag, attrs in Markup(answer.text).elements:
            assert tag != "x-xss", url
            assert not {name for name in attrs if name.startswith("on")}, (url, tag, attrs)
            assert "style" not in attrs, (url, tag, attrs)
            for name in ("href", "action", "src"):
                target = attrs.get(name) or ""
                assert target.startswith(("/", "#", "?")) or not target, (url, target)
        assert "39483" not in answer.text, url  # an expression of a template that was evaluated
    assert shown.count("&lt;x-xss") > 10 * len(CORPUS)  # the corpus was shown


def test_pages_have_no_script_or_style_of_their_own_and_a_strict_policy(crawled):
    for url, answer in crawled.items():
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store", url
        assert answer.headers["x-content-type-options"] == "nosniff"
        elements = Markup(answer.text).elements
        assert not [tag for tag, _ in elements if tag in {"style", "iframe", "object", "base"}]
        scripts = [attrs for tag, attrs in elements if tag == "script"]
        assert all(attrs.get("src", "").startswith("/static/") for attrs in scripts), url


def test_ids_are_unique_and_every_form_is_checked(crawled):
    for url, answer in crawled.items():
        elements = Markup(answer.text).elements
        ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
        assert len(ids) == len(set(ids)), url
        posts = sum(attrs.get("method") == "post" for tag, attrs in elements if tag == "form")
        tokens = sum(attrs.get("name") == "form" for tag, attrs in elements if tag == "input")
        assert posts == tokens, url
        for tag, attrs in elements:
            if tag == "svg" and "role" in attrs:
                assert attrs.get("aria-label"), url


def test_payloads_and_details_are_hidden_without_the_right(site, hostile, crawled):
    batches = [url for url in crawled if re.fullmatch(r"/batches/[0-9a-f-]{36}", url)][:8]
    assert batches
    with sign_in(site, scopes=("read",)) as reader:
        for url in [*batches, "/activity", f"/batches?queue={hostile}&state=FAILED"]:
            page = reader.get(url)
            assert page.status_code == 200
            assert "deep" not in page.text, url
            assert ">Payload<" not in page.text
        assert "/tokens" not in Markup(reader.get("/").text).links()
        assert reader.get("/tokens").status_code == 403


def test_person_sees_only_the_own_tenant(site, hostile, crawled):
    with sign_in(site, tenant="b") as stranger:
        assert hostile not in stranger.get("/").text
        for url in crawled:
            if re.fullmatch(r"/(batches|fences|letters|queues)/[^?]+", url):
                assert stranger.get(url).status_code == 404, url


@pytest.mark.parametrize(
    "url",
    [
        "/batches?state=NOTHING", "/batches?queue=%00", "/batches?since=yesterday",
        "/batches?unknown=1", "/batches?queue=a&queue=b", "/batches/nothing", "/queues/NOTHING",
        "/letters/0", "/letters/99999999999999999999", "/fences/%FF", "/search?q=%00",
        "/queues?after=nothing", "/live?of=//evil.example/",
        "/live?of=/nothing", "/ledgers/nothing?entity=x",
    ],
)  # fmt: skip
def test_wrong_address_gets_a_page_that_says_so(person, url):
    answer = person.get(url)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("text/html")
    assert "x-xss" not in {tag for tag, _ in Markup(answer.text).elements}
    assert "Traceback" not in answer.text


def test_empty_tenant_is_told_what_to_do_next(site):
    with sign_in(site, tenant="empty") as person:
        assert "helixq submit" in person.get("/").text
        for path in NAVIGATION[1:]:
            page = person.get(path)
            assert page.status_code == 200, path
            if path not in {"/proof", "/docs", "/tokens", "/activity"}:
                assert 'class="empty"' in page.text, path


def test_failure_is_one_line_in_lists_and_whole_on_the_page_of_its_batch(person, lab):
    lab.queue(max_attempts=1)
    [row] = lab.submit("S-1")
    detail = "MemoryError: asked for 78 GB\n  File executor.py\n    ^^^^^^^^^"
    lab.fail(*lab.claim(1), failure="MemoryError", detail=detail)
    listed = person.get("/batches", params={"queue": lab.q}).text
    assert "<p>MemoryError: asked for 78 GB</p>" in listed
    assert "executor.py" not in listed
    shown = person.get(f"/batches/{row.receipt.batch_id}").text
    assert "<p>MemoryError: asked for 78 GB</p>" in shown
    assert shown.count("executor.py") == 1


def test_kinds_of_a_ledger_are_in_the_order_in_which_entities_reach_them(person, site):
    machine = {"ZERO": ["ONE", "END"], "ONE": ["LATER"], "END": [], "LATER": ["END"]}
    with HelixQueue(site.database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        helix.ledger("ordered", Machine(machine))
    kinds = re.findall(r"<tr><td>([A-Z]+)", person.get("/ledgers/ordered").text)
    assert kinds == ["ZERO", "ONE", "END", "LATER"]


def test_batch_shows_how_a_refused_payload_differed_to_people_with_payloads(site, lab):
    with site.client() as http:
        [row] = lab.submit("S-1", payload={"pod5": "a.pod5", "lane": 3})
        submit(http, lab, "S-1", {"pod5": "b.pod5", "lane": 3})
    path = f"/batches/{row.receipt.batch_id}"
    with sign_in(site) as person, sign_in(site, scopes=["read"]) as reader:
        assert "b.pod5" in person.get(path).text
        text = reader.get(path).text
    assert "conflict" in text
    assert "b.pod5" not in text


def test_batch_shows_its_published_files_and_the_attempt_that_wrote_them(site, lab):
    batch = publish_output(lab, f"{lab.q}-files", path="reads/a.fastq")
    with sign_in(site) as person:
        text = person.get(f"/batches/{batch}").text
    panel = text[text.index('id="outputs"') :]
    for shown in (
        "sealed",
        lab.worker,
        "reads/a.fastq",
        "4,180,332",
        "Sample-07",
        "6868686868686868",
    ):
        assert shown in panel, shown


def test_worker_that_lives_is_shown_before_hundreds_that_ended(site, lab):
    tenant = f"fleet-{lab.q}"
    report = """select helix.hello_v1(name, '{}', %s, ended) from
        (select 'a' || number, true from generate_series(1, 600) number
         union all values ('z', false)) as worker (name, ended)"""
    with site.database.connect("operator") as operator:
        operator.execute(report, [tenant])
    with sign_in(site, tenant=tenant) as person:
        text = person.get("/workers").text
    assert "1 alive, 600 ended." in text
    assert "400 that ended before are not shown" in text
    assert re.findall(r'href="/workers/(\w+)"', text)[:2] == ["z", "a600"]


def test_twins_are_searched_among_the_identities_that_the_page_names(person, lab):
    lab.submit("S-1", "S-2", "S-3")
    text = person.get("/identities", params={"queue": lab.q}).text
    assert "among 3 identities of this queue" in text
    assert "looks through the whole queue" not in text


def test_queue_that_waits_too_long_contradicts_no_promise_about_effects():
    found = {"pending_stalled": 2, "lease_stuck": 1, "work_doubled": 1, "queue_missing": 0}
    results = [CheckResult(name, "G6", count, "", "") for name, count in found.items()]
    assert [result.name for result in proof.contradicting(results)] == ["work_doubled"]
    assert set(invariants()) >= proof.WAITING


def test_recorded_run_names_the_person_and_can_be_shown_again(site):
    with sign_in(site, person="ada") as person:
        for _ in range(2):
            answer = person.post("/proof/check", data={"form": form_of(person, "/proof")})
            assert answer.status_code == 303
        runs = re.findall(r'href="(/proof\?run=\d+)"', person.get("/proof").text)
        assert len(runs) >= 2
        for path in runs[:2]:
            assert "<dd>ada</dd>" in person.get(path).text


def test_person_sees_where_datums_stand_and_cancels_the_run(database, person):
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        runs = Runs(database, helix)
        with runs.lab:
            run = runs.start("a", "b", "c", tries=1)
            done, failed = runs.lab.claim(2)
            runs.lab.complete(done)
            runs.lab.fail(failed, failure="exit 3")
    path = f"/runs/{run.name}"
    cells = [attrs for tag, attrs in Markup(person.get(path).text).elements if tag == "a"]
    assert [cell["data-state"] for cell in cells if "data-state" in cell].count("FAILED") == 1
    assert "exit 3" in person.get(path).text
    failed_only = Markup(person.get(f"{path}?state=FAILED").text).elements
    assert sum("data-state" in attrs for tag, attrs in failed_only if tag == "a") == 1
    answer = person.post(
        f"{path}/cancel", data={"form": form_of(person, f"{path}?act=cancel"), "reason": "wrong"}
    )
    assert answer.status_code == 303
    assert "Cancelling" in person.get(path).text


def test_export_has_the_rows_of_the_filters_and_no_formula(site, lab):
    lab.submit("=1+1", "plain")
    lab.fail(*lab.claim(2), permanent=True, failure="Torn")
    lab.submit("other")
    with sign_in(site) as person:
        csv_text = person.get(f"/batches.csv?queue={lab.q}&state=FAILED").text
        lines = person.get(f"/batches.jsonl?queue={lab.q}&state=FAILED").text.splitlines()
        page = person.get(f"/batches?queue={lab.q}&state=FAILED").text
    rows = list(csv.DictReader(io.StringIO(csv_text)))
    assert {row["identity"] for row in rows} == {"'=1+1", "plain"}, "a spreadsheet runs formulas"
    assert {json.loads(line)["identity"] for line in lines} == {"=1+1", "plain"}
    assert {row["state"] for row in rows} == {"FAILED"}
    assert f"/batches.csv?queue={lab.q}&amp;state=FAILED" in page


def test_batches_of_a_lost_worker_are_released_together_after_a_dry_run(person, lab):
    lab.submit("S-1", "S-2", "S-3")
    held = [lease.batch_id for lease in lab.claim(2, worker=f"lost-{lab.q}")]
    path = f"/select/release?worker=lost-{lab.q}&state=RUNNING"
    assert "Release 2 batches" in person.get(path).text
    assert [lab.history(batch_id)[-1][0] for batch_id in held] == ["RUNNING", "RUNNING"]
    form = {"form": form_of(person), "reason": "the machine is gone"}
    assert "2 batches were released" in person.post(path, data=form).text
    assert [lab.history(batch_id)[-1] for batch_id in held] == [("PENDING", "released")] * 2
    assert "No batch matches" in person.get(path).text


def test_dry_run_lists_what_would_happen_and_changes_nothing(site, lab):
    [row] = lab.submit("S-1")
    lab.fail(*lab.claim(1), permanent=True)
    with sign_in(site) as person:
        text = person.get(f"/select/retry?queue={lab.q}&state=FAILED").text
    assert "Dry run: nothing has changed yet" in text
    assert str(row.receipt.batch_id) in text
    assert lab.history(row.receipt.batch_id)[-1][0] == "FAILED"


def test_pages_show_who_has_each_device_and_what_waiting_work_asks_for(person, lab):
    devices = [
        {"uuid": f"GPU-{lab.q}-{n}", "index": n, "model": "Tesla T4", "vram_gb": 16.1, "cc": 7.5}
        for n in range(2)
    ]
    pool = {"host": f"host-{lab.q}", "devices": devices, "process": "x"}
    report = {**pool, "health": {"queues": [lab.q]}}
    lab.run(calls.hello(worker=f"gpu-{lab.q}", free=report))
    lab.submit("on-a-card", requires='{"gpus": 1}')
    [lease] = lab.claim(worker=f"gpu-{lab.q}", free=pool)
    lab.submit("too-wide", requires='{"gpus": 3}')
    workers = person.get("/workers").text
    assert all(device["uuid"] in workers for device in devices)
    assert "on-a-card" in workers
    queue = person.get(f"/queues/{lab.q}").text
    assert "no_worker_matches: no worker has gpus 3" in queue
    assert "asks for gpus 3" in queue
    batch = person.get(f"/batches/{lease.batch_id}").text
    assert f"held the lease on host-{lab.q}: GPU-{lab.q}-0" in batch
