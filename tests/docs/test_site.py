"""The site is built without warnings, and in a browser, opened from the disk: search, palettes, ways, barriers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.reports.browser import barriers, chromium
from tests.sizes import full, thorough

A_METHOD = "reference/methods/fedprox.html"
PAGES = ("index.html", A_METHOD, "explanation/time.html", "explanation/claims.html", "explanation/performance.html")
# What a new user looks for, and the page that answers.
WANTED = {
    "add a device": "howto/device.html",
    "how is time computed": "explanation/time.html",
    "which methods exist and what do they cost": "reference/methods.html",
    "can I trust it": "explanation/trust.html",
    "my Flower app": "tutorial/flower_app.html",
}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout, strictly."""
    quiet = {"DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site. EDGESIM_SITE may name one that is built already."""
    if built := os.environ.get("EDGESIM_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a headless Chromium."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@full
def test_the_pages_of_plug_ins_are_there(site: Path) -> None:
    assert (site / "reference" / "methods" / "fedavg.html").is_file()


@thorough
def test_a_page_with_a_broken_anchor_is_refused(tmp_path: Path) -> None:
    for name in ("analysis", "docs", "edgesim", "scenarios", "tests"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
    page = tmp_path / "copy" / "docs" / "explanation" / "fedktl.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n[a](glossary.md#no_such_word)\n", encoding="utf-8")
    done = build(tmp_path / "copy", tmp_path / "broken")
    assert done.returncode != 0
    assert "no_such_word" in done.stderr


@full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_barriers_and_no_errors(site: Path, browser: Any, scheme: str) -> None:
    """At three widths; nothing is asked of a network."""
    page = browser.new_context(color_scheme=scheme).new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: faults.append(asked.url) if asked.url.startswith("http") else None)
    for name in PAGES:
        for width in (400, 1000, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto((site / name).as_uri())
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert faults == [], name
    for name in PAGES:  # after all else, as axe-core asks for style sheets, which a page from the disk may not read
        page.goto((site / name).as_uri())
        page.wait_for_timeout(200)
        assert barriers(page) == [], name
    page.context.close()


@full
def test_the_palette_has_a_button(site: Path, browser: Any) -> None:
    page = browser.new_context(color_scheme="dark").new_page()
    page.goto((site / "index.html").as_uri())
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("[data-md-component=palette] label:visible").click()
    page.wait_for_timeout(200)
    assert page.evaluate(ground) != dark
    page.context.close()


@full
def test_search_from_the_disk_finds_each_page_first(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    for words, wanted in WANTED.items():
        page.goto((site / "index.html").as_uri())
        page.click("input.md-search__input")
        page.keyboard.type(words)
        page.wait_for_selector(".md-search-result__link", timeout=20_000)
        page.wait_for_timeout(500)
        found = [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]
        assert wanted in found[0], (words, found[:5])
    page.close()


@full
def test_two_clicks_lead_from_the_first_page_to_each(site: Path, browser: Any) -> None:
    """Links of the first page and of the pages that they lead to, as a reader sees them."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    seen: set[str] = set()
    reached = {(site / "index.html").as_uri()}
    for _ in range(2):
        for url in sorted(reached - seen):
            page.goto(url)
            seen.add(url)
            links = page.eval_on_selector_all(
                "a[href]", "found => found.filter(a => a.checkVisibility()).map(a => a.href)"
            )
            reached |= {link.partition("#")[0] for link in links if ".html" in link and link.startswith("file:")}
    assert {wanted for wanted in WANTED.values() if (site / wanted).as_uri() not in reached} == set()
    page.close()
