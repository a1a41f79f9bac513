"""The example decisions: each asks a question, can be run, and has its page say what was decided."""

from __future__ import annotations

import html
import json
import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from edgesim.studies.study import load_study
from tests.calling import call
from tests.end_to_end.decision_values import FOLDER, recorded_values, values_in
from tests.sizes import full, sized, thinned
from tests.studies.made_up import first_screen

ROOT = Path(__file__).parents[2]
STUDIES = sorted(path.stem for path in FOLDER.glob("*.toml") if "axes" in tomllib.loads(path.read_text("utf-8")))
PAGE = (ROOT / "docs" / "explanation" / "decisions.md").read_text("utf-8")
# The headline of the report, and how the page begins its own.
DECIDED = {
    "chips_or_links": ("Board first, then link.", "Boards first, then cables."),
    "how_many_phones": ("5 phones.", "Five."),
    "which_deadline": ("First 15 of 20 or wait 30 s.", "For the first 15 of 20, or 30 s."),
    "which_method": ("FedAvg, until more seeds say otherwise.", "FedAvg, until more seeds say otherwise."),
    "when_to_train": ("Noon.", "At noon."),
    "overnight_tuning": ("Phone first.", "Phones of 2023 do, by their estimated speed."),
}
# Where a study is run, it charges one block of its large network, whose price takes half a minute.
SMALLER = {"overnight_tuning": ["cost.model.layers=1"]}


def test_there_are_six_and_the_makefile_runs_them_all() -> None:
    listed = re.search(r"^DECISIONS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert listed and sorted(listed[1].split()) == STUDIES
    assert len(STUDIES) == 6


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_has_the_question_and_the_command(name: str) -> None:
    study = load_study(FOLDER / f"{name}.toml")
    assert study.question.endswith("?")
    assert study.question in PAGE.replace("\n", " ")
    assert f"scenarios/decisions/{name}.toml" in PAGE


@pytest.mark.parametrize("name", thinned(STUDIES, {"which_method"}))
def test_the_report_says_in_words_what_the_page_says_by_hand(name: str) -> None:
    """Each effect of the report, with its interval, and each number of its grids stands in the section of the page."""
    said = first_screen(recorded_values(name))
    command = PAGE.index(f"scenarios/decisions/{name}.toml")
    start, end = PAGE.rindex("\n## ", 0, command), PAGE.find("\n## ", command)
    section = " ".join(PAGE[start : end if end > 0 else len(PAGE)].split())
    words = re.sub(r" of [\d.]+\u00a0\w+", "", " ".join([said.first, *said.told])).replace("\u00a0", " ")
    effects = re.findall(r"[\d.]+ (?:s|min|h|kJ|g|EUR)\b(?: \(\d+ %\))?(?: (?:less|more)[^\[.]*)?(?: \[[^]]+\])", words)
    amounts = [re.sub(r" (less|more).*(?= \[)", "", effect) for effect in effects]
    assert amounts or name == "when_to_train"  # its numbers do not depend on the seed
    assert [amount for amount in amounts if amount not in section] == []
    numbers = [bar.text.replace("\u00a0", " ") for grid in said.grids[:2] for _, row in grid.rows for bar in row if bar]
    assert [number for number in numbers if number not in section] == []
    assert f"**{DECIDED[name][1]}" in section and said.first == DECIDED[name][0]


@full
def test_recorded_values_are_those_of_the_runs(tmp_path: Path) -> None:
    """All starts of a seed share their training. The rest of a short run has one seed of eight."""
    known, only = recorded_values("when_to_train"), sized([], [], [], rest=["seed=2"])
    if only:
        known = known[known["seed"] == "2"].reset_index(drop=True)
    words = [word for text in only for word in ("--only", text)]
    made = call("study", "run", FOLDER / "when_to_train.toml", "--runs", tmp_path / "runs", *words)
    assert made.code == 0
    found = values_in("when_to_train", tmp_path / "runs", only)
    pd.testing.assert_frame_equal(found, known, rtol=1e-6, check_dtype=False)


@full
@pytest.mark.parametrize("name", thinned(STUDIES, STUDIES[:1], STUDIES[::3]))
def test_one_seed_becomes_a_report(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study as it is, but for its rounds: run, tabulated and reported, with what it costs."""
    monkeypatch.chdir(tmp_path)
    text = (FOLDER / f"{name}.toml").read_text("utf-8")
    base = tomllib.loads(text)["base"]
    overrides = ["stop={ rounds = 2 }", *SMALLER.get(name, [])]
    shorter = (
        text.replace(f'"{base}"', f'"{FOLDER / base}"') + f"\n[sizes.short]\noverrides = {json.dumps(overrides)}\n"
    )
    Path("study.toml").write_text(shorter, encoding="utf-8")
    seeds = ["--only", "seed=1", "--size", "short"]
    assert call("study", "run", "study.toml", *seeds).code == 0
    assert call("study", "table", "study.toml", *seeds).code == 0
    assert call("report", "study.toml", *seeds, "--out", "report.html").code == 0
    page = html.unescape(Path("report.html").read_text("utf-8")).replace("\u00a0", " ")
    assert load_study(Path("study.toml")).question in page
    assert "Cost and carbon" in page and "EUR" in page
    text = re.sub(r"<(style|script).*?</\1>|<[^>]+>", "", page, flags=re.DOTALL)
    assert "nothing consumes energy" not in text.lower()  # fleet blocks have their own energy, which the page counts
    assert re.findall(r"\de[+-]\d|EUR/J|g/J", text) == []  # display units everywhere
