"""Labels of axes with their speed, power, rate, trust and source."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgesim.config.load import load_scenario
from edgesim.studies.levels import FLEET, levels_of
from edgesim.studies.study import load_study
from tests.conventions.source_tree import ROOT
from tests.sizes import full

FOLDER = ROOT / "scenarios" / "decisions"


def levels(name: str) -> Any:
    """Return the levels of a decision's study from its scenarios alone."""
    study = load_study(FOLDER / f"{name}.toml")
    cells = [cell for cell in study.cells("quick") if cell.labels["seed"] == "1"]
    runs: Any = [
        (cell, SimpleNamespace(manifest={"scenario": study.scenario(FOLDER, cell, "quick").canonical()}))
        for cell in cells
    ]
    return levels_of(runs, cells[0].group)


def test_boards_and_links() -> None:
    """A board has speed, power, trust and source; a link its rate. The estimate is named, the measured ones are not."""
    found = levels("chips_or_links")
    four, five, jetson = found["board"]
    assert four.name == "Raspberry Pi 4" and four.facts["speed"] == "11.4 GFLOP/s"
    assert four.facts["power"] == "2.7 W idle, 6.4 W computing"
    assert four.facts["trust"] == "measured, nine of ten networks within x/: 1.2" and "rate" not in four.facts
    assert "(2024)" in four.facts["source"] and (four.caution, five.caution) == ("", "")
    assert jetson.caution.startswith("its speed is an estimate (nine of ten networks within x/: 15)")
    assert [level.facts["rate"] for level in found["link"]] == [
        "20 Mbit/s up, 20 Mbit/s down, latency 5 ms",
        "100 Mbit/s up, 100 Mbit/s down, latency 1 ms",
    ]
    assert [dict(level.facts) for level in found[FLEET]] == [{"devices": "12"}]  # the rest stands with the axes


@full
def test_a_key_of_a_part_is_shown_alone_and_a_part_with_its_source() -> None:
    assert [dict(level.facts) for level in levels("how_many_phones")["phones"]][:2] == [
        {"setting": "count 5"},
        {"setting": "count 10"},
    ]
    waits = levels("which_deadline")["wait"]
    assert waits[1].facts["setting"] == "protocol deadline: deadline 1 min" and waits[1].facts["source"]


def test_a_speed_of_the_scenario_has_no_trust(tmp_path: Path) -> None:
    """Who sets a speed has no clock of the catalogue, so nothing is said of its error."""
    fleet = [{"profile": "raspberry_pi_4", "count": 2, "cpu": {"flops_per_s": "5 GFLOP/s"}}]
    table = {"extends": str(FOLDER / "classroom.toml"), "fleet": fleet}
    runs: Any = [
        (SimpleNamespace(group={}), SimpleNamespace(manifest={"scenario": load_scenario(table, []).canonical()}))
    ]
    [block] = levels_of(runs, {})[FLEET]
    assert block.facts["speed"] == "5 GFLOP/s" and block.facts["source"] == "set by the scenario"
    assert "trust" not in block.facts and block.caution == ""


def test_a_speed_that_is_drawn_has_its_range() -> None:
    """By hand: 2 GHz x 4 cores x 2 FLOP x 0.002 to 0.006, and 600 MHz x 1 x 2 x 0.01 to 0.03."""
    manifest = {"scenario": load_scenario("edgesim:quickstart", []).canonical()}
    runs: Any = [(SimpleNamespace(group={}), SimpleNamespace(manifest=manifest))]
    phone, node = levels_of(runs, {})[FLEET]
    assert phone.facts["speed"] == "32 to 96 MFLOP/s (uniform)" and node.facts["speed"] == "12 to 36 MFLOP/s (uniform)"
    assert phone.facts["rate"] == "1 to 5 Mbit/s (uniform) up, 10 Mbit/s down, latency 20 ms"
    assert phone.facts["power"] == "500 mW idle, computing by the model cpu"
