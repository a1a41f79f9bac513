"""Tariffs over time: means by hand, by the hour and from files, and what is refused."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.config.prices import PRICE_OF_ENERGY, Band
from edgesim.core.errors import ConfigError, DataError
from edgesim.world.prices.base import Steps
from edgesim.world.prices.tariffs.average import Average
from edgesim.world.prices.tariffs.daily import Daily
from edgesim.world.prices.tariffs.series import Series
from tests.sizes import examples

HOUR_S = 3600.0
KWH_J = 3.6e6


def eur(*prices: float) -> Band:
    """Return a band, or one price, of a joule."""
    low, typical, high = prices if len(prices) == 3 else prices * 3
    return Band("EUR", "J", (low, typical, high))


def steps(starts_s: list[float], prices: list[float], period_s: float = inf) -> Steps:
    return Steps(np.array(starts_s), np.array([[each] * 3 for each in prices]), period_s)


def test_a_mean_over_one_step_is_that_price_to_the_last_bit():
    assert steps([0, 10, 20], [0.1, 0.2, 0.3]).mean(1e9 / 7, 1e9)[1] == 0.3
    assert steps([0, 10], [0.1, 0.7], 20.0).mean(1e7 + 11.1, 1e7 + 19.9)[1] == 0.7


@pytest.mark.parametrize(
    ("from_s", "to_s", "mean"),
    [
        (0, 10, 1.0),
        (5, 15, (5 * 1 + 5 * 4) / 10),
        (0, 30, (10 * 1 + 20 * 4) / 30),
        (25, 35, (5 * 4 + 5 * 1) / 10),  # over the end of a period
        (5, 3005, (10 * 1 + 20 * 4) / 30),  # a hundred periods
        (5, 3006, (100 * 90 + 1) / 3001),
        (7, 7, 1.0),
    ],
)
def test_a_mean_by_hand(from_s, to_s, mean):
    assert steps([0, 10], [1.0, 4.0], 30.0).mean(from_s, to_s) == pytest.approx([mean] * 3, rel=1e-14)


@settings(max_examples=examples(100))
@given(
    st.lists(st.floats(0.1, 50), min_size=1, max_size=6),
    st.floats(0, 1000),
    st.floats(0, 1000),
    st.booleans(),
)
def test_a_mean_is_that_of_small_pieces(lengths_s, from_s, lasts_s, repeats):
    starts_s = np.concatenate([[0.0], np.cumsum(lengths_s[:-1])]).tolist()
    series = steps(starts_s, list(range(1, len(starts_s) + 1)), sum(lengths_s) if repeats else inf)
    edges_s = np.linspace(from_s, from_s + lasts_s, 4001)
    middles_s = (edges_s[1:] + edges_s[:-1]) / 2
    pieces = series.mean(middles_s, middles_s)[:, 1].mean()
    # at most one piece a change holds two prices
    periods = np.arange(2 + int((from_s + lasts_s) / sum(lengths_s))) if repeats else np.zeros(1)
    changes_s = (np.array(starts_s) + sum(lengths_s) * periods[:, np.newaxis]).ravel()
    changes = 1 + int(((changes_s > from_s) & (changes_s < from_s + lasts_s)).sum())
    assert abs(series.mean(from_s, from_s + lasts_s)[1] - pieces) <= len(starts_s) * changes / 4000 + 1e-9


def test_changes_come_one_after_another():
    series, at_s, found = steps([0, 10, 25], [1, 2, 3], 40.0), 0.0, []
    for _ in range(7):
        at_s = series.next_change_s(at_s)
        found.append(at_s)
    assert found == [10, 25, 40, 50, 65, 80, 90]
    assert steps([0], [1]).next_change_s(5.0) == inf


def test_hours_of_a_day_start_where_the_run_does():
    hours = tuple(eur(float(hour)) for hour in range(24))
    noon = Daily(hours=hours, starts_at=12.25 * HOUR_S).steps("prices.electricity")
    assert [noon.mean(hour * HOUR_S, hour * HOUR_S)[0] for hour in (0, 0.5, 0.75, 11.7, 11.75, 23.9, 24, 24.75)] == [
        *(12, 12, 13, 23, 0, 12, 12, 13),
    ]
    midnight = Daily(hours=hours).steps("prices.electricity")
    assert midnight.mean(0, 24 * HOUR_S)[1] == pytest.approx(11.5)
    assert noon.mean(0, 24 * HOUR_S)[1] == pytest.approx(11.5)


def test_hours_are_of_one_unit_and_start_within_a_day():
    mixed = (*(eur(1.0) for _ in range(23)), Band("g", "J", (1.0, 1.0, 1.0)))
    with pytest.raises(ConfigError, match=r"here\.hours: all must be in one unit, got EUR and others"):
        Daily(hours=mixed).steps("here")
    with pytest.raises(ConfigError, match=r"here\.starts_at: must be below 24 h, got 24 h"):
        Daily(hours=tuple(eur(1.0) for _ in range(24)), starts_at=24 * HOUR_S).steps("here")


def test_a_file_of_prices(tmp_path: Path):
    file = tmp_path / "day_ahead.csv"
    file.write_text("time_s,price,low,high\n0,90,80,100\n3600,-5,-5,0\n")
    megawatt_hour = PRICE_OF_ENERGY.read("1 EUR/MWh")
    series = Series(file=file, of=megawatt_hour).steps("here")
    assert series.mean(0.0, 0.0) == pytest.approx(np.array([80, 90, 100]) / 3.6e9)
    assert series.mean(3600.0, 3600.0) == pytest.approx(np.array([-5, -5, 0]) / 3.6e9)
    assert series.mean(7200.0, 7200.0) == pytest.approx(np.array([80, 90, 100]) / 3.6e9)
    assert Series(file=file, of=megawatt_hour, repeat=False).steps("here").mean(7200.0, 7200.0)[2] == 0.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time_s,price\n1,2\n", "line 2: the first time_s must be 0, got 1"),
        ("time_s,price\n0,2\n5,1\n5,3\n", "line 4: time_s must be later than the one before, got '5'"),
        ("time_s,price\n0,nan\n", "line 2: price must be a finite number, got 'nan'"),
        ("time_s,price,low\n0,2,3\n", "line 2: low must be at most price, got '3'"),
        ("time_s,price,high\n0,2,1\n", "line 2: high must be at least price, got '1'"),
        ("time_s,cost\n0,2\n", "needs the columns time_s, price and optionally low, high; got time_s, cost"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, text, says):
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(DataError) as fault:
        Series(file=file, of=PRICE_OF_ENERGY.read("1 EUR/MWh")).steps("here")
    assert says in str(fault.value)


def test_averages_are_what_their_sources_say():
    """Eurostat, household prices of the second half of 2024; Our World in Data, carbon intensity of 2023."""
    assert Average(of="electricity", place="DE").steps("here").mean(0.0, 0.0)[1] * KWH_J == pytest.approx(0.3943)
    assert Average(of="carbon", place="FR").steps("here").mean(0.0, 0.0)[1] * KWH_J == pytest.approx(56.039)
    assert (Average(of="electricity", place="EU").unit, Average(of="carbon", place="PL").unit) == ("EUR", "g")
    with pytest.raises(ConfigError, match=r"here\.place: 'XX' is not known for carbon \(known: AU, BG"):
        Average(of="carbon", place="XX").steps("here")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (0.3, "0.3 has no unit; give a string such as '0.30 EUR/kWh'"),
        ("0.3", "'0.3' has no unit"),
        ("0.3 EUR", "'0.3 EUR' is no price"),
        ("-1e108 EUR/kWh", "'-1e108 EUR/kWh' is too large"),
        ("0.3 Euro/kWh", "'0.3 Euro/kWh' is no price"),
        ("0.3 EUR/GB", "'GB' is not an energy"),
        ({"low": "1 EUR/J", "typical": "2 EUR/J"}, "a band has the keys low, typical, high, got low, typical"),
        (
            {"low": "1 EUR/J", "typical": "2 USD/J", "high": "3 EUR/J"},
            "low, typical and high must be in one unit",
        ),
        (
            {"low": "3 EUR/J", "typical": "2 EUR/J", "high": "4 EUR/J"},
            "low must be at most typical and that at most high",
        ),
    ],
)
def test_a_price_that_cannot_be(given, says):
    with pytest.raises(ValueError) as fault:
        PRICE_OF_ENERGY.read(given)
    assert says in str(fault.value)


def test_a_price_is_held_exactly_and_written_so_that_it_can_be_read_again():
    assert PRICE_OF_ENERGY.read("0.36 EUR/kWh").values == (1e-7, 1e-7, 1e-7)
    band = PRICE_OF_ENERGY.read({"low": "0.1 EUR/kWh", "typical": "0.3 EUR/kWh", "high": "0.31 EUR/kWh"})
    assert PRICE_OF_ENERGY.read(band.table()) == band
