"""The commands that make a decision of a study: what they print is what the library finds in its runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import edgesim
from tests.calling import TINY, call
from tests.sizes import full, spread

STUDY = """
name = "tiny"
base = "base.toml"
without = ["data"]
overrides = ["partition=sizes", "backend=null", "stop.rounds=3"]
columns = ["sim_time_s", "energy_j"]

[axes.method]
fedavg = []
thin = ["method={ name = 'fedpmt', rule = 'deadline' }", "protocol={ name = 'deadline', deadline = '1 h' }"]

[axes.radio]
low = ["energy={ name = 'power', idle = '1 W', busy = '4 W', transmit = '1 W' }"]
high = ["energy={ name = 'power', idle = '1 W', busy = '4 W', transmit = '9 W' }"]

[axes]
"selection.count" = [1, 2]
seed = [1, 2]
"""
# One round of real training reaches 1 %, none ever 99.9 %.
LEARNING = """
name = "learning"
base = "base.toml"
columns = ["sim_time_s@0.01", "sim_time_s@0.999", "accuracy_area"]

[axes.batch]
small = ["training.batch=8"]
large = ["training.batch=32"]

[axes]
seed = [1, 2]
"""
LEFT_OUT = "method=thin,radio=high,selection.count=2,seed=2"


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a study of timing only, run but for one cell, which takes no time."""
    here = tmp_path_factory.mktemp("studied")
    (here / "base.toml").write_text(TINY)
    (here / "study.toml").write_text(STUDY)
    cells = [f"method={m},radio={r}" for m in ("fedavg", "thin") for r in ("low", "high")][:-1]
    cells += ["method=thin,radio=high,seed=1", "method=thin,selection.count=1"]
    only = [word for cell in cells for word in ("--only", cell)]
    assert call("study", "run", here / "study.toml", *only, "--runs", here / "runs").code == 0
    return here


def found(folder: Path, *words: object, told: str = "1 of 16 cells are missing\nmissing: " + LEFT_OUT + "\n") -> Any:
    """Return what a command about the study prints as JSON; on stderr it names the cell without a run."""
    command, *rest = words
    code, out, err = call("study", command, folder / "study.toml", *rest, "--runs", folder / "runs", "--json")
    assert (code, err) == (0, told)
    return json.loads(out)


def of(folder: Path, column: str, **labels: str) -> np.ndarray:
    """Return numbers of runs with these labels by seed, from their tables."""
    runs = sorted((folder / "runs").glob("method=*"))
    kept = [run for run in runs if all(f"{axis}={label}" in run.name for axis, label in labels.items())]
    rounds = [edgesim.open(run).rounds.iloc[-1] for run in kept]
    return np.array([row[{"sim_time_s": "now_s", "energy_j": "total_energy_j"}[column]] for row in rounds])


@full
def test_a_comparison_names_the_seed_that_is_missing(studied: Path) -> None:
    told = f"1 of 16 cells are missing\nmissing: {LEFT_OUT}\nwith 1 pair no p-value can be below 1; add seeds\n"
    result = found(studied, "compare", "--baseline", "method=fedavg", told=told)
    rows = {(row["radio"], row["selection.count"], row["column"]): row for row in result["rows"]}
    assert len(rows) == 2 * 2 * 2 and {row["method"] for row in result["rows"]} == {"thin"}
    assert (result["missing"], result["baseline"]) == ([LEFT_OUT], {"method": "fedavg"})
    short, whole = (rows["high", count, "energy_j"] for count in "21")
    assert (short["pairs"], short["unpaired"], whole["pairs"], whole["unpaired"]) == (1, "2", 2, "")
    one, other = (of(studied, "energy_j", method=m, radio="low") for m in ("thin", "fedavg"))
    means = [np.mean(each[:2]) for each in (one, other)]
    assert rows["low", "1", "energy_j"]["difference"] == pytest.approx(means[0] - means[1])
    assert rows["low", "1", "energy_j"]["ratio"] == pytest.approx(means[0] / means[1])


@full
def test_tables_of_all_formats(studied: Path) -> None:
    few = ("--only", "radio=low,selection.count=1", "--runs", studied / "runs")
    words = ("study", "compare", studied / "study.toml", "--baseline", "method=fedavg", *few)
    shown = call(*words).out
    assert (
        shown.startswith("tiny (quick), against method=fedavg; low to high: 95 % interval of the difference by Stu")
        and "p_holm" in shown
        and "unpaired" not in shown
    )
    assert "t_low" not in shown and "BCa" not in shown  # the interval that is right stands alone
    table = pd.read_csv(io.StringIO(call(*words, "--csv").out))
    assert len(table) == 2 and {"difference", "low", "high", "ratio", "p_better", "p_value", "p_holm"} <= set(table)
    assert call(*words, "--markdown").out.startswith("| method | radio | selection.count | column | pairs |")
    assert call(*words, "--latex").out.startswith("\\begin{tabular}")
    assert call(*words, "--latex", "--csv").code == 2


@full
def test_a_front_and_theta_agree_with_the_tables(studied: Path) -> None:
    result = found(studied, "front", "--column", "sim_time_s", "--column", "energy_j", "--only", "radio=low", told="")
    assert result["statistics"] == {"sim_time_s": "mean", "energy_j": "mean"}
    rows = pd.DataFrame(result["rows"])
    assert len(rows) == 4 and rows["on_front"].any()
    for row in result["rows"]:
        better = rows[(rows["sim_time_s"] <= row["sim_time_s"]) & (rows["energy_j"] <= row["energy_j"])]
        assert row["on_front"] == (len(better) == 1)
    result = found(studied, "theta", "--theta", 0.25, "--only", "radio=low", told="")
    for row in result["rows"]:
        assert row["theta0.25"] == pytest.approx(0.75 * row["sim_time_s"] + 0.25 * row["energy_j"])
    assert (result["cheapest"][0]["from_theta"], result["cheapest"][-1]["to_theta"]) == (0, 1)
    shown = call("study", "theta", studied / "study.toml", "--runs", studied / "runs").out
    assert "cheapest from theta 0 to " in shown


def test_the_smallest_budget_is_told_or_how_many_runs_could_tell_it(studied: Path) -> None:
    """Two runs of a cell can show a share of half with 75 % confidence, as 0.5^2 = 0.25. These have no accuracy."""
    few = ("--only", "radio=low,selection.count=2,method=thin", "--target", "0.001", "--of", "energy_j")
    result = found(studied, "budget", *few, "--share", 0.5, "--confidence", 0.75, told="")
    [row] = result["rows"]
    assert (row["runs"], row["reached"], row["order"], row["runs_needed"]) == (2, 0, 2, 2)
    words = ("study", "budget", studied / "study.toml", "--runs", studied / "runs", *few)
    assert "2 runs cannot show 80 % of runs, with 95 % confidence; this needs 14 or more" in call(*words).out
    assert "no budget of these runs serves 50 % of runs" in call(*words, "--share", 0.5, "--confidence", 0.75).out


@full
def test_a_tornado_of_assumptions(studied: Path) -> None:
    result = found(studied, "sensitivity", "--column", "energy_j", "--base", "method=fedavg,selection.count=2")
    by_axis = {row["axis"]: row for row in result["rows"]}
    assert set(by_axis) == {"method", "radio", "selection.count"}
    moved = of(studied, "energy_j", method="fedavg", radio="high") - of(
        studied, "energy_j", method="fedavg", radio="low"
    )
    assert by_axis["radio"]["difference"] == pytest.approx(moved[2:].mean())
    swings = [row["swing"] for row in result["rows"]]
    assert swings == sorted(swings, reverse=True)


@full
def test_break_even_over_a_price_and_over_an_axis(studied: Path) -> None:
    sides = ("--between", "method=fedavg", "--and", "method=thin", "--only", "radio=low")
    result = found(studied, "break-even", *sides, "--column", "sim_time_s", "--per", "energy_j", told="")
    assert (result["one"], result["other"]) == ({"method": "fedavg"}, {"method": "thin"})
    for row in result["rows"]:
        place = slice(0, 2) if row["selection.count"] == "1" else slice(2, 4)
        time, energy = (
            np.mean(of(studied, column, method="fedavg", radio="low")[place])
            - np.mean(of(studied, column, method="thin", radio="low")[place])
            for column in ("sim_time_s", "energy_j")
        )
        assert row["at"] == pytest.approx(-time / energy)
    assert (
        found(studied, "break-even", *sides, "--column", "sim_time_s", "--over", "selection.count", told="")["rows"]
        == []
    )
    words = (*sides, "--column", "energy_j", "--over", "selection.count", "--runs", studied / "runs")
    shown = call("study", "break-even", studied / "study.toml", *words)
    assert shown.code == 0 and shown.out.endswith("the two are never equal\n")
    for words in ((), ("--per", "energy_j", "--over", "radio")):
        bad = call("study", "break-even", studied / "study.toml", *sides, "--column", "sim_time_s", *words)
        assert (bad.code, bad.err) == (2, "error: --per, --over: give one of them\n")


@full
def test_targets_that_no_run_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in every table, as what they are above of; and no configuration that misses its target is chosen."""
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(TINY)
    Path("study.toml").write_text(LEARNING)
    words = ("study.toml", "--runs", "runs")
    assert call("study", "run", *words).code == 0
    rows = {(r["batch"], r["column"]): r for r in json.loads(call("study", "table", *words, "--json").out)["rows"]}
    never, soon = rows["small", "sim_time_s@0.999"], rows["small", "sim_time_s@0.01"]
    assert (never["reached"], never["runs"], never["mean"], never["km_median"]) == (0, 2, None, "Infinity")
    assert (soon["reached"], soon["restricted_to"], soon["restricted_mean"]) == (2, None, soon["mean"])
    shown = call("study", "table", *words).out
    assert f"> {never['most']:.4g}, 0 of 2 runs" in shown
    long = call("study", "table", *words, "--long").out
    assert "; low to high: 95 % interval of the mean by Student's t\n" in long and "t_low" not in long
    assert "km_median" in long and "inf" in long
    area = rows["large", "accuracy_area"]
    assert 0 <= area["mean"] < 1 and area["t_low"] is not None
    reach = ("study", "cheapest", *words, "--by", "energy_j", "--within", "1 h")
    none = call(*reach, "--reach", "0.999").out
    needed = "with 95 % confidence; this needs 5 runs or more, all in time\n"
    assert none.endswith(f"no configuration has 50 % of runs in time, {needed}")
    some = call(*reach, "--reach", "0.01", "--share", "0.2")
    [answer] = [line for line in some.out.splitlines() if line.startswith("cheapest with ")]
    energies = {batch: sum(row["energy_j"] for row in json.loads(call(*reach, "--reach", "0.01", "--json").out)["rows"]
                           if row["batch"] == batch) for batch in ("small", "large")}  # fmt: skip
    best = min(energies, key=lambda batch: energies[batch])
    assert answer == f"cheapest with 20 % of runs in time, with 95 % confidence: batch={best}"


@pytest.mark.parametrize(
    ("words", "says"),
    spread([
        (("compare", "--baseline", "fedavg"), "--baseline: must be labels such as method=fedavg,deadline=30_s, "),
        (("compare", "--baseline", "method=x"), "--baseline: no run has method=x (method: fedavg, thin)"),
        (("front", "--column", "energy_j"), "--column: a front needs two or three columns, got 1"),
        (("front",), "--column: a front needs two or three columns, got 0"),
        (("front", "--column", "energy"), "columns: unknown column 'energy' (allowed: "),
        (("cheapest", "--by", "energy_j", "--reach", "0.8", "--within", "soon"), "--within: 'soon' is not a time; "),
        (("cheapest", "--by", "energy_j", "--reach", "8", "--within", "1 h"), "columns: unknown column 'sim_time_s@8'"),
        (("theta", "--theta", "2"), "theta: must be between 0 (time alone) and 1 (energy alone), got 2"),
        (("sensitivity", "--column", "energy_j", "--base", "place=here"), "--base: 'place' is no axis that is "),
    ], 1),
)  # fmt: skip
def test_bad_input_is_one_line(studied: Path, words: tuple[str, ...], says: str) -> None:
    command, *rest = words
    code, out, err = call(
        "study", command, studied / "study.toml", *rest, "--runs", studied / "runs", "--only", "seed=1"
    )
    assert (code, out) == (2, "") and err.startswith(f"error: {says}") and err.count("\n") == 1


@full
def test_a_comparison_skips_what_has_no_better_end(studied: Path) -> None:
    """A column that may be good or bad stops the comparison only where it is asked for."""
    Path(studied / "other.toml").write_text(
        (studied / "study.toml").read_text().replace("columns = [", 'columns = ["rounds.late", ')
    )
    words = ("study", "compare", studied / "other.toml", "--baseline", "method=fedavg", "--runs", studied / "runs")
    done = call(*words, "--csv")
    assert done.code == 0 and "rounds.late: not compared" in done.err and "rounds.late" not in done.out
    assert ",rounds.late," in call(*words, "--csv", "--lower", "rounds.late").out
    asked = call(*words, "--column", "rounds.late")
    assert asked.code == 2 and "say --higher or --lower" in asked.err
