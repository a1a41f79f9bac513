"""Fronts, knees, cheapest configurations, theta, tornados and break-even points, against numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.studies.tradeoffs import (
    RoundCost,
    at_thetas,
    break_even,
    budgets,
    cheapest,
    cheapest_over_theta,
    crossings,
    front,
    knee,
    of_cut,
    over_axis,
    over_price,
    runs_needed,
    tornado,
    total_cost,
)
from edgesim.studies.values import summarised
from tests.studies.made_up import values

TIME = "sim_time_s@0.8"


def points(numbers: dict[str, tuple[object, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    """Return statistics of one run for each configuration."""
    table = {(name, c): str(n) for name, row in numbers.items() for c, n in zip(columns, row, strict=True)}
    return summarised(values(("method",), table))


# --- fronts -----------------------------------------------------------------------------------------------------


def test_a_front_by_hand() -> None:
    """Less energy, more accuracy. e is beaten by b in both, f by c in one; a and d are the best in one each."""
    rows = points(
        {"a": (1, 0.5), "b": (2, 0.8), "c": (5, 0.9), "d": (9, 0.95), "e": (3, 0.7), "f": (6, 0.9)},
        ("energy_j", "accuracy"),
    )
    found = front(rows, ["energy_j", "accuracy"]).set_index("method")
    assert found["on_front"].to_dict() == {**dict.fromkeys("abcd", True), "e": False, "f": False}
    assert found["dominated_by"].to_dict() == {**dict.fromkeys("abcd", ""), "e": "method=b", "f": "method=c"}
    # scaled to 0 for the best: b is (1/8, 1/3), 1 - 11/24 below the line; c (1/2, 1/9)
    assert found["knee"].to_dict() == {name: name == "b" for name in "abcdef"}
    assert found["accuracy"]["b"] == 0.8


def test_equal_points_are_both_on_the_front_and_three_columns_make_one_too() -> None:
    rows = points(
        {"a": (1, 9, 5), "b": (1, 9, 5), "c": (9, 1, 5), "d": (9, 9, 5), "e": (2, 9, 4)},
        ("energy_j", "up_bytes", "flops"),
    )
    found = front(rows, ["energy_j", "up_bytes", "flops"]).set_index("method")
    assert found["on_front"].to_dict() == {"a": True, "b": True, "c": True, "d": False, "e": True}


def test_who_never_arrives_is_on_no_front() -> None:
    """Although it spends least: the median of one of three arrivals is beyond all."""
    table = values(
        ("method",),
        {("a", TIME): "5 9+ 9+", ("a", "energy_j"): "1 1 1", ("b", TIME): "7 8 8", ("b", "energy_j"): "2 2 2"},
    )
    found = front(summarised(table), [TIME, "energy_j"]).set_index("method")
    assert found["on_front"].to_dict() == {"a": False, "b": True}
    assert found.loc["b", TIME] == 8  # a median too, as the two are compared


def test_the_knee_is_where_the_front_bends_most() -> None:
    """(0, 1), (0.2, 0.3), (0.5, 0.2), (1, 0): below the line x + y = 1 by 0, 0.5, 0.3, 0 over the root of 2."""
    bent = np.array([(0.0, 1.0), (0.2, 0.3), (0.5, 0.2), (1.0, 0.0)])
    assert knee(bent).tolist() == [False, True, False, False]
    assert knee(bent * [1000, 0.001] + 7).tolist() == [False, True, False, False]
    assert not knee(np.array([(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)])).any()  # straight
    assert not knee(np.array([(0.0, 1.0), (0.7, 0.7), (1.0, 0.0)])).any()  # bent the other way
    assert not knee(bent[[0, 3]]).any()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["energy_j"], "--column: a front needs two or three columns, got 1"),
        (["energy_j", "energy_j"], "column 'energy_j': is named twice"),
        (["energy_j", "rounds.used"], "column 'rounds.used': whether more or less of it is better is not known"),
    ],
)
def test_a_front_that_cannot_be(columns: list[str], says: str) -> None:
    rows = points({"a": (1, 2)}, ("energy_j", "rounds.used"))
    with pytest.raises(ConfigError) as error:
        front(rows, columns)
    assert str(error.value).startswith(says)


# --- cheapest ---------------------------------------------------------------------------------------------------


def test_the_cheapest_that_arrives_in_time_as_surely_as_asked() -> None:
    """With 95 % confidence 5 of 5 show a share of 0.05^(1/5) = 0.549, 4 of 5 one of 0.343, 3 of 3 one of 0.368."""
    table = values(
        ("method",),
        {
            ("dear", TIME): "50 60 70 80 90",
            ("fair", TIME): "80 85 90 95 100",
            ("late", TIME): "50 60 70 80 101",
            ("short", TIME): "50 60 70 80 90+",
            ("few", TIME): "50 60 70",
            **{("dear", "energy_j"): "9 9 9 9 9", ("fair", "energy_j"): "5 5 5 5 5", ("late", "energy_j"): "1 1 1 1 1"},
            **{("short", "energy_j"): "2 2 2 2 2", ("few", "energy_j"): "1 1 1"},
        },
    )
    found = cheapest(table, TIME, 100, "energy_j")
    assert found["method"].tolist()[:2] == ["fair", "dear"]
    by_method = found.set_index("method")
    assert by_method["cheapest"].to_dict() == {
        name: name == "fair" for name in ("dear", "fair", "late", "short", "few")
    }
    assert by_method["in_time"].to_dict() == {"dear": 5, "fair": 5, "late": 4, "short": 4, "few": 3}
    assert by_method["stopped"].to_dict() == {"dear": 0, "fair": 0, "late": 0, "short": 1, "few": 0}
    assert by_method["share_at_least"]["fair"] == pytest.approx(0.05**0.2)
    assert by_method["share_at_least"]["few"] == pytest.approx(0.05 ** (1 / 3))
    # 4 of 5: the share p at which 4 or 5 of 5 have a chance of 5 %, 5 p^4 (1 - p) + p^5 = 0.05
    p = by_method["share_at_least"]["late"]
    assert 5 * p**4 * (1 - p) + p**5 == pytest.approx(0.05)
    assert not cheapest(table, TIME, 100, "energy_j", share=0.6)["qualifies"].any()
    assert cheapest(table, TIME, 100, "energy_j", share=0.3)["method"][0] in ("late", "few")


def test_how_many_runs_it_takes() -> None:
    """Half of all runs: 0.5^5 = 0.031 is below 5 %, 0.5^4 = 0.0625 is not. 90 %: 29, as 1 - 0.9^29 = 0.953."""
    assert (runs_needed(0.5, 0.95), runs_needed(0.9, 0.95), runs_needed(0.5, 0.5)) == (5, 29, 1)


@pytest.mark.parametrize(("share", "confidence", "option"), [(1, 0.9, "--share"), (0.5, 0, "--confidence")])
def test_shares_lie_between_0_and_1(share: float, confidence: float, option: str) -> None:
    table = values((), {(TIME,): "1", ("energy_j",): "1"})
    with pytest.raises(ConfigError, match=f"^{option}: must be between 0 and 1, both excluded, got "):
        cheapest(table, TIME, 1, "energy_j", share, confidence)


# --- theta ------------------------------------------------------------------------------------------------------

COSTS = {"fast": RoundCost(1, 9), "even": RoundCost(3, 3), "thrifty": RoundCost(8, 1), "worse": RoundCost(4, 4)}


def test_who_is_cheapest_over_theta() -> None:
    """fast and even cost the same where (1 - t) + 9 t = 3, t = 1/4; even and thrifty where 3 = 8 - 7 t, t = 5/7."""
    found = cheapest_over_theta(COSTS)
    assert [each["cheapest"] for each in found] == ["fast", "even", "thrifty"]
    assert [each["to_theta"] for each in found] == pytest.approx([1 / 4, 5 / 7, 1])
    assert [each["from_theta"] for each in found] == pytest.approx([0, 1 / 4, 5 / 7])
    pairs = {(each["cheaper"], each["than"]): each["from_theta"] for each in crossings(COSTS)}
    assert pairs["even", "fast"] == pytest.approx(1 / 4)
    assert ("even", "worse") not in pairs  # cheaper whatever theta is
    for theta in np.linspace(0, 1, 101):
        best = next(each["cheapest"] for each in found if each["from_theta"] <= theta <= each["to_theta"])
        assert total_cost(theta, *COSTS[best]) == pytest.approx(
            min(total_cost(theta, *cost) for cost in COSTS.values())
        )
    assert at_thetas(COSTS["fast"], [0, 0.5]) == {"theta0": 1, "theta0.5": 5}
    assert cheapest_over_theta({}) == []


# --- budgets ----------------------------------------------------------------------------------------------------


def test_the_smallest_budget_is_an_order_statistic_with_the_coverage_of_a_beta_distribution() -> None:
    """Of 59 runs the largest shows 95 % with 95 % confidence (0.95^59 = 0.0485), of 93 the one before the largest.

    These are Wilks' sample sizes. For 58 runs 0.95^58 = 0.051 is too much.
    """
    table = values(
        ("method",),
        {
            ("one", TIME): " ".join(str(10 * (i + 1)) for i in range(59)),
            ("two", TIME): " ".join(str(10 * (i + 1)) for i in range(93)),
            ("few", TIME): " ".join(str(10 * (i + 1)) for i in range(58)),
            ("missed", TIME): " ".join(str(10 * (i + 1)) for i in range(58)) + " 5+",
            ("spare", TIME): " ".join(str(10 * (i + 1)) for i in range(92)) + " 5+",
        },
    )
    found = budgets(table, TIME, share=0.95, confidence=0.95).set_index("method")
    assert found["order"].to_dict() == {"one": 59, "two": 92, "few": 0, "missed": 59, "spare": 92}
    assert found["budget"].to_dict() == pytest.approx(
        {"one": 590, "two": 920, "few": math.nan, "missed": math.inf, "spare": 920}, nan_ok=True
    )
    assert set(found["runs_needed"]) == {59}
    assert found["share_at_least"]["one"] == pytest.approx(0.05 ** (1 / 59))


def test_a_budget_covers_what_it_promises_in_most_studies_of_new_seeds() -> None:
    """Amounts are uniform on 0 to 1, so that a budget b serves the share b: in 95 % or more of 2,000 studies b >= 0.7.

    Without the confidence, the 7th of 10 runs would serve 70 % in half of the studies alone.
    """
    drawn = np.sort(np.random.default_rng(0).random((2000, 10)))
    table = values(("method",), {("any", TIME): " ".join(map(str, range(1, 11)))})
    order = int(budgets(table, TIME, share=0.7, confidence=0.95)["order"].iloc[0])
    assert order == 10
    assert (drawn[:, order - 1] >= 0.7).mean() >= 0.95
    assert (drawn[:, order - 2] >= 0.7).mean() < 0.95


@pytest.mark.parametrize("name", ["share", "confidence"])
def test_shares_of_a_budget_are_between_zero_and_one(name: str) -> None:
    table = values(("method",), {("any", TIME): "1 2 3"})
    with pytest.raises(ConfigError, match=f"--{name}: must be between 0 and 1, both excluded, got 1"):
        budgets(table, TIME, **{name: 1.0})


# --- sensitivity ------------------------------------------------------------------------------------------------


def test_a_tornado_by_hand() -> None:
    """From (slow, 1): a fast network saves 40 J, 3 devices add 5 and 10 add 9; a cell off the axes says nothing."""
    table = values(
        ("network", "devices"),
        {
            ("slow", "1", "energy_j"): "100 110",
            ("fast", "1", "energy_j"): "60 70",
            ("slow", "3", "energy_j"): "105 115",
            ("slow", "10", "energy_j"): "109 119",
            ("fast", "10", "energy_j"): "1 1",
        },
    )
    found = tornado(table, "energy_j")
    assert found[["axis", "label", "difference", "swing"]].to_numpy().tolist() == [
        ["network", "fast", -40, 40],
        ["devices", "3", 5, 9],
        ["devices", "10", 9, 9],
    ]
    assert found["pairs"].tolist() == [2, 2, 2] and found["low"].tolist() == found["difference"].tolist()
    other = tornado(table, "energy_j", {"network": "fast"})
    assert other[["axis", "label", "difference"]].to_numpy().tolist() == [
        ["devices", "10", -64],
        ["network", "slow", 40],
    ]
    with pytest.raises(ConfigError, match=r"^--base: no run has all of network=fast,devices=3$"):
        tornado(table, "energy_j", {"network": "fast", "devices": "3"})


def test_a_swing_between_labels_on_both_sides_of_the_base() -> None:
    table = values(("x",), {("b", "energy_j"): "5", ("a", "energy_j"): "3", ("c", "energy_j"): "9"})
    assert set(tornado(table, "energy_j")["swing"]) == {6}


# --- break-even -------------------------------------------------------------------------------------------------

PRICED = values(
    ("method",),
    {
        ("lean", "sim_time_s"): "30 32 34",
        ("lean", "energy_j"): "10 10 10",
        ("fast", "sim_time_s"): "10 11 12",
        ("fast", "energy_j"): "20 21 22",
    },
)
SIDES = ({"method": "lean"}, {"method": "fast"})


def test_a_price_by_hand() -> None:
    """lean takes 21 s more and 11 J less on the mean: equal at 21 / 11 s a joule; at a lower price fast is cheaper."""
    [found] = over_price(PRICED, *SIDES, "sim_time_s", "energy_j").to_dict("records")
    assert found["at"] == pytest.approx(21 / 11)
    assert (found["pairs"], found["cheaper_below"], found["cheaper_above"]) == (3, "other", "one")
    assert 20 / 12 <= found["low"] < 21 / 11 < found["high"] <= 22 / 10
    costs = {
        name: (32 if name == "lean" else 11) + found["at"] * (10 if name == "lean" else 21) for name in ("lean", "fast")
    }
    assert costs["lean"] == pytest.approx(costs["fast"])


def test_no_price_and_no_interval() -> None:
    same = break_even(np.array([2.0, 4.0]), np.array([0.0, 0.0]))
    assert math.isnan(same.at) and (same.cheaper_below, same.cheaper_above) == ("other", "other")
    unsure = break_even(np.array([2.0, 4.0]), np.array([-3.0, 1.0]))
    assert unsure.at == 3 and math.isnan(unsure.low)


AXIS = {
    ("10_s", "a", "energy_j"): "10 12",
    ("10_s", "b", "energy_j"): "20 22",
    ("30_s", "a", "energy_j"): "30 30",
    ("30_s", "b", "energy_j"): "25 25",
    ("20_s", "a", "energy_j"): "14 14",
    ("20_s", "b", "energy_j"): "15 15",
}


def test_a_crossing_over_an_axis_by_hand() -> None:
    """a less b: -10 at 10 s, -1 at 20 s, 5 at 30 s, in whatever order the labels come: 0 at 20 + 10 / 6."""
    [found] = over_axis(values(("d", "m"), AXIS), {"m": "a"}, {"m": "b"}, "energy_j", "d").to_dict("records")
    assert (found["between"], found["pairs"]) == ("20_s and 30_s", 2)
    assert found["at"] == found["low"] == found["high"] == pytest.approx(20 + 10 / 6)
    assert (found["cheaper_below"], found["cheaper_above"]) == ("one", "other")


def test_a_crossing_at_a_label_counts_once() -> None:
    level = {**AXIS, ("20_s", "b", "energy_j"): "14 14"}
    [found] = over_axis(values(("d", "m"), level), {"m": "a"}, {"m": "b"}, "energy_j", "d").to_dict("records")
    assert found["at"] == pytest.approx(20)
    never = {key: numbers for key, numbers in AXIS.items() if key[0] != "30_s"}
    assert over_axis(values(("d", "m"), never), {"m": "a"}, {"m": "b"}, "energy_j", "d").empty


@pytest.mark.parametrize(
    ("change", "words", "says"),
    [
        ({("10_s", "a", "energy_j"): "10 12+"}, {}, "column 'energy_j': 1 of 4 runs of d=10_s have no such number"),
        (
            {("1_min", "a", "energy_j"): "1"},
            {},
            "--over: labels of axis 'd' must be numbers, all in one unit, got 10_s, ",
        ),
        ({}, {"axis": "m"}, "--over: 'm' is no axis that the two have in common (allowed: d)"),
        ({}, {"other": {"m": "a"}}, "--and: must have other labels of the same axes as --between m=a, got m=a"),
        ({}, {"other": {"m": "c"}}, "--and: no run has m=c (m: a, b)"),
        ({("10_s", "a", "energy_j"): "- - 3"}, {}, "--between: the two have no seed in common of d=10_s"),
    ],
)
def test_no_break_even(change: dict[tuple[str, ...], str], words: dict[str, object], says: str) -> None:
    given = {"one": {"m": "a"}, "other": {"m": "b"}, "column": "energy_j", "axis": "d", **words}
    with pytest.raises(ConfigError) as error:
        over_axis(values(("d", "m"), {**AXIS, **change}), **given)  # type: ignore[arg-type]
    assert str(error.value).startswith(says)


def test_a_tornado_says_where_its_numbers_are_cut() -> None:
    """The base ends at 12 J without arriving, so of the 1,100 J between the others nothing is left."""
    table = values(
        ("lr",),
        {("0.1", "energy_j@0.8"): "12+ 12+", ("0.2", "energy_j@0.8"): "100 100", ("0.3", "energy_j@0.8"): "1200 1200"},
    )
    assert tornado(table, "energy_j@0.8")["swing"].max() == 0
    note = of_cut(table, "energy_j@0.8", {})
    assert note.startswith("0 of 2 runs of the base reached the target of energy_j@0.8; numbers are cut at 12, up to")
    arrived = {"lr": "0.2"}
    assert of_cut(table, "energy_j@0.8", arrived).startswith("2 of 2 runs of the base")
    everything = table[table["lr"] != "0.1"]
    assert of_cut(everything, "energy_j@0.8", {}) == "" and tornado(everything, "energy_j@0.8")["swing"].max() == 1100
