"""`make screenshots`: a picture of each page, light and dark, of a running `helixq up --demo`.

python -m tests.support.screenshots LINK FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from helixqueue.dashboard.navigation import SECTIONS

WIDTHS = (1440, 390, 2560)
# A page with parts that change has its first update, a page without has no button for them.
LIVE = """() => !document.querySelector('[data-pause]:not([hidden])')
    || document.querySelector('[data-words]').textContent === 'Live, '"""


def main(link: str, folder: str) -> None:
    address = urlsplit(link)
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        context = browser.new_context(base_url=f"{address.scheme}://{address.netloc}")
        page = context.new_page()
        page.goto(link)
        page.get_by_role("button", name="Open the dashboard").click()
        page.wait_for_selector(".frame")
        for title, path in _pages(page).items():
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 1000})
                    page.goto(path)
                    # A window as high as the page: the navigation is as high as the window.
                    height = page.evaluate("document.documentElement.scrollHeight")
                    page.set_viewport_size({"width": width, "height": min(height, 4_000)})
                    page.wait_for_function(LIVE)
                    page.screenshot(path=out / f"{title}-{width}-{theme}.png")
        browser.close()


def _pages(page) -> dict[str, str]:
    """The pages of the navigation, a queue, and a batch whose late write was refused."""
    pages = {entry.title: entry.path for section in SECTIONS for entry in section.entries}
    for title, path, selector in (
        ("Queue", "/queues", "#queues tbody a[href^='/queues/']"),
        ("Batch", "/refusals", "#refusals tbody a[href^='/batches/']"),
        ("Worker", "/workers", "#workers tbody a[href^='/workers/']"),
    ):
        page.goto(path)
        links = page.locator(selector)
        if links.count():
            pages[title] = str(links.first.get_attribute("href"))
    return {title.lower().replace(" ", "-"): path for title, path in pages.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
