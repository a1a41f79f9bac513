"""Studies: what is run and what is skipped, the numbers of their tables, and what is refused."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.reports.compare import diff
from edgesim.reports.load import Run
from edgesim.runs import fingerprint as stamp
from edgesim.studies.column import parse_column
from edgesim.studies.study import load_study
from edgesim.studies.values import numbers, pivoted
from tests.calling import TINY, call, names
from tests.records.written import new_tables, write
from tests.sizes import full, spread

SHIPPED = Path(__file__).parents[2] / "scenarios" / "studies"
OPERATIONS = Path(__file__).parents[1] / "world" / "data" / "fedpmt_table_5_2.csv"

STUDY = """
name = "tiny"
base = "base.toml"
columns = ["round_s", "accuracy"]

[axes.method]
fedavg = []
thin = ["method={ name = 'fedpmt', rule = 'deadline' }", "protocol={ name = 'deadline', deadline = '1 h' }"]

[axes]
seed = [1, 2]

[sizes.full]

[sizes.quick]
only = ["seed=1"]

[[published]]
cell = { method = "fedavg" }
column = "round_s"
value = 8
"""
TIMING = (
    'base = "base.toml"',
    'base = "base.toml"\nwithout = ["data"]\noverrides = ["partition=sizes", "backend=null"]',
)
FULL = ("--size", "full", "--runs", "runs")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a base scenario and a study of timing only, which takes no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY.replace(*TIMING))
    return tmp_path


def contents(folder: Path) -> dict[str, int]:
    """Return every file below a folder with the moment it was last written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# --- what is run ------------------------------------------------------------------------------------------------


def test_a_study_is_run_once(here: Path) -> None:
    code, out, err = call("study", "run", "study.toml", *FULL)
    assert (code, out, err.splitlines()[0]) == (0, "", "0 of 4 cells are done")
    made = contents(here / "runs")
    cells = [f"method={method},seed={seed}" for method in ("fedavg", "thin") for seed in (1, 2)]
    assert names(here / "runs") == cells
    assert call("study", "run", "study.toml", *FULL) == (0, "", "4 of 4 cells are done\n")
    assert contents(here / "runs") == made


@full
def test_a_half_written_run_is_run_again(here: Path) -> None:
    """A table cut short, a table gone, no stamp: each is made anew, and nothing else is."""
    call("study", "run", "study.toml", *FULL)
    cut, gone, unstamped, whole = (here / "runs" / name for name in names(here / "runs"))
    jobs = (cut / "jobs.parquet").read_bytes()
    (cut / "jobs.parquet").write_bytes(jobs[:100])
    (gone / "rounds.parquet").unlink()
    (unstamped / "study.json").unlink()
    untouched = contents(whole)
    assert call("study", "run", "study.toml", *FULL).err.startswith("1 of 4 cells are done\n")
    assert (cut / "jobs.parquet").read_bytes() == jobs
    assert contents(whole) == untouched
    assert call("study", "run", "study.toml", *FULL).err == "4 of 4 cells are done\n"


@full
def test_other_code_other_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table still shows what other code has made, and says so."""
    call("study", "run", "study.toml", *FULL)
    monkeypatch.setattr("edgesim.files.code_identity.source_digest", lambda *folders: "changed")
    assert call("study", "table", "study.toml", *FULL).err.startswith("some runs were made by other code")
    assert call("study", "run", "study.toml", *FULL).err.startswith("0 of 4 cells are done\n")
    assert call("study", "table", "study.toml", *FULL).err == ""


@full
def test_a_changed_scenario_is_run_again_and_not_shown_before(here: Path) -> None:
    call("study", "run", "study.toml", *FULL)
    (here / "base.toml").write_text(TINY.replace("8 Mbit/s", "9 Mbit/s"))
    code, _, err = call("study", "table", "study.toml", *FULL)
    assert code == 2 and "no cell has been run as the study is now, 4 as it was before" in err
    assert call("study", "run", "study.toml", *FULL).err.startswith("0 of 4 cells are done\n")


def write_npz(path: Path, shade: float) -> None:
    labels = np.arange(40) % 2
    x = np.full((40, 1, 8, 8), shade, dtype=np.float32)
    np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=labels)


def test_what_a_stamp_depends_on(tmp_path: Path, digits: Any, timing: Any) -> None:
    """Scenario, training or not, and files that are named; not the way of training."""
    before = stamp.stamp_of(digits())
    workers = stamp.stamp_of(digits(backend={"name": "workers", "workers": 2}))
    assert before == workers
    assert stamp.stamp_of(digits(seed=4))["scenario"] != before["scenario"]
    assert stamp.stamp_of(digits(backend="null")) == {**before, "trains": False}
    write_npz(tmp_path / "data.npz", shade=0.25)
    scenario = digits(data={"name": "npz", "file": str(tmp_path / "data.npz"), "normalise": "none"})
    stamps = [(stamp.stamp_of(scenario), stamp.data_digest(scenario))]
    write_npz(tmp_path / "data.npz", shade=0.75)
    stamps.append((stamp.stamp_of(scenario), stamp.data_digest(scenario)))
    assert stamps[0][0]["files"] != stamps[1][0]["files"] and stamps[0][1] != stamps[1][1]
    assert stamp.data_digest(timing()) is None


@full
@pytest.mark.workers
def test_processes_change_no_table(here: Path) -> None:
    (here / "study.toml").write_text(STUDY)
    for workers in (1, 2):
        out = ("--size", "quick", "--workers", workers, "--runs", f"runs{workers}")
        assert call("study", "run", "study.toml", *out).code == 0
    for name in ("method=fedavg,seed=1", "method=thin,seed=1"):
        one, two = (edgesim.open(here / f"runs{workers}" / name) for workers in (1, 2))
        assert len(one.evals) == 1
        assert diff(one, two).empty


def test_an_interrupted_study_keeps_what_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgesim.runs.simulate import simulate

    def interrupted(scenario: edgesim.Scenario, out: Path, **_: Any) -> Any:
        if scenario.method.name == "fedpmt":
            raise KeyboardInterrupt
        return simulate(scenario, out)

    monkeypatch.setattr("edgesim.runs.simulate.simulate", interrupted)
    code, _, err = call("study", "run", "study.toml", "--runs", "runs")
    assert (code, err.splitlines()[-1]) == (130, "interrupted; the cells that ended are kept")
    assert names(here / "runs") == ["method=fedavg,seed=1"]


# --- numbers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def three_rounds(tmp_path: Path) -> Run:
    """Three rounds of 10 s, 20 s and 30 s, of 5 J and 100 + 10 bytes; accuracies 0.5, 0.7, 0.6; 2, 1, 3 updates.

    Of the joules of a round 3 are idle, half a joule of devices never asked. Losses are 3, 2, 1. Devices themselves
    got 0.8, 0.95, 0.9 on the mean, the worst of them 0.1 less. In rounds 0 and 1 the method noted a weight for
    devices 4, 5 and 6: 1, 2, 6, then ten times as much. Device 0 received 10, 20 and 30 bytes, device 1 25 each time,
    device 2 nothing; they sent 5, 1 and 70.
    """
    tables = new_tables()
    ends_s, accuracies, used = (10.0, 30.0, 60.0), (0.5, 0.7, 0.6), (2, 1, 3)
    for n in range(3):
        start_s = ends_s[n - 1] if n else 0.0
        spent = [(1e9 * k, 100 * k, 10 * k, 5.0 * k, 2.0 * k, 3.0 * k, 4.5 * k) for k in (1, n + 1)]
        closed = (3, used[n], 3 - used[n], "all", np.inf)
        tables["rounds"].append((n, n + 1, start_s, ends_s[n], *closed, 0.0, 0.0, *spent[0], *spent[1]))
        tables["evals"].append((n, n + 1, ends_s[n], "test", 3.0 - n, accuracies[n], 50))
        tables["evals"].append((n, n + 1, ends_s[n], "test_lenet5", 2.0, accuracies[n] - 0.05, 50))
        for split, less in (("personal", 0.0), ("personal_worst", 0.1)):
            tables["evals"].append((n, n + 1, ends_s[n], split, 1.0, (0.8, 0.95, 0.9)[n] - less, 50))
        for device, received in enumerate((10 * (n + 1), 25)):
            job = (
                2 * n + device,
                device,
                n,
                n,
                "train",
                "full",
                start_s,
                0.0,
                1.0,
                0.0,
                0.0,
                0.0,
                ends_s[n],
                "ok",
                0.0,
                1e6,
            )
            tables["jobs"].append((*job, received, 0, 0, *[0.0] * 5))
    for n, device, weight in ((n, d, w * 10.0**n) for n in (0, 1) for d, w in ((4, 1), (5, 2), (6, 6))):
        tables["metrics"].append((n, "weight", device, weight))
    for device, received, sent in ((-1, 500, 500), (0, 60, 5), (1, 75, 1), (2, 0, 70)):
        tables["devices"].append((device, "phone", 1, 3, 3, 3.0, received, sent, *[0.0] * 5))
    scenario = {"seed": 1, "method": {"name": "fedavg"}, "evaluation": {"targets": []}}
    return write(tmp_path / "run", tables, {"scenario": scenario, "status": "finished", "host_s": 1.0})


@pytest.mark.parametrize(
    ("column", "value"),
    {
        "rounds": 3,
        "round_s": 20,
        "sim_time_s": 60,
        "energy_j": 15,
        "active_j": 6,
        "idle_j": 9,
        "participant_j": 13.5,
        "traffic_bytes": 330,
        "flops": 3e9,
        "accuracy": 0.6,
        "loss": 1.0,
        "best_accuracy": 0.7,
        "accuracy_last_2": 0.65,
        "accuracy_last_4": None,
        "accuracy_of[lenet5]": 0.55,
        "accuracy_of[mlr]": None,
        "personal_accuracy": 0.9,
        "best_personal_accuracy": 0.95,
        "personal_worst": 0.8,
        "busiest_in_bytes": 75,
        "busiest_out_bytes": 70,
        "busiest_bytes": 76,
        "busiest_round_in_bytes": (25 + 25 + 30) / 3,
        "metric.weight": 30,
        "metric.weight[4-5]": 15,
        "metric.weight[7-9]": None,
        "metric.angle": None,
        "mean_metric.weight": (1 + 2 + 6) * 11 / 6,
        "mean_metric.angle": None,
        "rounds.used": 6,
        "rounds@0.65": 2,
        "round_s@0.65": 15,
        "sim_time_s@0.65": 30,
        "energy_j@0.65": 10,
        "active_j@0.65": 4,
        "idle_j@0.65": 6,
        "participant_j@0.65": 9,
        "traffic_bytes@0.65": 220,
        "rounds.used@0.65": 3,
        "rounds.used@0.75": None,
        "sim_time_s@0.75": None,
        "sim_time_s@0.5-on": 10,
        "rounds@0.55-on": 2,
        "rounds.used@0.55-on": 3,
        "sim_time_s@0.65-on": None,
        "sim_time_s@0.59~2": 30,  # means of two are 0.6 and 0.65
        "energy_j@0.64~2": 15,
        "sim_time_s@0.59~2-on": 30,
        "sim_time_s@0.7~2": None,
        "sim_time_s@0.1~4": None,
        "accuracy_area": (0 * 10 + 0.5 * 20 + 0.7 * 30) / 60,
        "accuracy_area[30 s]": 0.5 * 20 / 30,
        "accuracy_area[0.75 min]": (0.5 * 20 + 0.7 * 15) / 45,
        "accuracy_area[61 s]": None,
    }.items(),
)
def test_columns(three_rounds: Any, column: str, value: float | None) -> None:
    assert parse_column(column).of(three_rounds) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("column", "reading"),
    {
        "sim_time_s@0.65": (30, True),
        "sim_time_s@0.75": (60, False),  # as long as it went on
        "energy_j@0.75": (15, False),
        "rounds.used@0.65-on": (6, False),
        "round_s@0.75": (math.nan, False),  # a mean length bounds nothing
        "accuracy_last_4": (math.nan, False),
        "accuracy": (0.6, True),
    }.items(),
)
def test_what_is_known_of_a_run_that_did_not_get_there(three_rounds: Any, column: str, reading: Any) -> None:
    """Also of one that gave up, which would never have got there."""
    for gave_up in (False, True):
        three_rounds.manifest["gave_up"] = gave_up
        never = gave_up and column in ("sim_time_s@0.75", "energy_j@0.75", "rounds.used@0.65-on")
        assert parse_column(column).reading(three_rounds) == pytest.approx((*reading, never), nan_ok=True)


def test_a_run_without_evaluations_bounds_no_target(three_rounds: Any) -> None:
    """But one that gave up before the first of them, as no device has the memory, never reaches it."""
    three_rounds.__dict__["evals"] = three_rounds.evals[:0]
    target = parse_column("sim_time_s@0.1")
    assert target.reading(three_rounds) == pytest.approx((math.nan, False, False), nan_ok=True)
    three_rounds.manifest["gave_up"] = True
    assert target.reading(three_rounds) == (60, False, True)
    assert parse_column("accuracy_area").of(three_rounds) is None


def test_which_numbers_are_better() -> None:
    higher = ["accuracy", "accuracy_last_3", "accuracy_area", "accuracy_area[1 h]", "personal_worst", "evals.accuracy"]
    higher.append("accuracy_of[mlr]")
    lower = ["sim_time_s@0.5", "energy_j", "loss", "up_bytes@0.5~3-on", "flops", "busiest_bytes", "jobs.compute_s"]
    unknown = ["metric.gain_s", "mean_metric.x", "metrics.value", "rounds.used"]
    assert [parse_column(name).better for name in higher] == ["higher"] * len(higher)
    assert [parse_column(name).better for name in lower] == ["lower"] * len(lower)
    assert [parse_column(name).better for name in unknown] == [None] * len(unknown)


def test_a_round_that_never_closed_has_no_busiest_device(three_rounds: Any) -> None:
    three_rounds.__dict__["rounds"] = three_rounds.rounds[:2]
    assert parse_column("busiest_round_in_bytes").of(three_rounds) == 25


def test_a_table_says_how_many_runs_got_there() -> None:
    """A mean of those that did looks better than it is: there is a median, or what it is above of."""
    of_five = {"column": "sim_time_s@0.5", "runs": 5, "sd": math.nan, "published": 8.0, "most": 400.0}
    rows = pd.DataFrame(
        [
            {"method": "a", **of_five, "reached": 3, "never": 2, "mean": math.nan, "km_median": 10.0},
            {"method": "b", **of_five, "reached": 1, "never": 2, "mean": math.nan, "km_median": math.inf},
            {"method": "c", **of_five, "reached": 5, "never": 0, "mean": 30.0, "km_median": 28.0},
            {"method": "d", **of_five, "reached": 4, "never": 0, "mean": math.nan, "km_median": math.nan},
            {"method": "e", **of_five, "reached": 1, "never": 3, "mean": math.nan, "km_median": math.inf},
        ]
    )
    texts = ["median 10, 3 of 5 runs (8)", "> 400, 1 of 5 runs (8)", "30 (8)", "4 of 5 runs (8)"]
    texts.append("never, 1 of 5 runs (8)")
    order = ["method", *of_five, "reached", "never", "mean", "km_median"]
    assert pivoted(rows[order])["sim_time_s@0.5"].tolist() == texts
    assert numbers(rows[order])["sim_time_s@0.5"].tolist()[:3] == [10, math.inf, 30]


def test_no_personal_accuracy_without_its_evaluation(three_rounds: Any) -> None:
    three_rounds.evals["split"] = "test"
    assert parse_column("personal_accuracy").of(three_rounds) is None
    assert [parse_column(name).is_learned for name in ("personal_worst", "busiest_bytes")] == [True, False]


@pytest.mark.parametrize(
    "name",
    [
        "sim_time",
        "accuracy@0.5",
        "sim_time_s@",
        "sim_time_s@75",
        "sim_time_s@0.75-off",
        "sim_time_s@0.75~1",
        "sim_time_s@0.75-on~5",
        "accuracy_area@0.5",
        "sim_time_s-on",
        "jobs.task",
        "devices.jobs@0.5",
        "runs.used",
        "loss@0.5",
        "busiest_bytes@0.5",
        "metric.x[1]",
        "mean_metric.x[1-2]",
    ],
)
def test_no_such_column(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^columns: unknown column '{re.escape(name)}'"):
        parse_column(name)


def test_an_area_over_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^columns: 'accuracy_area\[2\]': '2' has no unit; give a number in s or"):
        parse_column("accuracy_area[2]")


def test_what_metrics_were_called_before_is_refused_with_the_new_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown column 'mean_note\.gap'; it is called 'mean_metric\.gap' now"):
        parse_column("mean_note.gap")


def rows_of(out: str) -> Mapping[tuple[str, ...], dict[str, Any]]:
    """Return the rows of a table printed as JSON by their labels and column."""
    rows = json.loads(out)["rows"]
    return {tuple(itertools.islice(row.values(), list(row).index("column") + 1)): row for row in rows}


def test_the_table_is_over_seeds_beside_what_was_published(here: Path) -> None:
    """The first cells have values for both seeds, the others, of which one is missing, for one and no interval."""
    call("study", "run", "study.toml", "--only", "method=fedavg", "--only", "seed=1", *FULL)
    code, out, err = call("study", "table", "study.toml", "--json", *FULL)
    assert (code, err) == (0, "1 of 4 cells are missing\n")
    rows = rows_of(out)
    lengths_s = [edgesim.open(here / "runs" / f"method=fedavg,seed={seed}").rounds["now_s"].iloc[-1] for seed in (1, 2)]
    fedavg = rows["fedavg", "round_s"]
    assert (fedavg["runs"], fedavg["reached"], fedavg["published"]) == (2, 2, 8)
    assert fedavg["mean"] == pytest.approx(sum(lengths_s) / 2)
    assert fedavg["ratio"] == pytest.approx(sum(lengths_s) / 16)
    assert (rows["thin", "round_s"]["runs"], rows["thin", "round_s"]["sd"]) == (1, None)
    assert (rows["fedavg", "accuracy"]["reached"], rows["fedavg", "accuracy"]["mean"]) == (0, None)
    shown = call("study", "table", "study.toml", *FULL).out
    assert shown.startswith("tiny (full)\n") and f"{fedavg['mean']:.4g} ± {fedavg['sd']:.2g} (8)" in shown
    lines = call("study", "table", "study.toml", "--long", *FULL).out.splitlines()
    of_mean = next(line.split() for line in lines if line.startswith("fedavg  round_s "))
    assert of_mean[2:6] == ["2", "2", "0", f"{fedavg['mean']:.6g}"]
    page = call("study", "table", "study.toml", "--markdown", *FULL).out.splitlines()
    of_fedavg = next(line for line in page if line.startswith("| fedavg "))
    assert (page[0], page[-2]) == ("## tiny", "1 of 4 cells are missing.")
    assert f"{fedavg['mean']:.4g} ± {fedavg['sd']:.2g} (8)" in of_fedavg
    assert "`accuracy`" not in page[4] and "`round_s`" in page[4]
    assert call("study", "table", "study.toml", "--markdown", "--json", *FULL).code == 2
    table = pd.read_csv(io.StringIO(call("study", "table", "study.toml", "--csv", *FULL).out))
    of_csv = table[(table["method"] == "fedavg") & (table["column"] == "round_s")]
    assert (of_csv["mean"].item(), of_csv["runs"].item()) == (fedavg["mean"], 2)
    latex = call("study", "table", "study.toml", "--latex", *FULL).out
    assert latex.startswith("\\begin{tabular}") and "round\\_s" in latex
    by_length = [rows["fedavg", "round_s"]["mean"], rows["thin", "round_s"]["mean"]]
    first = "fedavg" if by_length[0] > by_length[1] else "thin"
    largest = call("study", "table", "study.toml", "--sort", "-round_s", "--csv", *FULL).out.splitlines()[1]
    assert largest.startswith(f"{first},")
    says = call("study", "table", "study.toml", "--sort", "round", *FULL)
    assert says.code == 2 and says.err.startswith("1 of 4 cells are missing\nerror: --sort: no column 'round'")


def test_a_study_may_leave_out_products_of_its_axes(here: Path) -> None:
    """`only` of the study, of the size and of the command have to agree to a cell."""
    text = (here / "study.toml").read_text()
    (here / "study.toml").write_text('only = ["method=fedavg", "seed=2"]\n' + text)
    study = load_study(here / "study.toml")
    left = ["method=fedavg,seed=1", "method=fedavg,seed=2", "method=thin,seed=2"]
    assert [cell.name for cell in study.cells("full")] == left
    assert [cell.name for cell in study.cells("full", ["seed=2"])] == left[1:]
    assert [cell.name for cell in study.cells("quick")] == left[:1]
    with pytest.raises(ConfigError, match="size quick has no cell method=thin or seed=1 or method=fedavg or seed=2"):
        study.cells("quick", ["method=thin"])


def test_cells_may_have_changes_of_their_own(here: Path) -> None:
    """Those of `where` come after the axes', in their order, and before the size's."""
    text = (here / "study.toml").read_text()
    text += """
[[where]]
cell = { method = "fedavg" }
overrides = ["stop.rounds=7", "evaluation.every=7"]

[[where]]
cell = { method = "fedavg", seed = "2" }
overrides = ["stop.rounds=8"]
"""
    (here / "study.toml").write_text(text.replace('only = ["seed=1"]', 'overrides = ["evaluation.every=5"]'))
    study = load_study(here / "study.toml")
    for size, every in (("full", (7, 7, 1, 1)), ("quick", (5, 5, 5, 5))):
        found = [study.scenario(here, cell, size) for cell in study.cells(size)]
        assert [(s.stop.rounds, s.evaluation.every) for s in found] == list(zip((7, 8, 1, 1), every, strict=True))


# --- those that come with edgesim -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", spread(sorted(SHIPPED.glob("*.toml")), 12), ids=lambda path: path.stem)
def test_a_shipped_study_is_valid_in_all_sizes(path: Path) -> None:
    """Loading tries the scenarios of all cells; quick and full are sizes of every study."""
    study = load_study(path)
    assert {"quick", "full"} <= set(study.sizes)
    assert len(study.cells("quick")) <= len(study.cells("full"))


@full
def test_operations_of_table_5_2(tmp_path: Path) -> None:
    """Every entry is what is printed, those for fractions of 128 units too."""
    lines = [line for line in OPERATIONS.read_text().splitlines() if not line.startswith("#")]
    printed = {}
    for row in csv.DictReader(lines):
        whole = row["keep_rate"] == "1"
        part = f"last{row['trained_layers']}" if whole else f"keep{row['keep_rate']}"
        printed[row["network"], part, "flops"] = float(row["operations"])
    study = (SHIPPED / "fedpmt_table_5_2.toml", "--runs", tmp_path / "runs")
    assert call("study", "run", *study).code == 0
    rows = rows_of(call("study", "table", *study, "--json").out)
    assert {key: row["mean"] for key, row in rows.items()} == printed
    assert {key: row["published"] for key, row in rows.items()} == printed
    shown = call("study", "table", *study).out
    assert shown.endswith("23 of 23 published numbers are equal\n") and " 15305968 " in shown


@full
def test_round_times_of_table_5_3(tmp_path: Path) -> None:
    """FedAvg 50 s, cut to 26.5 s by the deadline, which 4 of 10 devices meet; FedPMT 26.4 s, all meet it."""
    study = (SHIPPED / "fedpmt_table_5_3_timing.toml", "--only", "seed=1", "--runs", tmp_path / "runs")
    assert call("study", "run", *study).code == 0
    rows = rows_of(call("study", "table", *study, "--json").out)
    lengths_s = {key[:2]: (row["mean"], row["published"]) for key, row in rows.items() if key[2] == "round_s"}
    assert lengths_s == {
        ("none", "fedavg"): (pytest.approx(50), 50),
        ("none", "fedpmt"): (pytest.approx(26.4), 26.4),
        ("26.5s", "fedavg"): (pytest.approx(26.5), 26.5),
        ("26.5s", "fedpmt"): (pytest.approx(26.4), 26.4),
    }
    assert rows["26.5s", "fedavg", "rounds.used"]["mean"] == 20 * 4
    assert rows["26.5s", "fedpmt", "rounds.used"]["mean"] == 20 * 10


@full
def test_a_protocol_learns_in_the_quick_size(tmp_path: Path) -> None:
    study = (
        SHIPPED / "protocols_fashion.toml",
        "--only",
        "partition=iid,protocol=sync,seed=1",
        "--runs",
        tmp_path / "runs",
    )
    assert call("study", "run", *study).code == 0
    rows = rows_of(call("study", "table", *study, "--json").out)
    assert rows["iid", "sync", "best_accuracy"]["mean"] >= 0.75
    assert 0 < rows["iid", "sync", "sim_time_s@0.75"]["mean"] < 60


# --- bad input --------------------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """A mistake in a study or a command, and what the line about it says after "error: "."""

    says: str
    old: str = ""
    new: str = ""
    words: tuple[str, ...] = ()


FILE = "study.toml: "
BAD = {
    "axis of no key": Bad(
        FILE + "size full, cell method=fedavg,sed=1: sed: unknown key; did you mean 'seed'?",
        "seed = [1, 2]",
        "sed = [1]",
    ),
    "axis that changes nothing": Bad(
        FILE + "axes.place: names no key; give its labels overrides", "[axes]", "[axes.place]\nhere = []\n\n[axes]"
    ),
    "change of no key": Bad(FILE + "size full, cell method=fedavg,seed=1: methd: unknown", "[]", '["methd=fedavg"]'),
    "label": Bad(FILE + "axes.method: 'a/b' must be of letters, digits and", "fedavg = []", '"a/b" = []'),
    "column": Bad(FILE + "columns: unknown column 'time' (allowed: rounds, ", '"accuracy"]', '"time"]'),
    "published for no cell": Bad(
        FILE + "published.0.cell: no cell has method=fedprox (method: fedavg, thin)", '= "fedavg"', '= "fedprox"'
    ),
    "published for no axis": Bad(
        FILE + "published.0.cell: no cell has metod=fedavg (axes: method, seed)", "{ method", "{ metod"
    ),
    "published for a seed": Bad(
        FILE + "published.0.cell: a published value belongs to no seed", '{ method = "fedavg" }', '{ seed = "1" }'
    ),
    "published for no column": Bad(
        FILE + "published.0.column: 'rounds' is no column of the study; did you mean 'round_s'? (round_s, accuracy)",
        'n = "round_s"',
        'n = "rounds"',
    ),
    "changes for no cell": Bad(
        FILE + "where.0.cell: no cell has method=fedprox (method: fedavg, thin)",
        "[sizes.full]",
        '[[where]]\ncell = { method = "fedprox" }\noverrides = ["seed=3"]\n\n[sizes.full]',
    ),
    "published nothing": Bad(FILE + "published.0.value: must be a finite number, got nan", "= 8", "= nan"),
    "key": Bad(FILE + "colums: unknown key; did you mean 'columns'?", "columns", "colums"),
    "size without such a cell": Bad(
        FILE + "only 'seed=3': no cell has seed=3 (seed: 1, 2)", '["seed=1"]', '["seed=3"]'
    ),
    "base": Bad(
        FILE + "size full, cell method=fedavg,seed=1: {here}/b.toml: cannot be read", '"base.toml"', '"b.toml"'
    ),
    "key that the base lacks": Bad(FILE + "size full, cell method=fedavg,seed=1: dat: unknown", '["data"]', '["dat"]'),
    "no TOML": Bad(FILE + "not valid TOML: ", "[axes]", "[axes"),
    "size": Bad("--size: unknown size 'big' (known: full, quick)", words=("--size", "big")),
    "only": Bad("only 'method=fed': no cell has method=fed (method: fedavg, thin)", words=("--only", "method=fed")),
    "only of another size": Bad("--only: size quick has no cell seed=2", words=("--only", "seed=2")),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_overwrites_nothing(here: Path, bad: Bad) -> None:
    """The same for both commands, with a finished study in the folder."""
    call("study", "run", "study.toml", "--runs", "runs")
    text = (here / "study.toml").read_text()
    assert bad.old in text
    (here / "study.toml").write_text(text.replace(bad.old, bad.new, 1) if bad.old else text)
    before = contents(here)
    for command in ("run", "table"):
        code, out, err = call("study", command, "study.toml", "--runs", "runs", *bad.words)
        assert (code, out) == (2, "")
        assert err.startswith("error: " + bad.says.format(here=here)) and err.count("\n") == 1
    assert contents(here) == before


def test_a_table_of_nothing(here: Path) -> None:
    says = "error: study.toml: no cell has been run; first: edgesim study run study.toml --size quick\n"
    assert call("study", "table", "study.toml", "--runs", "runs") == (2, "", says)


def test_runs_cannot_be_made_in_a_file(here: Path) -> None:
    (here / "runs").write_text("mine")
    code, _, err = call("study", "run", "study.toml", "--runs", "runs")
    assert code == 2 and err.splitlines()[-1].startswith("error: runs/.study: cannot be made: ")
    assert (here / "runs").read_text() == "mine"
