"""The page of a run that may still go on: what it shows of made-up runs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from edgesim.reports.critical_path import attribute
from edgesim.reports.html.live_page import Progress, assets_of_page, live_page, notes_of, sections_of
from tests.records.written import new_tables, write
from tests.reports import made_up

PROGRESS = Progress(title="", status="fedavg, round 12/20, running", share=0.6, facts={"energy": "2 kJ"})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = made_up.run(tmp_path_factory.mktemp("run") / "mine", made_up.HOSTILE, 1)
    return live_page("<b>mine</b>", 2.0, [PROGRESS], sections_of([run], "<b>mine</b>"), ["careful"]).text


def test_it_shows_progress_accuracy_the_latest_round_and_stragglers(page: str) -> None:
    words = " ".join(unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)).split())
    assert "fedavg, round 12/20, running" in words and "careful" in words and "energy 2 kJ" in words
    assert 'value="0.6"' in page and 'data-every="2.0"' in page
    assert "Accuracy against simulated time" in words and "Round 12 took " in words
    assert "Devices that were last in most of 12 rounds of <b>mine</b>, or late most often" in words
    assert page.count('class="chart"') == page.count('<script type="application/json"') == 4


def test_hostile_names_stay_text(page: str) -> None:
    assert "alert(" in page and "<script>alert" not in page and "<b>mine" not in page


def test_it_loads_only_what_is_served_with_it(page: str) -> None:
    loaded = set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"data:,"}
    assert loaded == assets_of_page().keys()


def test_stragglers_are_counted_over_all_rounds(tmp_path: Path) -> None:
    run = made_up.run(tmp_path / "run", "fedavg", 2)
    rows = re.findall(r'<th scope=row[^>]*>([^<]+)</th>\s*<td[^>]*data-label="rounds as last">(\d+)</td>',
                      live_page("run", 1.0, sections=sections_of([run], "run")).text)  # fmt: skip
    last = attribute(run.jobs, run.rounds)["device"].value_counts()
    assert {int(name.split()[-1]): int(rounds) for name, rounds in rows} == last.to_dict()


def test_a_run_without_rounds_has_a_page(tmp_path: Path) -> None:
    scenario = made_up.manifest("fedavg", 1)["scenario"]
    run = write(tmp_path / "run", new_tables(), {"scenario": scenario, "status": "interrupted"})
    vars(run)["manifest"] = {**run.manifest, "status": "cut off", "warnings": ["slow"]}
    text = live_page("run", 1.0, sections=sections_of([run], "run"), notes=notes_of(run)).text
    assert "No model has been evaluated yet." in text and "No round has closed yet." in text
    assert "The process that ran this was killed." in text and "Warning: slow." in text
