"""A headless Chromium of the machine, and axe-core; both stay out of the installation of edgesim."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conventions.source_tree import ROOT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_AXE = "axe.min.js"
_SERIOUS = ("serious", "critical")  # axe-core also knows minor and moderate


def chromium() -> str:
    """Return the path of the browser; a test that asks for it is skipped where there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright drives the browser, and is not installed")
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    return found


@contextmanager
def headless() -> Iterator[Any]:
    """Start a headless browser of playwright; a test that asks for it is skipped where there is none."""
    program = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--font-render-hinting=none"])
        yield started
        started.close()


def barriers(page: Any) -> list[str]:
    """Return the serious and critical findings of axe-core on a page that is open in playwright, one line each.

    A line has the rule, its impact and the first element that breaks it. A test that asks is skipped where axe-core is
    missing: `make .venv/browser` fetches it, and EDGESIM_AXE may name another copy.
    """
    copies = sorted((ROOT / ".venv" / "browser").rglob(_AXE))
    if path := os.environ.get("EDGESIM_AXE"):
        copies = [Path(path)]
    if not copies:
        pytest.skip(f"no {_AXE} (make .venv/browser, or EDGESIM_AXE=its path)")
    page.evaluate(copies[0].read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert found["testEngine"]["name"] == "axe-core" and found["passes"], "axe-core looked at nothing"
    return [
        f"{each['id']} ({each['impact']}), {len(each['nodes'])} elements, such as {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]


def texts_of(pdf: bytes) -> list[str]:
    """Return the text of each page of a PDF that Chromium has written, in the order in which it was drawn."""
    objects = {int(number): body for number, body in re.findall(rb"(\d+) 0 obj\s(.*?)\sendobj", pdf, re.DOTALL)}

    def stream(body: bytes, key: str) -> str:
        [number] = re.findall(rf"/{key} (\d+) 0 R".encode(), body)
        [packed] = re.findall(rb"stream\r?\n(.*)\r?\nendstream", objects[int(number)], re.DOTALL)
        return zlib.decompress(packed).decode("latin-1")

    letters: dict[str, dict[int, str]] = {}  # of each font: the letter of each glyph
    for page in objects.values():
        for name, number in re.findall(rb"/(F\d+) (\d+) 0 R", page):
            if name.decode() in letters or b"/ToUnicode" not in objects[int(number)]:
                continue
            known = letters.setdefault(name.decode(), {})
            for line in stream(objects[int(number)], "ToUnicode").splitlines():
                codes = [int(code, 16) for code in re.findall(r"<([0-9A-F]{4})>", line)]
                if len(codes) > 1 and codes != [0, 0xFFFF]:
                    first, last, letter = codes if len(codes) == 3 else (codes[0], codes[0], codes[1])
                    known |= {code: chr(letter + code - first) for code in range(first, last + 1)}
    pages: list[str] = []
    for page in objects.values():
        if re.search(rb"/Type /Page\b", page):
            text, font = "", dict[int, str]()
            for name, glyphs in re.findall(r"/(F\d+) [\d.]+ Tf|<([0-9A-F]+)> Tj", stream(page, "Contents")):
                font = letters.get(name, {}) if name else font
                text += "".join(font.get(int(glyphs[i : i + 4], 16), "?") for i in range(0, len(glyphs), 4))
            pages.append(unicodedata.normalize("NFKC", text))  # without ligatures and hard blanks
    return pages


# Returns what is wrong with the layout of a page, a line each: text that is cut, sticks out or lies on other text.
LAYOUT = """
() => {
  const faults = [], print = matchMedia("print").matches, wide = document.documentElement.clientWidth;
  const visible = (each) => each.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const named = (text) => JSON.stringify(text.trim().replace(/\\s+/g, " ").slice(0, 50));
  if (document.documentElement.scrollWidth > wide + 1)
    faults.push(`the page is ${document.documentElement.scrollWidth} px wide in a window of ${wide}`);

  // elements whose content does not fit: those that scroll are reached by keyboard, and on paper nothing scrolls
  for (const each of document.body.querySelectorAll("*")) {
    if (each.namespaceURI.endsWith("svg") || !visible(each) || each.closest(".hidden, .js-plotly-plot")) continue;
    const style = getComputedStyle(each), over = each.scrollWidth - each.clientWidth;
    if (style.display === "inline" || each.clientWidth === 0 || over <= 1) continue;
    if (/auto|scroll/.test(style.overflowX) && each.tabIndex >= 0 && !print) continue;
    if (!/visible/.test(style.overflowX) || print || !each.closest(".scroll"))
      faults.push(`${each.tagName}.${each.className} ${named(each.textContent)} is ${over} px too narrow`);
  }

  // boxes of text: a line of a text node, or a text of a drawing; less their leading
  const boxes = [];
  const add = (box, text, owner) => {
    if (box.width < 1 || box.height < 1) return;
    const [dx, dy] = [1, 0.2 * box.height];
    boxes.push({ left: box.left + dx, right: box.right - dx, top: box.top + dy, bottom: box.bottom - dy, text, owner });
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || !visible(parent) || parent.closest("script, noscript, .hidden, .skip, svg")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      add(box, node.data, node);
      if (!parent.closest(".scroll, pre") || print)
        if (box.left < -1 || box.right > wide + 1) faults.push(`${named(node.data)} sticks out of the window`);
    }
  }
  for (const text of document.querySelectorAll(".chart svg text")) {
    if (!text.textContent.trim() || !visible(text) || text.closest(".hoverlayer")) continue;
    const box = text.getBoundingClientRect(), chart = text.closest(".chart").getBoundingClientRect();
    add(box, text.textContent, text);
    const [left, right] = [chart.left - box.left, box.right - chart.right];
    const out = Math.max(left, right, chart.top - box.top, box.bottom - chart.bottom);
    if (out > 1.5) faults.push(`${named(text.textContent)} is cut by ${out.toFixed(1)} px at the edge of its chart`);
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let k = i + 1; k < boxes.length && boxes[k].top < a.bottom; k++) {
      const b = boxes[k];
      if (a.owner !== b.owner && a.left < b.right && b.left < a.right && b.top < a.bottom)
        faults.push(`${named(a.text)} and ${named(b.text)} lie on each other`);
    }
  });
  return { faults, boxes: boxes.length };
}
"""

# Returns what is wrong with the names beside curves and marks: a name on a line, or one that is missing or twice.
BESIDE = """
() => [...document.querySelectorAll('.chart[data-named="true"]')].flatMap((chart) => {
  const names = [...chart.querySelectorAll(".infolayer .annotation-text")];
  const boxes = names.map((each) => each.getBoundingClientRect()), said = names.map((each) => each.textContent);
  const wanted = chart._fullData.filter((each) => each.visible === true && each.meta && each.meta.named);
  const missing = wanted.map((each) => each.meta.setting).toSorted().join() !== said.toSorted().join();
  const faults = missing ? [`${chart.dataset.figure} has the names ${said}`] : [];
  for (const line of chart.querySelectorAll(".scatterlayer .js-line, .scatterlayer .xerror, .scatterlayer .yerror")) {
    const matrix = line.getScreenCTM(), style = getComputedStyle(line);
    if (style.stroke === "none" || parseFloat(style.strokeWidth) === 0) continue;
    for (let at = 0; at <= line.getTotalLength(); at += 2) {
      const { x, y } = line.getPointAtLength(at).matrixTransform(matrix);
      const hit = boxes.findIndex((box) => x > box.left && x < box.right && y > box.top + 2 && y < box.bottom - 2);
      if (hit < 0) continue;
      faults.push(`${chart.dataset.figure}: a line runs through ${said[hit]}`);
      break;
    }
  }
  return faults;
})
"""

# Returns the dots of runs that overlap in the charts of targets.
DOTS = """
() => [...document.querySelectorAll('[data-figure^="figure-target"]')].flatMap((chart) =>
  [...chart.querySelectorAll(".scatterlayer .points path")].filter((each) => each.getBBox().width < 9) // no diamonds
    .map((each) => each.getBoundingClientRect()).filter((box) => box.width > 1)
    .map((box) => [(box.left + box.right) / 2, (box.top + box.bottom) / 2, box.width])
    .filter(([x, y, wide], i, all) => all.some(([u, v], k) => k !== i && Math.hypot(x - u, y - v) < 0.97 * wide)))
"""

# Returns for each chart its name, its size and how large the drawing of its data is.
CHARTS = """
() => [...document.querySelectorAll(".chart")].map((chart) => {
  const drawn = [...chart.querySelectorAll(".cartesianlayer .trace path, .cartesianlayer .trace image")]
    .map((each) => each.getBoundingClientRect()).filter((box) => box.width + box.height > 2);
  const span = (one, other) =>
    Math.max(...drawn.map((box) => box[other])) - Math.min(...drawn.map((box) => box[one]));
  const box = chart.getBoundingClientRect();
  return {
    name: chart.dataset.figure, width: box.width, height: box.height, paths: drawn.length,
    spanned: drawn.length ? span("left", "right") + span("top", "bottom") : 0,
  };
})
"""
