"""What TensorBoard, MLflow, pandas and Arrow read of runs and studies is what the runs have."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.records.schema import TABLES
from edgesim.reports.export import exported, points, settings
from edgesim.reports.load import Run
from edgesim.reports.stats import curve, summary
from tests.calling import TINY, Done, call
from tests.records.written import seal_again
from tests.sizes import full, thinned

STUDY = """
name = "two methods"
base = "base.toml"
columns = ["accuracy", "energy_j"]

[axes.method]
fedavg = []
fedpmt = ["method=fedpmt"]

[axes]
seed = [1, 2]
"""
CELLS = [f"method={method},seed={seed}" for method in ("fedavg", "fedpmt") for seed in (1, 2)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study of four runs that train for three rounds."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "base.toml").write_text(TINY.replace("rounds = 1", "rounds = 3"))
    (folder / "study.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call("study", "run", "study.toml").code == 0
    return folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to that study."""
    monkeypatch.chdir(made)
    return made


def run_of(here: Path, cell: str) -> Run:
    return edgesim.open(here / "runs/studies/study/quick" / cell)


# --- TensorBoard ------------------------------------------------------------------------------------------------


def scalars_of(folder: Path) -> dict[str, list[Any]]:
    """Return the events of a log by tag, as TensorBoard's own reader gives them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}


@full
def test_tensorboard_reads_a_study_over_simulated_time(here: Path, tmp_path: Path) -> None:
    """Steps are simulated milliseconds, wall times simulated seconds; numbers have 32 bits."""
    done = call("export", "study.toml", "--to", "tensorboard", "--out", tmp_path)
    assert done == Done(0, "".join(f"{tmp_path}/{cell}/events.out.tfevents.0.edgesim\n" for cell in CELLS), "")
    for cell in CELLS:
        run, found = run_of(here, cell), scalars_of(tmp_path / cell)
        points = curve(run)
        for tag, column in {"accuracy/test": "accuracy", "loss/test": "loss"}.items():
            assert [event.wall_time for event in found[tag]] == points["sim_time_s"].tolist()
            assert [event.step for event in found[tag]] == [round(1000 * now_s) for now_s in points["sim_time_s"]]
            assert [event.value for event in found[tag]] == pytest.approx(points[column].tolist(), rel=1e-6)
        for name in ("energy_j", "active_j", "up_bytes", "down_bytes", "flops"):
            wanted = run.rounds[f"total_{name}"].tolist()
            assert [event.value for event in found[f"spent/{name}"]] == pytest.approx(wanted, rel=1e-6)
        assert [event.value for event in found["round/number"]] == [1, 2, 3]
        assert [event.value for event in found["round/used"]] == run.rounds["used"].tolist()


@full
def test_tensorboard_reads_the_settings_of_a_run(here: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    call("export", "study.toml", "--to", "tensorboard", "--out", tmp_path)
    found = EventAccumulator(str(tmp_path / CELLS[2]))
    found.Reload()
    data = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = HParamsPluginData.FromString(data).session_start_info
    values = {name: value for name, value in start.hparams.items()}
    assert (start.group_name, values["axis.method"].string_value, values["seed"].number_value) == (
        CELLS[2],
        "fedpmt",
        1,
    )
    assert values["training.lr"].number_value == pytest.approx(0.1)
    assert values["fleet.1.count"].number_value == 2


@full
def test_an_export_gives_the_same_bytes_again(here: Path, tmp_path: Path) -> None:
    """And in the place of what was there, so that no reader sees a run twice."""
    digests = []
    for _ in range(2):
        call("export", "runs/studies", "--to", "tensorboard", "--out", tmp_path)
        files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert digests[0] == digests[1] and len(digests[0]) == 4


# --- MLflow -----------------------------------------------------------------------------------------------------


@full
def test_mlflow_reads_a_study_over_simulated_time(here: Path, tmp_path: Path) -> None:
    """Steps are whole simulated seconds, timestamps simulated milliseconds; the folder has a database."""
    from mlflow.tracking import MlflowClient

    done = call("export", "study.toml", "--to", "mlflow", "--out", tmp_path / "store")
    address = f"sqlite:///{tmp_path}/store/mlflow.db"
    assert (done.code, done.out) == (0, f"{address}\n")
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("two methods")
    found = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert sorted(found) == CELLS
    for cell, each in found.items():
        run = run_of(here, cell)
        accuracy = sorted(client.get_metric_history(each.info.run_id, "accuracy/test"), key=lambda m: m.timestamp)
        points = curve(run)
        assert [metric.value for metric in accuracy] == points["accuracy"].tolist()
        assert [metric.timestamp for metric in accuracy] == [round(1000 * now_s) for now_s in points["sim_time_s"]]
        assert [metric.step for metric in accuracy] == [math.floor(now_s) for now_s in points["sim_time_s"]]
        joules = sorted(client.get_metric_history(each.info.run_id, "spent/energy_j"), key=lambda m: m.timestamp)
        assert [metric.value for metric in joules] == run.rounds["total_energy_j"].tolist()
        end = summary(run)
        assert {name: each.data.metrics[f"end/{name}"] for name in ("accuracy", "rounds", "energy_j", "up_bytes")} == {
            name: end[name] for name in ("accuracy", "rounds", "energy_j", "up_bytes")
        }
        assert each.data.params["training.lr"] == "0.1" and each.data.params["axis.seed"] == cell[-1]
        assert each.info.status == "FINISHED"
        assert each.info.end_time - each.info.start_time == pytest.approx(1000 * run.manifest["host_s"], abs=2)


@full
def test_mlflow_gets_a_run_once(here: Path, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    words = ("export", "--to", "mlflow", "--out", f"sqlite:///{tmp_path}/own.db")
    assert call(*words, f"runs/studies/study/quick/{CELLS[0]}").code == 0
    done = call(*words, "runs/studies")
    assert done.out.splitlines()[1:] == [f"{CELLS[0]}: is there already"]
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/own.db")
    ids = [each.experiment_id for each in client.search_experiments()]
    assert sorted(each.info.run_name for each in client.search_runs(ids)) == CELLS


# --- tables -----------------------------------------------------------------------------------------------------


def read(path: Path) -> pd.DataFrame:
    """Return a file as its own library reads it."""
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as file:
            assert pa.ipc.open_file(file).schema.names[0] == "run"
        return feather.read_feather(path)
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("form", thinned(["csv", "arrow", "parquet"], ["csv"]))
def test_tables_of_a_study_are_those_of_its_runs_to_the_last_digit(here: Path, tmp_path: Path, form: str) -> None:
    done = call("export", "study.toml", "--to", form, "--out", tmp_path / "tables")
    names = [*TABLES, "settings", "runs"]
    assert done == Done(0, "".join(f"{tmp_path}/tables/{name}.{form}\n" for name in names), "")
    for table in TABLES:
        found = read(tmp_path / "tables" / f"{table}.{form}")
        assert list(found) == ["run", *TABLES[table]]
        for cell in CELLS:
            own = found[found["run"] == cell].drop(columns="run").reset_index(drop=True)
            wanted = run_of(here, cell).table(table)
            pd.testing.assert_frame_equal(own, wanted, check_exact=True, check_dtype=False)
    runs = read(tmp_path / "tables" / f"runs.{form}").set_index("run")
    assert list(runs.index) == CELLS
    assert runs.loc[CELLS[3], ["axis.method", "status"]].tolist() == ["fedpmt", "finished"]
    assert [runs.loc[cell, "energy_j"] for cell in CELLS] == [summary(run_of(here, cell))["energy_j"] for cell in CELLS]
    keys = read(tmp_path / "tables" / f"settings.{form}")
    assert keys[(keys["run"] == CELLS[0]) & (keys["key"] == "training.lr")]["value"].astype(str).tolist() == ["0.1"]


def test_tables_of_a_run_that_diverged_have_words_for_it(here: Path, tmp_path: Path) -> None:
    assert call("run", "base.toml", "--set", "training.lr=1e30", "--out", tmp_path / "run", "--quiet").code == 0
    for form in ("csv", "arrow"):
        assert call("export", tmp_path / "run", "--to", form, "--out", tmp_path / form).code == 0
    said = read(tmp_path / "csv/runs.csv")["diverged"].tolist()
    assert said == read(tmp_path / "arrow/runs.arrow")["diverged"].tolist()
    assert said[0].startswith("diverged in round 1: ")


@full
def test_a_run_without_training_has_tables_too(here: Path, tmp_path: Path) -> None:
    words = ("--set", "backend=null", "--out", tmp_path / "run", "--quiet")
    assert call("run", "base.toml", *words).code == 0
    for to in ("csv", "arrow", "parquet", "tensorboard", "mlflow"):
        done = call("export", tmp_path / "run", "--to", to, "--out", tmp_path / to)
        assert done.code == 0, done.err
    assert read(tmp_path / "arrow/evals.arrow").empty and len(read(tmp_path / "csv/rounds.csv")) == 3
    assert "accuracy/test" not in scalars_of(tmp_path / "tensorboard/run")


# --- what is exported -------------------------------------------------------------------------------------------


def test_points_of_one_series_come_in_the_order_of_time(here: Path) -> None:
    found = list(points(run_of(here, CELLS[0])))
    assert len({point.series for point in found}) > 10
    for series in {point.series for point in found}:
        times = [point.now_s for point in found if point.series == series]
        assert times == sorted(times) and len(times) == 3


def test_settings_have_every_number_of_the_scenario(here: Path) -> None:
    [each] = exported([run_of(here, CELLS[0])])
    found = settings(each)
    assert found["seed"] == 1 and found["method.name"] == "fedavg" and found["fleet.0.level"] == 1
    assert found["energy.busy"] == 4.0 and all(isinstance(value, str | bool | int | float) for value in found.values())


def test_runs_of_one_name_are_told_apart_by_their_folders(here: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        words = ("--set", "backend=null", "--out", tmp_path / folder / "run", "--quiet")
        assert call("run", "base.toml", *words).code == 0
    assert [each.name for each in exported(Run.find([tmp_path]))] == ["a/run", "b/run"]
    call("export", tmp_path / "a", tmp_path / "b", "--to", "tensorboard", "--out", tmp_path / "logs")
    assert len(list((tmp_path / "logs").glob("*/run/events*"))) == 2


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere", "--to", "csv", "--out", "x"), "nowhere: not a run folder: no manifest.json"),
        (
            ("study.toml", "runs", "--to", "csv", "--out", "x"),
            "study.toml: is a study; name it alone",
        ),
        (("study.toml", "--size", "full", "--to", "csv", "--out", "x"), "--size: unknown size 'full' (known: quick)"),
        (
            ("study.toml", "--runs", "x", "--to", "csv", "--out", "x"),
            "study.toml: no cell has been run; first: edgesim ",
        ),
        (("runs", "--runs", "x", "--to", "csv", "--out", "x"), "--runs: is for a study; name its"),
        (("runs", "--to", "csv", "--out", "base.toml"), "--out: base.toml: cannot be written: File exists"),
        (("runs", "--to", "tensorboard", "--out", "base.toml"), "--out: base.toml: cannot be written: "),
        (("runs", "--to", "mlflow", "--out", "base.toml"), "--out: base.toml: cannot be written: File exists"),
        (
            ("runs", "--to", "csv", "--out", "http://a:1"),
            "--out: 'http://a:1' is an address, csv is written to a folder",
        ),
        (("runs", "--to", "mlflow", "--out", "nothing://a"), "--to mlflow: nothing://a: "),
        (("runs", "--to", "wandb", "--out", "x"), "Invalid value for '--to': "),
    ],
)
def test_bad_input_is_one_line(here: Path, words: tuple[str, ...], says: str) -> None:
    code, out, err = call("export", *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {says}") and err.count("\n") == 1
    assert not (here / "x").exists()


@pytest.mark.parametrize("to", ["tensorboard", "mlflow"])
def test_an_extra_that_is_not_installed_is_named(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    gone = {"tensorboard": "tensorboard.summary.writer.record_writer", "mlflow": "mlflow.tracking"}[to]
    monkeypatch.setitem(__import__("sys").modules, gone, None)
    says = f'error: --to {to}: it is not installed; pip install "edgesim[{to}]"\n'
    assert call("export", "runs", "--to", to, "--out", tmp_path / "x") == Done(2, "", says)


def test_a_damaged_run_leaves_no_half_table(here: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        words = ("--set", "backend=null", "--out", tmp_path / "runs" / name, "--quiet")
        assert call("run", "base.toml", *words).code == 0
    (tmp_path / "runs/b/jobs.parquet").write_bytes(b"PAR1")
    code, _, err = call("export", tmp_path / "runs", "--to", "csv", "--out", tmp_path / "csv")
    assert code == 2 and "b/jobs.parquet: damaged" in err
    assert not list((tmp_path / "csv").glob("*jobs*"))
    seal_again(tmp_path / "runs/b")
    assert call("export", tmp_path / "runs", "--to", "csv", "--out", tmp_path / "csv").code == 2


# --- the Python API ---------------------------------------------------------------------------------------------


def test_conveniences_of_a_run_are_what_the_commands_print(here: Path) -> None:
    run = run_of(here, CELLS[0])
    pd.testing.assert_frame_equal(run.accuracy_curve(), curve(run))
    assert run.accuracy_curve("personal").empty
    assert run.summary() == summary(run)
    joules = run.energy_by_activity()
    assert joules.sum() == pytest.approx(run.rounds["total_energy_j"].iloc[-1], rel=1e-12)
    assert joules["compute"] == pytest.approx(run.devices["compute_j"].sum(), rel=1e-12)
    assert joules.tolist() == sorted(joules, reverse=True)
    shares = run.energy_by("kind", "activity")["share"]
    assert shares.sum() == pytest.approx(1.0) and shares.index.names == ["kind", "activity"]
    lowest = float(run.accuracy_curve()["accuracy"].min())
    first, for_good = run.until(lowest), run.until(lowest, for_good=True)
    assert first is not None and first["round"] == 1 and for_good == first
    assert run.until(1.01) is None
    assert run.participation()["jobs"].sum() == len(run.jobs)
    with pytest.raises(ConfigError, match="energy by colour: must be some of device, component"):
        run.energy_by("colour")
