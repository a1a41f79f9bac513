"""Seconds of a computation by kind of layer: what calibration predicts is what a device takes in a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.config import device_profiles
from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import WHOLE, ChannelGroup, CostProfile, LayerCost
from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Pass, Submodel, Task
from edgesim.engine.pricing import Pricer
from edgesim.learning.cost_models.measured import Measured
from edgesim.runs.calibrate import Fit, work_of
from tests.conftest import assemble, frames, simulate_null, timing_scenario

BATCH, SAMPLES = 20, 500  # 25 steps
# LeNet-5 by hand, as in test_calibrate: FLOPs of a training sample, 2 convolutions, 3 other layers, 62,006 parameters.
CONVOLUTION, LINEAR, PARAMETER_BYTES = 2 * (2 * 352_800 + 3 * 240_000), 2 * 3 * (48_000 + 10_080 + 840), 4 * 62_006
RATES = {"convolution_flops_per_s": "20 GFLOP/s", "linear_flops_per_s": "5 GFLOP/s"}
TERMS = {"convolution_overhead": "300 us", "linear_overhead": "50 us", "parameter_bandwidth": "8 GB/s"}
STEP_S = 2 * 300e-6 + 3 * 50e-6 + BATCH * (CONVOLUTION / 20e9 + LINEAR / 5e9) + PARAMETER_BYTES / 8e9
PROFILE = """title = "A host"
""" + "".join(
    f'[{name}]\nvalue = {value.split()[0]}\nunit = "{value.split()[1]}"\nsource = "test"\nyear = 2026\n'
    for name, value in {"flops_per_s": "9 GFLOP/s", **RATES, **TERMS}.items()
)


def lenet(cpu: dict[str, Any], **changes: Any) -> edgesim.Scenario:
    """LeNet-5 on one device of this CPU, 25 steps of 20 samples."""
    fleet = [{"cpu": {"flops_per_s": "9 GFLOP/s", **cpu}}]
    return timing_scenario(**{"model": "lenet5", "fleet": fleet, **changes})


def job_of(scenario: edgesim.Scenario) -> Any:
    """Return the first job of a run."""
    return frames(simulate_null(scenario))["jobs"].iloc[0]


def test_a_calibrated_profile_takes_what_calibration_predicts(tmp_path):
    """One job = 25 steps of the fit; its FLOPs are those of one rate."""
    path = tmp_path / "host.toml"
    path.write_text(PROFILE)
    si = device_profiles.find(path).si
    fit = Fit({t: si[q] if q.endswith("overhead") else 1 / si[q] for t, q in device_profiles.LAYER_KINDS.items()})
    scenario = lenet({}, fleet=[{"profile": str(path)}])
    job = job_of(scenario)
    assert job["compute_s"] == pytest.approx(25 * STEP_S, rel=1e-12)
    assert job["compute_s"] == pytest.approx(
        25 * fit.seconds(work_of(assemble(scenario).setting.cost_profile, BATCH)), 1e-12
    )
    assert job["flops"] == 25 * BATCH * (CONVOLUTION + LINEAR)


def test_a_profile_of_whole_steps_passes_its_overhead(tmp_path):
    """2 ms a step, and FLOPs at one rate."""
    path = tmp_path / "host.toml"
    given = {"flops_per_s": ("9", "GFLOP/s"), "step_overhead": ("2", "ms")}
    tables = [f'[{k}]\nvalue = {v}\nunit = "{u}"\nsource = "test"\nyear = 2026\n' for k, (v, u) in given.items()]
    path.write_text('title = "A host"\n' + "".join(tables))
    job = job_of(lenet({}, fleet=[{"profile": str(path)}]))
    assert job["compute_s"] == pytest.approx(25 * (2e-3 + BATCH * (CONVOLUTION + LINEAR) / 9e9))


def test_a_term_that_calibration_did_not_see_takes_no_time(tmp_path):
    """A profile without a rate of other layers: they take their overhead alone. A speed given replaces all terms."""
    path = tmp_path / "host.toml"
    path.write_text(
        PROFILE.replace("[linear_flops_per_s]", "[memory]").replace('5\nunit = "GFLOP/s"', '5\nunit = "GB"')
    )
    job = job_of(lenet({}, fleet=[{"profile": str(path)}]))
    assert job["compute_s"] == pytest.approx(25 * (STEP_S - BATCH * LINEAR / 5e9))
    for speed in ("1 GFLOP/s", "2 GFLOP/s"):
        job = job_of(lenet({}, fleet=[{"profile": str(path), "cpu": {"flops_per_s": speed}}]))
        assert job["compute_s"] == job["flops"] / (float(speed[0]) * 1e9)


def test_a_new_frequency_replaces_rates_measured_at_another(tmp_path):
    """Where the speed follows from the frequency, rates of another frequency do not stay; elsewhere they do."""
    product = {"frequency": ("2", "GHz"), "cores": ("4", ""), "flops_per_cycle": ("8", "")}
    more = [f'[{k}]\nvalue = {v}\nunit = "{u}"\nsource = "test"\nyear = 2026\n' for k, (v, u) in product.items()]
    (tmp_path / "product.toml").write_text(PROFILE + "".join(more))
    (tmp_path / "rate.toml").write_text(PROFILE)
    for name, kept in (("product", False), ("rate", True)):
        block = device_profiles.find(tmp_path / f"{name}.toml").merged({"cpu": {"frequency": "1 GHz"}})
        assert ("linear_flops_per_s" in block["cpu"], "linear_overhead" in block["cpu"]) == (kept, kept)


def test_slower_clocks_stretch_all_of_it():
    """At half the highest frequency a job takes twice as long, overheads included; joules are power x seconds."""
    governor = {"name": "fixed", "frequency": "1 GHz"}
    cpu = {"frequency": "2 GHz", "min_frequency": "0.5 GHz", "governor": governor, **RATES, **TERMS}
    job = job_of(lenet(cpu, energy={"name": "cpu", "capacitance": 1e-28}))
    assert job["compute_s"] == pytest.approx(2 * 25 * STEP_S)
    assert job["compute_j"] == pytest.approx(1e-28 * 1e9**3 * 2 * 25 * STEP_S)


def test_published_ratios_know_no_layers():
    """With a table of relative costs, seconds are FLOPs over one rate, bit for bit, as without any terms."""
    changes = {"cost": {"name": "table", "ratios": [1.0]}}
    plain, itemised = job_of(lenet({}, **changes)), job_of(lenet({**RATES, **TERMS}, **changes))
    assert itemised["compute_s"] == plain["compute_s"] == plain["flops"] / 9e9


def test_blocks_may_differ():
    """Rates by layer kind of one block leave the other alone."""
    fleet = [{"cpu": {"flops_per_s": "9 GFLOP/s", **RATES, **TERMS}}, {"count": 2, "cpu": {"flops_per_s": "9 GFLOP/s"}}]
    jobs = frames(simulate_null(lenet({}, fleet=fleet)))["jobs"].sort_values("device")
    plain_s = 25 * BATCH * (CONVOLUTION + LINEAR) / 9e9
    assert jobs["compute_s"].tolist() == pytest.approx([25 * STEP_S, plain_s, plain_s])


def test_terms_may_be_spread():
    """Each device has a cost of its own; more devices leave the first as they were."""
    spread = {**RATES, "linear_overhead": {"uniform": ["1 ms", "3 ms"]}}
    seconds = []
    for count in (3, 5):
        fleet = [{"count": count, "cpu": {"flops_per_s": "9 GFLOP/s", **spread}}]
        seconds.append(frames(simulate_null(lenet({}, fleet=fleet)))["jobs"].sort_values("device")["compute_s"])
    overhead_s = (seconds[0] - 25 * BATCH * (CONVOLUTION / 20e9 + LINEAR / 5e9)) / (25 * 3)
    assert overhead_s.between(1e-3, 3e-3).all()
    assert overhead_s.nunique() == 3
    assert seconds[0].tolist() == seconds[1].tolist()[:3]


@pytest.mark.parametrize(
    ("cpu", "message"),
    [
        ({"linear_overhead": "1 ms"}, "linear_overhead needs convolution_flops_per_s as well"),
        ({"linear_flops_per_s": "1 GFLOP/s"}, "linear_flops_per_s needs convolution_flops_per_s as well"),
        ({"convolution_flops_per_s": "1 GFLOP/s"}, "convolution_flops_per_s needs linear_flops_per_s as well"),
        ({**RATES, "parameter_bandwidth": 0}, "parameter_bandwidth: must be above 0 byte/s, got 0"),
        ({**RATES, "linear_overhead": "-1 ms"}, "linear_overhead: must be at least 0 s, got '-1 ms'"),
        ({"step_overhead": "1 GHz"}, "step_overhead: '1 GHz' is not a time"),
    ],
)
def test_half_a_speed_is_refused(cpu, message):
    """Rates of both kinds or of none, and no impossible numbers."""
    with pytest.raises(ConfigError, match=message):
        lenet(cpu)


def test_the_canonical_scenario_is_an_equal_one():
    """Infinite rates survive being written."""
    scenario = lenet({**RATES, "linear_flops_per_s": "inf", "step_overhead": "1 ms"})
    assert load_scenario(scenario.canonical()) == scenario


# --- what work consists of ------------------------------------------------------------------------------------

# 10 FLOPs a weight in "a", 2 in "b": a is a convolution.
CARD = CostProfile(
    "hand",
    (4,),
    2,
    (
        LayerCost("a", "Conv2d", 24, 0, 240.0, 240.0, 0.0, frozenset(), weights=24, rows="a"),
        LayerCost("b", "Linear", 12, 0, 24.0, 24.0, 24.0, frozenset({"a"}), weights=12, columns="a"),
    ),
    groups=(ChannelGroup("a", 6),),
)
THIRD = Submodel(channels=(("a", (0, 5)),))
COUNTED = Measured()
DONE, STEPS = np.array([10.0, 20.0]), np.array([2.0, 4.0])


def amounts(work: Pass, submodel: Submodel = WHOLE, cost: Measured = COUNTED) -> dict[str, float]:
    """Return the terms of the first of two devices; the other does twice as much unless the amount is given."""
    found = cost.amounts(CARD, work, submodel, DONE, STEPS)
    once = {term: float(amount[0]) for term, amount in found.items()}
    if work.samples is None and work.kind != "flops":
        assert {term: float(amount[1]) for term, amount in found.items()} == {t: 2 * once[t] for t in once}
    return once


def test_training_by_terms():
    """Ten samples in two steps: both layers run twice; frozen and thinner ones run too, with fewer FLOPs or bytes."""
    whole = {"steps": 2, "flops": 5520, "convolutions": 2, "convolution_flops": 4800, "linears": 2}
    whole |= {"linear_flops": 720, "parameter_bytes": 2 * 4 * 36}
    assert amounts(Pass()) == whole
    frozen = amounts(Pass(), Submodel(frozen=frozenset({"a"})))
    assert frozen == {**whole, "flops": 2400 + 480, "convolution_flops": 2400, "linear_flops": 480}
    thin = amounts(Pass(), THIRD)
    assert thin == {
        **whole, "flops": 1840, "convolution_flops": 1600, "linear_flops": 240, "parameter_bytes": 2 * 4 * 12,
    }  # fmt: skip
    masked = amounts(Pass(), Submodel(nnz=(("a", 6),)), Measured(sparse="ideal"))
    assert (masked["convolution_flops"], masked["linear_flops"]) == (1200, 720)
    updates = amounts(Pass(), cost=Measured(include="all"))
    assert updates == {**whole, "flops": 5520 + 2 * 2 * 36, "linear_flops": 720 + 2 * 2 * 36}


@pytest.mark.parametrize(
    ("work", "convolution_flops", "linear_flops"),
    [
        (Pass("forward"), 2400, 240),
        (Pass(samples=3, times=2.0), 2880, 432),
        (Pass("param_step"), 0, 72),
        (Pass("flops", times=5.0), 0, 5),
    ],
)
def test_other_work_has_no_overhead(work, convolution_flops, linear_flops):
    """Only its FLOPs count, and only layers can be convolutions."""
    found = amounts(work)
    assert (found["convolution_flops"], found["linear_flops"]) == (convolution_flops, linear_flops)
    assert found["flops"] == convolution_flops + linear_flops
    assert [found[term] for term in ("steps", "convolutions", "linears", "parameter_bytes")] == [0, 0, 0, 0]


def test_passes_add_up():
    """A task of training and one forward pass takes the seconds of both."""
    parts = assemble(lenet({**RATES, **TERMS}))
    sgd = parts.setting.training.local_sgd(0)
    ids = np.array([0])
    draws = Draws(Key(1), ids, ids)
    both = Task(local_sgd=(sgd,), passes=(Pass(), Pass("forward", times=2.0)))
    [seconds] = Pricer(parts.fleet, parts.setting).prices([Order(0, both)], 0.0, draws).compute_s
    forward_s = SAMPLES * (2 * (352_800 + 240_000) / 20e9 + 2 * (48_000 + 10_080 + 840) / 5e9)
    assert seconds == pytest.approx(25 * STEP_S + 2 * forward_s)
