"""The scripts and the notebooks in analysis/: on fake runs, and all others on the runs of one tiny study."""

import ast
import csv
import io
import runpy
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import typer
from nbclient import NotebookClient

import edgesim
from tests.calling import call
from tests.sizes import full

SCRIPTS = Path(__file__).parents[2] / "analysis"
NOTEBOOKS = ("compare_methods.ipynb", "energy_and_cost.ipynb")


def script(name):
    return runpy.run_path(str(SCRIPTS / name))


def main_of(name):
    return script(name)["main"]


def table_of(text):
    """Return the first table of a script's output: the lines with a comma before one without."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    end = next(place for place, line in enumerate([*lines, ""]) if "," not in line)
    return list(csv.DictReader(io.StringIO("\n".join(lines[:end]))))


@pytest.fixture
def two_runs(fake_run):
    """The second seed of fedavg reaches 0.5 a round later; fedprox never does."""
    return [
        fake_run("a", seed=1, accuracies=(0.2, 0.6, 0.7)),
        fake_run("b", seed=2, accuracies=(0.2, 0.3, 0.7)),
        fake_run("c", method="fedprox", accuracies=(0.1, 0.2, 0.3)),
    ]


def test_energy_breakdown(two_runs, tmp_path):
    main_of("energy_breakdown.py")([run.folder for run in two_runs[:2]], out=tmp_path / "energy")
    drawn = (tmp_path / "energy.svg").read_text()
    # The largest bar is 77 J (fast: 2 + 70 + 4 + 1), so the axis stays in joules; each run has its panel.
    for label in ("energy (J)", ">server<", ">fast<", ">slow<", ">compute<", ">idle<", ">sleep<", ">a<", ">b<"):
        assert label in drawn


@full
def test_completion_time(two_runs, tmp_path, capsys):
    main_of("completion_time.py")([run.folder for run in two_runs], out=tmp_path / "time")
    rows = table_of(capsys.readouterr().out)
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
    drawn = (tmp_path / "time.svg").read_text()
    assert all(words in drawn for words in (">target 0.5<", ">fedavg<", ">fedprox<", "simulated time (s)"))


def test_the_curve_is_that_of_kaplan_and_meier():
    """By hand: one of 4 runs stops at 20 s. After 10 s 3/4 are short, after 30 s half of these, after 40 s none.

    If it would never have arrived, as all its batteries are empty, a quarter stays short.
    """
    runs = pd.DataFrame({"value": [10.0, 20.0, 30.0, 40.0], "observed": [True, False, True, True], "never": False})
    still_short = script("completion_time.py")["still_short"]
    curve, of_never = still_short(runs), still_short(runs.assign(never=~runs["observed"]))
    assert curve["seconds"].tolist() == [0, 10, 20, 30, 40]
    assert curve["share"].tolist() == pytest.approx([1, 3 / 4, 3 / 4, 3 / 8, 0])
    assert of_never["seconds"].tolist() == [0, 10, 30, 40]
    assert of_never["share"].tolist() == pytest.approx([1, 3 / 4, 1 / 2, 1 / 4])


@full
def test_completion_time_has_no_mean_over_the_runs_that_reached_the_target(fake_run, tmp_path, capsys):
    """Two of three seeds arrive, at 10 and 20 s: the median of three is 20 s, a mean of the two would be 15 s."""
    curves = ((0.6, 0.6, 0.6), (0.2, 0.6, 0.6), (0.2, 0.3, 0.3))
    runs = [fake_run(f"r{seed}", seed=seed, accuracies=curve) for seed, curve in enumerate(curves)]
    main_of("completion_time.py")([run.folder for run in runs], out=tmp_path / "time")
    rows = table_of(capsys.readouterr().out)
    [row] = [row for row in rows if row["target"] == "0.5" and row["cost"] == "sim_time_s"]
    assert (row["runs"], row["reached"], row["median"], row["km_high"]) == ("3", "2", "20", "inf")


@pytest.mark.parametrize("name", ["energy_breakdown.py", "completion_time.py", "device_clock.py"])
def test_a_missing_run_is_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "nothing")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert err.startswith(f"error: {tmp_path / 'nothing'}") and err.count("\n") == 1


# --- on one tiny study ------------------------------------------------------------------------------------------

# Nothing but dynamic power: half the frequency takes twice the seconds and a quarter of the joules.
BASE = """
seed = 1
data = { name = "digits", train_limit = 100, test_limit = 50 }
partition = "iid"
model = "cnn_digits"
training = { batch = 16, lr = 0.1 }
method = "fedavg"
evaluation = { targets = [0.05] }
stop = { rounds = 2 }
energy = { name = "cpu", capacitance = 1e-28 }
CELL

[[fleet]]
count = 4
cpu = { frequency = "1 GHz", min_frequency = "0.2 GHz", flops_per_cycle = 0.05, spread = 0.1 }
"""
CELL = 'network = { name = "cell", bandwidth = "200 kHz", distance_m = { uniform = [50, 500] }, efficiency = 1.0 }'
OWN_LINKS = 'network = { name = "fixed", up = "1 Mbit/s", down = "1 Mbit/s" }'
STUDY = """
name = "tiny"
base = "base.toml"
columns = ["sim_time_s", "active_j", "round_s"]

[axes.frequency]
half = ["fleet.0.cpu.frequency='0.5 GHz'"]
whole = []

[axes]
seed = [1, 2]
"""
PARAMS, DEVICES, ROUNDS = 6090, 4, 2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return the folder of the study, whose runs lie below runs/."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "base.toml").write_text(BASE.replace("CELL", CELL))
    (folder / "own_links.toml").write_text(BASE.replace("CELL", OWN_LINKS))
    (folder / "study.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        edgesim.study("study.toml").run()
    return folder


@pytest.fixture
def here(tiny, monkeypatch):
    monkeypatch.chdir(tiny)
    return tiny


@full
def test_time_energy_pareto(here, capsys):
    main_of("time_energy_pareto.py")(Path("study.toml"), out=here / "pareto")
    half, whole = table_of(capsys.readouterr().out)
    assert (half["setting"], half["on_front"], whole["on_front"]) == ("frequency=half", "True", "True")
    runs = edgesim.study("study.toml").open().frame().groupby("frequency").mean()
    for row, name in ((half, "half"), (whole, "whole")):
        assert [float(row["sim_time_s"]), float(row["active_j"])] == pytest.approx(
            runs.loc[name, ["sim_time_s", "active_j"]].tolist(), rel=1e-5
        )
    main_of("time_energy_pareto.py")(Path("study.toml"), x="sim_time_s", y="round_s", out=here / "pareto")
    half, whole = table_of(capsys.readouterr().out)
    assert (half["on_front"], half["dominated_by"], whole["on_front"]) == ("False", "frequency=whole", "True")


@full
def test_cost_over_theta(here, capsys):
    """The two lines cross where (1 - theta) x the seconds saved are theta x the joules spent for that."""
    main_of("cost_over_theta.py")(Path("study.toml"), out=here / "theta")
    text = capsys.readouterr().out
    costs = {row["setting"]: row for row in table_of(text)}
    [early, late] = table_of(text.partition("\n\n")[2])
    half, whole = costs["frequency=half"], costs["frequency=whole"]
    seconds, joules = (abs(float(half[end]) - float(whole[end])) for end in ("theta0", "theta1"))
    assert (early["cheapest"], late["cheapest"]) == ("frequency=whole", "frequency=half")
    assert (
        float(early["to_theta"]) == float(late["from_theta"]) == pytest.approx(seconds / (seconds + joules), rel=1e-3)
    )


@full
def test_dvfs_deadline(here, capsys):
    """8 s allow the lowest frequency, a fifth of the highest, with its 25th part of the joules; 1 s does not.

    In a cell a device cannot foresee how long it sends, so that `just_in_time` may be late.
    """
    main_of("dvfs_deadline.py")(Path("own_links.toml"), ["1 s", "8 s"], here / "dvfs")
    rows = {(row["governor"], float(row["deadline_s"])): row for row in table_of(capsys.readouterr().out)}
    joules = {key: float(row["joules_per_update"]) for key, row in rows.items() if row["joules_per_update"] != "inf"}
    late = {key: float(row["late_share"]) for key, row in rows.items()}
    assert late["max", 1] == late["just_in_time", 1] == late["just_in_time", 8] == late["energy_optimal", 8] == 0
    assert late["energy_optimal", 1] > 0
    assert joules["just_in_time", 8] == pytest.approx(joules["energy_optimal", 8])
    assert joules["just_in_time", 8] < joules["just_in_time", 1] < joules["max", 1] == pytest.approx(joules["max", 8])


@full
def test_bandwidth(here, capsys):
    """Every round moves a model of 4 bytes a parameter to and from each device, whatever the band."""
    main_of("bandwidth.py")(Path("base.toml"), ["200 kHz", "2 MHz"], here / "band")
    narrow, wide = ({k: float(v) for k, v in list(row.items())[1:]} for row in table_of(capsys.readouterr().out))
    bits = 8 * 2 * 4 * PARAMS * DEVICES
    for row in (narrow, wide):
        length_s = row["down"] + row["compute"] + row["up"] + row["link_wait"] + row["wait"]
        assert row["bits_per_s_per_hz"] == pytest.approx(bits / length_s / row["hertz"], rel=1e-4)
    assert wide["compute"] == pytest.approx(narrow["compute"]) and wide["up"] < narrow["up"]
    assert wide["bits_per_s_per_hz"] < narrow["bits_per_s_per_hz"]


@full
def test_device_clock(here, capsys):
    """All 103 steps of the Pi 4 are predicted without their family, within the limit of the page on device times."""
    runs = sorted(here.glob("runs/studies/study/*/*seed=1"))
    main_of("device_clock.py")(runs, draws=20, out=here / "clock")
    text = capsys.readouterr().out
    families = table_of(text)
    assert sum(int(row["steps"]) for row in families) == 103
    assert sum(int(row["steps"]) * float(row["mean_error"]) for row in families) / 103 < 0.1
    totals = {row["run"]: row for row in table_of(text.partition("\n\n")[2])}
    assert len(totals) == len(runs) == 2
    for run in map(edgesim.open, runs):
        row = totals[run.name]
        assert float(row["low"]) < run.rounds["now_s"].iloc[-1] < float(row["high"])
    with pytest.raises(edgesim.ConfigError, match=r"^--device: 'abacus' has no measured steps"):
        main_of("device_clock.py")([], "abacus", 20, here / "clock")


@full
def test_timing_table(here, capsys):
    """As stored, and again after one number of one job was changed by a millionth."""
    folder = here / "golden"
    folder.mkdir()
    (folder / "golden.toml").write_text(
        'scenario = "timing.toml"\ncolumns = ["sim_time_s", "best_accuracy"]\ntolerances = { best_accuracy = 1.0 }\n'
    )
    (folder / "timing.toml").write_text("extends = '../base.toml'\nbackend = 'null'\n")
    assert call("check", folder, "--update").code == 0
    for changed in ("", "jobs.end_s"):
        if changed:
            jobs = pd.read_csv(folder / "jobs.csv", comment="#")
            jobs.loc[3, "end_s"] *= 1 + 1e-6
            head = (folder / "jobs.csv").read_text().partition("\n")[0]
            (folder / "jobs.csv").write_text(f"{head}\n{jobs.to_csv(index=False)}")
        with pytest.raises(typer.Exit) as end:
            main_of("timing_table.py")(folder, here / "timing")
        rows = {row["column"]: row for row in table_of(capsys.readouterr().out)}
        assert end.value.exit_code == bool(changed) and "best_accuracy" not in rows
        assert [name for name, row in rows.items() if row["differ"] != "0"] == ([changed] if changed else [])
        assert rows["jobs.end_s"]["numbers"] == str(DEVICES * ROUNDS) and rows["sim_time_s"]["numbers"] == "1"


def test_every_script_and_notebook_has_a_row_in_the_index():
    page = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in SCRIPTS.iterdir() if path.suffix in (".py", ".ipynb")}
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")} == files
    assert "](analysis/README.md)" in (SCRIPTS.parent / "README.md").read_text(encoding="utf-8")


# --- notebooks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_outputs(name):
    notebook = nbformat.read(SCRIPTS / name, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # by one pass from top to bottom
    kinds = [output["output_type"] for cell in code for output in cell["outputs"]]
    assert all(cell["outputs"] for cell in code) and "error" not in kinds
    assert (SCRIPTS / name).stat().st_size < 300_000
    assert f"jupyter execute --inplace {name}" in notebook.cells[0]["source"]


def outputs_of(name, folder):
    """The outputs of a notebook's cells by their ids, run in a kernel of its own from a folder beside the scenarios."""
    (folder / "scenarios").symlink_to(SCRIPTS.parent / "scenarios")
    (folder / "analysis").mkdir()
    notebook = nbformat.read(SCRIPTS / name, as_version=4)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder / "analysis"}}).execute()
    return {cell["id"]: cell["outputs"] for cell in code}


def table_in(outputs):
    """The data frame that a cell shows last."""
    return pd.read_csv(io.StringIO(outputs[-1]["data"]["text/plain"]), sep=r"\s+")


@full
def test_the_notebook_about_methods_runs(tmp_path):
    shown = outputs_of("compare_methods.ipynb", tmp_path)
    assert [kind for kind in shown["curves"][-1]["data"] if kind.startswith("image/")] == ["image/png"]
    for name in ("result", "one"):
        assert "<table>" in shown[name][-1]["data"]["text/html"]
    printed = "".join(each["text"] for each in shown["result"] if each["output_type"] == "stream")
    assert printed.count("finished") == 6
    accuracies = ast.literal_eval(shown["watch"][-1]["data"]["text/plain"])
    assert len(accuracies) == 5 and accuracies[-1] > accuracies[0]


@full
def test_the_notebook_about_energy_runs(tmp_path, monkeypatch):
    """816 MHz takes least by the formula of the scenario, 2 C V^2 f + static over 1 / f, with Linux's voltages."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # which the command line sets: a notebook shows its own pictures
    shown = outputs_of("energy_and_cost.ipynb", tmp_path)
    points = table_in(shown["front"]).set_index("frequency")
    volts = {"408MHz": 0.8, "816MHz": 0.825, "1800MHz": 1.2}
    for frequency, volt in volts.items():
        hz = 1e6 * float(frequency.removesuffix("MHz"))
        power_w = 2 * 436e-12 * volt**2 * hz + 0.1
        assert points["active_j"][frequency] == pytest.approx(power_w * points["round_s"][frequency], rel=1e-5)
        assert points["round_s"][frequency] * hz == pytest.approx(points["round_s"]["600MHz"] * 6e8, rel=1e-5)
    assert points["active_j"].idxmin() == "816MHz" and list(points.index[~points["on_front"]]) == ["408MHz", "600MHz"]
    cheapest = table_in(shown["theta"])
    assert cheapest["cheapest"].iloc[0] == "1800MHz" and cheapest["cheapest"].iloc[-1] == "816MHz"
    assert list(table_in(shown["hours"])["start"]) == ["22h", "16h"]
    assert [kind for kind in shown["day"][-1]["data"] if kind.startswith("image/")] == ["image/png"]
