"""Logs of rates as others write them, with their own columns, units and dates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from edgesim.core.errors import ConfigError, DataError
from edgesim.core.rng import Draws, Key
from edgesim.world.links.base import Links
from edgesim.world.links.trace import LinkTrace
from tests.conftest import timing_scenario

LOG = Path(__file__).parent / "data" / "traces" / "lte_log.csv"
NAMES = {"time": "Timestamp", "up": "UL_bitrate", "down": "DL_bitrate"}
DATES = "%Y.%m.%d_%H.%M.%S"
LTE = {"columns": NAMES, "rate_unit": "kbit/s", "time": DATES}


def links(file: Path, n: int = 1, **fields: Any) -> Links:
    """Return the links that follow a log."""
    return TypeAdapter(LinkTrace).validate_python({"file": file, **fields}).build(n, Key(1), "network")


def seconds(log: Links, nbytes: float, up: bool = True, now_s: float = 0.0, row: int = 0) -> float:
    """Return how long a transfer takes."""
    none = Draws(Key(0), np.array([row]), np.array([0]))
    return float(log.transfer(np.array([row]), np.array([nbytes]), up, now_s, none)[0][0])


def test_a_drive_test_by_hand():
    """Two rows of second 0 count as their mean: 500 kbit/s up until 2 s, 100 until 5 s, 200 until 8 s, then anew.

    1,000 + 300 + 600 kbit a period of 8 s; down 9,000 kbit/s, 2,000 and 0.
    """
    log = links(LOG, **LTE)
    assert log.up_bps[0] == pytest.approx(1900e3 / 8)
    assert log.down_bps[0] == pytest.approx((18_000e3 + 6_000e3) / 8)
    for kbit, takes_s in ((500, 1), (1000, 2), (1100, 3), (1900, 8), (2400, 9)):
        assert seconds(log, kbit * 1e3 / 8) == pytest.approx(takes_s)
    assert seconds(log, 24_000e3 / 8 + 1, up=False) == pytest.approx(8 + 8 / 9000e3)
    held = links(LOG, **LTE | {"columns": {**NAMES, "down": "UL_bitrate"}, "repeat": False})
    assert seconds(held, 2400e3 / 8, up=False) == pytest.approx(5 + 1100 / 200)


def test_units_of_time_and_series_of_several_devices(tmp_path):
    """Milliseconds that start anywhere; devices have names, in the order of their first rows; notes do not count."""
    file = tmp_path / "log.csv"
    file.write_text("ms,who,rate,note\n1000,b,8,\n1000,a,16,x\n3000,b,24,\n2500,a,0,\n4000,a,8,\n")
    columns = {"time": "ms", "up": "rate", "down": "rate", "device": "who"}
    log = links(file, 3, columns=columns, time="ms")
    assert seconds(log, 2) == pytest.approx(2)  # b: 8 bit/s for 2 s
    assert seconds(log, 4, row=1) == pytest.approx(1.5 + 1.5 + 1)  # a: 16 bit/s for 1.5 s, none for 1.5, then 8
    assert seconds(log, 2, row=2) == pytest.approx(2)


def test_a_scenario_maps_columns():
    """The mapping is part of the scenario, and what a run keeps gives the same scenario."""
    network = {"name": "trace", "file": str(LOG), **LTE, "latency": "30 ms"}
    scenario = timing_scenario(network=network)
    assert scenario.network.args["columns"] == NAMES
    assert timing_scenario(**scenario.canonical()) == scenario


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"columns": {"time": "t"}}, "network.columns: needs time, up, down and optionally device, got time"),
        ({"columns": {**NAMES, "rate": "x"}}, "needs time, up, down and optionally device, got time, up, down, rate"),
        ({"columns": {}}, "needs time, up, down and optionally device, got nothing"),
        ({"rate_unit": "kbps"}, "network.rate_unit: must be 'bit/s', 'kbit/s', 'Mbit/s' or 'Gbit/s', got 'kbps'"),
    ],
)
def test_bad_keys(fields, said):
    """What is allowed, and what was found."""
    with pytest.raises(ConfigError) as caught:
        timing_scenario(network={"name": "trace", "file": str(LOG), **LTE, **fields})
    assert said in str(caught.value)


ROWS = "t,u,d\n0,1,2\n"


@pytest.mark.parametrize(
    ("text", "time", "said"),
    [
        ("t,u\n0,1\n", "s", " line 1: has no column 'd'; it has t, u"),
        ("t,u,d\n", "s", ": holds no rows"),
        (ROWS + "1,-,2\n", "s", " line 3: column u must be a finite number of at least 0, in Mbit/s, got '-'"),
        (ROWS + "\n1,1,-2\n", "s", " line 4: column d must be a finite number of at least 0, in Mbit/s, got '-2'"),
        (ROWS + "soon,1,2\n", "ms", " line 3: column t must be a finite number in ms, got 'soon'"),
        (
            "t,u,d\n2018-01-18,1,2\n2018-02-30,1,2\n",
            "%Y-%m-%d",
            " line 3: column t must be a date in the format '%Y-%m-%d'",
        ),
        (ROWS + "2,1,2\n1,1,2\n", "s", " line 4: time must not fall, it is earlier than in the row before"),
        (ROWS + "1,1\n", "s", " line 3: has not as many values as the header has names"),
        (ROWS, "minutes", ": time is in one of s, ms, us, ns or in a format of dates, got 'minutes'"),
        ("t,u,d\n0,0,2\n5,0,2\n", "s", " line 3: up_bps is 0 for ever after"),
    ],
)
def test_bad_logs_name_line_and_column(text, time, said, tmp_path):
    """The file, the line, the column as the log calls it, what is needed and what is there."""
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        links(file, columns={"time": "t", "up": "u", "down": "d"}, rate_unit="Mbit/s", time=time)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)
