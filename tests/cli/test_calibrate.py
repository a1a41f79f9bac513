"""Calibration: known prices are found again, work is what is measured, and a real run gives a usable profile."""

from __future__ import annotations

import io
import itertools
import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from edgesim.cli.parts import calibrate as command
from edgesim.config import device_profiles
from edgesim.config.device_profiles import profile_of
from edgesim.config.scenario import FleetBlock
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.runs import calibrate as measuring
from edgesim.runs.calibrate import (
    KINDS,
    NETWORKS,
    QUICK,
    Clocks,
    Measurement,
    Timing,
    calibrate,
    contribution,
    nearest_base,
    peak_rate,
    time_steps,
)
from edgesim.runs.power_log import Span
from tests.sizes import full

TICK_S = 0.25  # of the stand-in for the clock; a power of two, so that differences are exact
PRICES = {"flops": 2e-11, "bytes": 3e-10, "conv_bytes": 1e-9, "convolutions": 1e-4, "operations": 1e-5}
PRICES |= {"depthwise_flops": 5e-10, "update_bytes": 1e-9}


def timings(prices=PRICES):
    """Eleven made-up networks at two batch sizes, with seconds by these prices."""
    draw = Key(5).numpy()
    found = []
    for name in "abcdefghijk":
        per_sample = draw.lognormal(0, 1, len(KINDS)) * np.array([1e9, 1e7, 1e6, 1e7, 1e2, 1e8, 0, 0, 0])[: len(KINDS)]
        per_step = draw.lognormal(0, 1, len(KINDS)) * 1e2
        for batch in (4, 16):
            amounts = dict(zip(KINDS, (batch * per_sample + per_step).tolist(), strict=True))
            amounts["update_bytes"] = float(1e7 * per_step[-1])
            seconds = sum(price * amounts[kind] for kind, price in prices.items())
            found.append(Timing(f"{name}@3x8x8", (3, 8, 8), batch, amounts, seconds, seconds, seconds))
    return found


def ticking(tick_s=TICK_S):
    """Return clocks that jump by a tick whenever they are read."""
    wall, cpu, date = (itertools.count() for _ in range(3))
    return Clocks(lambda: tick_s * next(wall), lambda: tick_s * next(cpu), lambda: float(next(date)))


def timed(monkeypatch, found):
    """Let the command find these timings instead of measuring them."""
    monkeypatch.setattr(measuring, "time_steps", lambda *_: Measurement(found, Span(0.0, 1.0)))
    monkeypatch.setattr(measuring, "peak_rate", lambda *_: float("inf"))


def test_known_prices_are_recovered():
    """As put in, kinds without a price get none, and no network that was left out is missed."""
    found = calibrate(timings())
    assert found.seconds_per == {kind: pytest.approx(PRICES.get(kind, 0.0), rel=1e-6, abs=1e-15) for kind in KINDS}
    assert np.abs(found.errors).max() < 1e-6
    profile = found.profile("host", "a host", 2026)
    assert {key: value for key, value in profile.si.items() if key.startswith("terms.")} == {
        f"terms.{kind}": pytest.approx(price, rel=1e-3) for kind, price in PRICES.items()
    }
    assert profile.flops_per_s == pytest.approx(5e10)
    assert profile.trust == "measured"
    assert "22 training steps of 11 networks" in profile.quantities["terms.bytes"].source


def test_a_network_is_judged_by_the_others():
    """Doubling the seconds of one network makes its own error -1/2: nothing of it is in the fit that predicts it."""
    changed = [replace(t, seconds=2 * t.seconds) if t.model == "c" else t for t in timings()]
    found = calibrate(changed)
    own = [error for timing, error in zip(changed, found.errors, strict=True) if timing.model == "c"]
    assert own == pytest.approx([-0.5, -0.5])


def test_three_networks_scale_a_profile():
    """A host three times as fast as the base, from three networks: every price is a third. The base is found."""
    pi = device_profiles.find("raspberry_pi_4")
    slow = {kind: pi.si[f"terms.{kind}"] for kind in KINDS if f"terms.{kind}" in pi.si}
    faster = {kind: price / 3 for kind, price in slow.items()}
    three = timings(faster)[:6]
    found = calibrate(three, base=pi)
    assert found.seconds_per == {kind: pytest.approx(faster.get(kind, 0.0)) for kind in KINDS}
    assert nearest_base(timings(faster)).name == "raspberry_pi_4"
    assert "scaled from raspberry_pi_4" in found.profile("host", "a host", 2026).quantities["flops_per_s"].source


def test_noise_makes_no_profile():
    """Seconds that have little to do with the work, steps that differ from pass to pass, or that show no FLOPs."""
    with pytest.raises(ConfigError, match=r"left out are predicted with a median error of \d+%, more than 50%; name"):
        odd = [
            replace(t, seconds=20 * t.seconds, second_s=20 * t.seconds) if t.model in "acegik" else t for t in timings()
        ]
        calibrate(odd).profile("host", "a host", 2026)
    shaken = [replace(t, second_s=1.3 * t.seconds) for t in timings()]
    with pytest.raises(ConfigError, match="a second pass over the same step took 30% longer in the median, more than"):
        calibrate(shaken).profile("host", "a host", 2026)
    with pytest.raises(ConfigError, match="do not grow with the FLOPs"):
        calibrate(timings({"operations": 1e-5})).profile("host", "a host", 2026)
    with pytest.raises(ConfigError, match=r"mean 50 GFLOP/s, but a product of matrices has 30 GFLOP/s on the same"):
        calibrate(timings(), 30e9).profile("host", "a host", 2026)
    assert calibrate(timings(), 40e9).profile("host", "a host", 2026).flops_per_s == pytest.approx(50e9)


def test_a_base_needs_terms_that_can_be(tmp_path):
    """A profile of FLOPs alone, and one with a negative term: one line each, before anything is timed."""
    with pytest.raises(ConfigError, match="calibrate: laptop has no terms, so that it cannot be a base"):
        command(base="laptop")
    file = tmp_path / "odd.toml"
    number = 'unit = "ns"\nsource = "s"\nyear = 2026\n'
    file.write_text(
        f'title = "t"\n[flops_per_s]\nvalue = 1.0\n{number.replace("ns", "GFLOP/s")}[terms.flops]\nvalue = -1\n{number}'
    )
    with pytest.raises(ConfigError, match=r"^odd.toml: terms.flops: "):
        command(base=str(file))


def test_seconds_are_those_of_a_step():
    """With a clock that jumps by a tick whenever it is read, the one step of a burst takes a tick.

    A share of 2.5 ticks takes bursts of 1, 2 and 4 steps: 3 ticks for 7 steps.
    """
    found = time_steps(["mlr_syn"], [2, 3], 0.0, clocks=ticking())
    assert [(t.network, t.batch, t.seconds) for t in found.timings] == [("mlr_syn", 2, TICK_S), ("mlr_syn", 3, TICK_S)]
    # two readings before the share is divided, among five turns and what comes before them
    [shared] = time_steps(["mlr_syn"], [2], (6 * 2.5 + 1) * TICK_S, clocks=ticking()).timings
    assert (shared.seconds, shared.shape) == (pytest.approx(3 * TICK_S / 7), (60,))
    assert shared.amounts["update_bytes"] == 28 * 610


def test_the_time_that_was_asked_for_is_kept_and_progress_is_told():
    """A clock of one second a reading: two networks are timed whatever it takes, and then no more begin."""
    said = []
    networks = ["mlr_syn", "mlr", "mlp", "fcnn", "exits"]
    found = time_steps(networks, [2], 0.0, clocks=ticking(1.0), tell=said.append)
    assert [timing.network for timing in found.timings] == ["mlr_syn", "mlr"]
    assert "building mlr, 2 of 5" in said and said[-1] == "not timed within 0 s: mlp, fcnn, exits"


@full
def test_networks_of_texts_and_of_users_are_timed():
    """Tokens are noise like images; a class from outside needs a shape of its inputs."""
    found = time_steps(["lstm_char@3", "benchmarks.own_networks:OwnLstm@5"], [2], 0.0, clocks=ticking())
    assert {timing.shape for timing in found.timings} == {(3,), (5,)}
    assert all(timing.amounts["flops"] > 0 for timing in found.timings)


def test_a_host_that_computes_otherwise_is_warned_of(monkeypatch, capsys):
    """Wall seconds are three times the CPU seconds."""
    timed(monkeypatch, [replace(t, cpu_seconds=t.seconds / 3) for t in timings()])
    command()
    assert "warning: steps took 3 times their CPU seconds, because other processes compute" in capsys.readouterr().err


def test_the_rate_of_a_product_of_matrices():
    """2 x 1024^3 FLOPs in a tick of the stand-in; and of this host's own clock, what a CPU can have."""
    ticks = itertools.count()
    assert peak_rate(1, lambda: TICK_S * next(ticks)) == 2 * 1024**3 / TICK_S
    assert 1e8 < peak_rate() < 1e13


def test_a_real_run(tmp_path, capsys, monkeypatch):
    """Two small networks: the profile file describes this host and can be a fleet block; nothing global has moved."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    out, share = tmp_path / "host.toml", tmp_path / "steps.csv"
    for limit in ("MOST_ERROR", "MOST_RATE", "MOST_NOISE"):  # two networks say little, and tests run side by side
        monkeypatch.setattr(measuring, limit, float("inf"))
    command(out=out, share=share, models=["mlr", "cnn_digits"], base="x86_thread", batch=[2, 32], seconds=0.05)
    assert (torch.get_num_threads(), torch.equal(torch.get_rng_state(), state)) == (threads, True)
    printed, told = capsys.readouterr()
    assert "building cnn_digits, 2 of 2" in told
    assert re.search(r"networks left out: mean error \d+%, predictions [\d.]+ to [\d.]+ times the", printed)
    profile = device_profiles.find(str(out))
    assert FleetBlock.model_validate(profile.block()).cpu.flops_per_s == pytest.approx(profile.flops_per_s)
    rows = pd.read_csv(share, comment="#")
    assert rows["model"].tolist().count("cnn_digits") == 2 and (rows["seconds"] > 0).all()


def test_a_contribution_has_the_steps_and_the_profile():
    """The comments are the profile file; the rows have seconds and all amounts of the fit."""
    found = timings()
    profile = calibrate(found).profile("host", "a host", 2026)
    text = contribution(found, profile)
    comments = [line[2:] for line in text.splitlines() if line.startswith("#")]
    assert profile_of("host", tomllib.loads("\n".join(comments))) == profile
    rows = pd.read_csv(io.StringIO(text), comment="#")
    assert rows["seconds"].to_numpy() == pytest.approx([t.seconds for t in found], rel=1e-5)
    assert rows[list(KINDS)].to_numpy() == pytest.approx(np.array([[t.amounts[k] for k in KINDS] for t in found]))
    assert set(rows["input"]) == {"3x8x8"} and set(rows["device"]) == {"host"}


def test_the_report_as_json(monkeypatch, capsys):
    """Programs get profile, residuals and errors."""
    timed(monkeypatch, timings())
    command(as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["profile"]["flops_per_s"] == pytest.approx(5e10)
    assert len(report["residuals"]) == 22 and report["base"] is None and report["powers"] is None
    assert report["left_out_ratio"] == pytest.approx([1.0, 1.0])
    assert report["mean_error"] < 1e-6


def test_watts_of_a_meter_are_in_the_profile(tmp_path, monkeypatch, capsys):
    """A log that covers an idle and a busy time: 2 W, and 5 W while it trained."""
    timed(monkeypatch, timings())
    monkeypatch.setattr(measuring, "time_steps", lambda *_: Measurement(timings(), Span(20.0, 40.0)))
    monkeypatch.setattr(measuring, "rest", lambda _: Span(0.0, 10.0))
    log = tmp_path / "watts.csv"
    log.write_text("time,watts\n" + "".join(f"{second},{2 if second < 15 else 5}\n" for second in range(41)))
    out = tmp_path / "host.toml"
    command(out=out, power=log)
    si = device_profiles.find(str(out)).si
    assert (si["idle"], si["busy"]) == (2.0, 5.0)
    assert "power: 2 W + " in capsys.readouterr().out
    log.write_text("time,watts\n0,2\n1,2\n2,2\n30,5\n31,5\n")
    with pytest.raises(ConfigError, match=r"watts.csv line 5: 28 s without a sample, where samples are 1 s apart"):
        command(out=out, power=log)


def test_the_networks_show_all_kinds_of_layers():
    """Eight networks, of images and of texts, and three of them for a quick calibration."""
    assert len(NETWORKS) == 8 and set(QUICK) < set(NETWORKS) and len(QUICK) == 3
    assert {"lstm_char@20", "transformer_char"} < set(NETWORKS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": ["mlr"]}, "needs at least two networks, got mlr"),
        ({"models": ["mlr", "cnn_digit"]}, "did you mean 'cnn_digits'"),
        ({"models": ["mlr", "cnn_digits@3x"]}, "'cnn_digits@3x' must end with a shape such as @3x64x64"),
        ({"models": ["mlr"], "batch": [0]}, r"needs batches of at least one sample, got \[0\]"),
        ({"cpu_time": True, "threads": 2}, "--cpu-time: counts one thread, got --threads 2"),
        ({"base": "raspberry_pi_44"}, "did you mean 'raspberry_pi_4'"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(options, message):
    """One line that says what is wrong."""
    with pytest.raises(ConfigError, match=message):
        command(seconds=0.0, **options)


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path, monkeypatch):
    """Before a minute of timing."""
    monkeypatch.setattr(measuring, "time_steps", None)
    with pytest.raises(ConfigError, match=r"host.json must end with .toml"):
        command(tmp_path / "host.json")
    with pytest.raises(ConfigError, match="is not a folder"):
        command(tmp_path / "none" / "host.toml")
    with pytest.raises(ConfigError, match="is not a folder"):
        command(share=tmp_path / "none" / "steps.csv")
