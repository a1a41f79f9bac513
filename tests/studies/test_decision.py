"""Decisions of made-up studies, and the words of a report on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from edgesim.reports.html.content import FirstScreen
from edgesim.studies.statistics import pairs_needed
from tests.sizes import full
from tests.studies.made_up import first_screen
from tests.studies.made_up import values as made_up_values

TIME = "sim_time_s@0.8"


def told(axes: tuple[str, ...], numbers: Mapping[Any, str], seeds: Sequence[int] = ()) -> FirstScreen:
    """Return the answer on a study with these numbers, by labels and column. `seeds`: those of a size `full`."""
    return first_screen(made_up_values(axes, numbers), seeds)


def scattered(middle: float, seeds: int, spread: float = 1.0) -> str:
    """Return numbers of seeds around a middle, which grow with the seed."""
    return " ".join(f"{middle + spread * (seed - (seeds - 1) / 2) / seeds:.6g}" for seed in range(seeds))


# --- several axes -----------------------------------------------------------------------------------------------


def boards(seeds: int, cable_s: float = 400.0) -> dict[tuple[str, ...], str]:
    """Return a study of two boards and two links, whose effects add up: 900 s by the board, `cable_s` by the cable."""
    return {
        (board, link, TIME): scattered(
            1800 - 900 * (board == "raspberry_pi_5") - cable_s * (link == "cable"), seeds, 60
        )
        for board in ("raspberry_pi_4", "raspberry_pi_5")
        for link in ("wifi", "cable")
    }


def test_axes_are_ordered_by_their_effect() -> None:
    """The sentence for the issue's question: a size, its base, its interval, and whether other axes matter."""
    said = told(("board", "link"), boards(8))
    assert said.first == "Board first, then link."
    assert said.told[0] == ("Raspberry Pi 5 instead of Raspberry Pi 4 saves 15\u00a0min of 30\u00a0min, with any link.")
    assert said.told[1] == "Cable instead of wifi saves 6.67\u00a0min, with any board."
    assert said.told[2].startswith("Of all, Raspberry Pi 5, cable reaches 80\u00a0% in 8.33\u00a0min [")
    assert said.confidence == [
        "Eight seeds confirm all 3 differences in time to 80\u00a0% from Raspberry Pi 4, wifi (Wilcoxon's paired test, "
        "Holm-corrected for 3 comparisons, p < 0.05)."
    ]


def test_a_grid_has_a_cell_for_each_configuration() -> None:
    [grid] = told(("board", "link"), boards(3)).grids
    assert (grid.title, list(grid.head)) == ("Time to 80\u00a0%", ["wifi", "cable"])
    assert [(name, [bar.text for bar in bars if bar]) for name, bars in grid.rows] == [
        ("Raspberry Pi 4", ["30\u00a0min", "23.3\u00a0min"]),
        ("Raspberry Pi 5", ["15\u00a0min", "8.33\u00a0min"]),
    ]
    best = grid.rows[1][1][1]
    assert best and best.best and best.share == pytest.approx(500 / 1800)


@full
def test_an_effect_that_depends_on_another_axis_says_so() -> None:
    """The deadline takes 20 J from FedAvg, 60 J from FedPMT, and adds 5 J to FedProx."""
    numbers = {
        (method, deadline, "energy_j"): scattered(joules - saved * (deadline == "20_s"), 8)
        for method, joules, saved in (("fedavg", 100, 20), ("fedpmt", 300, 60), ("fedprox", 110, -5))
        for deadline in ("none", "20_s")
    }
    said = told(("method", "deadline"), numbers)
    assert said.first == "Method first, then deadline."
    assert said.told[0] == (
        "FedPMT instead of FedAvg uses 200\u00a0J more (160\u00a0J to 200\u00a0J, depending on deadline) and FedProx "
        "uses 10\u00a0J more (10\u00a0J to 35\u00a0J, depending on deadline)."
    )
    assert "deadline 20 s instead of none saves 20\u00a0J (but up to 5\u00a0J the other way with another method)" in (
        said.told[1][:1].lower() + said.told[1][1:]
    )


@full
def test_an_axis_whose_effect_may_be_luck() -> None:
    """Red and blue are ahead by turns."""
    by_turns = {"red": (0, 9), "blue": (9, 0)}
    numbers = {
        (board, colour, TIME): " ".join(str(seconds + later[seed % 2]) for seed in range(8))
        for board, seconds in (("slow", 900), ("fast", 300))
        for colour, later in by_turns.items()
    }
    said = told(("board", "colour"), numbers)
    assert said.first == "Board first." and said.told[1] == "Blue instead of red changes nothing on average."


# --- one axis ---------------------------------------------------------------------------------------------------


def test_the_first_column_that_tells_settings_apart_decides() -> None:
    """Time does not differ beyond luck between 5 and 10 phones, but money does: the fewer phones the cheaper."""
    noisy = {"5": "100 130 90 120 140 95 105 125", "10": "110 115 100 118 125 112 108 104"}
    numbers = {(count, TIME): times for count, times in noisy.items()} | {
        (count, "cost@0.8"): scattered(float(count), 8, 0.1) for count in noisy
    }
    said = told(("phones",), numbers)
    assert said.first == "5 phones."
    assert said.told[0] == "Time to 80\u00a0% does not tell 5 phones and 10 phones apart."
    assert said.told[1].startswith("5 phones cost 5.00\u00a0EUR [")
    assert "5.00\u00a0EUR (50\u00a0%) less than 10 phones" in said.told[1]
    assert said.tiles[1].value == "5.00\u00a0EUR" and said.tiles[1].who == "5 phones"


def test_the_baseline_stays_until_something_is_better() -> None:
    """FedProx may be as good, Scaffold is worse in every seed."""
    numbers = {
        ("fedavg", TIME): "100 130 90 120 140 95 105 125",
        ("fedprox", TIME): "98 133 89 118 139 98 106 122",
        ("scaffold", TIME): "200 231 192 221 239 199 203 226",
    }
    said = told(("method",), numbers)
    assert said.first == "FedAvg, until more seeds say otherwise."
    assert said.told[0] == "Time to 80\u00a0% does not tell FedAvg and FedProx apart."
    assert said.told[1].startswith("Scaffold takes 101\u00a0s (89\u00a0%) more than FedAvg [")
    assert len(said.told) == 2


def test_settings_that_are_equal_in_every_seed() -> None:
    said = told(
        ("method",), {("b", "energy_j"): "10 11 12", ("a", "energy_j"): "10 11 12", ("c", "energy_j"): "20 21 22"}
    )
    assert said.first == "B, until more seeds say otherwise." and said.told[0] == "Energy does not tell b and a apart."


# --- what seeds can show ----------------------------------------------------------------------------------------


def test_six_seeds_cannot_decide_what_seven_can() -> None:
    """Four configurations, each seed apart: the least p-value is 2 / 64, three times that by Holm is 0.094."""
    numbers = {(name, TIME): scattered(seconds, 6, 4) for name, seconds in zip("abcd", (50, 64, 80, 90), strict=True)}
    said = told(("method",), numbers)
    assert said.first == "A." and "luck" not in " ".join(said.told)
    assert said.confidence == [
        "Six seeds cannot confirm any difference: no p-value can be below 0.094 (Wilcoxon's paired test, "
        "Holm-corrected for 3 comparisons). Seven can: write `seed = [1, 2, 3, 4, 5, 6, 7]` into it.toml, then "
        "`edgesim study run it.toml --size quick`."
    ]
    larger = told(("method",), numbers, seeds=range(1, 8))
    assert larger.confidence[0].endswith("Seven can: `edgesim study run it.toml --size full`.")


@pytest.mark.parametrize(("tests", "pairs"), [(1, 6), (2, 7), (3, 7), (6, 8), (7, 9)])
def test_seeds_that_the_test_needs(tests: int, pairs: int) -> None:
    """By hand: 2 / 2^6 = 0.031, twice 2 / 2^7 = 0.031, three times 0.047, six times 2 / 2^8 = 0.047."""
    assert pairs_needed(tests) == pairs


def test_one_seed_says_so() -> None:
    said = told(("method",), {("a", TIME): "50", ("b", TIME): "70"})
    assert said.first == "A."
    assert said.told == ["A reaches 80\u00a0% in 50\u00a0s, 20\u00a0s (29\u00a0%) less than b."]
    assert said.confidence[0].startswith("One seed cannot tell a difference from luck. Six can: write ")


def test_numbers_that_do_not_depend_on_the_seed() -> None:
    said = told(
        ("start",), {(at, "cost"): " ".join([cost] * 8) for at, cost in (("midnight", "0.03"), ("noon", "0.01"))}
    )
    assert said.first == "Noon." and said.confidence == ["All 8 seeds give the same numbers, so luck plays no part."]
    assert said.told[0] == "Noon costs 0.01\u00a0EUR, 0.02\u00a0EUR (67\u00a0%) less than midnight."


# --- targets that some runs miss --------------------------------------------------------------------------------


def test_runs_that_ended_before_the_target() -> None:
    """b reaches it in one run of four, c in none: a wins, and the others are no numbers to compare with."""
    numbers = {("a", TIME): "50 52 54 51", ("b", TIME): "60 90+ 90+ 90+", ("c", TIME): "90+ 90+ 90+ 90+"}
    said = told(("method",), numbers)
    assert said.first == "A."
    assert "The others did not reach it in most of their runs." in said.told[0]
    assert said.told[-1] == (
        "Some runs did not reach the target. It was reached by b in 1 of 4 runs and c in 0 of 4 runs."
    )
    bars = [bar for _, row in said.grids[0].rows for bar in row if bar]
    assert [bar.text for bar in bars] == ["51\u00a0s", "not reached", "not reached"] and bars[1].open


def test_a_base_that_did_not_arrive_gives_no_effects() -> None:
    numbers = boards(3) | {("raspberry_pi_4", "wifi", TIME): "1900+ 1900+ 1900+"}
    said = told(("board", "link"), numbers)
    assert said.first == "Raspberry Pi 5, cable."
