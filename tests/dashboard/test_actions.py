"""What a person changes in a browser, and what the service then says."""

from __future__ import annotations

import pytest

from helixqueue import HelixQueue, Machine
from tests.dashboard.browser import chromium, needs_chromium, visit
from tests.support.lab import POOLED
from tests.support.letters import write_letters

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, site):
    with visit(browser, site) as page:
        yield page


def _act(page, link, reason, button, **fields):
    """Follow the link of an action, fill in its form, and send it."""
    page.get_by_role("link", name=f"{link}\u2026", exact=True).click()
    for name, value in fields.items():
        page.locator(f"input[name={name}]").fill(value)
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=button).click()


def test_person_releases_then_erases_a_batch(page, lab):
    [row] = lab.submit("to-release")
    batch = row.receipt.batch_id
    [lease] = lab.claim()
    page.goto(f"/batches/{batch}")
    _act(page, "Release", "the node is drained", "Release the batch")
    page.get_by_role("heading", name="Waits again, after 1 lease").wait_for()
    [lease] = lab.claim()
    lab.fail(lease, permanent=True)
    page.goto(f"/batches/{batch}")
    _act(page, "Erase", "the donor withdrew", "Erase the batch")
    page.get_by_text("Erased.").first.wait_for()
    assert "the node is drained" in page.locator("#ledger").inner_text()
    page.goto("/activity")
    assert "the donor withdrew" in page.locator("#activity").inner_text()


def test_person_redrives_one_letter_and_discards_another(page, lab):
    first, second = write_letters(lab, "1-0", "2-0")
    page.goto(f"/letters/{first}")
    _act(page, "Redrive", "the label was read again", "Redrive the letter", identity="relabelled")
    page.get_by_role("heading", name="relabelled").wait_for()
    page.goto(f"/letters/{second}")
    _act(page, "Discard", "a test tube", "Discard the letter")
    page.get_by_text("The message is gone; its record stays.").wait_for()
    for letter, status in ((first, "Redriven"), (second, "Discarded")):
        page.goto(f"/letters/{letter}")
        assert page.locator(".title .state").inner_text() == status


def test_person_pauses_resumes_and_rewinds_a_feed(page, site, database, lab):
    name = f"feed-{lab.q}"
    with HelixQueue(database.dsn("pool"), tenant="a", pooled=POOLED) as helix:
        ledger = helix.ledger(f"ledger-{lab.q}", Machine({"ASKED": []}))
        ledger.append("order-1", 1, "ASKED", {})
    with site.client() as http:
        http.put(f"/v1/feeds/{name}", json={"ledger": ledger.name}).raise_for_status()
    page.goto("/feeds")
    row = page.locator("#feeds tr", has_text=name)
    for verb, state in (("Pause", "Paused"), ("Resume", "Behind"), ("Rewind", "Behind")):
        row.get_by_role("link", name=f"{verb}\u2026").click()
        page.get_by_label("Reason").fill(f"{verb} for maintenance")
        page.get_by_role("button", name=f"{verb} {name}").click()
        row.get_by_text(state, exact=True).wait_for()
    page.goto("/activity")
    assert "Rewind for maintenance" in page.locator("#activity").inner_text()


def test_person_rotates_and_revokes_a_token(page, site):
    token = site.token("read", name="rotated")
    page.goto("/tokens?act=rotate&name=rotated")
    page.get_by_role("button", name="Rotate rotated").click()
    fresh = page.get_by_label("Token", exact=True).inner_text()
    with site.client(token=token) as old, site.client(token=fresh) as new:
        assert [http.get("/v1/queues").status_code for http in (old, new)] == [200, 200]
        page.goto("/tokens?act=revoke&name=rotated")
        page.get_by_label("Reason").fill("it was in a log")
        page.get_by_role("button", name="Revoke rotated").click()
        page.wait_for_url("**/tokens")
        assert [http.get("/v1/queues").status_code for http in (old, new)] == [401, 401]


def test_person_changes_the_settings_of_a_queue(page, site, lab):
    page.goto(f"/queues/{lab.q}")
    reason = "slow sequencer"
    _act(page, "Change settings", reason, "Change settings", lease_seconds="90", key_limit="3")
    page.locator("#settings dd", has_text="3 at a time").wait_for()
    with site.client() as http:
        found = http.get(f"/v1/queues/{lab.q}").raise_for_status().json()
    assert (found["lease_seconds"], found["key_limit"]) == (90.0, 3)


@pytest.mark.usefixtures("lab")
def test_person_checks_every_invariant_and_sees_a_foreign_function(page):
    """The tests' own function in the schema is what the check finds."""
    page.goto("/proof")
    page.get_by_role("button", name="Check now").click()
    page.get_by_role("heading", name="function_tampered found 1").wait_for()
    assert "test_pass_time" in page.locator("main").inner_text()
    page.goto("/")
    assert page.get_by_role("heading", name="The last check found something").is_visible()
