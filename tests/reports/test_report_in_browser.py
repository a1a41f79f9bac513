"""The report as a reader has it: in a browser without a network, on a phone, a large screen and on paper."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgesim.reports.html.page import write_report
from edgesim.studies.report import findings_of, study_of
from tests.reports import made_up
from tests.reports.browser import BESIDE, CHARTS, DOTS, LAYOUT, barriers, headless, texts_of
from tests.sizes import full, thinned

pytestmark = pytest.mark.process
SHEET = 688  # pixels of the text of an A4 page with the page's margins
LOOKS = [
    *((width, scheme, "screen") for width in (400, 1000, 1600) for scheme in ("light", "dark")),
    *((width, "light", "print") for width in (400, SHEET, 1000, 1600)),
    (1000, "dark", "print"),
]
NAMES = [f"{width}-{scheme}-{media}" for width, scheme, media in LOOKS]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report with every section."""
    folder = tmp_path_factory.mktemp("report")
    study, cells = study_of(made_up.runs(folder / "runs"))
    commands = [
        "edgesim study run my_study.toml --size full",
        "edgesim report my_study.toml --size full --out report.html",
    ]
    question = "Which method reaches 80 % first on a small mixed fleet, and at what price?"
    found = made_up.with_prices(findings_of(study, cells, commands, question=question))
    found = dataclasses.replace(found, models=[("cnn_digits", "torchvision:resnet18 on 3x224x224")])
    return write_report(found, folder / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a headless browser."""
    with headless() as started:
        yield started


class Seen:
    """A page that is open, and what went wrong in it."""

    def __init__(self, browser: Any, file: Path, width: int, scheme: str, media: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console", lambda said: self.wrong.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.drawn !== undefined", timeout=60_000)
        self.page.emulate_media(media=media, color_scheme=scheme)
        self.page.wait_for_timeout(300)  # redrawing at another size is put off to the next frame


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Any]:
    """Return what opens the report in a way, and closes it in the end."""
    seen: list[Seen] = []

    def open_(width: int = 1000, scheme: str = "light", media: str = "screen", file: Path = report) -> Seen:
        seen.append(Seen(browser, file, width, scheme, media))
        return seen[-1]

    yield open_
    for each in seen:
        each.context.close()


@full
@pytest.mark.parametrize(("width", "scheme", "media"), thinned(LOOKS, LOOKS[:1], LOOKS[::2]))
def test_it_looks_right(opened, tmp_path, width, scheme, media):
    """Everything is drawn, nothing asked for, no text cut or on other text; the picture is kept to be looked at."""
    seen = opened(width, scheme, media)
    seen.page.screenshot(path=tmp_path / f"report-{width}-{scheme}-{media}.png", full_page=True)
    assert seen.wrong == []
    assert [url for url in seen.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    charts = seen.page.evaluate(CHARTS)
    assert len(charts) >= 9
    assert [each for each in charts if each["paths"] == 0 or each["spanned"] < 60 or each["height"] < 90] == []
    layout = seen.page.evaluate(LAYOUT)
    assert layout["boxes"] > 150
    assert layout["faults"] == []
    assert seen.page.evaluate(DOTS) == []


@full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_behind_charts_fit_too(opened, scheme):
    """The tables that are folded away: all open, on a phone."""
    seen = opened(400, scheme)
    seen.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert seen.page.evaluate(LAYOUT)["faults"] == []


@full
def test_the_check_of_the_layout_finds_faults(opened):
    """It would see text that is cut, sticks out, or lies on other text."""
    seen = opened(400)
    seen.page.add_style_tag(
        content=".verdict { position: relative; top: 60px } h1 { white-space: nowrap } "
        ".chart text { font-size: 60px !important }"
    )
    faults = " ".join(seen.page.evaluate(LAYOUT)["faults"])
    assert "lie on each other" in faults and "sticks out of the window" in faults and "edge of its chart" in faults


@full
@pytest.mark.parametrize(
    ("width", "scheme"), thinned([(400, "light"), (1000, "dark"), (1600, "light")], [(400, "light")])
)
def test_everybody_can_read_it(opened, width, scheme):
    """axe-core finds nothing serious or critical, with all folded tables open."""
    seen = opened(width, scheme)
    seen.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert barriers(seen.page) == []


@full
def test_the_check_of_barriers_finds_them(opened):
    """It would see a button without a name, and grey text on grey."""
    seen = opened(400)
    seen.page.add_style_tag(content="h1 { color: #888 !important; background: #999 !important }")
    seen.page.evaluate("document.body.append(document.createElement('button'))")
    assert {line.partition(" ")[0] for line in barriers(seen.page)} == {"button-name", "color-contrast"}


@full
def test_by_keyboard(opened):
    """The table is sorted and a line hidden without a mouse; every button is reached by Tab, and shows that it is."""
    page = opened(1000).page
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "(() => { const it = document.activeElement, style = getComputedStyle(it); "
            "return [it.tagName, it.innerText, style.outlineStyle !== 'none'] })()"
        )
        if at[0] == "BODY":
            break
        assert at[2], at
        reached.add((at[0], at[1]))
    buttons = page.evaluate(
        "[...document.querySelectorAll('button, a, summary')].filter((it) => it.checkVisibility())"
        ".map((it) => [it.tagName, it.innerText])"
    )
    assert {tuple(each) for each in buttons} <= reached

    first = "#results tbody tr:first-child th"
    head = page.locator("#results th button").nth(2)
    head.focus()
    page.keyboard.press("Enter")
    assert page.locator("#results th").nth(2).get_attribute("aria-sort") == "ascending"
    assert page.inner_text(first) == "FedPMT"
    last = "#results tbody tr:last-child th"
    assert page.inner_text(last) == made_up.HOSTILE  # never reached the target: unknown comes last, up and down
    page.keyboard.press("Enter")
    assert page.locator("#results th").nth(2).get_attribute("aria-sort") == "descending"
    assert page.inner_text(last) == made_up.HOSTILE

    lines = "document.querySelectorAll('#accuracy .chart')[0].querySelectorAll('.cartesianlayer .js-line').length"
    before = page.evaluate(lines)
    page.locator("#accuracy .legend button").first.focus()
    page.keyboard.press("Space")
    page.wait_for_timeout(200)
    assert page.locator("#accuracy .legend button").first.get_attribute("aria-pressed") == "false"
    assert page.evaluate(lines) < before


@full
def test_curves_have_names_where_there_is_room(opened, tmp_path):
    """Short names stand at the ends of curves and beside marks, and touch no line. Else the legend stays."""
    runs = [run for run in made_up.runs(tmp_path / "runs") if run.method != made_up.HOSTILE]
    file = write_report(made_up.with_prices(findings_of(*study_of(runs), [])), tmp_path / "short.html")
    for width, media in ((1600, "screen"), (SHEET, "print"), (1000, "screen")):
        page = opened(width, "light", media, file).page
        assert page.evaluate(LAYOUT)["faults"] == [] and page.evaluate(BESIDE) == []
    named = "[...document.querySelectorAll('[data-named=true]')].map((it) => it.dataset.figure)"
    wide = opened(1600, file=file)
    page = wide.page
    assert {"figure-cost", "figure-accuracy-time"} <= set(page.evaluate(named)) and wide.wrong == []
    keys = page.locator("#cost .keys")
    assert keys.get_attribute("open") is None and page.locator("#cost .keys summary").is_visible()
    page.locator("#cost .keys summary").click()
    page.locator("#cost .legend button").first.click()
    page.wait_for_timeout(200)
    assert page.evaluate(BESIDE) == []  # a curve that is switched off has no name
    page.add_style_tag(content=".infolayer .annotation { transform: translate(-60px, 0) }")
    assert any("a line runs through" in each for each in page.evaluate(BESIDE))  # the check sees names on curves
    narrow = opened(400, file=file).page
    assert narrow.locator("#accuracy .keys").get_attribute("open") is not None
    assert not narrow.locator("#accuracy .keys summary").is_visible() and narrow.evaluate(BESIDE) == []


@full
def test_on_paper(opened, tmp_path):
    """Pages have numbers, a heading stands on the page of its first chart, and text in charts has 8 points or more."""
    seen = opened(1000)
    heads = seen.page.evaluate(
        "[...document.querySelectorAll('section:has(figure)')].map((it) => [it.querySelector('h2').innerText + "
        "it.querySelector('.intro, .legend li, figcaption').innerText, it.querySelector('figcaption').firstChild.data])"
    )
    seen.page.emulate_media(media="null")  # neither screen nor print: the browser prints as it does for a reader
    pages = texts_of(seen.page.pdf(path=tmp_path / "report.pdf", format="A4"))
    assert len(pages) >= 3
    for i, text in enumerate(pages):
        assert re.match(rf"{i + 1} / {len(pages)}(?!\d)", text)
    assert len(heads) >= 7
    for head, chart in heads:
        assert any(chart.strip().replace("\u00a0", " ") in text and head[:24] in text for text in pages), (head, chart)
    assert not any("↕" in text or "Numbers" in text or "Switch lines" in text for text in pages)
    drawing = opened(SHEET, "light", "print").page
    sizes = drawing.evaluate(
        "[...document.querySelectorAll('.chart svg text')].map((it) => "
        "parseFloat(getComputedStyle(it).fontSize) * Math.hypot(it.getScreenCTM().a, it.getScreenCTM().b))"
    )
    assert min(sizes) >= 8 / 0.75  # a pixel of paper is 0.75 points


@full
def test_charts_say_what_they_show(opened):
    """Each has words for those who cannot see it, and a table with its numbers."""
    page = opened(1000).page
    charts = page.evaluate(
        "[...document.querySelectorAll('.chart')].map((it) => [it.getAttribute('role'), it.getAttribute('aria-label'), "
        "it.parentElement.querySelectorAll('details tbody tr').length])"
    )
    assert [each for each in charts if each[0] != "img" or len(each[1]) < 40 or each[2] == 0] == []
    figures = page.evaluate(
        "[...document.querySelectorAll('script[type=\"application/json\"]')].map((it) => it.textContent)"
    )
    assert all(json.loads(each)["data"] for each in figures)
