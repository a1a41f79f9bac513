"""Numbers for people: no exponents, no digits of rounding, signs that LaTeX knows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from edgesim.cli.printing import digits, latex, print_table
from edgesim.reports.format import plain, span, text, texts
from edgesim.studies.values import pivoted, summarised
from tests.calling import TINY, call
from tests.studies.made_up import values


@pytest.mark.parametrize(
    ("value", "count", "says"),
    [
        (2312.0, 2, "2300"),
        (19547.123, 6, "19547.1"),
        (1234567.8, 6, "1234570"),
        (0.000012, 2, "1.2e-05"),
        (0.0, 2, "0"),
    ],
)
def test_significant_digits_without_an_exponent(value: float, count: int, says: str) -> None:
    assert plain(value, count) == says


def test_a_mean_and_its_deviation() -> None:
    """The sample deviation of 17 and 21.5 thousand is 4,500 over the root of 2."""
    rows = summarised(values(("lr",), {("0.1", "energy_j"): "17000.2 21500.6"})).assign(published=float("nan"))
    assert pivoted(rows)["energy_j"].tolist() == ["19250.4 ± 3200"]


def test_minutes_below_one_are_seconds() -> None:
    """0.313 x 60 = 18.78."""
    assert text("host_minutes", 0.313) == "18.8 s" and text("host_minutes", 1.5) == "1.5 min"


@pytest.mark.parametrize(
    ("column", "low", "high", "says"),
    [
        ("_bps", 1386e3, 4.87e6, "1.39 to 4.87 Mbit/s"),
        ("_s", 18.8, 292.2, "18.8 s to 4.87 min"),  # 0.313 min is below 1
        ("_s", 120.0, 292.2, "2 to 4.87 min"),
        ("energy_j", -1500.0, 2500.0, "-1.5 to 2.5 kJ"),
        ("_s", 0.0, 7200.0, "0 to 2 h"),
        ("_bps", 1e6, 1.0001e6, "1 Mbit/s"),
        ("_bps", 1.1e6, 1.9e6, "1100 to 1900 kbit/s"),
        ("_s", 59.99, 60.01, "1 min"),
    ],
)
def test_a_range_has_the_unit_of_its_largest(column: str, low: float, high: float, says: str) -> None:
    assert span(column, low, high) == says


def test_a_column_has_the_unit_of_its_largest(capsys: pytest.CaptureFixture[str]) -> None:
    assert texts("up_bytes", [1900, 2.5e6, 1.2e6, 0]) == ["1900 B", "2.5 MB", "1.2 MB", "0 MB"]
    rows = [{"up_bytes": 1_940_000, "host_s": None}, {"up_bytes": np.int64(7_230_000), "host_s": 0.5}]
    print_table(rows, {"up_bytes": "up", "host_s": "host time"})
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:4]] == [
        ["1.94", "MB", "-"],
        ["7.23", "MB", "500", "ms"],
    ]


def test_digits_of_frames() -> None:
    assert digits(2.036769625331545) == "2.03677" and digits(12345678.9) == "12345700"


def test_show_prints_whole_numbers_as_such(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.toml").write_text(TINY.replace('"1 Mbit/s"', "6000000.0").replace('"4 W"', "2.036769625331545"))
    out = call("show", "it.toml").out
    assert " 6000000 " in out and "6000000.0" not in out and " 2.03677 " in out


def test_latex_has_no_raw_signs() -> None:
    table = latex(["energy_j", "gap"], [["19250.4 ± 3200", "> 5, 0 of 2 runs"], ["−3", "–"]])
    assert table.isascii() and r"19250.4 $\pm$ 3200 & $>$ 5, 0 of 2 runs" in table and "$-$3 & --" in table


def test_axes_of_a_frame_have_types(tmp_path, monkeypatch) -> None:
    import edgesim

    monkeypatch.chdir(tmp_path)
    (tmp_path / "it.toml").write_text(TINY)
    axes = {
        "network.up": [1e6, 2e6],
        "fleet.0.level": [1],
        "method": ["fedavg"],
        "training.nesterov": [False],
        "seed": [1, 2],
    }
    frame = edgesim.study("it.toml", axes, ["sim_time_s"], ["backend=null"]).run().frame()
    assert frame["network.up"].tolist() == [1e6, 1e6, 2e6, 2e6] and frame["seed"].dtype == "int64"
    assert frame["training.nesterov"].dtype == "bool" and frame["method"].tolist() == ["fedavg"] * 4
    assert frame[frame["network.up"] > 1.5e6]["seed"].tolist() == [1, 2]
    assert isinstance(frame, pd.DataFrame)
