"""Studies, runs and figures in Python: what notebooks use."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

import edgesim
from edgesim.core.errors import ConfigError, EdgesimError
from tests.calling import TINY, call, names
from tests.sizes import full

METHODS = {"fedavg": {}, "fedprox": {"method": {"name": "fedprox", "mu": 0.5}}}
STUDY = """
name = "tiny"
base = "scenario.toml"
columns = ["round_s"]
overrides = ["backend=null"]
[axes]
seed = [1, 2]
"""


def shown(thing: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(thing)
    return console.file.getvalue()


# --- studies ------------------------------------------------------------------------------------------------------


def test_a_study_of_values_is_run_and_read(here: Path) -> None:
    """The frame has a row a run, and its numbers are those of the runs."""
    study = edgesim.study("scenario.toml", {"method": METHODS, "seed": range(1, 3)}, overrides={"stop.rounds": 2})
    seen: list[tuple[str, str]] = []
    result = study.run(on_cell=lambda cell, run: seen.append((cell.name, run.status)))
    cells = [f"method={method},seed={seed}" for method in METHODS for seed in (1, 2)]
    assert seen == [(cell, "finished") for cell in cells] and list(result.runs) == cells and len(result) == 4
    frame = result.frame()
    assert list(frame) == ["method", "seed", "best_accuracy", "sim_time_s", "energy_j", "traffic_bytes"]
    assert list(frame["seed"]) == [1, 2, 1, 2]
    for (_, row), run in zip(frame.iterrows(), result.runs.values(), strict=True):
        assert row["energy_j"] == run.rounds["total_energy_j"].iloc[-1]
        assert row["best_accuracy"] == run.evals["accuracy"][run.evals["split"] == "test"].max()
    mu = result.runs["method=fedprox,seed=1"].manifest["scenario"]["method"]["mu"]
    assert mu == 0.5
    means = result.table().set_index(["method", "column"])["mean"]
    assert means["fedavg", "energy_j"] == pytest.approx(frame["energy_j"][:2].mean())
    assert len(result.values()) == 16 and len(result.summary()) == 8
    assert list(result.compare({"method": "fedavg"}, "energy_j")["pairs"]) == [2]
    assert seen and study.run(on_cell=lambda cell, run: seen.append((cell.name, ""))).frame().equals(frame)
    assert len(seen) == 4  # nothing is run twice


@full
def test_the_scenario_may_be_a_file_a_table_or_an_object(here: Path) -> None:
    scenario = edgesim.load("scenario.toml", ["backend=null"])
    bases = [Path("scenario.toml"), scenario, scenario.canonical()]
    frames = [
        edgesim.study(base, {"seed": [1, 2]}, ["round_s"], overrides="backend=null").run().frame() for base in bases
    ]
    assert len(frames[0]) == 2
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])


def test_usual_columns(here: Path) -> None:
    given = {"evaluation.targets": [0.5, 0.9]}
    found = edgesim.study("scenario.toml", {"seed": [1]}, overrides=given).study.columns
    to_targets = [f"{name}@{target}" for target in (0.5, 0.9) for name in ("sim_time_s", "energy_j")]
    assert list(found) == ["best_accuracy", *to_targets, "sim_time_s", "energy_j", "traffic_bytes"]
    timing = edgesim.study("scenario.toml", {"seed": [1]}, overrides="backend=null").study.columns
    assert list(timing) == ["sim_time_s", "energy_j", "traffic_bytes"]


def test_who_never_got_there_is_missing_in_the_frame_and_known_in_the_values(here: Path) -> None:
    result = edgesim.study("scenario.toml", {"seed": [1]}, ["sim_time_s@0.99", "sim_time_s"]).run()
    assert np.isnan(result.frame()["sim_time_s@0.99"].iloc[0])
    [never, end] = result.values().to_dict("records")
    assert (never["observed"], end["observed"]) == (False, True) and never["value"] == end["value"]


@full
@pytest.mark.workers
def test_processes_change_no_frame(here: Path) -> None:
    frames = [
        edgesim.study("scenario.toml", {"method": METHODS}, out=f"runs{workers}").run(workers=workers).frame()
        for workers in (1, 2)
    ]
    pd.testing.assert_frame_equal(*frames)


@full
def test_where_runs_lie(here: Path) -> None:
    """In the folder that is named; else in a temporary one, which goes with the last that needs it."""
    axes = {"seed": [1]}
    kept = edgesim.study("scenario.toml", axes, ["round_s"], "backend=null", out="mine")
    assert kept.run().folder == Path("mine") and names(here / "mine") == ["seed=1"]
    assert len(edgesim.study("scenario.toml", axes, ["round_s"], "backend=null", out="mine").open()) == 1
    result = edgesim.study("scenario.toml", axes, ["round_s"], "backend=null").run()
    folder, run = result.folder, result.runs["seed=1"]
    del result
    gc.collect()
    assert len(run.jobs) == 2 and folder.exists()
    del run
    gc.collect()
    assert not folder.exists()


def test_a_study_file_uses_the_folder_of_the_command_line(here: Path) -> None:
    (here / "study.toml").write_text(STUDY)
    study = edgesim.study("study.toml")
    with pytest.raises(ConfigError, match=r"^runs/studies/study/quick: no cell has been run$"):
        study.open()
    assert call("study", "run", "study.toml").code == 0
    assert list(study.open().frame()["seed"]) == [1, 2]
    assert study.sizes == ("quick",)
    plan = study.plan()
    assert list(plan["cell"]) == ["seed=1", "seed=2"] and set(plan["state"]) == {"done"}
    assert list(study.run(only=["seed=2"]).runs) == ["seed=2"]
    with pytest.raises(ConfigError, match=r"^study\.toml: is a study, which has axes"):
        edgesim.study("study.toml", {"seed": [1]})
    with pytest.raises(ConfigError, match="unknown size 'full'"):
        study.run(size="full")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "study: needs axes, or a search"),
        ({"axes": {"seeds": [1]}}, "study: size quick, cell seeds=1: seeds: unknown key"),
        ({"axes": {"seed": [1, 1]}}, "study: axes.seed: two values have the label '1'"),
        ({"axes": {"a b": {"x": "seed=1"}}}, "study: axes.a b: 'a b' must be of letters"),
        ({"axes": {"seed": [1]}, "columns": ["speed"]}, "study: columns: unknown column 'speed'"),
        ({"axes": {"seed": [1]}, "overrides": {"stop.round": 3}}, "stop.round: unknown key"),
    ],
)
def test_bad_studies_are_one_line(here: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        edgesim.study("scenario.toml", **given)
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


def test_a_cell_that_cannot_be_run_is_an_error(here: Path) -> None:
    study = edgesim.study("scenario.toml", {"selection.count": [2, 9]}, ["round_s"])
    with pytest.raises(EdgesimError, match=r"^1 of 2 cells cannot be run, so none was; selection\.count=9: "):
        study.run()


@full
def test_a_search_in_python(here: Path) -> None:
    search = {"minimise": ["energy_j"], "space": {"network.up": {"low": 1.0, "high": 4.0, "unit": "Mbit/s"}}}
    study = edgesim.study("scenario.toml", columns=["energy_j"], overrides="backend=null", search=search, out="found")
    told: list[int] = []
    result = study.optimise(6, on_trial=lambda trial: told.append(trial.number))
    assert told == [*range(6)] and len(result) == 6
    frame = result.frame()
    assert result.best[0].values[0] == frame["energy_j"].min()
    assert result.best[0].number == frame["trial"][frame["energy_j"].idxmin()]
    assert len(study.open()) == 6


# --- how things look ------------------------------------------------------------------------------------------------


def test_runs_and_results_show_themselves(here: Path) -> None:
    """Text that looks like tags stays text."""
    given = {"odd": {"<b>": "stop.rounds=1"}}
    with pytest.raises(ConfigError, match="must be of letters"):
        edgesim.study("scenario.toml", given)
    result = edgesim.study("scenario.toml", {"seed": [1, 2]}, ["best_accuracy", "energy_j"], name="<i>mine</i>").run()
    page, terminal = result._repr_html_(), shown(result)
    assert "&lt;i&gt;mine&lt;/i&gt;" in page and "<i>" not in page and "<th>energy_j</th>" in page
    assert "<i>mine</i>" in terminal and "energy_j" in terminal
    assert repr(result).startswith("<2 runs of the study '<i>mine</i>' in ")
    run = result.runs["seed=1"]
    page, terminal = run._repr_html_(), shown(run)
    for text in ("fedavg", "finished", "simulated time", "test accuracy"):
        assert text in page and text in terminal
    assert f"{run.evals['accuracy'].max():.4f}" in page
    assert (
        repr(edgesim.study("scenario.toml", {"seed": [1]}, ["round_s"])) == "<study 'study'; seed: 1; columns round_s>"
    )


def test_targets_of_a_run_are_shown(here: Path) -> None:
    run = edgesim.run("scenario.toml", ["evaluation.targets=[0.01, 0.99]"])
    assert "<td>accuracy 0.99</td><td>not reached</td>" in run._repr_html_()
    assert "<td>accuracy 0.01</td><td>" in run._repr_html_() and ", 1 rounds</td>" in run._repr_html_()


@full
def test_figures_show_themselves(here: Path) -> None:
    """As a PNG, whatever matplotlib's display is."""
    result = edgesim.study("scenario.toml", {"seed": [1, 2]}, overrides="stop.rounds=2").run()
    for figure in (result.plot(["time"], title="mine"), result.runs["seed=1"].plot()):
        assert isinstance(figure, Figure)
        image = Image.open(io.BytesIO(figure._repr_png_()))
        assert image.format == "PNG" and image.width > 300
        assert len(set(np.asarray(image.convert("RGB")).reshape(-1, 3)[::7].tobytes())) > 10
    assert len(figure.axes) == 3
    with pytest.raises(ConfigError, match="against: unknown money"):
        result.plot(["money"])


# --- callbacks ------------------------------------------------------------------------------------------------------


def test_every_round_is_told(here: Path) -> None:
    told: list[dict[str, Any]] = []
    run = edgesim.run("scenario.toml", ["stop.rounds=3"], on_round=lambda info: told.append(dict(info)))
    assert [info["round"] for info in told] == [1, 2, 3]
    assert [info["now_s"] for info in told] == list(run.rounds["now_s"])
    assert [info["accuracy"] for info in told] == list(run.evals["accuracy"][run.evals["split"] == "test"])


def test_what_a_callback_raises_ends_the_run(here: Path) -> None:
    def stop(info: Any) -> None:
        if info["round"] == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        edgesim.run("scenario.toml", ["stop.rounds=5"], out="run", on_round=stop)
    assert edgesim.open("run").status == "failed"


def test_a_scenario_may_stand_in_a_study_file(here: Path) -> None:
    """As a table; its paths are meant from the folder of the file."""
    (here / "inner").mkdir()
    (here / "inner" / "base.toml").write_text(TINY)
    base = 'base = { extends = "base.toml", backend = "null", stop = { rounds = 3 } }'
    (here / "inner" / "study.toml").write_text(STUDY.replace('base = "scenario.toml"', base))
    assert list(edgesim.study("inner/study.toml").run().frame()) == ["seed", "round_s"]
    (here / "inner" / "study.toml").write_text(STUDY.replace('"scenario.toml"', '{ extends = "none.toml" }'))
    with pytest.raises(ConfigError, match=r"^inner/study\.toml: size quick, cell seed=1: .*none\.toml"):
        edgesim.study("inner/study.toml")
