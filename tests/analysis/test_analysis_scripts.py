"""The scripts and the notebook on top of edgesim.reports run on real run folders and print what they promise."""

import ast
import csv
import io
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.sizes import full

SCRIPTS = Path(__file__).parents[2] / "analysis"
NOTEBOOK = SCRIPTS / "compare_methods.ipynb"


def main_of(name):
    return runpy.run_path(str(SCRIPTS / name))["main"]


@pytest.fixture
def two_runs(fake_run):
    """The second seed of fedavg reaches 0.5 a round later; fedprox never does."""
    return [
        fake_run("a", seed=1, accuracies=(0.2, 0.6, 0.7)),
        fake_run("b", seed=2, accuracies=(0.2, 0.3, 0.7)),
        fake_run("c", method="fedprox", accuracies=(0.1, 0.2, 0.3)),
    ]


def test_accuracy_vs_time(two_runs, tmp_path, capsys):
    main_of("accuracy_vs_time.py")([run.folder for run in two_runs], out=tmp_path / "time")
    assert capsys.readouterr().out.split() == [str(tmp_path / "time.png"), str(tmp_path / "time.svg")]
    drawn = (tmp_path / "time.svg").read_text()
    assert "simulated time (s)" in drawn and "energy" not in drawn


def test_energy_breakdown(two_runs, tmp_path):
    main_of("energy_breakdown.py")([run.folder for run in two_runs[:2]], out=tmp_path / "energy")
    drawn = (tmp_path / "energy.svg").read_text()
    # The largest bar is 77 J (fast: 2 + 70 + 4 + 1), so the axis stays in joules; each run has its panel.
    for label in ("energy (J)", ">server<", ">fast<", ">slow<", ">compute<", ">idle<", ">sleep<", ">a<", ">b<"):
        assert label in drawn


def test_time_to_target(two_runs, capsys):
    main_of("time_to_target.py")([run.folder for run in two_runs])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["configuration", "target", "cost", "runs", "reached", "median", "km_low", "km_high"]
    found = {(row["configuration"], row["target"], row["cost"]): row for row in rows}
    # Rounds 2 and 3, so 20 and 30 s, 10 and 15 J, 200 and 300 B: at most half of two runs exceed the lower number.
    # Of the joules 2/5 are above idle power, 4/5 of participants.
    costs = {"rounds": 2, "sim_time_s": 20, "energy_j": 10, "active_j": 4, "participant_j": 8, "up_bytes": 200}
    for cost, least in costs.items():
        row = found["fedavg", "0.5", cost]
        assert (row["runs"], row["reached"], float(row["median"])) == ("2", "2", least)
    alone = found["fedprox", "0.5", "sim_time_s"]
    assert (alone["runs"], alone["reached"], alone["median"]) == ("1", "0", "not reached")


def test_time_to_target_has_no_mean_over_the_runs_that_reached_it(fake_run, capsys):
    """Two of three seeds arrive, at 10 and 20 s: the median of three is 20 s, a mean of the two would be 15 s."""
    curves = ((0.6, 0.6, 0.6), (0.2, 0.6, 0.6), (0.2, 0.3, 0.3))
    runs = [fake_run(f"r{seed}", seed=seed, accuracies=curve) for seed, curve in enumerate(curves)]
    main_of("time_to_target.py")([run.folder for run in runs])
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    [row] = [row for row in rows if row["target"] == "0.5" and row["cost"] == "sim_time_s"]
    assert (row["runs"], row["reached"], row["median"], row["km_high"]) == ("3", "2", "20", "inf")


@pytest.mark.parametrize("name", ["accuracy_vs_time.py", "energy_breakdown.py", "time_to_target.py"])
def test_a_missing_run_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "nothing")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith(f"error: {tmp_path / 'nothing'}") and err.count("\n") == 1


def test_the_notebook_is_stored_with_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # by one pass from top to bottom
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in code) and "error" not in kinds
    assert NOTEBOOK.stat().st_size < 300_000
    assert "jupyter execute --inplace compare_methods.ipynb" in notebook.cells[0]["source"]


@full
def test_the_notebook_runs(tmp_path):
    """In a kernel of its own, as a reader runs it: from a folder beside the scenarios."""
    (tmp_path / "scenarios").symlink_to(SCRIPTS.parent / "scenarios")
    (tmp_path / "analysis").mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path / "analysis"}}).execute()
    shown = {cell["id"]: cell["outputs"] for cell in code}
    assert [kind for kind in shown["curves"][-1]["data"] if kind.startswith("image/")] == ["image/png"]
    for name in ("result", "one"):
        assert "<table>" in shown[name][-1]["data"]["text/html"]
    printed = "".join(each["text"] for each in shown["result"] if each["output_type"] == "stream")
    assert printed.count("finished") == 6
    accuracies = ast.literal_eval(shown["watch"][-1]["data"]["text/plain"])
    assert len(accuracies) == 5 and accuracies[-1] > accuracies[0]
