"""The dashboard in a real browser: it reads well at every width, stays live, and acts."""

from __future__ import annotations

import pytest

from helixqueue.dashboard.navigation import SECTIONS
from tests.dashboard.browser import FITS, chromium, faults_of, needs_chromium, visit
from tests.dashboard.hostile_data import fill
from tests.support.lab import Lab, completion

pytestmark = needs_chromium
PATHS = [entry.path for section in SECTIONS for entry in section.entries]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def hostile(site, database):
    return fill(site, database)


@pytest.fixture
def story(database):
    """A batch that ran twice and took effect once."""
    with Lab(database) as lab:
        lab.queue()
        [row] = lab.submit(f"Sjo\u0308-{lab.q}")
        lab.submit(f"Sj\u00f6-{lab.q}")
        [first] = lab.claim(worker="seq-07")
        lab.pass_time(lab.batch_number(first.batch_id))
        [second] = lab.claim(worker="seq-03")
        lab.settle(completion(second), worker="seq-03")
        lab.settle(completion(first), worker="seq-07")
        yield lab, row.receipt.batch_id


def test_person_finds_out_why_a_sample_ran_twice(browser, site, story):
    lab, _ = story
    with visit(browser, site) as page:
        page.keyboard.press("/")
        page.keyboard.type(f"Sj\u00f6-{lab.q}")
        page.keyboard.press("Enter")
        page.wait_for_url("**/batches/*")
        assert page.locator("h2", has_text="Ran twice, took effect once").is_visible()
        assert page.locator(".tally dd").all_inner_texts() == ["2", "2", "1", "1"]
        lanes = page.locator(".timeline svg[role=img]")
        spoken = [lane.get_attribute("aria-label") for lane in lanes.all()]
        assert "seq-07" in spoken[1]
        assert "seq-03" in spoken[2]
        assert page.locator(".timeline .ghost").count() == 1
        assert page.locator(".timeline .done").count() == 1
        assert page.locator("#refusals tbody tr").count() == 1
        steps = [row.inner_text() for row in page.locator("#ledger tbody tr").all()]
        reasons = [reason for _, reason in lab.history(_batch(page))]
        assert len(steps) == len(reasons)
        for step, reason in zip(steps, reasons, strict=True):
            assert reason.capitalize() in step
        assert page.locator(".points .differs").count() == 2  # one letter in two spellings


def test_keys_go_to_pages_walk_through_rows_and_pause(browser, site, lab):
    lab.submit("S-1", "S-2")
    with visit(browser, site) as page:
        page.keyboard.type("gb")
        page.wait_for_url("**/batches")
        page.keyboard.type("jj")
        name = "document.activeElement.textContent"
        second = page.evaluate(name)
        page.keyboard.type("k")
        names = page.locator("#rows tbody td:nth-child(2) a").all_inner_texts()
        assert [page.evaluate(name), second] == names[:2]
        page.keyboard.type("p")
        assert page.locator("[data-pause]").inner_text() == "Go live"
        page.keyboard.press("/")
        page.keyboard.type("p")
        assert page.locator("#find").input_value() == "p", "typing is no shortcut"
        assert page.locator("[data-pause]").inner_text() == "Go live"


def _batch(page):
    return page.url.rpartition("/")[2]


def test_every_page_is_accessible_and_fits_every_width(browser, site, hostile):
    for theme in ("light", "dark"):
        with visit(browser, site, color_scheme=theme) as page:
            for path in [*PATHS, f"/queues/{hostile}", f"/batches?queue={hostile}"]:
                page.goto(path)
                assert faults_of(page) == [], (path, theme)
                for width in (390, 860, 1440, 2560):
                    page.set_viewport_size({"width": width, "height": 900})
                    assert page.evaluate(FITS), (path, width)


def test_batch_page_is_accessible_and_fits_a_phone(browser, site, story):
    _, batch_id = story
    for width in (390, 2560):
        with visit(browser, site, viewport={"width": width, "height": 900}) as page:
            page.goto(f"/batches/{batch_id}")
            assert faults_of(page) == []
            assert page.evaluate(FITS)


def test_open_page_follows_changes_until_it_is_paused(browser, site, lab):
    with visit(browser, site) as page:
        page.goto(f"/batches?queue={lab.q}")
        assert "No batch" in page.locator("#rows").inner_text()
        page.locator("[data-words]", has_text="Live, ").wait_for()
        second = page.context.new_page()  # of a page that does not change now
        second.goto(page.url)
        second.locator("[data-words]", has_text="Live, ").wait_for()
        second.goto("/docs")
        assert second.locator("[data-pause]").is_hidden()
        lab.submit("live-1")
        page.get_by_text("live-1").wait_for()
        page.get_by_role("button", name="Pause").click()
        lab.submit("live-2")
        assert page.get_by_role("button", name="Go live").get_attribute("aria-pressed") == "true"
        page.reload()
        page.get_by_text("live-2").wait_for()
        lab.submit("live-3")
        page.get_by_role("button", name="Go live").click()
        page.get_by_text("live-3").wait_for()


def test_person_pauses_a_queue_with_a_reason_and_it_is_recorded(browser, site, lab):
    with visit(browser, site) as page:
        page.goto(f"/queues/{lab.q}")
        page.get_by_role("link", name="Pause\u2026").click()
        page.get_by_label("Reason").fill("the sequencer is cleaned")
        page.get_by_role("button", name=f"Pause {lab.q}").click()
        page.get_by_role("link", name="Resume\u2026").wait_for()
        page.goto("/activity")
        assert "the sequencer is cleaned" in page.locator("#activity").inner_text()


def test_person_cancels_and_retries_batches(browser, site, lab):
    [row] = lab.submit("to-cancel")
    with visit(browser, site) as page:
        page.goto(f"/batches/{row.receipt.batch_id}")
        page.get_by_role("link", name="Cancel\u2026").click()
        page.get_by_label("Reason").fill("wrong flow cell")
        page.get_by_role("button", name="Cancel the batch").click()
        page.get_by_role("heading", name="Cancelled: it took no effect").wait_for()
        lab.submit("fails-1", "fails-2")
        lab.fail(*lab.claim(2), permanent=True)
        page.goto(f"/batches?queue={lab.q}&state=FAILED")
        page.get_by_role("link", name="Retry all that match\u2026").click()
        page.get_by_role("heading", name="Retry 2 batches").wait_for()
        page.get_by_label("Reason").fill("the disk was full")
        page.get_by_role("button", name="Retry all that match").click()
        page.get_by_role("heading", name="2 batches were retried").wait_for()
    assert {lab.location(lease.batch_id)[0] for lease in lab.claim(2)} == {"RUNNING"}


@pytest.mark.usefixtures("hostile")
def test_person_decides_about_an_effect_in_doubt(browser, site):
    with visit(browser, site) as page:
        page.goto("/fences?state=IN_DOUBT")
        form = page.locator("form.decide").first
        form.get_by_label("It did not").check()
        form.get_by_label("Reason").fill("the bank has no such transfer")
        form.get_by_role("button", name="Decide").click()
        page.wait_for_url("**/fences/v1*")
        assert "the bank has no such transfer" in page.locator("#history").inner_text()


def test_new_token_is_shown_once(browser, site):
    with visit(browser, site) as page:
        page.goto("/tokens?act=create")
        page.get_by_label("Name").fill("shown-once")
        page.get_by_role("button", name="Create", exact=True).click()
        token = page.get_by_label("Token", exact=True).inner_text()
        assert token.startswith("hx_")
        page.goto("/tokens")
        assert token not in page.content()
    with site.client(token=token) as http:
        assert http.get("/v1/queues").status_code == 200


def test_pages_work_without_a_script(browser, site, story):
    lab, batch_id = story
    with visit(browser, site, java_script_enabled=False) as page:
        page.goto(f"/batches/{batch_id}")
        assert page.get_by_role("heading", name="Ran twice, took effect once").is_visible()
        page.get_by_label("Find").fill(f"Sj\u00f6-{lab.q}")
        page.get_by_label("Find").press("Enter")
        page.wait_for_load_state()
        assert page.locator("main").is_visible()
        page.set_viewport_size({"width": 390, "height": 900})
        page.get_by_role("link", name="Menu").click()
        page.get_by_role("link", name="Workers").click()
        page.get_by_role("heading", name="Workers").wait_for()


def test_hostile_texts_run_nothing(browser, site, hostile):
    with visit(browser, site) as page:
        for path in [*PATHS, f"/batches?queue={hostile}", f"/batches?queue={hostile}&state=FAILED"]:
            page.goto(path)
            assert page.locator("x-xss, [onxss]").count() == 0
