"""Filters of tables: what a reader types and chooses decides which rows are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.reports.browser import chromium

_PAGE = """<!doctype html><meta charset="utf-8"><div class="filtered" data-select="2" data-csv="numbers.csv"><table>
<thead><tr><th>name</th><th>family</th></tr></thead>
<tbody><tr><td>Alpha one</td><td>10</td></tr><tr><td>Beta</td><td>9</td></tr><tr><td>Gamma one</td><td>9</td></tr>
</tbody></table></div><script src="filter.js"></script>"""


@pytest.mark.full
def test_words_and_choices_hide_rows(tmp_path: Path) -> None:
    """From the disk, without a network."""
    program = chromium()
    from playwright.sync_api import sync_playwright

    (tmp_path / "filter.js").write_bytes((ROOT / "docs" / "assets" / "filter.js").read_bytes())
    (tmp_path / "page.html").write_text(_PAGE, encoding="utf-8")
    rows = "".join(f"<tr><td>{number:,}</td></tr>" for number in [*range(4), *range(1000, 1016)])
    many = f"<table><thead><tr><th>FLOPs</th></tr></thead><tbody>{rows}</tbody></table>"
    script = '<script src="filter.js"></script>'
    (tmp_path / "many.html").write_text(f'<div class="filtered" data-select="1">{many}</div>{script}', encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        assert page.locator("option").all_inner_texts() == ["all", "9", "10"]
        assert page.get_by_role("status").inner_text() == "3 of 3 rows"
        assert page.get_by_role("link").get_attribute("href") == "numbers.csv"
        page.get_by_label("Find").fill("ONE")
        assert page.get_by_role("status").inner_text() == "2 of 3 rows"
        page.get_by_label("family").select_option("9")
        assert [row.inner_text() for row in page.locator("tbody tr:visible td:first-child").all()] == ["Gamma one"]
        assert page.get_by_role("status").inner_text() == "1 of 3 rows"
        page.goto((tmp_path / "many.html").as_uri())
        page.get_by_label("FLOPs at most").fill("3")
        assert page.get_by_role("status").inner_text() == "4 of 20 rows"
        browser.close()
