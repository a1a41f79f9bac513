"""Runs timed again with draws of the clocks' errors, and studies whose orders depend on them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgesim.core.clock_error import clock_factor
from edgesim.core.errors import ConfigError
from edgesim.core.work import interval_factor
from edgesim.reports.load import open_run
from edgesim.runs.estimate import estimate
from edgesim.runs.retiming import retimed
from edgesim.runs.simulate import simulate
from edgesim.studies import clock_intervals
from tests.calling import call
from tests.conftest import digits_scenario, timing_scenario
from tests.sizes import full

STUDY = """
name = "boards"
question = "Which board is faster?"
base = "base.toml"
columns = ["sim_time_s", "energy_j"]

[axes.board]
a = ["fleet.0.cpu={flops_per_s = '1 GFLOP/s', spread = 0.2, board = 'a'}"]
b = ["fleet.0.cpu={flops_per_s = '1.02 GFLOP/s', spread = 0.2, board = 'b'}"]
faster-a = ["fleet.0.cpu={flops_per_s = '1.02 GFLOP/s', spread = 0.2, board = 'a'}"]

[axes]
seed = [1]
"""
BASE = """
partition = { name = "sizes", samples_per_device = 500 }
model = "cnn_cifar10"
method = "fedavg"
backend = "null"
stop = { rounds = 2 }
fleet = [{ cpu = { flops_per_s = "1 GFLOP/s" } }]
"""
BOARD = {"cpu": {"flops_per_s": "30 MFLOP/s", "spread": 0.2, "board": "pi"}}


def test_an_estimate_of_computing_alone_has_the_quantiles_of_its_factors() -> None:
    """Without transfers all seconds are proportional to the factor of the only board."""
    found = estimate(timing_scenario(fleet=[{"cpu": {"flops_per_s": "1 GFLOP/s", "spread": 0.2}}]), draws=20)
    factors = [clock_factor(draw, 0.2, "block0", "cnn_cifar10") for draw in range(1, 21)]
    ends = np.array(found.spread_totals["sim_time_s"]) / found.totals["sim_time_s"]
    assert ends == pytest.approx(np.quantile(factors, [0.05, 0.5, 0.95]), rel=1e-9)
    assert found.spread_blocks is not None
    assert found.spread_blocks["seconds_high"][0] / found.blocks["seconds"][0] == pytest.approx(ends[2], rel=1e-9)


def test_a_trained_run_is_timed_again_and_keeps_its_evaluations() -> None:
    """What a synchronous round learns does not depend on clocks; when it learns it does."""
    run = simulate(digits_scenario(network="ideal", fleet=[{"count": 10, **BOARD}], stop={"rounds": 2}))
    again = retimed(run, 20)
    assert again.changed == 0
    for draw, drawn in enumerate(again.runs, 1):
        factor = clock_factor(draw, 0.2, "pi", "cnn_digits")
        assert drawn.rounds["now_s"].to_numpy() == pytest.approx(factor * run.rounds["now_s"].to_numpy())
        curve = drawn.accuracy_curve()
        assert curve["accuracy"].tolist() == run.accuracy_curve()["accuracy"].tolist()
        assert curve["sim_time_s"].to_numpy() == pytest.approx(factor * run.accuracy_curve()["sim_time_s"].to_numpy())


def test_draws_that_would_have_taught_another_model_are_counted() -> None:
    """Two boards in a buffer of one: which of them comes first depends on their clocks."""
    boards = [{**BOARD, "cpu": {**BOARD["cpu"], "board": name}} for name in "ab"]
    boards[1]["cpu"]["flops_per_s"] = "29 MFLOP/s"
    given = {"protocol": {"name": "buffered", "concurrency": 2, "buffer": 1}, "method": "fedbuff"}
    scenario = timing_scenario(model="lenet5", fleet=boards, stop={"rounds": 6}, **given)
    assert 0 < retimed(simulate(scenario), 20).changed <= 20


@full
def test_an_order_that_depends_on_clocks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards of 1 and 1.02 GFLOP/s keep their order in about half of the draws; two of one board in all of them."""
    known = cache(lambda folder, draws: retimed(open_run(folder), draws))  # the same for all commands
    monkeypatch.setattr(clock_intervals, "retimed", lambda run, draws: known(run.folder, draws))
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "study.toml").write_text(STUDY)
    study, place = str(tmp_path / "study.toml"), ["--runs", str(tmp_path / "runs")]
    call("study", "run", study, *place)
    options = [*place, "--baseline", "board=a", "--column", "sim_time_s", "--intervals", "20"]
    rows = json.loads(call("study", "compare", study, *options, "--json").out)["rows"]
    shares = {row["board"]: row["order_holds"] for row in rows}
    pairs = [[clock_factor(draw, 0.2, board, "cnn_cifar10") for board in "ab"] for draw in range(1, 21)]
    assert shares["b"] == pytest.approx(np.mean([a > b / 1.02 for a, b in pairs]))
    assert shares["faster-a"] == 1.0
    told = call("study", "compare", study, *options).out
    assert f"the order of board=b and board=a holds in {shares['b']:.0%} of 20 draws" in told
    assert "the order of board=faster-a" not in told
    table = call("study", "table", study, *place, "--intervals", "20").out
    assert "90 % intervals over 20 draws of the clocks' errors" in table
    page = tmp_path / "report.html"
    call("report", study, *place, "--intervals", "20", "--out", str(page))
    assert "Errors of the devices&#39; clocks" in page.read_text()


def test_explain_has_the_closed_form_of_a_computation(tmp_path: Path) -> None:
    """Predicted seconds over and times the factor of the spread."""
    simulate(timing_scenario(fleet=[{"cpu": {"flops_per_s": "1 GFLOP/s", "spread": 0.2}}]), tmp_path / "run")
    told = call("explain", str(tmp_path / "run"), "--round", "1", "--intervals").out
    assert f"(x/: {interval_factor(0.2):.3g})" in told
    simulate(timing_scenario(), tmp_path / "bare")
    told = call("explain", str(tmp_path / "bare"), "--round", "1", "--intervals").err
    assert "no device of bare has a spread" in told


def test_intervals_of_fleets_without_a_spread_are_refused() -> None:
    """In one line that says what to give."""
    with pytest.raises(ConfigError, match=r"--intervals: no device has a spread; name a profile, or give fleet\.0"):
        estimate(timing_scenario(), draws=20)
