"""Calibration: known rates are found again, work is what the layers say, and a real run gives a usable profile."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
import torch

from edgesim.cli.parts import calibrate as command
from edgesim.config import device_profiles
from edgesim.config.plugins import find
from edgesim.config.scenario import FleetBlock
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.runs.calibrate import (
    FORMS,
    Timing,
    Work,
    calibrate,
    fit,
    model_names,
    peak_rate,
    time_steps,
    work_of,
)
from edgesim.runs.network import cost_profile_of

TICK_S = 0.25  # of the stand-in for the clock; a power of two, so that differences are exact


def made_up_work():
    """Six different models at two batch sizes."""
    draw = Key(5).numpy()
    for model in "abcdef":
        per_sample = draw.uniform(1e5, 1e8)
        for batch in (10, 32):
            yield model, batch, Work(flops=float(batch * per_sample))


def by_step(work):
    """Return seconds at 2 ms a step and 50 GFLOP/s."""
    return 2e-3 + work.flops / 50e9


def timings(law):
    """Return the timings of the made-up models under a law."""
    return [Timing(model, batch, work, law(work)) for model, batch, work in made_up_work()]


def si_of(profile):
    """Return the numbers of a profile, to the four digits that it keeps."""
    return {key: pytest.approx(value, rel=1e-3) for key, value in profile.si.items()}


def test_known_rates_of_the_whole_step_are_recovered():
    """Two terms explain the timings, and only their quantities stand in the profile."""
    found = calibrate(timings(by_step))
    assert found.fits["whole step"].seconds_per == {"steps": pytest.approx(2e-3), "flops": pytest.approx(1 / 50e9)}
    assert found.median_error("whole step") < 1e-9
    assert found.best == "whole step"
    assert si_of(found.profile("host", "a host", 2026)) == {
        "terms.steps": 2e-3, "terms.flops": 2e-11, "flops_per_s": 50e9
    }  # fmt: skip


def test_a_model_is_judged_by_the_others():
    """Doubling the seconds of one model makes its own error -1/2: nothing of it is in the fit that predicts it."""
    changed = [replace(t, seconds=2 * t.seconds) if t.model == "c" else t for t in timings(by_step)]
    errors = {(r.timing.model, r.timing.batch): r.error for r in calibrate(changed).residuals["whole step"]}
    assert errors["c", 10] == pytest.approx(-0.5)
    assert errors["c", 32] == pytest.approx(-0.5)


def test_a_term_without_cost_is_none():
    """If steps cost nothing, the profile has no seconds of them; costs are never negative."""
    free = timings(lambda work: work.flops / 50e9)
    assert fit(free, "whole step").seconds_per["steps"] == pytest.approx(0.0, abs=1e-15)
    shrinking = [replace(t, seconds=1e-3 / (1 + t.work.flops / 1e9)) for t in free]
    assert all(min(fit(shrinking, form).seconds_per.values()) >= 0 for form in FORMS)


def test_work_of_a_network():
    """LeNet-5 by hand: multiply-accumulates x 2 FLOPs, x 3 for training, x 2 in the first layer (no input gradient)."""
    plugin, _ = find("model", "lenet5")
    _, cost_profile = cost_profile_of(plugin(), "lenet5", None, None, Key(0))
    convolution = 2 * (2 * 352_800 + 3 * 240_000)
    linear = 2 * 3 * (48_000 + 10_080 + 840)
    assert work_of(cost_profile, 10) == Work(flops=10 * (convolution + linear))


def test_seconds_are_those_of_a_step():
    """With a clock that jumps by a tick whenever it is read, the one step of a burst takes a tick.

    A share of 2.5 ticks takes bursts of 1, 2 and 4 steps: 3 ticks for 7 steps.
    """
    ticks = itertools.count()
    found = time_steps(["mlr_syn"], [2, 3], 0.0, clock=lambda: TICK_S * next(ticks))
    assert [(t.model, t.batch, t.seconds) for t in found] == [("mlr_syn", 2, TICK_S), ("mlr_syn", 3, TICK_S)]
    # two readings before the share is divided, among five turns and what comes before them
    [shared] = time_steps(["mlr_syn"], [2], (6 * 2.5 + 1) * TICK_S, clock=lambda: TICK_S * next(ticks))
    assert shared.seconds == pytest.approx(3 * TICK_S / 7)


def test_the_time_that_was_asked_for_is_kept_and_progress_is_told():
    """A clock of one second a reading, 20 seconds: two models are timed whatever it takes, and then no more begin."""
    ticks, said = itertools.count(), []
    models = ["mlr_syn", "mlr", "mlp", "fcnn", "exits"]
    timed = time_steps(models, [2], 0.0, clock=lambda: float(next(ticks)), tell=said.append)
    assert [timing.model for timing in timed] == ["mlr_syn", "mlr"]
    assert "building mlr, 2 of 5" in said and said[-1] == "not timed within 0 s: mlp, fcnn, exits"
    ticks, begun_s = itertools.count(), []
    wanted = time_steps(models, [2], 14.0, clock=lambda: begun_s.append(next(ticks)) or float(begun_s[-1]))
    assert {"mlr_syn", "mlr"} <= {timing.model for timing in wanted}
    assert begun_s[-1] <= 14 + 5 * len(models)  # from then on each case that is left asks the clock once a turn


def test_a_rate_that_no_network_has_makes_no_profile():
    """By hand: 50 GFLOP/s of steps where a product of matrices has 30 is 1.67 times as much, and 1.25 times of 40."""
    with pytest.raises(ConfigError, match=r"mean 50 GFLOP/s, but a product of matrices has 30 GFLOP/s on one thread"):
        calibrate(timings(by_step), 30e9).profile("host", "a host", 2026)
    assert calibrate(timings(by_step), 40e9).profile("host", "a host", 2026).flops_per_s == pytest.approx(50e9)


def test_a_large_error_of_what_was_left_out_makes_no_profile(monkeypatch, tmp_path):
    """Four models of which two take twenty times as long as their work says: nothing is written."""
    odd = [replace(t, seconds=20 * t.seconds) if t.model in "ab" else t for t in timings(by_step) if t.model in "abcd"]
    found = calibrate(odd)
    assert found.median_error(found.best) > 0.5
    monkeypatch.setattr("edgesim.runs.calibrate.time_steps", lambda models, batches, seconds, tell: odd)
    monkeypatch.setattr("edgesim.runs.calibrate.peak_rate", lambda: float("inf"))
    with pytest.raises(
        ConfigError, match=r"left out are predicted with a median error of \d+%, more than 50%; name more"
    ):
        command(tmp_path / "host.toml", [], [10, 32], 1.0)
    assert list(tmp_path.iterdir()) == []


def test_the_rate_of_a_product_of_matrices():
    """2 x 1024^3 FLOPs in a tick of the stand-in; and of this host's own clock, what a CPU can have."""
    ticks = itertools.count()
    assert peak_rate(lambda: TICK_S * next(ticks)) == 2 * 1024**3 / TICK_S
    assert 1e8 < peak_rate() < 1e13


def test_a_class_from_outside_is_refused_in_a_line():
    """Its inputs are those of a data set, of which calibration has none."""
    model = "tests.plugins.own_networks:Plain"
    with pytest.raises(ConfigError, match=rf"^calibrate: --models takes models that edgesim ships, .* got {model}$"):
        command(None, [model, "mlr"], [2], 0.0)


def test_a_real_run(tmp_path, capsys, monkeypatch):
    """Two small models: the profile file describes this host and can be a fleet block; nothing global has moved."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    out = tmp_path / "host.toml"
    monkeypatch.setattr("edgesim.runs.calibrate.MOST_ERROR", float("inf"))  # two models say little of each other
    monkeypatch.setattr("edgesim.runs.calibrate.MOST_RATE", float("inf"))  # and tests may run side by side
    command(out, ["mlr", "cnn_digits"], [2, 32], 0.05)
    assert (torch.get_num_threads(), torch.equal(torch.get_rng_state(), state)) == (threads, True)
    printed, told = capsys.readouterr()
    assert "building cnn_digits, 2 of 2" in told
    assert re.search(r"left-out models: median error \d+%, predictions [\d.]+ to [\d.]+ times the measured", printed)
    assert "cnn_digits" in printed
    assert "median error" in printed
    profile = device_profiles.find(str(out))
    assert 1e6 < profile.flops_per_s < 1e13
    assert {quantity.source for quantity in profile.quantities.values()} == {"measured on this host"}
    assert FleetBlock.model_validate(profile.block()).cpu.flops_per_s == pytest.approx(profile.flops_per_s)


def test_the_report_as_json(monkeypatch, capsys):
    """Programs get profile, residuals and errors of every form."""
    monkeypatch.setattr("edgesim.runs.calibrate.time_steps", lambda models, batches, seconds, tell: timings(by_step))
    monkeypatch.setattr("edgesim.runs.calibrate.peak_rate", lambda: float("inf"))
    command(None, [], [10, 32], 1.0, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["form"] == "whole step"
    assert report["profile"]["flops_per_s"] == pytest.approx(50e9)
    assert len(report["residuals"]) == 12
    assert report["left_out_ratio"] == pytest.approx([1.0, 1.0])
    assert set(report["median_error"]) == set(report["worst"]) == set(FORMS)


def test_all_models_of_the_catalogue_are_timed_by_default():
    """Dense and convolutional, and no family that needs a member."""
    names = model_names()
    assert {"mlr", "fcnn", "cnn_a", "lenet5", "vgg11", "alexnet_small"} <= set(names)
    assert len(names) >= 9
    assert not any(name.endswith(":") for name in names)


@pytest.mark.parametrize(
    ("models", "batches", "message"),
    [
        (["mlr"], [10], "needs at least two models, got mlr"),
        (["mlr", "cnn_digit"], [10], "did you mean 'cnn_digits'"),
        (["mlr", "cnn_digits"], [0], r"needs batches of at least one sample, got \[0\]"),
        (["mlr", "cnn_digits"], [], r"needs batches of at least one sample, got \[\]"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(models, batches, message):
    """One line that says what is wrong."""
    with pytest.raises(ConfigError, match=message):
        command(None, models, batches, 0.0)


def test_a_file_that_cannot_be_a_profile_is_refused_at_once(tmp_path, monkeypatch):
    """Before a minute of timing."""
    monkeypatch.setattr("edgesim.runs.calibrate.time_steps", None)
    with pytest.raises(ConfigError, match=r"host.json must end with .toml"):
        command(tmp_path / "host.json", [], [10], 1.0)
    with pytest.raises(ConfigError, match="is not a folder"):
        command(tmp_path / "none" / "host.toml", [], [10], 1.0)


def test_timings_without_flops_are_refused():
    """Equal seconds for all say nothing about a speed."""
    constant = [replace(t, seconds=1e-3) for t in timings(by_step)]
    with pytest.raises(ConfigError, match="do not grow with the FLOPs"):
        calibrate(constant).profile("host", "a host", 2026)
