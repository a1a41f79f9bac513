"""`table` for people, pages and programs; which runs a path names; where files may be written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from edgesim.cli.options import order
from edgesim.core.errors import ConfigError
from edgesim.reports.load import Run
from tests.calling import call

Make = Callable[..., Run]


@pytest.fixture
def three(fake_run: Make, tmp_path: Path) -> Path:
    """Return a folder of three runs, of which one does not reach 0.5."""
    for name, shift in (("low", -0.5), ("high", 0.1), ("mid", 0.0)):
        fake_run(name, shift=shift)
    return tmp_path


def test_csv_has_every_number_to_its_last_digit(three: Path) -> None:
    code, out, err = call("table", three, "--csv")
    table = pd.read_csv(io.StringIO(out))
    assert (code, err) == (0, "")
    assert table["run"].tolist() == ["high", "low", "mid"]
    for row, run in zip(table.to_dict("records"), Run.find([three]), strict=True):
        last = run.rounds.iloc[-1]
        assert (row["energy_j"], row["up_bytes"]) == (last["total_energy_j"], last["total_up_bytes"])
        assert row["accuracy"] == run.evals["accuracy"][run.evals["split"] == "test"].iloc[-1]
    reached = table.set_index("run")["sim_time_s@0.5"]
    assert reached.notna().to_dict() == {"high": True, "low": False, "mid": True}
    assert table["rounds@0.99"].isna().tolist() == [False, True, True]
    alone = pd.read_csv(io.StringIO(call("table", three / "mid", "--csv").out))
    assert list(alone) == list(table)  # also what nobody reached is a column: tables of several calls are alike


def test_json_is_one_object(three: Path) -> None:
    runs = json.loads(call("table", three, "--json").out)["runs"]
    assert [run["run"] for run in runs] == ["high", "low", "mid"]
    assert runs[1]["targets"]["0.5"] is None and runs[0]["targets"]["0.5"]["round"] >= 1
    assert Path(runs[0]["folder"]) == three / "high"


def test_pages_have_readable_numbers(three: Path) -> None:
    lines = call("table", three, "--markdown").out.splitlines()
    assert lines[0].startswith("| run | status | method | rounds | accuracy |") and lines[1].startswith("| --- | --- |")
    assert lines[2].startswith("| high | finished | fedavg | 4 | ") and " s |" in lines[2]
    latex = call("table", three, "--latex").out
    assert latex.startswith("\\begin{tabular}") and "\\toprule" in latex and "simulated time" in latex


def test_rows_are_sorted(three: Path) -> None:
    for column, names in (("accuracy", ["low", "mid", "high"]), ("-accuracy", ["high", "mid", "low"])):
        out = call("table", three, "--sort", column, "--csv").out
        assert pd.read_csv(io.StringIO(out))["run"].tolist() == names
    assert [line.split()[0] for line in call("table", three, "--sort", "accuracy").out.splitlines()[2:5]] == names[::-1]
    assert call("table", three, "--sort", "acuracy").err.startswith(
        "error: --sort: no column 'acuracy'; did you mean 'accuracy'? (`--csv` lists all "
    )


def test_missing_values_come_last_and_numbers_in_texts_by_size() -> None:
    frame = pd.DataFrame({"a": [None, 2.0, 1.0], "b": ["10", "9", "9"], "c": ["x", "10", "9"]})
    found = [order(frame, column) for column in ("a", "-a", "b", "c")]
    assert found == [[2, 1, 0], [1, 2, 0], [1, 2, 0], [1, 2, 0]]


def test_one_format_at_a_time(three: Path) -> None:
    assert call("table", three, "--csv", "--json") == (2, "", "error: --csv, --json: give one of them\n")


# --- which runs -------------------------------------------------------------------------------------------------


def test_folders_and_patterns_name_runs(fake_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("s/seed=10", "s/seed=9", "t/deep/a", ".hidden/b", "t/.half/c"):
        fake_run(name)
    (tmp_path / "t" / "notes.txt").write_text("no run")
    monkeypatch.chdir(tmp_path)

    def names(*paths: str) -> list[str]:
        return [str(run.folder) for run in Run.find([Path(path) for path in paths])]

    assert names("s") == ["s/seed=9", "s/seed=10"]
    assert names(".") == ["s/seed=9", "s/seed=10", "t/deep/a"]
    assert names("t/deep/a", "s", "t") == ["t/deep/a", "s/seed=9", "s/seed=10"]  # each once
    assert names("s/seed=*") == ["s/seed=9", "s/seed=10"]
    assert names("*") == ["s/seed=9", "s/seed=10", "t/deep/a"]
    assert names(f"{tmp_path}/**/a") == [f"{tmp_path}/t/deep/a"]
    assert names("../*/s") == [f"../{tmp_path.name}/s/seed=9", f"../{tmp_path.name}/s/seed=10"]


@pytest.mark.parametrize(
    ("path", "says"),
    [("empty", "empty: not a run folder: no manifest.json, "), ("none", "none: not a run folder: no manifest"),
     ("x*", "x*: matches no run folder"), ("empty/file", "empty/file: not a run folder: no manifest")],
)  # fmt: skip
def test_a_path_without_runs_is_refused(path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as stop:
        Run.find([Path(path)])
    assert str(stop.value).startswith(says)


def test_runs_of_one_name_are_told_apart_by_their_paths(fake_run: Make, tmp_path: Path) -> None:
    for name in ("a/same", "b/same"):
        fake_run(name)
    out = call("table", tmp_path).out
    assert all(str(tmp_path / name) in out for name in ("a/same", "b/same"))


# --- where files go ---------------------------------------------------------------------------------------------

OUT: dict[str, tuple[Any, ...]] = {
    "plot": (),
    "gantt": ("--round", "1"),
    "trace": (),
}


@pytest.mark.parametrize("command", OUT)
def test_a_slip_in_out_makes_no_folder(fake_run: Make, tmp_path: Path, command: str) -> None:
    """All commands that write a file want its folder to be there, as `calibrate` does."""
    folder = fake_run("a").folder
    words = (command, folder, *OUT[command], "--out")
    assert call(*words, tmp_path / "slip" / "x.json") == (2, "", f"error: --out: {tmp_path}/slip is not a folder\n")
    assert not (tmp_path / "slip").exists()
    for name in ("", ".."):
        code, out, err = call(*words, name)
        assert (code, out) == (2, "") and err == f"error: --out: {str(Path(name))!r} is no file name\n"


def test_trace_does_not_replace_a_folder(fake_run: Make, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = call("trace", fake_run("a").folder, "--out", tmp_path / "there")
    assert done == (2, "", f"error: --out: {tmp_path}/there cannot be written\n")
