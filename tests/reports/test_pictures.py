"""Pictures of hand-made frames: what is drawn is what is in them, and all of it fits into a column of a journal."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text

from edgesim.core.errors import ConfigError
from edgesim.reports.figure_numbers import gini, jitter, lorenz_curve
from edgesim.reports.figures import COLUMNS_IN, FORMATS, GREY, looks, parse_width, part_colours, save, shortened
from edgesim.reports.pictures import accuracy, heat, lorenz, pareto, round_lengths, stacked, time_to_target, topology
from tests.sizes import spread

LONG = "a method with a rather long name, deadline = 30 s"
WIDTHS = list(COLUMNS_IN.values())

POINTS = pd.DataFrame(
    {
        "setting": ["a"] * 4 + [LONG] * 2,
        "run": [0, 0, 1, 1, 2, 2],
        "sim_time_s": [0.0, 3600.0, 0.0, 3600.0, 0.0, 7200.0],
        "accuracy": [0.0, 0.6, 0.0, 0.8, 0.1, 0.5],
    }
)
VALUES = pd.DataFrame(
    {
        "column": "sim_time_s@0.8",
        "setting": ["a", "a", "a", LONG, LONG],
        "value": [3600.0, 5400.0, 10800.0, 7200.0, 9000.0],
        "observed": [True, True, False, True, True],
    }
)
SUMMARY = pd.DataFrame(
    {
        "column": "sim_time_s@0.8",
        "setting": ["a", LONG],
        "km_median": [5400.0, 7200.0],
        "km_low": [3600.0, 7200.0],
        "km_high": [math.inf, 9000.0],
    }
)
TRADE = pd.DataFrame(
    {
        "setting": ["a", LONG, "c", "never"],
        "sim_time_s": [3600.0, 7200.0, 7200.0, math.nan],
        "sim_time_s_low": [3000.0, 7000.0, 7200.0, math.nan],
        "sim_time_s_high": [4800.0, 7500.0, 7200.0, math.nan],
        "energy_j": [3e6, 1e6, 4e6, 1.0],
        "front": [True, True, False, False],
    }
)
SPENT = pd.DataFrame(
    {
        "setting": ["a", "a", "a", "a", LONG],
        "run": [0, 0, 1, 1, 2],
        "activity": ["idle", "compute", "idle", "compute", "compute"],
        "joules": [4000.0, 1000.0, 2000.0, 3000.0, 8000.0],
    }
)
CELLS = pd.DataFrame(
    {"deadline": ["1", "1", "10", "10"], "method": ["a", LONG, "a", LONG], "energy_j": [1e3, 2e3, 4e3, np.nan]}
)
LENGTHS = pd.DataFrame({"setting": ["a"] * 4 + [LONG], "length_s": [1.0, 2.0, 4.0, 2.0, 8.0]})
DEVICES = pd.DataFrame(
    {"setting": ["a"] * 4 + [LONG] * 2, "run": [0] * 4 + [1] * 2, "joules": [0.0, 0.0, 0.0, 8.0, 5.0, 5.0]}
)
NODES = pd.DataFrame({"node": [0, 1, 2, 3], "kind": ["server", "phone", "phone", LONG]})
LINKS = pd.DataFrame({"a": [0, 0, 0], "b": [1, 2, 3], "bps": [1e6, 1e7, 1e8]})

SPENDING = POINTS.assign(energy_j=1e5 * POINTS["sim_time_s"], round=POINTS["sim_time_s"] / 60)
TARGETS = [pd.concat([each, each.assign(column="sim_time_s@0.9")]) for each in (VALUES, SUMMARY)]

PICTURES = {
    "accuracy": lambda width: accuracy(POINTS, ["sim_time_s"], [0.7], width),
    "several panels": lambda width: accuracy(SPENDING, ["sim_time_s", "energy_j", "round"], [0.7, 0.9], width),
    "targets": lambda width: time_to_target(VALUES, SUMMARY, ["sim_time_s@0.8"], width),
    "several targets": lambda width: time_to_target(*TARGETS, ["sim_time_s@0.8", "sim_time_s@0.9"], width, "no 95 %"),
    "pareto": lambda width: pareto(TRADE, "sim_time_s", "energy_j", "time", "energy", width),
    "energy": lambda width: stacked(SPENT, width_in=width),
    "heat": lambda width: heat(CELLS, "deadline", "method", "energy_j", "energy", width),
    "rounds": lambda width: round_lengths(LENGTHS, width),
    "lorenz": lambda width: lorenz(DEVICES, width_in=width),
    "topology": lambda width: topology(NODES, LINKS, width),
}


def boxes(figure):
    """Return the boxes of all texts that are drawn; ticks outside of an axis are not."""
    FigureCanvasAgg(figure).draw()
    outside = set()
    for axis in (each for axes in figure.axes for each in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        outside |= {each for tick in ticks if not low <= tick.get_loc() <= high for each in (tick.label1, tick.label2)}
    texts = figure.findobj(lambda each: isinstance(each, Text) and each.get_visible() and each not in outside)
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text().strip()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PICTURES)
def test_all_text_fits_and_lies_on_no_other(name, width):
    """At both widths; and the panel has most of the figure's width or height left."""
    figure = PICTURES[name](width)
    assert figure.get_figwidth() == width
    found = boxes(figure)
    assert len(found) >= 4
    edge = figure.bbox
    for text, box in found:
        assert box.x0 >= -1 and box.x1 <= edge.x1 + 1 and box.y0 >= -1 and box.y1 <= edge.y1 + 1, text
    for i, (text, one) in enumerate(found):
        for other_text, other in found[i + 1 :]:
            apart = one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1 or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1
            assert apart, (text, other_text)
    place = figure.axes[0].get_position()
    assert place.width > (0.25 if len(figure.axes) > 1 else 0.4) and place.height * figure.get_figheight() > 0.5


@pytest.mark.parametrize("name", spread(PICTURES, 1))
def test_they_are_vectors_and_the_same_each_time(name, tmp_path):
    """Text stays text in an SVG, fonts are TrueType in a PDF, and two drawings are one file."""
    for ending in FORMATS:
        files = [save(PICTURES[name](3.5), tmp_path / each, [ending])[0].read_bytes() for each in ("one", "two")]
        assert files[0] == files[1]
    svg = (tmp_path / "one.svg").read_text()
    assert "<text" in svg and ("<image" not in svg or name == "heat")  # the bar of colours is an image
    assert b"/Type3" not in (tmp_path / "one.pdf").read_bytes()


def test_widths_have_names():
    assert (parse_width("single"), parse_width("double")) == (3.5, 7.2)
    with pytest.raises(ConfigError, match="or single or double"):
        parse_width("triple")


def test_accuracy_has_a_band_over_seeds():
    axis = accuracy(POINTS, ["sim_time_s"], [0.7], 3.5).axes[0]
    one, other, target = axis.get_lines()
    assert one.get_xdata() == pytest.approx([0, 60]) or one.get_xdata() == pytest.approx([0, 1])  # minutes or hours
    assert one.get_ydata() == pytest.approx([0, 70]) and other.get_ydata() == pytest.approx([10, 50])
    [band] = axis.collections  # the second setting has one run
    assert sorted({round(y, 6) for y in band.get_paths()[0].vertices[:, 1]}) == [0, 60, 80]
    assert list(target.get_ydata()) == [70, 70]
    assert one.get_linestyle() != other.get_linestyle() and one.get_marker() != other.get_marker()


def test_targets_outside_the_curves_are_named_and_take_no_room():
    bare, axis = (accuracy(POINTS, ["sim_time_s"], targets, 3.5).axes[0] for targets in ([], [0.7, 0.9, 0.95]))
    assert axis.get_ylim() == bare.get_ylim() and len(axis.get_lines()) == 2 + 1
    assert axis.get_title(loc="right") == "targets above the axis: 90, 95 %" and not bare.get_title(loc="right")


def test_runs_that_did_not_arrive_are_open_triangles():
    figure = time_to_target(VALUES, SUMMARY, ["sim_time_s@0.8"])
    axis = figure.axes[0]
    hours = {
        tuple(np.round(dots.get_offsets()[:, 0].data, 6)): dots for dots in axis.collections if len(dots.get_offsets())
    }
    assert (1.0, 1.5) in hours and (2.0, 2.5) in hours and (3.0,) in hours
    assert len(hours[3.0,].get_facecolor()) == 0 and len(hours[1.0, 1.5].get_facecolor()) == 1
    medians = {float(line.get_xdata()[0]): line.get_ydata()[0] for line in axis.get_lines() if line.get_marker() == "D"}
    assert medians == pytest.approx({1.5: 1.1, 2.0: 0.1})  # the first setting is on top
    [closed] = [line for line in axis.get_lines() if line.get_marker() in ("None", None, "")]
    assert list(closed.get_xdata()) == pytest.approx([2.0, 2.5])
    arrows = [note for note in axis.texts if note.arrow_patch is not None]
    assert [note.xyann[0] for note in arrows] == [1.0]  # its interval has no end
    assert [note.get_text() for note in axis.texts if note.get_text()] == ["2/3", "2/2"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "a run that ended before the target" in legend
    arrived = VALUES[VALUES["observed"]]
    calm = time_to_target(arrived, SUMMARY, ["sim_time_s@0.8"])
    assert "a run that ended before the target" not in [text.get_text() for text in calm.legends[0].get_texts()]


def test_panels_stand_below_each_other_where_they_would_be_narrow():
    """A figure of one column has a panel a row; a figure of two columns has all three in one."""
    single, double = (PICTURES["several panels"](width) for width in WIDTHS)
    for figure, rows in ((single, 3), (double, 1)):
        assert len({round(axis.get_position().y0, 3) for axis in figure.axes}) == rows
        assert {axis.get_ylabel() for axis in figure.axes} >= {"test accuracy (%)"}


def test_each_target_has_a_panel_on_one_axis():
    figure = PICTURES["several targets"](3.5)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["time to 80\u00a0%", "time to 90\u00a0%"]
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    assert figure.axes[-1].get_xlabel() == "time to the target (h)\nno 95 %"


def test_a_single_run_is_a_dot_without_an_interval():
    figure = time_to_target(VALUES[:1], SUMMARY[:1], ["sim_time_s@0.8"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a run"]
    assert not figure.axes[0].get_lines() and [note.get_text() for note in figure.axes[0].texts] == ["1/1"]


def test_a_number_is_not_parted_from_its_unit():
    assert shortened("fast, deadline 300 ms", 18) == "fast, deadline\n300 ms"
    assert shortened("FedPMT, deadline = 3 s", 18) == "FedPMT,\ndeadline = 3 s"


def test_what_is_dominated_is_grey_and_the_front_is_joined():
    figure = pareto(TRADE, "sim_time_s", "energy_j", "time", "energy")
    axis = figure.axes[0]
    [front] = [line for line in axis.get_lines() if line.get_gid() == "front"]
    assert list(front.get_xdata()) == pytest.approx([1, 2]) or list(front.get_xdata()) == pytest.approx([60, 120])
    assert list(front.get_ydata()) == pytest.approx([3, 1])
    marks = [line for line in axis.get_lines() if line.get_marker() not in ("None", None, "")]
    points = [line for line in marks if line.get_linestyle() == "None" and len(line.get_xdata()) == 1]
    assert [to_hex(mark.get_color()) == to_hex(GREY) for mark in points] == [False, False, True]
    assert len({mark.get_marker() for mark in points}) == 3
    legend = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert legend == ["a", LONG, "c (dominated)"]  # a setting without a number is not drawn


def test_bars_are_means_over_runs():
    """By hand: of two runs 3 kJ idle and 2 kJ computing; activities in the order of the ledger."""
    figure = stacked(SPENT)
    axis = figure.axes[0]
    bars = {bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars] for bars in axis.containers}
    assert np.allclose(bars["compute"], [(0, 2), (0, 8)]) and np.allclose(bars["idle"], [(2, 3), (8, 0)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["compute", "idle"]
    assert axis.get_xlabel() == "energy (kJ)"
    hatches = {patch.get_hatch() for container in axis.containers for patch in container}
    assert len(hatches) == 2


def test_prices_have_bands():
    """By hand: over two runs of "a" 8 kJ and 14 kJ in all, and one run of the other."""
    ends = {"joules_low": [3e3, 1e3, 2e3, 2e3, 8e3], "joules_high": [6e3, 1e3, 3e3, 4e3, 9e3]}
    axis = stacked(SPENT.assign(**ends)).axes[0]
    ends = [segment[:, 0].tolist() for line in axis.collections for segment in line.get_segments()]
    assert np.allclose(ends, [(4, 7), (8, 9)])


def test_fields_of_a_heat_map():
    figure = heat(CELLS, "deadline", "method", "energy_j", "energy")
    axis = figure.axes[0]
    shown = np.ma.filled(axis.collections[0].get_array().reshape(2, 2).astype(float), np.nan)
    assert np.allclose(shown, [[1, 4], [2, np.nan]], equal_nan=True)
    assert sorted(text.get_text() for text in axis.texts) == ["1", "2", "4", "–"]
    assert axis.get_title(loc="left") == "energy (kJ)"
    assert [patch.get_xy() for patch in axis.patches if patch.get_hatch()] == [(1, 1)]
    twice = pd.concat([CELLS, CELLS.iloc[:1]])
    with pytest.raises(ConfigError, match="several numbers for one pair of deadline and method"):
        heat(twice, "deadline", "method", "energy_j")


def test_shares_of_rounds():
    one, other = round_lengths(LENGTHS).axes[0].get_lines()
    steps = dict(zip(one.get_xdata().tolist(), one.get_ydata().tolist(), strict=True))
    assert steps[1.0] == 0.25 and steps[2.0] == 0.75 and steps[4.0] == 1.0
    assert other.get_xdata().max() == 8.0


def test_inequality_by_hand():
    """One of four spends all: the area below its curve is 1/8, so Gini is 3/4; two alike have 0."""
    assert gini(np.array([8.0, 0, 0, 0])) == pytest.approx(0.75)
    assert gini(np.array([5.0, 5.0])) == pytest.approx(0.0)
    assert gini(np.zeros(3)) == 0.0
    assert lorenz_curve(np.array([3.0, 1.0]))[1].tolist() == [0.0, 0.25, 1.0]
    figure = lorenz(DEVICES)
    _, one, other = figure.axes[0].get_lines()
    assert one.get_ydata().tolist() == [0, 0, 0, 0, 1] and other.get_ydata().tolist() == [0, 0.5, 1]
    legend = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert legend == ["a (Gini 0.75)", f"{LONG} (Gini 0.00)"]


def test_a_star_has_its_server_in_the_middle():
    figure = topology(NODES, LINKS)
    axis = figure.axes[0]
    kinds = {dots.get_label(): dots.get_offsets().data for dots in axis.collections if dots.get_gid() != "links"}
    assert np.allclose(kinds["server"], [[0, 0]])
    assert np.allclose(np.hypot(*kinds["phone"].T), 1) and len(kinds[LONG]) == 1
    [links] = [each for each in axis.collections if each.get_gid() == "links"]
    assert len(links.get_segments()) == 3
    widths = links.get_linewidths()
    assert widths[0] < widths[1] < widths[2]  # faster is thicker
    legend = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert legend == ["server", "phone (2)", LONG, "1 to 100 Mbit/s"]
    with pytest.raises(ConfigError, match="a link leads to node 9"):
        topology(NODES, pd.DataFrame({"a": [0], "b": [9], "bps": [1.0]}))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: accuracy(POINTS.drop(columns="run")), "the frame lacks run"),
        (lambda: round_lengths(LENGTHS.iloc[:0]), "nothing to draw"),
        (lambda: pareto(TRADE.assign(energy_j=np.nan), "sim_time_s", "energy_j"), "nothing to draw"),
        (lambda: heat(CELLS, "deadline", "nobody", "energy_j"), "the frame lacks nobody"),
        (lambda: topology(NODES.iloc[:0], LINKS), "shows 1 to 2,000 nodes, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, says):
    with pytest.raises(ConfigError, match=says):
        call()


def test_a_heat_map_of_targets_that_some_did_not_reach():
    """A cell that half of the runs did not reach has an infinite median: it is hatched, and no colour counts it."""
    cells = pd.DataFrame(
        {"lr": ["0.1", "0.2", "0.1", "0.2"], "mu": ["0", "0", "1", "1"], "energy_j@0.8": [1e3, math.inf, 3e3, 2e3]}
    )
    figure = heat(cells, "lr", "mu", "energy_j@0.8", "energy to 80 %")
    texts = [each.get_text() for each in figure.axes[0].texts]
    assert sorted(texts) == ["1", "2", "3", "not reached"]
    assert figure.axes[0].get_title(loc="left") == "energy to 80 % (kJ)"
    assert figure.axes[0].collections[0].get_clim() == (1.0, 3.0)
    with pytest.raises(ConfigError, match="there is nothing to draw"):
        heat(cells.assign(**{"energy_j@0.8": math.inf}), "lr", "mu", "energy_j@0.8")
    one = heat(cells.assign(**{"energy_j@0.8": [1e3, math.inf, math.inf, math.inf]}), "lr", "mu", "energy_j@0.8")
    assert one.axes[0].collections[0].get_clim() == (0.0, 1.0)  # kJ, one number: its scale begins at 0


def test_an_activity_and_a_configuration_look_alike_everywhere():
    assert part_colours(["download", "compute", "upload"]) == part_colours(["receive", "compute", "transmit"])
    assert part_colours(["idle", "compute"])[1] == part_colours(["compute", "idle"])[0]
    each = {(look["color"], str(look["linestyle"]), look["marker"]) for look in looks(100)}
    assert len(each) == 100


def test_equal_runs_do_not_cover_each_other():
    offsets = jitter(8, 0.2)
    assert len(set(offsets.round(3))) == 8 and np.abs(offsets).max() <= 0.1 and jitter(1, 0.2).tolist() == [0.0]
