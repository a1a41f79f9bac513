"""Figures: what is on the axes, and which runs share a colour."""

import os
import re
import subprocess
import sys

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from edgesim.core.errors import ConfigError
from edgesim.reports.figure_numbers import mean_and_range
from edgesim.reports.figures import FORMATS
from edgesim.reports.groups import groups
from edgesim.reports.pictures import plot_runs
from tests.calling import call
from tests.sizes import full, spread, thinned


def drawn_text(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())


def test_axes_carry_readable_units_and_targets_are_drawn(fake_run, tmp_path):
    runs = [fake_run("a"), fake_run("b", method="fedprox", shift=-0.1)]
    png, svg = plot_runs(runs, out=tmp_path / "figures" / "accuracy.v1")
    assert png.name == "accuracy.v1.png" and png.read_bytes()[:4] == b"\x89PNG"
    # 40 s stay seconds, 20 J stay joules; the text of an SVG is kept as text.
    found = drawn_text(svg)
    for label in (
        "simulated time (s)",
        "energy of devices, idle included (J)",
        "round",
        "test accuracy (%)",
        "fedavg",
        "fedprox",
    ):
        assert label in found
    dashed = re.findall(r"stroke-dasharray: 3\.33", svg.read_text())
    assert len(dashed) == 3 * 2  # two targets in three panels


@full
def test_the_same_figure_is_the_same_file(fake_run, tmp_path):
    runs = [fake_run("a")]
    for formats in ([each] for each in FORMATS):
        files = [plot_runs(runs, ["round"], tmp_path / name, formats)[0].read_bytes() for name in ("x", "y")]
        assert files[0] == files[1]


def test_seeds_share_a_label_and_other_settings_do_not(fake_run):
    a, b, c = fake_run("a", seed=1), fake_run("b", seed=2), fake_run("c", method="fedprox")
    assert groups([a, b]) == {a: "fedavg", b: "fedavg"}
    assert groups([a, b, c]) == {a: "fedavg", b: "fedavg", c: "fedprox"}
    d = fake_run("d", lr=0.2)
    lr = a.manifest["scenario"]["training"]["lr"]
    assert groups([a, d]) == {a: f"lr = {lr:g}", d: "lr = 0.2"}
    assert groups([a, b, c, d]) == {
        a: f"fedavg, lr = {lr:g}", b: f"fedavg, lr = {lr:g}", c: f"fedprox, lr = {lr:g}", d: "fedavg, lr = 0.2"
    }  # fmt: skip


def test_a_label_that_would_be_too_long_is_the_run_s_name(fake_run):
    runs = [fake_run(name, method=f"{name}-{'x' * 80}") for name in ("a", "b")]
    assert groups(runs) == {run: run.name for run in runs}


def test_seeds_are_drawn_as_mean_and_range():
    """By hand: the second curve is a straight line between its points; the first ends before it and keeps its 0.6."""
    one = pd.DataFrame({"sim_time_s": [0.0, 1.0, 2.0], "accuracy": [0.0, 0.4, 0.6]})
    two = pd.DataFrame({"sim_time_s": [0.5, 1.5, 9.0], "accuracy": [0.2, 0.4, 0.9]})
    found = mean_and_range([one, two], "sim_time_s")
    assert found["sim_time_s"].tolist() == [0.5, 1.0, 1.5, 2.0, 9.0]
    # one: 0.2, 0.4, 0.5, 0.6; two: 0.2, 0.3, 0.4, 0.4 + 0.5 x 0.5 / 7.5
    last = 0.4 + 0.5 * 0.5 / 7.5
    assert found["mean"].tolist() == pytest.approx([0.2, 0.35, 0.45, (0.6 + last) / 2, 0.75])
    assert found["low"].tolist() == pytest.approx([0.2, 0.3, 0.4, last, 0.6])
    assert found["high"].tolist() == pytest.approx([0.2, 0.4, 0.5, 0.6, 0.9])


def test_a_band_is_drawn_for_seeds_and_no_line_for_each(fake_run, tmp_path):
    runs = [fake_run(name, seed=seed) for seed, name in enumerate(("a", "b", "c"))]
    [alone] = plot_runs(runs[:1], ["round"], tmp_path / "alone", ["svg"])
    [both] = plot_runs(runs, ["round"], tmp_path / "both", ["svg"])
    assert "fedavg (3 seeds)" in drawn_text(both)
    assert alone.read_text().count('id="FillBetween') == 0 and both.read_text().count('id="FillBetween') == 1


@full
@pytest.mark.parametrize("count", thinned([1, 3, 14, 40], [14]))
@pytest.mark.parametrize("width_in", spread([None, 8.5 / 2.54], 1))
def test_no_legend_runs_off(fake_run, tmp_path, count, width_in, monkeypatch):
    """Every label lies inside the figure, and no two groups look alike."""
    figures = []
    monkeypatch.setattr("edgesim.reports.pictures.save", lambda figure, *_: figures.append(figure))
    plot_runs([fake_run(f"r{i}", method=f"a-method-{i}-of-many") for i in range(count)], ["round"], width_in=width_in)
    [figure] = figures
    FigureCanvasAgg(figure).draw()
    [legend] = figure.legends
    assert len(legend.get_texts()) == count
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1
    lines = figure.axes[0].get_lines()[:count]
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in lines}
    assert len(looks) == count
    assert figure.axes[0].get_position().height * figure.bbox.height > 100  # the panel has room left


@full
def test_what_a_figure_is_to_look_like(fake_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [fake_run(name, method=method).folder for name, method in (("a", "fedavg"), ("b", "fedpmt"))]
    words = ["--x", "time,bytes", "--width", "8.5cm", "--labels", "one,the other", "--title", "Both"]
    assert call("plot", *folders, *words, "--format", "pdf,svg") == (0, "accuracy.pdf\naccuracy.svg\n", "")
    found = drawn_text(tmp_path / "accuracy.svg")
    assert {"one", "the other", "Both", "simulated time (s)"} <= set(found) and "fedavg" not in found
    assert any(text.startswith("sent and received (") for text in found) and "round" not in found
    width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', (tmp_path / "accuracy.svg").read_text())[1])
    assert width == pytest.approx(8.5 / 2.54 * 72, abs=0.1)
    assert (tmp_path / "accuracy.pdf").read_bytes()[:4] == b"%PDF"
    assert call("plot", *folders, "--out", "mine.pdf").out == "mine.pdf\n"  # by its ending


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--x", "hours"], "--x: 'hours' is unknown or given twice (known: time, energy, active, participants, "),
        (["--x", "time,time"], "--x: 'time' is unknown or given twice"),
        (["--format", "jpeg"], "--format: unknown 'jpeg' (known: png, svg, pdf, with commas)"),
        (
            ["--width", "8.5"],
            "--width: '8.5' is not a width; write for example 8.5cm, 85mm, 3.3in, or single or double",
        ),
        (["--width", "1mm"], "--width: must be 1 to 40 in (2.54 to 101.6 cm), got '1mm'"),
        (["--labels", "a,b"], "--labels: 2 given for the 1 groups FedAvg"),
        (["--out", "nowhere/figure"], "--out: nowhere is not a folder"),
        (["--out", ".."], "--out: '..' is no file name"),
    ],
)
def test_a_wrong_option_is_one_line_and_leaves_nothing(fake_run, tmp_path, monkeypatch, words, says):
    folder = fake_run("a").folder
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = call("plot", folder, *words)
    assert (code, out) == (2, "") and err.startswith(f"error: {says}") and err.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []


@full
@pytest.mark.parametrize(
    "words", thinned([["plot"], ["gantt", "--round", "1"]], [["plot"]]), ids=lambda words: words[0]
)
def test_a_wrong_backend_in_the_environment_changes_nothing(fake_run, tmp_path, words):
    """Nothing here opens a window; matplotlib would refuse to load with such a name."""
    command = [sys.executable, "-m", "edgesim", words[0], str(fake_run("a").folder), *words[1:]]
    environment = os.environ | {"MPLBACKEND": "garbage"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_cannot_be_plotted_is_refused(fake_run, tmp_path):
    with pytest.raises(ConfigError, match="against: unknown hours"):
        plot_runs([fake_run("a")], against=["hours"], out=tmp_path / "x")
    with pytest.raises(ConfigError, match=r"^b: no evaluation"):
        plot_runs([fake_run("b", accuracies=(None,))], out=tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        plot_runs([fake_run("c")], out=tmp_path / "file" / "x")
