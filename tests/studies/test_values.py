"""Statistics over seeds and comparisons under common seeds, on made-up values of studies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.studies.statistics import ENOUGH_RUNS, bootstrap_interval
from edgesim.studies.study import Study
from edgesim.studies.tradeoffs import cheapest, front
from edgesim.studies.values import STATISTICS, compared, summarised, values_of, with_one_interval
from tests.studies.made_up import values

TIME = "sim_time_s@0.8"
# Method "lucky" arrives early in two of five seeds and never in the others, which went on for 1,000 s; "steady" always.
LUCKY = values(
    ("method",),
    {
        ("lucky", TIME): "100 1000+ 110 1000+ 1000+",
        ("steady", TIME): "300 310 290 320 280",
        ("lucky", "energy_j"): "50 50 50 50 50",
        ("steady", "energy_j"): "60 60 60 60 60",
    },
)


def row(rows: pd.DataFrame, **labels: str) -> dict[str, float]:
    """Return the one row that has these labels."""
    kept = rows
    for name, label in labels.items():
        kept = kept[kept[name] == label]
    [found] = kept.to_dict("records")
    return {str(name): value for name, value in found.items()}


def test_the_naive_mean_picks_the_wrong_winner_and_edgesim_does_not() -> None:
    """Of those that arrive, "lucky" needs 105 s on the mean and "steady" 300; but it mostly never arrives."""
    arrived = LUCKY[LUCKY["observed"] & (LUCKY["column"] == TIME)].groupby("method")["value"].mean()
    assert arrived["lucky"] == 105 < arrived["steady"] == 300
    rows = summarised(LUCKY)
    lucky, steady = (row(rows, method=name, column=TIME) for name in ("lucky", "steady"))
    assert math.isnan(lucky["mean"]) and math.isnan(lucky["median"]) and math.isnan(lucky["low"])
    assert (lucky["runs"], lucky["reached"], lucky["share"], lucky["most"]) == (5, 2, 0.4, 1000)
    assert (lucky["km_median"], steady["km_median"], steady["mean"]) == (math.inf, 300, 300)
    assert (lucky["restricted_mean"], lucky["restricted_to"]) == ((100 + 110 + 3000) / 5, 1000)
    assert (steady["restricted_mean"], steady["restricted_to"]) == (300, 1000)
    against = row(compared(LUCKY, {"method": "steady"}, TIME), method="lucky")
    assert (against["wins"], against["losses"], against["p_better"]) == (2, 3, 0.4)
    assert against["difference"] == 642 - 300
    chosen = cheapest(LUCKY, TIME, 600, "energy_j")
    assert chosen["method"].tolist() == ["steady", "lucky"]
    assert chosen["cheapest"].tolist() == [True, False]
    points = front(rows, [TIME, "energy_j"])
    assert (row(points, method="lucky")["on_front"], row(points, method="lucky")["dominated_by"]) == (False, "?")


def test_runs_that_gave_up_do_not_cut_the_others() -> None:
    """Empty batteries end "thirsty" at 50 s in two of three seeds: "steady" is better for sure, by more than 0 s."""
    table = values(("method",), {("thirsty", TIME): "40 50! 50!", ("steady", TIME): "300 310 290"})
    thirsty, steady = (row(summarised(table), method=name) for name in ("thirsty", "steady"))
    assert (thirsty["reached"], thirsty["never"], thirsty["most"], thirsty["km_median"]) == (1, 2, 50, math.inf)
    assert (thirsty["restricted_to"], thirsty["restricted_mean"]) == (310, pytest.approx((40 + 310 + 310) / 3))
    assert (steady["never"], steady["restricted_mean"]) == (0, 300)
    against = row(compared(table, {"method": "steady"}, TIME), method="thirsty")
    assert (against["wins"], against["losses"], against["unsure"], against["restricted_to"]) == (1, 2, 0, 310)
    assert cheapest(table, TIME, 600, TIME).set_index("method")["stopped"].tolist() == [0, 0]


def test_statistics_by_hand() -> None:
    """1, 2, 6: mean 3, median 2, variance 7. One run has no spread, and a missing number no mean."""
    table = values(("method",), {("a", "energy_j"): "1 2 6", ("b", "energy_j"): "5", ("c", "energy_j"): "5 nan"})
    rows = summarised(table)
    a, b, c = (row(rows, method=name) for name in "abc")
    assert (a["mean"], a["median"], a["sd"], a["most"]) == (3, 2, pytest.approx(7**0.5), 6)
    assert (a["low"], a["high"]) == bootstrap_interval([np.array([1.0, 2.0, 6.0])])
    assert a["t_low"] == pytest.approx(3 - 4.30265 * (7 / 3) ** 0.5, rel=1e-5)
    assert math.isnan(a["km_median"])  # nothing was to be reached
    assert (b["mean"], b["runs"]) == (5, 1) and math.isnan(b["sd"]) and math.isnan(b["low"])
    assert (c["runs"], c["reached"]) == (2, 1) and math.isnan(c["mean"])
    assert list(rows.columns) == ["method", *STATISTICS]


def test_combinations_keep_their_order_and_seeds_need_no_axis() -> None:
    table = values(("b", "a"), {("2", "y", "flops"): "1", ("10", "x", "flops"): "2", ("2", "x", "flops"): "3"})
    assert summarised(table)[["b", "a"]].to_numpy().tolist() == [["2", "y"], ["10", "x"], ["2", "x"]]
    assert summarised(values((), {("flops",): "4 8"}))["mean"].tolist() == [6]


def test_a_baseline_is_one_label_of_an_axis_everywhere_else_the_same() -> None:
    """Two deadlines: each method is held against the baseline under the same deadline, seed by seed."""
    table = values(
        ("deadline", "method"),
        {
            ("30_s", "a", "energy_j"): "10 20 30",
            ("30_s", "b", "energy_j"): "8 18 28",
            ("60_s", "a", "energy_j"): "5 5 -",
            ("60_s", "b", "energy_j"): "- 6 7",
            ("90_s", "b", "energy_j"): "1",
        },
    )
    rows = compared(table, {"method": "a"}, "energy_j")
    assert rows[["deadline", "method", "pairs", "unpaired"]].to_numpy().tolist() == [
        ["30_s", "b", 3, ""],
        ["60_s", "b", 1, "3, 1"],
        ["90_s", "b", 0, "1"],
    ]
    assert rows["difference"].tolist()[:2] == [-2, 1]
    assert rows["p_better"].tolist()[:2] == [1, 0]
    assert rows["p_value"].tolist()[:2] == [0.25, 1]
    assert rows["p_holm"].tolist()[:2] == [0.5, 1]  # two tests; the third has no pairs
    one = compared(table, {"method": "a", "deadline": "30_s"}, ["energy_j"])
    assert one["difference"].tolist()[:2] == [-2, pytest.approx(5 - 15)]


@pytest.mark.parametrize(
    ("baseline", "column", "says"),
    [
        ({"metod": "a"}, "energy_j", "--baseline: 'metod' is no axis that is compared (allowed: method)"),
        ({"method": "c"}, "energy_j", "--baseline: no run has method=c (method: a, b)"),
        ({"method": "a"}, "metric.gap", "column 'metric.gap': whether more or less of it is better is not known"),
    ],
)
def test_a_comparison_that_cannot_be_made(baseline: dict[str, str], column: str, says: str) -> None:
    table = values(("method",), {("a", column): "1 2", ("b", column): "3 4"})
    with pytest.raises(ConfigError) as error:
        compared(table, baseline, column)
    assert str(error.value).startswith(says)


def test_metrics_are_better_as_the_caller_says() -> None:
    table = values(("method",), {("a", "metric.gap"): "1 2", ("b", "metric.gap"): "3 4"})
    for better, share in (("higher", 1), ("lower", 0)):
        rows = compared(table, {"method": "a"}, "metric.gap", {"metric.gap": better})  # type: ignore[dict-item]
        assert rows["p_better"].tolist() == [share]


def test_a_table_has_one_interval_with_its_name() -> None:
    enough = " ".join(map(str, range(ENOUGH_RUNS)))
    many = summarised(values(("m",), {("a", "flops"): enough}))
    shown, name = with_one_interval(many)
    assert name == "BCa bootstrap" and shown["low"].tolist() == many["low"].tolist() and "t_low" not in shown
    assert with_one_interval(summarised(values(("m",), {("a", "flops"): "1"})))[1] == ""  # one run has no interval
    pairs = compared(values(("m",), {("a", "flops"): "1 2 4", ("b", "flops"): "1 2 3"}), {"m": "a"}, "flops")
    shown, name = with_one_interval(pairs)
    assert name == "Student's t" and shown["low"].tolist() == pairs["t_low"].tolist()
    both = summarised(values(("m",), {("a", "flops"): enough, ("b", "flops"): "1 2 3"}))
    assert with_one_interval(both)[1] == "Student's t below 30 runs, else BCa bootstrap"


def test_an_axis_must_not_have_the_name_of_a_column(tmp_path: Path) -> None:
    study = Study(name="x", base="b.toml", axes={"mean": {"a": ("seed=1",)}}, columns=("flops",))
    with pytest.raises(
        ConfigError, match=r"^axes\.mean: is a name of its own in tables; rename the axis of the study$"
    ):
        values_of(study, [])
