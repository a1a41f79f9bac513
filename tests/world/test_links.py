"""Fixed and trace-driven links: exact numbers, the laws of jitter and loss, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from edgesim.config.units import draw, reason
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.rng import Draws, Key
from edgesim.world.links.analytic import Fixed, Ideal
from edgesim.world.links.base import Links, retransmissions
from edgesim.world.links.shared import Shared
from edgesim.world.links.trace import LinkTrace
from edgesim.world.links.wireless import Wireless
from edgesim.world.processes.time_series import RateSeries, rate_series
from tests.conftest import timing_scenario
from tests.sizes import examples

KEY = Key(11)
MANY = 40_000
# Dvoretzky-Kiefer-Wolfowitz: an empirical distribution function of MANY draws is this close but once in a billion
DKW = float(np.sqrt(np.log(2 / 1e-9) / (2 * MANY)))
SHARED = "time_s,up_bps,down_bps\n0,8,80\n10,16,0\n20,0,40\n"


def plugin(cls: type, **fields: Any) -> Any:
    return TypeAdapter(cls).validate_python(fields)


def fixed(**fields: Any) -> Any:
    return plugin(Fixed, **{"up": "1 Mbit/s", "down": "4 Mbit/s", **fields})


def draws(n: int, nth: int = 0, first: int = 0) -> Draws:
    return Draws(KEY, np.arange(first, first + n), np.full(n, nth))


def sent(
    links: Links, nbytes: Any, *, up: bool = True, now_s: Any = 0.0, nth: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Send so many bytes over the first links."""
    nbytes = np.asarray(nbytes, dtype=float)
    return links.transfer(np.arange(len(nbytes)), nbytes, up, now_s, draws(len(nbytes), nth))


# --- fixed ------------------------------------------------------------------------------------------------


def test_plain_links_keep_their_streams_and_take_latency_plus_bits_over_rate():
    """Rates and latency come from sub-streams 0, 1 and 2; seconds are those of the formula, bit for bit."""
    spread = fixed(up={"uniform": [1e6, 9e6]}, down={"log_uniform": [1e5, 1e7]}, latency={"uniform": [0.01, 0.1]})
    links = spread.build(50, KEY, "network")
    expected = [
        draw(value, 50, KEY.at(i).numpy(), "") for i, value in enumerate((spread.up, spread.down, spread.latency))
    ]
    assert [links.up_bps.tolist(), links.down_bps.tolist(), links.latency_s.tolist()] == [e.tolist() for e in expected]
    nbytes = np.linspace(0, 5e6, 50)
    for up, bps in ((True, expected[0]), (False, expected[1])):
        seconds, air_s = sent(links, nbytes, up=up)
        assert air_s.tolist() == (8.0 * nbytes / bps).tolist()
        assert seconds.tolist() == (expected[2] + 8.0 * nbytes / bps).tolist()


def test_ideal_links_take_no_time():
    """Any number of bytes is there at once."""
    seconds, air_s = sent(plugin(Ideal).build(3, KEY, "network"), [0, 1, 1e12])
    assert seconds.tolist() == air_s.tolist() == [0, 0, 0]


def test_jitter_is_log_normal_of_the_given_mean_and_deviation():
    """Mean 50 ms, deviation 20 ms, the log-normal law of these moments; air time is left alone."""
    links = fixed(latency="50 ms", jitter="20 ms").build(MANY, KEY, "network")
    seconds, air_s = sent(links, np.full(MANY, 125_000))
    assert (air_s == 1.0).all()
    latency = seconds - 1.0
    shape = np.sqrt(np.log(1 + 0.4**2))  # of the log-normal: deviation / mean = sqrt(exp(shape^2) - 1)
    law = stats.lognorm(shape, scale=0.05 / np.exp(shape**2 / 2))
    assert (law.mean(), law.std()) == pytest.approx((0.05, 0.02))
    assert stats.kstest(latency, law.cdf).statistic < DKW
    assert not np.array_equal(latency, sent(links, np.full(MANY, 500_000), up=False)[0] - 1.0)
    assert not np.array_equal(latency, sent(links, np.full(MANY, 125_000), nth=1)[0] - 1.0)


@pytest.mark.parametrize(
    ("packets", "loss"),
    # one packet, few, a heavy loss, few losses among many, both sides of either border, many of many
    [(1, 0.5), (7, 0.3), (31, 0.97), (32, 0.93), (32, 0.95), (299, 0.1), (301, 0.1), (5000, 0.0004), (2000, 0.4)],
)
def test_retransmissions_are_negative_binomial(packets, loss):
    """The distribution is scipy's nbinom (failures before N successes of probability 1 - loss)."""
    again = retransmissions(np.full(MANY, float(packets)), np.full(MANY, loss), draws(MANY))
    law = stats.nbinom(packets, 1 - loss)
    exact = packets < 32 or packets * loss < 30
    # the normal law of skewed counts is off by skewness / (6 sqrt(2 pi)) and half a packet
    skew_error = 0.0 if exact else (1 + loss) / np.sqrt(packets * loss) * 0.0665 + 0.25 / law.std()
    assert (again == np.floor(again)).all() == exact
    values = np.unique(np.floor(again))
    # from both sides of each step, as a continuous law is compared with steps
    counted = np.searchsorted(np.sort(again), values + (0 if exact else 0.5), side="right") / MANY
    assert np.abs(counted - law.cdf(values)).max() < DKW + skew_error
    # standard errors: of the mean std / sqrt(MANY), of the variance var * sqrt((kurtosis + 2) / MANY)
    assert again.mean() == pytest.approx(law.mean(), abs=5 * law.std() / np.sqrt(MANY))
    kurtosis = float(law.stats("k"))
    assert again.var() == pytest.approx(law.var(), rel=5 * np.sqrt((kurtosis + 2) / MANY))


def test_lost_packets_cost_air_time_only():
    """2 packets of loss 1/2 are sent 4 times on average; no bytes, or no loss, mean nothing sent again."""
    links = fixed(loss={"choice": [0.0, 0.5]}, latency=0.1).build(MANY, KEY, "network")
    seconds, air_s = sent(links, np.full(MANY, 2000))
    clean = 8 * 2000 / 1e6
    loss = draw(fixed(loss={"choice": [0.0, 0.5]}).loss, MANY, KEY.at(4).numpy(), "")
    assert (air_s[loss == 0] == clean).all()
    assert air_s[loss > 0].mean() == pytest.approx(2 * clean, rel=0.03)
    assert np.array_equal(seconds, 0.1 + air_s)
    assert sent(links, np.zeros(9))[1].tolist() == [0] * 9


NETWORKS: dict[str, dict[str, Any]] = {
    "fixed": {"jitter": "1 ms", "loss": {"choice": [0.0, 0.02, 0.6]}, "latency": "20 ms"},
    "wireless": {
        "bandwidth": "1 MHz",
        "distance_m": {"uniform": [50, 900]},
        "fading": "per_transfer",
        "shadowing_db": 8,
        "latency": "20 ms",
        "jitter": "5 ms",
        "loss": 0.1,
    },
    "trace": {"latency": "20 ms", "jitter": "5 ms", "loss": {"choice": [0.0, 0.3]}},
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("up", [True, False])
def test_transfers_of_many_are_those_of_each(name, up, tmp_path):
    """A device's seconds depend on nobody else, on no earlier question, and not on how many devices the block has."""
    file = tmp_path / "rates.csv"
    file.write_text("time_s,up_bps,down_bps,device\n0,8e5,9e5,0\n0,7e5,5e5,1\n60,0,1e5,0\n3,1e5,2e6,1\n")
    maker = {"fixed": lambda: fixed(**NETWORKS["fixed"]), "wireless": lambda: plugin(Wireless, **NETWORKS["wireless"])}
    network = maker.get(name, lambda: plugin(LinkTrace, file=file, **NETWORKS["trace"]))()
    links = network.build(20, KEY, "network")
    rows, nbytes = np.array([3, 19, 0, 7, 8]), np.array([1e4, 2e6, 30.0, 1e5, 0.0])
    now_s = np.array([0.0, 3.0, 70.0, 1e5, 2.0])
    nth = np.array([0, 4, 2, 9, 1])
    together = links.transfer(rows, nbytes, up, now_s, Draws(KEY, rows, nth))
    for _ in range(2):
        for i in (4, 2, 0, 1, 3):
            one = slice(i, i + 1)
            alone = network.build(25, KEY, "network").transfer(
                rows[one], nbytes[one], up, float(now_s[i]), Draws(KEY, rows[one], nth[one])
            )
            assert (alone[0][0], alone[1][0]) == (together[0][i], together[1][i])
    assert (together[0] >= together[1]).all()
    assert (together[1] >= 0).all()


# --- traces -----------------------------------------------------------------------------------------------


def trace(tmp_path: Path, text: str, n: int = 1, **fields: Any) -> Links:
    file = tmp_path / "rates.csv"
    file.write_text(text)
    return plugin(LinkTrace, file=file, **fields).build(n, KEY, "network")


def test_a_trace_by_hand(tmp_path):
    """Up: 80 bits until 10 s, 160 more until 20 s, none until 30 s, then anew. Down: 800, 0, 400 bits."""
    links = trace(tmp_path, SHARED, 9)
    assert (links.up_bps[0], links.down_bps[8]) == (pytest.approx(240 / 30), pytest.approx(1200 / 30))
    cases = [  # bytes, start, end
        (10, 0, 10),  # 80 bits
        (11, 0, 10.5),
        (30, 0, 20),  # exactly what there is, before the outage
        (31, 0, 31),
        (1, 25, 31),  # starts in the outage
        (90, 5, 95),  # 720 bits: 200 until 30 s, 240 until 60, 240 until 90, and 40 of the next 80
        (30, 300, 320),
        (0, 25, 25),
    ]
    nbytes, start, end = (np.array(column, dtype=float) for column in zip(*cases, strict=True))
    seconds, air_s = sent(links, np.append(nbytes, 1), now_s=np.append(start, 0))
    assert seconds[:8].tolist() == pytest.approx((end - start).tolist(), abs=1e-12)
    assert seconds.tolist() == air_s.tolist()
    assert sent(links, [110], up=False, now_s=0.0)[0].tolist() == [22.0]  # 800 by 10 s, 80 after 20 s


def test_latency_comes_before_the_bits(tmp_path):
    """Bits start to flow 9 s late, so that 16 of them see the second rate."""
    seconds, air_s = sent(trace(tmp_path, SHARED, latency="9 s"), [3])
    assert (seconds.tolist(), air_s.tolist()) == ([11.0], [2.0])


def test_a_trace_may_keep_its_last_rate(tmp_path):
    """Without repetition the last rate holds for ever; a single row is a constant rate."""
    links = trace(tmp_path, "time_s,up_bps,down_bps\n0,0,8\n5,8,4\n", repeat=False)
    assert sent(links, [1], now_s=0.0)[0].tolist() == [6.0]
    assert sent(links, [1e6], now_s=1e9)[0].tolist() == [1e6]
    for repeat in (True, False):
        constant = trace(tmp_path, "time_s,up_bps,down_bps\n0,8,4\n", repeat=repeat)
        assert sent(constant, [100], now_s=0.5)[0].tolist() == [100.0]


def test_devices_follow_their_own_series_in_turn(tmp_path):
    """Rows of two devices may be mixed; device i follows series i modulo 2; parquet says the same."""
    text = "device,time_s,up_bps,down_bps\n7,0,8,8\n4,0,16,8\n7,1,24,8\n4,1,0,8\n"
    links = trace(tmp_path, text, 4)
    assert sent(links, [4, 4, 4, 4])[0].tolist() == [3.0, 2.0, 3.0, 2.0]
    pd.read_csv(tmp_path / "rates.csv").to_parquet(tmp_path / "rates.parquet")
    again = plugin(LinkTrace, file=tmp_path / "rates.parquet").build(4, KEY, "network")
    assert sent(again, [4, 4, 4, 4])[0].tolist() == [3.0, 2.0, 3.0, 2.0]


@settings(max_examples=examples(100), deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0.1, 30), st.sampled_from([0.0, 1.0, 3.5, 100.0])), min_size=1, max_size=8),
    amount=st.floats(1e-3, 1e4),
    now_s=st.floats(0, 500),
    repeat=st.booleans(),
)
def test_the_integral_of_the_rate_is_the_amount(steps, amount, now_s, repeat):
    """Integrating the unrolled series from start to end gives the amount, and less any earlier."""
    length, rate = (np.array(column) for column in zip(*steps, strict=True))
    rate[-1] += 0.5
    start = np.concatenate([[0.0], np.cumsum(length[:-1])])
    series = rate_series([start], [rate], repeat)
    seconds = float(series.seconds(np.array([0]), np.array([amount]), now_s)[0])
    last = 1.0 if len(start) == 1 else start[-1] - start[-2]
    end = now_s + seconds + 10.0
    turns = int(end / (start[-1] + last)) + 2 if repeat else 1
    edges = np.concatenate([start + turn * (start[-1] + last) for turn in range(turns)] + [[end * 2 + 1e9]])

    def integral(until: float) -> float:
        overlap = np.minimum(edges[1:], until) - np.maximum(edges[:-1], now_s)
        return float(np.sum(np.maximum(overlap, 0) * np.tile(rate, turns)))

    assert integral(now_s + seconds) == pytest.approx(amount, rel=1e-9, abs=1e-7)
    assert integral(now_s + seconds - 1e-3) < amount


def test_rows_of_different_series_are_looked_up_at_once():
    """Many series of different lengths give what each gives alone."""
    generator = KEY.numpy()
    starts = [np.concatenate([[0.0], np.cumsum(generator.uniform(1, 5, n))]) for n in range(1, 40)]
    rates = [generator.uniform(0.1, 9, len(start)) for start in starts]
    together = rate_series(starts, rates, True)
    which, amount, now_s = (
        generator.integers(0, 39, 500),
        generator.uniform(0, 300, 500),
        generator.uniform(0, 900, 500),
    )
    seconds = together.seconds(which, amount, now_s)
    each: list[RateSeries] = [rate_series([s], [r], True) for s, r in zip(starts, rates, strict=True)]
    alone = [each[w].seconds(np.array([0]), amount[[i]], now_s[[i]])[0] for i, w in enumerate(which)]
    assert seconds.tolist() == pytest.approx(alone, rel=1e-12)


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"loss": 1.0}, "must be less than 1"),
        ({"loss": -0.1}, "must be greater than or equal to 0"),
        ({"jitter": "-1 ms"}, "must be at least 0 s"),
        ({"up": 0}, "must be above 0 bit/s"),
        ({"latency": "inf"}, "must be finite"),
    ],
)
def test_impossible_links_are_refused(fields, fault):
    """The reason says what is allowed."""
    with pytest.raises(ValidationError) as caught:
        fixed(**fields)
    assert fault in reason(caught.value)


def test_values_that_fit_only_alone_are_refused():
    """Jitter of nothing, and a distribution that draws an impossible loss, name their keys."""
    with pytest.raises(ConfigError, match=r"^fleet\.0\.network\.jitter: needs a latency above 0"):
        fixed(jitter="1 ms").build(2, KEY, "fleet.0.network")
    with pytest.raises(ConfigError, match=r"^network\.loss: .* set `min`$"):
        fixed(loss={"normal": [0.0, 0.3]}).build(99, KEY, "network")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "needs the columns time_s, up_bps, down_bps and optionally device; got "),
        ("time_s,up_bps\n0,1\n", "got time_s, up_bps"),
        ("time_s,up_bps,down_bps,devcie\n0,1,1,1\n", "got time_s, up_bps, down_bps, devcie"),
        ("time_s,up_bps,up_bps,down_bps\n0,1,1,1\n", "got time_s, up_bps, up_bps, down_bps"),
        ("time_s,up_bps,down_bps\n", "holds no rows"),
        ("time_s,up_bps,down_bps\n0,1,1\n5,1\n", " line 3: has not as many values"),
        ("time_s,up_bps,down_bps\n0,1,1\n5,1,1,1\n", " line 3: has not as many values"),
        ("time_s,up_bps,down_bps\n0,1,fast\n", " line 2: down_bps must be a finite number of at least 0, got 'fast'"),
        (
            "time_s,up_bps,down_bps\n0,1,1\n\n1,-2,1\n",
            " line 4: up_bps must be a finite number of at least 0, got '-2'",
        ),
        ("time_s,up_bps,down_bps\n0,1,nan\n", " line 2: down_bps must be a finite number"),
        ("time_s,up_bps,down_bps\n0,inf,1\n", " line 2: up_bps must be a finite number"),
        ("time_s,up_bps,down_bps\n1,1,1\n", " line 2: the first time_s of a series must be 0, got 1"),
        ("time_s,up_bps,down_bps\n0,1,1\n2,1,1\n2,1,1\n", " line 4: time_s must rise, got 2 after 2"),
        ("time_s,up_bps,down_bps\n0,1,0\n2,1,0\n", " line 3: down_bps is 0 for ever"),
        ("time_s,up_bps,down_bps,device\n0,1,1,0\n0,1,1,1\n3,1,1,0\n2,1,1,0\n", " line 5: time_s must rise"),
    ],
)
def test_trace_files_name_the_line_at_fault(text, fault, tmp_path):
    """Whatever is wrong with a file, the message begins with its name."""
    with pytest.raises(DataError) as caught:
        trace(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "rates.csv"))
    assert fault in str(caught.value)


def test_other_trace_files_are_refused(tmp_path):
    """A held outage, a missing file, a broken parquet file, a gap in one."""
    with pytest.raises(DataError, match="line 3: up_bps is 0 for ever"):
        trace(tmp_path, "time_s,up_bps,down_bps\n0,1,1\n2,0,1\n", repeat=False)
    with pytest.raises(DataError, match=r"no\.csv: cannot be read"):
        plugin(LinkTrace, file=tmp_path / "no.csv").build(1, KEY, "network")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"bad\.parquet: "):
        plugin(LinkTrace, file=tmp_path / "bad.parquet").build(1, KEY, "network")
    gap = pd.DataFrame({"time_s": [0.0, 1.0], "up_bps": [1.0, None], "down_bps": [1.0, 1.0]})
    gap.to_parquet(tmp_path / "gap.parquet")
    with pytest.raises(DataError, match=r"gap\.parquet row 2: up_bps must be a finite number"):
        plugin(LinkTrace, file=tmp_path / "gap.parquet").build(1, KEY, "network")
    words = pd.DataFrame({"time_s": [0.0], "up_bps": ["fast"], "down_bps": [1.0]})
    words.to_parquet(tmp_path / "words.parquet")
    with pytest.raises(DataError, match=r"words\.parquet: "):
        plugin(LinkTrace, file=tmp_path / "words.parquet").build(1, KEY, "network")


# --- what all links say of themselves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "steady"),
    [
        (plugin(Ideal), True),
        (fixed(latency={"uniform": [0.01, 0.1]}), True),
        (fixed(latency="20 ms", jitter="1 ms"), False),
        (fixed(loss=0.1), False),
        (plugin(Shared, up="1 Mbit/s", down="1 Mbit/s"), True),
        (plugin(Wireless, bandwidth="1 MHz", distance_m=500, shadowing_db=8), True),
        (plugin(Wireless, bandwidth="1 MHz", distance_m=500, fading="per_round"), False),
    ],
    ids=str,
)
def test_steady_links_take_as_long_at_any_time_and_for_any_job(given, steady):
    """What is drawn once a device is steady; what is drawn for every job is not, and then seconds do differ."""
    links = given.build(4, KEY, "network")
    assert links.steady == steady
    seconds = [sent(links, [1e6] * 4, now_s=30.0 * nth, nth=nth)[0].tolist() for nth in range(3)]
    assert (seconds[0] == seconds[1] == seconds[2]) == steady


def test_a_trace_is_not_steady(tmp_path):
    """Its rates follow the clock."""
    assert not trace(tmp_path, SHARED).steady


def test_every_network_but_the_ideal_one_may_take_energy_for_a_bit(tmp_path):
    """50 nJ/bit = 5e-8 J/bit, 0 unless given; a spread has a stream of its own."""
    (tmp_path / "rates.csv").write_text(SHARED)
    networks = [
        (Fixed, {"up": 1e6, "down": 1e6}),
        (Shared, {"up": 1e6, "down": 1e6}),
        (Wireless, {"bandwidth": 1e6, "distance_m": 500}),
        (LinkTrace, {"file": tmp_path / "rates.csv"}),
    ]
    for cls, fields in networks:
        metered = plugin(cls, **fields, energy_per_bit="50 nJ/bit").build(2, KEY, "network")
        assert metered.j_per_bit.tolist() == [5e-8, 5e-8]
        spread = plugin(cls, **fields, energy_per_bit={"uniform": [1e-8, 3e-8]}).build(9, KEY, "network")
        assert len(set(spread.j_per_bit.tolist())) == 9
        plain = plugin(cls, **fields).build(9, KEY, "network")
        assert plain.j_per_bit.tolist() == [0] * 9
        assert plain.up_bps.tolist() == spread.up_bps.tolist()
    assert plugin(Ideal).build(2, KEY, "network").j_per_bit.tolist() == [0, 0]
    with pytest.raises(ConfigError, match=r"^network\.energy_per_bit: unknown key"):
        timing_scenario(network={"name": "ideal", "energy_per_bit": 1e-8})
