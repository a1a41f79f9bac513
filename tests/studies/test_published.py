"""Published numbers of a study that stand in a CSV file: the same as in the study itself, and refused in one line."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest

from edgesim.studies.study import load_study
from tests.calling import TINY, call
from tests.sizes import full

STUDIES = Path(__file__).parents[2] / "scenarios" / "studies"
STUDY = """
name = "tiny"
base = "../base.toml"
without = ["data"]
overrides = ["partition=sizes", "backend=null"]
columns = ["round_s", "sim_time_s"]
PUBLISHED

[axes.method]
fedavg = ["protocol={ name = 'deadline' }"]
thin = ["method={ name = 'fedpmt', rule = 'deadline' }", "protocol={ name = 'deadline', deadline = '1 h' }"]

[axes]
"protocol.deadline" = ["30 s", "1 min"]
seed = [1, 2]
"""
NAMED = 'published = "reference/table.csv"'
INLINE = """published = [
    { cell = { method = "fedavg", "protocol.deadline" = "30 s" }, column = "round_s", value = 8 },
    { cell = { method = "thin" }, column = "sim_time_s", value = 1.5e3 },
    { cell = {}, column = "sim_time_s", value = -2 },
]"""
TABLE = """method,protocol.deadline,column,value,source
fedavg,30 s,round_s,8,"Table 1, left"
thin,,sim_time_s,1.5e3,
,,sim_time_s,-2,Table 1
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a study, in a folder that is not the current one, with its numbers in a CSV beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(TINY)
    (tmp_path / "mine" / "reference").mkdir(parents=True)
    (tmp_path / "mine" / "reference" / "table.csv").write_text(TABLE)
    file = Path("mine/study.toml")
    file.write_text(STUDY.replace("PUBLISHED", NAMED))
    return file


def test_a_csv_says_what_the_study_may_say_itself(study: Path) -> None:
    from_csv = load_study(study)
    study.write_text(study.read_text().replace(NAMED, INLINE))
    assert from_csv == load_study(study)
    assert [entry.value for entry in from_csv.published] == [8, 1500, -2]
    assert from_csv.published[0].cell == {"method": "fedavg", "protocol.deadline": "30_s"}


@full
def test_its_numbers_stand_in_the_table(study: Path) -> None:
    words = (study, "--only", "seed=1", "--runs", "runs")
    assert call("study", "run", *words).code == 0
    rows = json.loads(call("study", "table", study, "--json", "--runs", "runs").out)["rows"]
    found = {(row["method"], row["protocol.deadline"], row["column"]): row["published"] for row in rows}
    assert found == {
        ("fedavg", "30_s", "round_s"): 8,
        ("fedavg", "1_min", "round_s"): None,
        ("fedavg", "30_s", "sim_time_s"): -2,
        ("fedavg", "1_min", "sim_time_s"): -2,
        ("thin", "30_s", "round_s"): None,
        ("thin", "1_min", "round_s"): None,
        ("thin", "30_s", "sim_time_s"): 1500,  # the first that fits holds
        ("thin", "1_min", "sim_time_s"): 1500,
    }


CSV = "mine/reference/table.csv"
HEADER = f"{CSV} line 1: the header needs column and value, no name twice"
ALLOWED = "(allowed: method, protocol.deadline, column, value, source)"
BAD = {
    "no column": (
        ",value,",
        ",number,",
        f"{HEADER} {ALLOWED}, got method, protocol.deadline, column, number, source",
    ),
    "a name twice": (
        ",source\n",
        ",value\n",
        f"{HEADER} {ALLOWED}, got method, protocol.deadline, column, value, value",
    ),
    "a seed": ("method,prot", "seed,prot", f"{HEADER} {ALLOWED}, got seed, protocol.deadline, column"),
    "no axis": ("method,prot", "metod,prot", f"{HEADER} {ALLOWED}, got metod, protocol.deadline, column"),
    "nothing": (TABLE, "", f"{HEADER} {ALLOWED}, got nothing"),
    "no number": (",8,", ",eight,", f"{CSV} line 2: value: must be a finite number, got 'eight'"),
    "an empty value": (",8,", ",,", f"{CSV} line 2: value: must be a finite number, got ''"),
    "no finite number": (",-2,", ",nan,", f"{CSV} line 4: value: must be a finite number, got 'nan'"),
    "no label": ("thin,", "thick,", f"{CSV} line 3: no cell has method=thick (method: fedavg, thin)"),
    "no column of the study": (
        ",round_s,",
        ",rounds,",
        f"{CSV} line 2: column: 'rounds' is no column of the study; did you mean 'round_s'? (round_s, sim_time_s)",
    ),
    "too few values": (",-2,Table 1", ",-2", f"{CSV} line 4: has not as many values as the header has names: 4, not 5"),
}


@pytest.mark.parametrize(("old", "new", "says"), BAD.values(), ids=BAD)
def test_a_bad_csv_is_one_line(study: Path, old: str, new: str, says: str) -> None:
    assert old in TABLE
    Path(CSV).write_text(TABLE.replace(old, new))
    for command in ("run", "table"):
        code, out, err = call("study", command, study, "--runs", "runs")
        assert (code, out) == (2, "") and err.startswith(f"error: {study}: {says}") and err.count("\n") == 1, err
    assert not Path("runs").exists()


def test_a_csv_that_is_not_there(study: Path) -> None:
    Path(CSV).unlink()
    assert call("study", "run", study, "--runs", "runs") == (
        2,
        "",
        f"error: {study}: {CSV}: cannot be read: No such file or directory\n",
    )


def test_an_axis_that_has_the_name_of_a_column_of_the_csv(study: Path) -> None:
    study.write_text(study.read_text().replace("[axes.method]", "[axes.value]"))
    says = f"error: {study}: {CSV}: 'value' is a name of its own there; rename the axis of the study\n"
    assert call("study", "run", study, "--runs", "runs") == (2, "", says)


def test_every_reference_belongs_to_a_study_and_tells_its_source() -> None:
    named = [
        tomllib.loads(file.read_text(encoding="utf-8")).get("published") for file in sorted(STUDIES.glob("*.toml"))
    ]
    files = sorted((STUDIES / "reference").iterdir())
    assert len(files) >= 10
    assert sorted({STUDIES / name for name in named if isinstance(name, str)}) == files
    for file in files:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert rows and all(row["source"] for row in rows), file
