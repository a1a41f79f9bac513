"""Axes that are values of a key, with units too; studies without sizes; names that a study does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgesim.studies.study import load_study
from tests.calling import TINY, call, names

STUDY = """
name = "deadlines"
base = "base.toml"
without = ["data"]
overrides = ["partition=sizes", "backend=null", "protocol=deadline"]
columns = ["round_s", "sim_time_s"]

[axes]
"protocol.deadline" = ["30 s", "1 min"]
"network.up" = ["0.5 Mbit/s"]
seed = [1]
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the study of deadlines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


def test_values_may_have_units(study: Path) -> None:
    """They are values of the scenario as they stand, and labels with _ for what no label has."""
    loaded = load_study(study)
    cells = loaded.cells("quick")
    assert [cell.labels["protocol.deadline"] for cell in cells] == ["30_s", "1_min"]
    found = [loaded.scenario(study.parent, cell, "quick") for cell in cells]
    assert [(s.protocol.value.deadline_s, s.network.value.up) for s in found] == [(30.0, 5e5), (60.0, 5e5)]


@pytest.mark.parametrize("value", ["30 s", "30_s"])
def test_a_cell_is_named_by_a_value_or_its_label(study: Path, value: str) -> None:
    published = f'\n[[published]]\ncell = {{ "protocol.deadline" = "{value}" }}\ncolumn = "round_s"\nvalue = 8\n'
    where = f'\n[[where]]\ncell = {{ "protocol.deadline" = "{value}" }}\noverrides = ["stop.rounds=3"]\n'
    study.write_text(STUDY + published + where)
    loaded = load_study(study)
    (cell,) = loaded.cells("quick", [f"protocol.deadline={value}"])
    assert cell.name == "protocol.deadline=30_s,network.up=0.5_Mbit_s,seed=1"
    assert loaded.scenario(study.parent, cell, "quick").stop.rounds == 3
    assert loaded.published[0].cell.items() <= cell.labels.items()
    assert call("study", "run", study, "--only", f"protocol.deadline={value}", "--runs", "runs").code == 0
    assert names(Path("runs")) == [cell.name]


def test_numbers_without_an_end_are_values_too(study: Path) -> None:
    study.write_text(STUDY.replace("seed = [1]", '"server.flops_per_s" = [inf, 1e9]'))
    loaded = load_study(study)
    speeds = [loaded.scenario(study.parent, cell, "quick").server.flops_per_s for cell in loaded.cells("quick")]
    assert speeds[:2] == [float("inf"), 1e9]


def test_a_study_needs_no_sizes(study: Path) -> None:
    assert list(load_study(study).sizes) == ["quick"]
    assert call("study", "run", study, "--runs", "runs").code == 0
    assert call("study", "table", study, "--runs", "runs").code == 0
    says = "error: --size: unknown size 'full' (known: quick)\n"
    assert call("study", "run", study, "--size", "full") == (2, "", says)


BAD = {
    "dots without quotation marks": (
        '"protocol.deadline"',
        "protocol.deadline",
        "axes.protocol.deadline: '30 s' is no override, key=value; an axis that is named after a key with dots "
        'needs quotation marks: "protocol.deadline" = [...]',
    ),
    "the same label twice": ('"1 min"', '"30/s"', "axes.protocol.deadline: two values have the label '30_s'"),
    "the same value twice": ("[1]", '[1, "1"]', "axes.seed: two values have the label '1'"),
    "a date": ("[1]", "[2026-01-01]", "axes.seed: values must be numbers, strings or true and false, got datetime"),
    "a table": ("[1]", "[{ a = 1 }]", "axes.seed: values must be numbers, strings or true and false, got {'a': 1}"),
    "a list": ("[1]", "[[1]]", "axes.seed: values must be numbers, strings or true and false, got [1]"),
    "nothing": ("[1]", '[""]', "axes.seed: '' must be of letters, digits and"),
    "a size that is no folder": ("[axes]", '[sizes."../up"]\n\n[axes]', "sizes: '../up' must be of letters, digits"),
    "no size": ("[axes]", "[sizes]\n\n[axes]", "sizes: "),
    "a published column": (
        "[axes]",
        '[[published]]\ncell = {}\ncolumn = "round"\nvalue = 1\n\n[axes]',
        "published.0.column: 'round' is no column of the study; did you mean 'round_s'? (round_s, sim_time_s)",
    ),
}


@pytest.mark.parametrize(("old", "new", "says"), BAD.values(), ids=BAD)
def test_bad_axes_are_one_line(study: Path, old: str, new: str, says: str) -> None:
    assert old in STUDY
    study.write_text(STUDY.replace(old, new))
    code, out, err = call("study", "run", study, "--runs", "runs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {study}: {says}")


def test_a_tolerance_of_no_column_offers_the_nearest(study: Path) -> None:
    folder = study.parent / "golden"
    folder.mkdir()
    (folder / "golden.toml").write_text('study = "../study.toml"\n[tolerances]\nround = 0.1\n')
    says = "tolerances: 'round' is no column of the study; did you mean 'round_s'? (round_s, sim_time_s)"
    assert call("check", folder) == (2, "", f"error: {folder / 'golden.toml'}: {says}\n")
