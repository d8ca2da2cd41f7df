"""Headless Chromium of the system, driven by Playwright."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import axe_playwright_python
import pytest
from playwright.sync_api import sync_playwright

from tests.support.service import offer_login

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"
)


@contextmanager
def chromium():
    """A browser; fails with every error that a page reports."""
    with sync_playwright() as playwright:
        # Tests may run as root, for whom Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser, site, *, tenant="a", expected=(), **options):
    """A page of a person who is signed in; errors that a script or the policy reports fail."""
    link = f"{site.url}/login?code={offer_login(site.database, tenant=tenant)}"
    with open_link(browser, link, expected=expected, **options) as page:
        yield page


@contextmanager
def open_link(browser, link, *, expected=(), **options):
    """A page of the person who opens a login link."""
    address = urlsplit(link)
    context = browser.new_context(base_url=f"{address.scheme}://{address.netloc}", **options)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda message: errors.append(message.text) if message.type == "error" else None,
    )
    page.goto(link)
    page.get_by_role("button", name="Open the dashboard").click()
    page.wait_for_selector(".frame")
    yield page
    context.close()
    assert [error for error in errors if not any(word in error for word in expected)] == []


def faults_of(page):
    """The serious faults that axe finds on a page."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (fault["id"], fault["nodes"][0]["html"][:160])
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
    ]
