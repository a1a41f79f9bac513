"""Every benchmark runs, in tiny sizes; no time is looked at."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tests.conventions.source_tree import ROOT
from tests.sizes import thinned, thorough

FOLDER = ROOT / "benchmarks"
LIMIT_S = 600


def _is_benchmark(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "rows" for node in tree.body)


NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if _is_benchmark(path))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Row(_Strict):
    name: str = Field(min_length=1)
    value: float = Field(ge=0)
    low: float
    high: float
    unit: Literal["s", "ms", "us", "MiB", "MFLOP", ""]
    baseline: str | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    note: str = Field(pattern=r"^[A-Z].*\.$")  # a sentence

    @model_validator(mode="after")
    def _fits(self) -> _Row:
        assert self.low <= self.value <= self.high
        ratios = (self.ratio, self.ratio_low, self.ratio_high)
        assert [ratio is None for ratio in ratios] == [self.baseline is None] * 3
        return self


class _LeftOut(_Strict):
    name: str
    reason: str = Field(min_length=1)


class _Section(_Strict):
    name: str
    title: str = Field(pattern=r"^[A-Z].*\?$")
    about: str = Field(min_length=1)
    seconds: float = Field(gt=0)
    load: float = Field(ge=0)
    date: str
    git: dict[str, str | bool] | None
    rows: list[_Row] = Field(min_length=2)
    left_out: list[_LeftOut]


class _Host(_Strict):
    date: str
    command: list[str]
    git: dict[str, str | bool] | None
    versions: dict[str, str]
    cpu: str = Field(min_length=1)
    cores: int
    cores_to_use: int
    memory_gib: float
    system: str


class _Report(_Strict):
    quick: Literal[True]
    host: _Host
    sections: list[_Section]


def benchmark(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks` from the root of the checkout."""
    command = [sys.executable, "-m", "benchmarks", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def measured(folder: Path, *words: object) -> tuple[_Report, str]:
    """Return the report of a quick run, and its page."""
    file, page = folder / "found.json", folder / "page.md"
    done = benchmark(*words, "--quick", "--json", file, "--page", page)
    assert done.returncode == 0, done.stderr
    report = _Report.model_validate(json.loads(file.read_text(encoding="utf-8")))
    for section in report.sections:
        assert all(row.name in done.stdout for row in section.rows)
    return report, page.read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize("name", thinned(NAMES, {"sharing"}, {"cohort", "replay", "tables"}))
def test_it_gives_rows(name: str, tmp_path: Path) -> None:
    report, page = measured(tmp_path, name)
    (section,) = report.sections
    assert section.name == name
    assert len({row.name for row in section.rows}) == len(section.rows)
    compared = [row for row in section.rows if row.baseline is not None]
    assert compared
    assert all(any(row.baseline in base.name for base in section.rows) for row in compared)
    assert f"## {section.title}\n" in page and "say nothing" in page
    for row in section.rows:
        assert f"| {row.name} | " in page or f"| {row.name.rpartition(': ')[2]} | " in page


@thorough
@pytest.mark.process
def test_reports_of_several_calls_become_one_page(tmp_path: Path) -> None:
    """Nothing is measured again; a report of another machine is refused, and so is what is none."""
    before, page = tmp_path / "before.json", tmp_path / "page.md"
    done = benchmark("aggregation", "--quick", "--json", before)
    assert done.returncode == 0, done.stderr
    (old,) = json.loads(before.read_text(encoding="utf-8"))["sections"]
    after = tmp_path / "after.json"
    done = benchmark("replay", "--quick", "--reports", before, "--json", after, "--page", page)
    assert done.returncode == 0, done.stderr
    report = _Report.model_validate(json.loads(after.read_text(encoding="utf-8")))
    assert [section.name for section in report.sections] == ["aggregation", "replay"]
    assert report.sections[0].model_dump() == old and f"## {old['title']}\n" in page.read_text(encoding="utf-8")
    page.unlink()
    elsewhere, broken = tmp_path / "elsewhere.json", tmp_path / "broken.json"
    whole = json.loads(before.read_text(encoding="utf-8"))
    elsewhere.write_text(json.dumps({**whole, "host": {**whole["host"], "cpu": "abacus"}}), encoding="utf-8")
    broken.write_text("{", encoding="utf-8")
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps({**whole, "sections": [{**old, "name": "speed"}]}), encoding="utf-8")
    for file, says in (
        (elsewhere, "has another cpu: abacus"),
        (broken, "cannot be read as a report: JSONDecodeError"),
        (foreign, "has a section that this version does not write: speed"),
    ):
        done = benchmark("--quick", "--reports", file, "--page", page)
        assert done.returncode == 2 and f"--reports: {file} {says}" in done.stderr
    assert not page.exists()


def test_the_command_knows_all_of_them() -> None:
    done = benchmark("no_such_benchmark")
    assert done.returncode == 2
    listed = done.stderr.partition("must be of ")[2].partition(", got")[0].split(", ")
    assert sorted(listed) == NAMES
    assert "got 'no_such_benchmark'" in done.stderr


RIVAL = """
import json, os
assert os.environ["DATA"] and os.environ["LR"] and float(os.environ["T0"]) > 0
steps = int(os.environ["ROUNDS"]) * 10 * 19 + {wrong}
print("RESULT " + json.dumps(dict(later_med=0.5, first_s=1.0, startup_s=0.1, steps=steps, acc=0.25)))
"""


@thorough
@pytest.mark.process
def test_rivals_run_beside_ours_or_are_said_to_be_left_out(tmp_path: Path) -> None:
    """19 batches of at most 32 are 600 images; ten devices a round."""
    (tmp_path / "bench_good.py").write_text(RIVAL.format(wrong=0))
    (tmp_path / "bench_lazy.py").write_text(RIVAL.format(wrong=-1))
    (tmp_path / "bench_broken.py").write_text("import no_such_simulator")
    (tmp_path / "bench_silent.py").write_text("")
    (tmp_path / "bench_other.py").write_text("")
    commands = [f"{name}={sys.executable}" for name in ("good", "good-again", "lazy", "broken", "silent", "absent")]
    report, page = measured(tmp_path, "rivals", "--rivals", tmp_path, *commands, "homeless=no/such/python")
    (section,) = report.sections
    rounds = {row.name: row for row in section.rows if row.name.startswith("W2, round: ")}
    assert {"W2, round: good", "W2, round: good-again", "W2, round: edgesim, 2 workers"} < set(rounds)
    assert rounds["W2, round: good"].value == 0.5
    assert rounds["W2, round: good"].ratio == 0.5 / rounds["W2, round: bare loop, 2 processes"].value
    busy = {row.name: row.value for row in section.rows if row.name.startswith("W2, processor time: ")}
    assert busy["W2, processor time: bare loop, 2 processes"] > 0.5  # it imports PyTorch and trains
    reasons = {each.name: each.reason for each in section.left_out}
    assert reasons == {
        "W2: lazy": "took 379 SGD steps, not 380",
        "W2: broken": "exit code 1: ModuleNotFoundError: No module named 'no_such_simulator'",
        "W2: silent": "printed no line RESULT",
        "absent": "no bench_absent.py in the folder",
        "homeless": "no bench_homeless.py in the folder",
        "other": "no command given for it",
    }
    assert all(f"- Left out: {name}: {reason}\n" in page for name, reason in reasons.items())
    [shown] = re.findall(r"^[|] good [|] 0[.]5 [(]([0-9.]+)[)] [|]", page, re.MULTILINE)
    assert float(shown) == pytest.approx(rounds["W2, round: good"].ratio, rel=0.01)


@pytest.mark.parametrize(
    ("words", "says"),
    thinned(
        [
            (["--rivals", "no/such/folder"], "--rivals: must be a folder, got 'no/such/folder'"),
            (["--rivals", ".", "pfl"], "--rivals: needs NAME=COMMAND after the folder, got 'pfl'"),
            (["--workloads", "W9"], "--workloads: must be of W1, W2, W3, got 'W9'"),
        ],
        [(["--workloads", "W9"], "--workloads: must be of W1, W2, W3, got 'W9'")],
    ),
)
def test_a_wrong_word_is_named(words: list[str], says: str) -> None:
    command = [sys.executable, str(FOLDER / "rivals.py"), "--quick", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"error: {says}")
