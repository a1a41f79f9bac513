"""Figures: what is on the axes, and which runs share a colour."""

import re

import pytest

from edgesim.analysis.plots import groups, plot_runs
from edgesim.errors import ConfigError


def test_axes_carry_readable_units_and_targets_are_drawn(fake_run, tmp_path):
    runs = [fake_run("a"), fake_run("b", method="fedprox", shift=-0.1)]
    png, svg = plot_runs(runs, out=tmp_path / "figures" / "accuracy.v1")
    assert png.name == "accuracy.v1.png" and png.read_bytes()[:4] == b"\x89PNG"
    drawn = svg.read_text()
    # 40 s stay seconds, 20 J stay joules; the text of an SVG is kept as text.
    for label in (
        "simulated time (s)",
        "energy, idle power included (J)",
        ">round<",
        "test accuracy",
        "fedavg",
        "fedprox",
    ):
        assert label in drawn
    dashed = re.findall(r"stroke-dasharray: 3\.33", drawn)
    assert len(dashed) == 3 * 2  # two targets in three panels


def test_the_same_figure_is_the_same_file(fake_run, tmp_path):
    runs = [fake_run("a")]
    files = [plot_runs(runs, against=["round"], out=tmp_path / name)[1].read_bytes() for name in ("x", "y")]
    assert files[0] == files[1]


def test_seeds_share_a_label_and_other_settings_do_not(fake_run):
    a, b, c = fake_run("a", seed=1), fake_run("b", seed=2), fake_run("c", method="fedprox")
    assert groups([a, b, c]) == {a: "fedavg", b: "fedavg", c: "fedprox"}
    d = fake_run("d", lr=0.2)
    assert groups([a, b, c, d]) == {a: "a", b: "a", c: "fedprox", d: "d"}


def test_what_cannot_be_plotted_is_refused(fake_run, tmp_path):
    with pytest.raises(ConfigError, match="against: unknown hours"):
        plot_runs([fake_run("a")], against=["hours"], out=tmp_path / "x")
    with pytest.raises(ConfigError, match=r"^b: no evaluation"):
        plot_runs([fake_run("b", accuracies=(None,))], out=tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        plot_runs([fake_run("c")], out=tmp_path / "file" / "x")
