"""Physical values with units, and distributions of them."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from edgesim.config import units
from edgesim.config.units import Distribution, PerDevice, draw, reason
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveShare
from edgesim.core.rng import Key
from tests.sizes import examples


@dataclass(frozen=True, kw_only=True)
class Link:
    up: PerDevice[units.BitsPerSecond] = 1.0
    share: PerDevice[PositiveShare] = 1.0
    limit: PerDevice[units.BitsPerSecondOrInf] = math.inf


LINK = TypeAdapter(Link)


def read(of: Any, value: Any) -> Any:
    return TypeAdapter(of).validate_python(value)


def refused(of: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        read(of, value)
    return reason(caught.value)


@pytest.mark.parametrize(
    ("of", "text", "si"),
    [
        (units.BitsPerSecond, "20 Mbit/s", 20e6),
        (units.BitsPerSecond, "20 MB/s", 160e6),
        (units.BitsPerSecond, "20 megabytes / second", 160e6),
        (units.BitsPerSecond, "7.2Gbit/h", 2e6),
        (units.Bytes, "2 MB", 2e6),
        (units.Bytes, "16 bit", 2.0),
        (units.Hertz, "1.5 GHz", 1.5e9),
        (units.FlopsPerSecond, "147.6 MFLOP/s", 147.6e6),
        (units.FlopsPerSecond, "1 kFLOP*MHz", 1e9),
        (units.Flops, "15 MFLOPs", 15e6),
        (units.Watts, "500 mW", 0.5),
        (units.Watts, "0.8 J/s", 0.8),
        (units.Joules, "18.7 Wh", 67320.0),
        (units.Joules, "1 kWh", 3.6e6),
        (units.JoulesPerBit, "50 nJ/bit", 50e-9),
        (units.JoulesPerBit, "8 uJ/B", 1e-6),
        (units.BytesPerSecond, "10 GB/s", 10e9),
        (units.Seconds, "1 d", 86400.0),
        (units.Seconds, "3 min", 180.0),
        (units.Delay, "100 us", 0.0001),
        (units.Delay, "100 µs", 0.0001),
        (units.Delay, "1e-3 s", 0.001),
        (units.Delay, "0 s", 0.0),
        (units.FlopsPerSecondOrInf, "inf", math.inf),
        (units.Bytes, "1 MiB", 1048576.0),
    ],
)
def test_a_string_with_a_unit_is_read_in_si(of: Any, text: str, si: float) -> None:
    assert read(of, text) == si


@pytest.mark.parametrize("value", [5, 5.0, np.float64(5), np.int64(5)])
def test_a_number_is_in_si_already(value: Any) -> None:
    assert read(units.BitsPerSecond, value) == 5.0
    assert type(read(units.BitsPerSecond, value)) is float


RATE = "give a number in bit/s or a string such as '20 Mbit/s'"


@pytest.mark.parametrize(
    ("of", "value", "message"),
    [
        (units.BitsPerSecond, "20 MHz", f"'20 MHz' is not a data rate; {RATE}"),
        (units.BitsPerSecond, "20", f"'20' has no unit; {RATE}"),
        (
            units.BitsPerSecond,
            "20 Mb/s",
            f"'20 Mb/s' is not a data rate; did you mean '20 Mbit/s' or '20 MB/s'? {RATE}",
        ),
        (units.BitsPerSecond, "fast", f"'fast' is not a data rate; {RATE}"),
        (units.BitsPerSecond, True, f"True is not a data rate; {RATE}"),
        (units.BitsPerSecond, math.nan, f"nan is not a data rate; {RATE}"),
        (units.BitsPerSecond, None, f"None is not a data rate; {RATE}"),
        (units.BitsPerSecond, "20 mbit/s", "'20 mbit/s' has a prefix below one on bit; write Mbit"),
        (units.Bytes, "3 mB", "'3 mB' has a prefix below one on B; write MB"),
        (units.Flops, "3 microFLOPs", "'3 microFLOPs' has a prefix below one on FLOP; write MFLOP"),
        (units.BitsPerSecond, 0, "must be above 0 bit/s, got 0"),
        (units.Watts, "-1 W", "must be at least 0 W, got '-1 W'"),
        (units.Seconds, math.inf, "must be finite, got inf"),
        (units.SecondsOrInf, "-1 s", "must be above 0 s, got '-1 s'"),
        (units.Bytes, "1e400 B", "'1e400 B' is too large"),
        (units.Seconds, "5 FLOP", "'5 FLOP' is not a time; give a number in s or a string such as '26.5 s'"),
        (
            units.FlopsPerSecondOrInf,
            "2 TFLOP",
            "'2 TFLOP' is not a computing speed; give a number in FLOP/s or a string such as '2 TFLOP/s', or 'inf'",
        ),
    ],
)
def test_what_is_no_such_quantity_is_refused_in_one_line(of: Any, value: Any, message: str) -> None:
    assert refused(of, value) == message


def test_a_number_beyond_floats_is_refused() -> None:
    assert refused(units.Seconds, 10**400).endswith("is too large")


@settings(max_examples=examples(100, short=10))
@given(st.decimals(min_value="0.001", max_value=10**6, places=3))
def test_a_unit_never_costs_a_digit(number: Any) -> None:
    # float() of a decimal text is the correctly rounded value
    assert read(units.Delay, f"{number} ms") == float(f"{number}e-3")
    assert read(units.BitsPerSecond, f"{number} MB/s") == float(f"{number * 8}e6")


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=12) | st.from_regex(r"\A[1-9][0-9]* ?[A-Za-z/* ]{0,9}\Z")
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert read(units.SecondsOrInf, text) > 0
    except ValidationError as error:
        assert "\n" not in reason(error)  # repr shows line ends as \n


def test_values_and_distributions_export_a_json_schema() -> None:
    schema = LINK.json_schema()["properties"]
    value, table = schema["up"]["anyOf"]
    assert value["anyOf"] == [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]
    assert value["description"] == "a data rate in bit/s: a number, or a string such as '20 Mbit/s'"
    assert set(table["properties"]) == {
        *("uniform", "log_uniform", "normal", "log_normal", "choice", "weights", "min", "max")
    }
    assert schema["share"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}


@pytest.mark.parametrize(
    ("table", "canonical"),
    [
        ({"uniform": ["1 Mbit/s", "2 MB/s"]}, {"uniform": [1e6, 16e6]}),
        ({"log_uniform": [1, "1 kbit/s"]}, {"log_uniform": [1.0, 1e3]}),
        ({"normal": ["1 Mbit/s", "0 bit/s"], "min": "1 kbit/s"}, {"normal": [1e6, 0.0], "min": 1e3}),
        ({"log_normal": ["1 Mbit/s", 0.5], "max": "9 Mbit/s"}, {"log_normal": [1e6, 0.5], "max": 9e6}),
        ({"choice": [1, "1 kbit/s"]}, {"choice": [1.0, 1e3]}),
        ({"choice": [1, 2], "weights": [3, 1]}, {"choice": [1.0, 2.0], "weights": [3.0, 1.0]}),
    ],
)
def test_a_distribution_is_held_in_si_and_written_back(table: dict[str, Any], canonical: dict[str, Any]) -> None:
    link = LINK.validate_python({"up": table})
    assert isinstance(link.up, Distribution)
    assert LINK.dump_python(link)["up"] == canonical
    assert LINK.validate_python({"up": canonical}) == link
    assert pickle.loads(pickle.dumps(link)) == link


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"uniform": [2, 1]}, "uniform needs [low, high] with low <= high, got [2, 1]"),
        ({"uniform": [1]}, "uniform needs a list of two values, got [1]"),
        ({"uniform": "1 bit/s"}, "uniform needs a list of two values, got '1 bit/s'"),
        ({"uniform": ["20 MHz", 1]}, f"'20 MHz' is not a data rate; {RATE}"),
        ({"uniform": [0, 1]}, "must be above 0 bit/s, got 0"),
        ({"normal": [1, -1]}, "normal needs [mean, deviation] with a deviation >= 0, got [1, -1]"),
        ({"normal": [1, "3 s"]}, f"'3 s' is not a data rate; {RATE}"),
        ({"log_normal": [1, "3 bit/s"]}, "must be a number, got '3 bit/s'"),
        ({"choice": []}, "choice needs a list of values, got []"),
        ({"choice": [1, 2], "weights": [1]}, "weights needs 2 numbers that are not all 0, got [1]"),
        ({"choice": [1, 2], "weights": [0, 0]}, "weights needs 2 numbers that are not all 0, got [0, 0]"),
        ({"uniform": [1, 2], "min": 3, "max": 2}, "min must be at most max, got 3 and 2"),
        ({"uniform": [1, 2], "min": -3}, "must be above 0 bit/s, got -3"),
    ],
)
def test_an_impossible_distribution_is_refused(table: dict[str, Any], message: str) -> None:
    assert refused(PerDevice[units.BitsPerSecond], table) == message


@pytest.mark.parametrize(
    "table", [{}, {"normale": [1, 2]}, {"uniform": [1, 2], "normal": [1, 2]}, {"normal": [1, 2], "weights": [1]}]
)
def test_a_distribution_has_one_kind_and_its_own_options(table: dict[str, Any]) -> None:
    message = refused(PerDevice[units.BitsPerSecond], table)
    assert message.startswith("a distribution has one of uniform, log_uniform, normal, log_normal, choice, and")
    assert message.endswith(f"got {', '.join(table) or 'nothing'}")


def test_inf_may_be_chosen_but_not_spread() -> None:
    link = LINK.validate_python({"limit": {"choice": ["inf", 5]}})
    assert link.limit.values == (math.inf, 5.0)
    assert "uniform needs" in refused(PerDevice[units.BitsPerSecondOrInf], {"uniform": [1, "inf"]})


def drawn(table: Any, n: int, seed: int = 1) -> np.ndarray:
    value = read(PerDevice[units.BitsPerSecond], table)
    return draw(value, n, Key(seed).numpy(), "network.up")


def test_a_constant_is_the_same_on_every_device() -> None:
    assert drawn("2 kbit/s", 3).tolist() == [2000.0, 2000.0, 2000.0]
    assert drawn(5, 2).dtype == np.float64


def test_draws_have_the_moments_of_their_distribution() -> None:
    n = 20_000
    assert drawn({"uniform": [2, 4]}, n).mean() == pytest.approx(3, rel=0.01)
    assert np.median(drawn({"log_uniform": [1, 100]}, n)) == pytest.approx(10, rel=0.05)
    assert drawn({"normal": [100, 5]}, n).std() == pytest.approx(5, rel=0.05)
    assert np.median(drawn({"log_normal": [7, 0.5]}, n)) == pytest.approx(7, rel=0.05)
    assert np.log(drawn({"log_normal": [7, 0.5]}, n)).std() == pytest.approx(0.5, rel=0.05)
    assert (drawn({"choice": [1, 2], "weights": [3, 1]}, n) == 1).mean() == pytest.approx(0.75, abs=0.02)


TABLES = st.sampled_from(
    [
        {"uniform": [1, 5]},
        {"log_uniform": [0.1, 0.3]},
        {"normal": [100, 5], "min": 99, "max": 101},
        {"log_normal": [3, 1]},
        {"choice": [1, 2, 3]},
        {"choice": [1, 2, 3], "weights": [1, 0, 2]},
    ]
)


@given(TABLES, st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_more_devices_leave_the_first_ones_unchanged(table: Any, n: int, more: int, seed: int) -> None:
    assert np.array_equal(drawn(table, n + more, seed)[:n], drawn(table, n, seed))


@given(TABLES, st.integers(0, 9))
def test_draws_stay_inside(table: Any, seed: int) -> None:
    values = drawn(table, 200, seed)
    inside = {"uniform": (1, 5), "log_uniform": (0.1, 0.3), "normal": (99, 101), "choice": (1, 3)}
    low, high = inside.get(next(iter(table)), (0, math.inf))
    assert ((values >= low) & (values <= high)).all()


def test_a_draw_outside_its_type_is_an_error_that_names_key_and_cure() -> None:
    with pytest.raises(ConfigError, match=r"^network\.up: a value drawn from normal = \[1\.0, 9\.0\] must be above 0"):
        drawn({"normal": [1, 9]}, 100)
    with pytest.raises(ConfigError, match=r"set `min`$"):
        drawn({"normal": [1, 9]}, 100)
    share = read(PerDevice[PositiveShare], {"normal": [0.9, 0.2], "min": 0.1})
    with pytest.raises(ConfigError, match=r"less than or equal to 1, got 1.*; set `max`$"):
        draw(share, 100, Key(1).numpy(), "cpu.efficiency")
    assert (drawn({"normal": [1, 9], "min": 0.5}, 100) >= 0.5).all()
