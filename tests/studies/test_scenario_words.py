"""Sections of scenarios in display units."""

from __future__ import annotations

from typing import Any

import pytest

from edgesim.config.load import load_scenario
from edgesim.studies.scenario_words import section_words, value_words
from tests.conventions.source_tree import ROOT


@pytest.fixture(scope="module")
def classroom() -> dict[str, Any]:
    """Return the canonical table of a priced scenario."""
    return load_scenario({"extends": str(ROOT / "scenarios" / "decisions" / "classroom.toml")}, []).canonical()


def test_sections_have_units_and_no_defaults(classroom: dict[str, Any]) -> None:
    assert section_words("network", classroom["network"]) == ("fixed: latency 5 ms, up 20 Mbit/s, down 20 Mbit/s")
    assert section_words("training", classroom["training"]) == "batch 10, lr 0.1"
    assert section_words("server", classroom["server"]) == "idle 30 W"
    assert section_words("encoding", classroom["encoding"]) == ""
    assert section_words("prices", classroom["prices"]) == (
        "electricity daily: hours 0.14 to 0.45 EUR/kWh (24 values); carbon daily: hours 190 to 460 g/kWh (24 values)"
    )


def test_keys_that_differ_are_shown_alone() -> None:
    assert section_words("selection", {"name": "uniform", "count": 5, "fraction": None}, {"count"}) == "count 5"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (2e7, "bit/s", "20 Mbit/s"),
        ({"log_normal": [6e6, 0.6]}, "bit/s", "6 Mbit/s (log-normal, 0.6)"),
        ({"uniform": [1.0, 90.0]}, "s", "1 to 90 s (uniform)"),
        ({"uniform": [1e6, 5e6]}, "bit/s", "1 to 5 Mbit/s (uniform)"),
        ({"choice": [1.0, 2.0]}, "", "1, 2 (choice)"),
        ("7.777777777777778e-08 EUR/J", "", "0.28 EUR/kWh"),
        ("5e-10 EUR/byte", "", "0.5 EUR/GB"),
        ([0.8, 0.9], "", "0.8, 0.9"),
        (True, "", "true"),
    ],
)
def test_values(value: Any, unit: str, words: str) -> None:
    assert value_words(value, unit) == words
