"""The page of `watch --web` as a reader has it: in a browser, while a run goes on, after its end and after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.waiting import begun, waiting_run
from tests.reports import made_up
from tests.reports.browser import CHARTS, LAYOUT, barriers, headless
from tests.sizes import full

pytestmark = [full, pytest.mark.process]
DRAWN = "document.documentElement.dataset.drawn !== undefined"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with headless() as started:
        yield started


class Watched:
    """A `watch --web` in a process of its own, its page in a browser, and what went wrong there."""

    def __init__(self, browser: Any, folder: str, width: int = 1000, scheme: str = "light") -> None:
        words = [sys.executable, "-m", "edgesim", "watch", folder, "--web", "--every", "0.2"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[0]
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.goto(self.address)
        self.page.wait_for_function(DRAWN)

    def reads(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.page.wait_for_function("(text) => document.body.innerText.includes(text)", arg=text, timeout=60_000)

    def end(self) -> None:
        """End the command as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.communicate(timeout=60)[1] == "" and self.process.returncode == 0


def test_the_page_follows_a_run_without_flicker(here: Path, browser: Any) -> None:
    """Drawings, focus and open tables stay where they are; when the command ends, the page says so and stays."""
    run = waiting_run("scenario.toml", "--set", "stop.rounds=40", "--out", "run")
    begun(here / "run")
    seen = Watched(browser, "run")
    seen.reads("fedavg, round 5/40, running")
    page = seen.page
    page.wait_for_function(f"{DRAWN} && document.querySelectorAll('.chart .main-svg').length > 8")
    page.evaluate(
        "() => { window.kept = [...document.querySelectorAll('.chart .main-svg, #accuracy figure details, h1')]; "
        "document.querySelector('#accuracy figure details').open = true; "
        "document.querySelector('#accuracy figure summary').focus(); "
        "window.curve = () => document.querySelector('#accuracy .chart .js-line').getAttribute('d'); "
        "window.before = window.curve() }"
    )
    (here / "go").touch()
    seen.reads("fedavg, round 40/40, finished")
    page.wait_for_function("window.curve() !== window.before")
    assert page.evaluate("window.kept.every((each) => each.isConnected)")
    assert page.evaluate(
        "document.querySelector('#accuracy figure details').open && "
        "document.activeElement.matches('#accuracy figure summary')"
    )
    assert page.title() == "fedavg, round 40/40, finished: run"
    assert page.evaluate("document.querySelector('#accuracy figure details').innerText").count("fedavg") == 12
    assert (run.wait(60), seen.wrong) == (0, [])
    seen.end()
    seen.reads("edgesim watch has ended. The page shows what it sent last.")
    assert page.evaluate("window.kept.every((each) => each.isConnected)")


@pytest.mark.kills
def test_a_run_that_is_killed_is_shown_as_cut_off(here: Path, browser: Any) -> None:
    run = waiting_run("scenario.toml", "--set", "stop.rounds=40", "--out", "run")
    begun(here / "run")
    seen = Watched(browser, "run")
    seen.reads("fedavg, round 5/40, running")
    run.kill()
    run.communicate(timeout=60)
    seen.reads("fedavg, round 5/40, cut off")
    seen.reads("The process that ran this was killed.")
    (here / "run/manifest.json").write_text("{")
    seen.reads("run/manifest.json: ")
    assert seen.page.locator("section").count() == 0 and seen.wrong == []
    seen.end()


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1000, "dark"), (1600, "light")])
def test_it_looks_right_and_has_no_barriers(here: Path, tmp_path: Path, browser: Any, width: int, scheme: str) -> None:
    """The picture is kept to be looked at. On a phone, tables scroll and all else fits."""
    made_up.run(here / "run", made_up.HOSTILE, 1)
    seen = Watched(browser, "run", width, scheme)
    seen.page.wait_for_timeout(500)
    seen.page.screenshot(path=tmp_path / f"live-{width}-{scheme}.png", full_page=True)
    charts = seen.page.evaluate(CHARTS)
    assert len(charts) == 4 and all(each["paths"] and each["spanned"] > 60 for each in charts)
    layout = seen.page.evaluate(LAYOUT)
    assert layout["boxes"] > 50 and layout["faults"] == []
    assert barriers(seen.page) == [] and seen.wrong == []
    seen.end()
