"""The example decisions: each asks a question, can be run, and has its page say what was decided."""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path

import pytest

from edgesim.studies.study import load_study
from tests.calling import call
from tests.sizes import full

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scenarios" / "decisions"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.toml") if "axes" in tomllib.loads(path.read_text("utf-8")))
PAGE = (ROOT / "docs" / "explanation" / "decisions.md").read_text("utf-8")


def test_there_are_five_and_the_makefile_runs_them_all() -> None:
    listed = re.search(r"^DECISIONS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert listed and sorted(listed[1].split()) == STUDIES
    assert len(STUDIES) == 5


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_has_the_question_and_the_command(name: str) -> None:
    study = load_study(FOLDER / f"{name}.toml")
    assert study.question.endswith("?")
    assert study.question in PAGE.replace("\n", " ")
    assert f"scenarios/decisions/{name}.toml" in PAGE


@full
@pytest.mark.parametrize("name", STUDIES)
def test_one_seed_becomes_a_report(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study as it is, but for its rounds: run, tabulated and reported, with what it costs."""
    monkeypatch.chdir(tmp_path)
    text = (FOLDER / f"{name}.toml").read_text("utf-8")
    base = tomllib.loads(text)["base"]
    shorter = text.replace(f'"{base}"', f'"{FOLDER / base}"') + '\n[sizes.short]\noverrides = ["stop={ rounds = 2 }"]\n'
    Path("study.toml").write_text(shorter, encoding="utf-8")
    seeds = ["--only", "seed=1", "--size", "short"]
    assert call("study", "run", "study.toml", *seeds).code == 0
    assert call("study", "table", "study.toml", *seeds).code == 0
    assert call("report", "study.toml", *seeds, "--out", "report.html").code == 0
    page = html.unescape(Path("report.html").read_text("utf-8")).replace("\u00a0", " ")
    assert load_study(Path("study.toml")).question in page
    assert "Cost and carbon" in page and "EUR" in page
