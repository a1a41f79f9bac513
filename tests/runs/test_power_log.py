"""Logs of watts: formats, gaps, noise, and the line through idle and busy samples."""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.runs.power_log import PowerLog, Span, powers_of, read_power_log

IDLE, BUSY = Span(0.0, 10.0), Span(20.0, 30.0)
TEGRASTATS = (
    "11-28-2026 10:00:0{second} RAM 1510/7620MB (lfb 2x4MB) SWAP 0/3810MB (cached 0MB) "
    "CPU [{first}%@1510,50%@1510,off,off] EMC_FREQ 0% GR3D_FREQ 0% VDD_IN {milliwatts}mW/4000mW VDD_CPU 500mW/500mW"
)


def written(tmp_path, text):
    """Return a file with this text."""
    file = tmp_path / "log"
    file.write_text(text)
    return file


def log_of(watts, utilisation=None):
    """Return a log of a sample each second from 0."""
    return PowerLog("log", np.arange(float(len(watts))), np.array(watts, float), utilisation)


@pytest.mark.parametrize(
    ("header", "factor"), [("time,watts", 1.0), ("time,milliwatts", 1e3), ("microwatts,time", 1e6)]
)
def test_units_of_power(tmp_path, header, factor):
    """Watts, milliwatts as of old INA drivers, microwatts as hwmon's power1_input; columns in any order."""
    rows = [(10.0 + i, 2.5 * factor) for i in range(4)]
    text = "\n".join([header, *(f"{t},{w}" if header.startswith("time") else f"{w},{t}" for t, w in rows)])
    log = read_power_log(written(tmp_path, text))
    assert log.time_s.tolist() == [10, 11, 12, 13]
    assert log.watts == pytest.approx([2.5] * 4)


def test_a_counter_of_energy_gives_mean_powers(tmp_path):
    """RAPL's energy_uj: 3 J in the first second, 5 J in the second. A counter that wrapped is refused."""
    text = "time,microjoules\n0,1000000\n1,4000000\n2,9000000\n3,14000000\n"
    log = read_power_log(written(tmp_path, text))
    assert (log.time_s.tolist(), log.watts.tolist()) == ([1, 2, 3], [3, 5, 5])
    with pytest.raises(ConfigError, match="log line 6: microjoules must be a counter that grows; it wrapped or was"):
        read_power_log(written(tmp_path, text + "4,100\n"))


def test_tegrastats_has_watts_and_utilisation(tmp_path):
    """Milliwatts of the board, and the mean of the cores that are on."""
    lines = [TEGRASTATS.format(second=s, first=10 * s, milliwatts=4000 + s) for s in range(4)]
    log = read_power_log(written(tmp_path, "\n".join(lines)))
    assert np.diff(log.time_s).tolist() == [1, 1, 1]
    assert log.watts == pytest.approx([4.0, 4.001, 4.002, 4.003])
    assert log.utilisation == pytest.approx([0.25, 0.3, 0.35, 0.4])
    with pytest.raises(ConfigError, match=r"log line 5: needs a date, CPU \[...\] and VDD_IN or POM_5V_IN"):
        read_power_log(written(tmp_path, "\n".join([*lines, "11-28-2026 10:00:05 RAM 1/2MB"])))


def test_times_may_be_dates(tmp_path):
    """Dates with a time zone; without one they mean nothing."""
    stamps = [f"2026-11-28T10:00:0{second}+01:00" for second in range(3)]
    log = read_power_log(written(tmp_path, "\n".join(["time,watts", *(f"{each},1" for each in stamps)])))
    assert log.time_s[0] == 1795856400 + 0  # 09:00 UTC
    with pytest.raises(ConfigError, match="log line 2: time must be seconds since 1970 or a date with time zone, got"):
        read_power_log(written(tmp_path, "time,watts\n2026-11-28 10:00:00,1\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,amperes\n0,1\n", "line 1: needs a column time and one of watts, milliwatts"),
        ("time,watts\n0,1\n1,1\n", "needs at least 3 samples, found 2"),
        ("time,watts\n0,1\n1,1\n2,1\n9,1\n10,1\n", "line 5: 7 s without a sample, where samples are 1 s apart"),
        ("time,watts\n0,1\n1,1\n1,1\n", "line 4: times must grow from line to line"),
        ("time,watts\n0,1\n1,-1\n2,1\n", "line 3: watts must be a number of at least 0, got '-1'"),
        ("time,watts\n0,1\n1,x\n2,1\n", "line 3: watts must be a number of at least 0, got 'x'"),
        ("time,watts,utilisation\n0,1,0\n1,1,50\n2,1,0\n", "line 3: utilisation must be from 0 to 1"),
    ],
)
def test_a_log_with_a_fault_is_refused(tmp_path, text, message):
    """One line that names the line of the file."""
    with pytest.raises(ConfigError, match=message) as refused:
        read_power_log(written(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_powers_are_those_of_both_spans():
    """2 W idle and 5 W busy on one of four cores: 12 W more with all cores, if power is a line in utilisation."""
    found = powers_of(log_of([2.0] * 15 + [5.0] * 16), IDLE, BUSY, 0.25)
    assert found == pytest.approx((2.0, 5.0, 12.0, 0.25))
    assert found.quantities == {"idle": pytest.approx(2.0), "busy": pytest.approx(5.0)}
    shares = np.array([0.1] * 15 + [0.6] * 16)  # as the meter says itself: something always runs
    seen = powers_of(log_of(2.0 + 5.0 * shares, shares), IDLE, BUSY, 0.25)
    assert seen == pytest.approx((2.0, 5.0, 5.0, 0.6))


def test_noise_and_missing_spans_are_refused():
    """Samples that hide the rise, a rise that is none, and a log that ends before the host was busy."""
    noise = Key(3).numpy().normal(0, 4.0, 31)
    with pytest.raises(ConfigError, match=r"log: samples lie .* W idle and .* W busy, which is too noisy"):
        powers_of(log_of(np.array([5.0] * 15 + [6.0] * 16) + noise), IDLE, BUSY, 0.25)
    with pytest.raises(ConfigError, match="too noisy"):
        powers_of(log_of([5.0] * 15 + [4.0] * 16), IDLE, BUSY, 0.25)
    with pytest.raises(ConfigError, match="log: has 0 samples of this host while it trained, needs 3; record"):
        powers_of(log_of([2.0] * 15), IDLE, BUSY, 0.25)
