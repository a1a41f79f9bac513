"""Seconds by kind of work: a sum of terms, of which some follow the clock frequency and others do not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Pass, Submodel, Task
from edgesim.core.work import PRICED
from edgesim.core.workload import full_speed_s
from edgesim.engine.history import expected_of
from edgesim.engine.pricing import Pricer
from edgesim.learning.cost_models.measured import Measured
from edgesim.runs.estimate import estimate
from edgesim.runs.simulate import simulate
from edgesim.world.clocks.base import CpuSpeeds
from edgesim.world.clocks.flops import FlopsClock
from edgesim.world.clocks.terms import CLOCKED, TermsClock
from tests.conftest import assemble, frames, simulate_null, timing_scenario

BATCH, SAMPLES, STEPS = 20, 500, 25
# LeNet-5 by hand: FLOPs of a training sample, of 2 convolutions and 3 other layers; half a byte each by `ByKind`.
FLOPS = SAMPLES * (2 * (2 * 352_800 + 3 * 240_000) + 2 * 3 * (48_000 + 10_080 + 840))
TERMS = {"name": "terms", "flops": "0.1 ns", "bytes": "0.4 ns", "samples": "1 us", "steps": "2 ms"}
CLOCKED_S, MEMORY_S = 1e-10 * FLOPS + 1e-6 * SAMPLES + 2e-3 * STEPS, 4e-10 * 0.5 * FLOPS


def lenet(cpu: dict[str, Any], **changes: Any) -> edgesim.Scenario:
    """LeNet-5 on one device of this CPU, 25 steps of 20 samples."""
    fleet = [{"cpu": {"flops_per_s": "9 GFLOP/s", **cpu}}]
    return timing_scenario(**{"model": "lenet5", "cost": "tests.outside.clocks:ByKind", "fleet": fleet, **changes})


def job_of(scenario: edgesim.Scenario) -> Any:
    """Return the first job of a run."""
    return frames(simulate_null(scenario))["jobs"].iloc[0]


def test_a_job_takes_the_sum_of_its_terms() -> None:
    """Amount x seconds of one unit; FLOPs are counted as ever, and kinds without a price take no time."""
    job = job_of(lenet({"clock": TERMS}))
    assert job["compute_s"] == pytest.approx(CLOCKED_S + MEMORY_S, rel=1e-12)
    assert job["flops"] == FLOPS
    only = job_of(lenet({"clock": {"name": "terms", "steps": "2 ms"}}))
    assert only["compute_s"] == pytest.approx(2e-3 * STEPS)


def test_the_measured_kinds_of_a_network_are_priced() -> None:
    """All that is measured of a step, and nothing where no clock asks for it."""
    prices = {
        "flops": 1e-10,
        "bytes": 4e-10,
        "conv_bytes": 1e-9,
        "operations": 1e-6,
        "update_bytes": 2e-9,
        "steps": 1e-3,
    }
    scenario = lenet({"clock": {"name": "terms", **prices}}, cost="measured")
    profile = assemble(scenario).setting.cost_profile
    samples, steps = np.array([float(SAMPLES)]), np.array([float(STEPS)])
    amounts = Measured().amounts(profile, Pass(), Submodel(), samples, steps)
    assert amounts["flops"] == FLOPS and amounts["update_bytes"] == STEPS * 28 * profile.params
    assert min(amounts[kind][0] for kind in prices) > 0
    expected_s = sum(price * amounts[kind][0] for kind, price in prices.items())
    assert job_of(scenario)["compute_s"] == pytest.approx(expected_s)
    assert assemble(lenet({}, cost="measured")).setting.cost_profile.work is None


def test_each_kind_has_a_price_and_a_share() -> None:
    assert [each.name for each in fields(TermsClock)] == [*PRICED, "clocked"]
    assert [kind for kind, share in CLOCKED.items() if not share] == ["bytes", "update_bytes"]
    speeds, ids = CpuSpeeds(np.array([2e9]), np.array([1e9])), np.array([0])
    amounts = {kind: np.array([float(place + 1)]) for place, kind in enumerate(PRICED)}
    amounts["other_flops"] = np.array([4e9])
    clock = TermsClock(**{kind: 10.0**place for place, kind in enumerate(PRICED)}).build(1, speeds, Key(1), "clock")
    work = clock.work(ids, np.zeros(1), amounts)
    memory_s = sum((p + 1) * 10.0**p for p, kind in enumerate(PRICED) if not CLOCKED[kind])
    assert work.memory_s.tolist() == [memory_s]
    clocked_s = 2.0 + sum((p + 1) * 10.0**p for p in range(len(PRICED))) - memory_s  # 4 GFLOP at 2 GFLOP/s
    assert work.cycles == pytest.approx([clocked_s * 1e9])


def test_slower_clocks_stretch_what_follows_them() -> None:
    """At half the highest frequency cycles take twice as long, memory as long as before; joules are power x seconds."""
    governor = {"name": "fixed", "frequency": "1 GHz"}
    cpu = {"frequency": "2 GHz", "min_frequency": "0.5 GHz", "governor": governor, "clock": TERMS}
    job = job_of(lenet(cpu, energy={"name": "cpu", "capacitance": 1e-28}))
    assert job["compute_s"] == pytest.approx(2 * CLOCKED_S + MEMORY_S)
    assert job["compute_j"] == pytest.approx(1e-28 * 1e9**3 * (2 * CLOCKED_S + MEMORY_S))
    half = {**TERMS, "clocked": {"bytes": 0.5, "steps": 0.0}}
    job = job_of(lenet({**cpu, "clock": half}))
    assert job["compute_s"] == pytest.approx(2 * CLOCKED_S + 1.5 * MEMORY_S - 2e-3 * STEPS)


def test_a_governor_meets_a_deadline_with_what_follows_the_clock() -> None:
    """Just in time: the memory's seconds are taken off the deadline before the frequency is chosen."""
    cpu = {"frequency": "2 GHz", "min_frequency": "0.1 GHz", "governor": "just_in_time", "clock": TERMS}
    deadline_s = 3 * (CLOCKED_S + MEMORY_S)
    protocol = {"name": "deadline", "deadline": deadline_s}
    job = job_of(lenet(cpu, energy={"name": "cpu", "capacitance": 1e-28}, network="ideal", protocol=protocol))
    assert job["compute_s"] == pytest.approx(deadline_s)
    hz = 2e9 * CLOCKED_S / (deadline_s - MEMORY_S)
    assert job["compute_j"] == pytest.approx(1e-28 * hz**3 * deadline_s)


def test_one_rate_is_the_usual_clock_to_the_last_bit() -> None:
    """Also where a cost model knows no kinds: then terms do not count."""
    plain = job_of(lenet({}))["compute_s"]
    assert plain == FLOPS / 9e9 == job_of(lenet({"clock": "flops"}))["compute_s"]
    job = job_of(lenet({"clock": TERMS}, cost={"name": "fedpmt_paper"}))
    assert job["compute_s"] == job["flops"] / 9e9
    parts = assemble(lenet({}))
    assert parts.setting.speeds is None and not parts.setting.kinds and not FlopsClock.needs_kinds


@pytest.mark.parametrize("clock", ["flops", TERMS], ids=["flops", "terms"])
def test_bytes_of_payloads_may_take_seconds(clock: Any) -> None:
    """Those of model and update: 4 bytes a number each way. They follow the frequency, and draw the power of a CPU."""
    link = {"name": "fixed", "up": "1 Mbit/s", "down": "1 Mbit/s"}
    slow = {"clock": clock, "frequency": "2 GHz", "min_frequency": "1 GHz"}
    slow |= {"governor": {"name": "fixed", "frequency": "1 GHz"}}
    given = {"network": link, "energy": {"name": "power", "idle": "1 W", "busy": "4 W"}}
    base, job = (job_of(lenet({**slow, "per_byte": per_byte}, **given)) for per_byte in (0.0, "50 ns"))
    assert job["down_bytes"] == job["up_bytes"] == 4 * 62_006
    assert job["compute_s"] - base["compute_s"] == pytest.approx(2 * 50e-9 * 8 * 62_006)
    assert job["compute_j"] == pytest.approx(3.0 * job["compute_s"])
    assert job["end_s"] - base["end_s"] == pytest.approx(2 * 50e-9 * 8 * 62_006)


@pytest.mark.parametrize("clock", ["flops", TERMS], ids=["flops", "terms"])
def test_plans_and_estimates_see_the_bytes_of_payloads(clock: Any) -> None:
    """With the update in 2 bytes a number; a device without seconds a byte stays as it is."""
    cpu = {"flops_per_s": "9 GFLOP/s", "clock": clock}
    fleet = [{"cpu": cpu}, {"cpu": {**cpu, "per_byte": "1 us"}}]
    scenario = lenet({}, fleet=fleet, network="ideal", encoding={"up": "float16"})
    parts, ids = assemble(scenario), np.array([0, 1])
    task, moved_s = Task(local_sgd=(parts.setting.training.local_sgd(0),)), 6e-6 * 62_006
    base_s = FLOPS / 9e9 if clock == "flops" else CLOCKED_S + MEMORY_S
    assert full_speed_s(task, parts.setting, ids) == pytest.approx([base_s, base_s + moved_s])
    assert expected_of(parts.fleet, parts.setting, ids).compute_s == pytest.approx([base_s, base_s + moved_s])
    assert estimate(scenario).totals["sim_time_s"] == pytest.approx(base_s + moved_s)
    # seconds a byte alone need no kinds of work
    assert (parts.setting.cost_profile.work is None) == (clock == "flops")


def test_bfloat16_speeds_up_the_network_and_nothing_else() -> None:
    """A quarter of the seconds of its FLOPs. Bytes, samples, steps and the optimiser take as long as in float32."""
    training, power = {"batch": BATCH, "precision": "bfloat16"}, {"name": "power", "idle": "1 W", "busy": "4 W"}
    job = job_of(lenet({"bfloat16_speedup": 4}, training=training, energy=power))
    assert (job["flops"], job["compute_s"]) == (FLOPS, pytest.approx(FLOPS / 9e9 / 4))
    assert job["compute_j"] == pytest.approx(3.0 * FLOPS / 9e9 / 4)
    scenario = lenet({"bfloat16_speedup": 4, "clock": TERMS}, training=training, network="ideal")
    parts, terms_s = assemble(scenario), CLOCKED_S - 0.75 * 1e-10 * FLOPS + MEMORY_S
    task, ids = Task(local_sgd=(parts.setting.training.local_sgd(0),)), np.array([0])
    assert job_of(scenario)["compute_s"] == pytest.approx(terms_s)
    assert full_speed_s(task, parts.setting, ids) == pytest.approx([terms_s])
    assert expected_of(parts.fleet, parts.setting, ids).compute_s == pytest.approx([terms_s])
    every = {"name": "measured", "include": "all"}
    job, update_flops = job_of(lenet({"bfloat16_speedup": 4}, training=training, cost=every)), 2 * 62_006 * STEPS
    assert job["compute_s"] == pytest.approx(((job["flops"] - update_flops) / 4 + update_flops) / 9e9)
    for cpu, precision in ({}, "bfloat16"), ({"bfloat16_speedup": 4}, "float32"):  # the seconds of float32
        job = job_of(lenet(cpu, training={"batch": BATCH, "precision": precision}))
        assert job["compute_s"] == FLOPS / 9e9


def test_blocks_may_differ() -> None:
    """Terms of one block leave the other alone."""
    fleet = [{"cpu": {"flops_per_s": "9 GFLOP/s", "clock": TERMS}}, {"count": 2, "cpu": {"flops_per_s": "9 GFLOP/s"}}]
    jobs = frames(simulate_null(lenet({}, fleet=fleet)))["jobs"].sort_values("device")
    assert jobs["compute_s"].tolist() == pytest.approx([CLOCKED_S + MEMORY_S, FLOPS / 9e9, FLOPS / 9e9])


def test_terms_may_be_spread() -> None:
    """Each device has a price of its own; more devices leave the first as they were."""
    seconds = []
    for count in (3, 5):
        clock = {**TERMS, "steps": {"uniform": ["1 ms", "3 ms"]}}
        fleet = [{"count": count, "cpu": {"flops_per_s": "9 GFLOP/s", "clock": clock}}]
        seconds.append(frames(simulate_null(lenet({}, fleet=fleet)))["jobs"].sort_values("device")["compute_s"])
    of_steps_s = (seconds[0] - (CLOCKED_S + MEMORY_S) + 2e-3 * STEPS) / STEPS
    assert of_steps_s.between(1e-3, 3e-3).all()
    assert of_steps_s.nunique() == 3
    assert seconds[0].tolist() == seconds[1].tolist()[:3]


def test_work_without_layers_is_charged_at_one_rate() -> None:
    """Encoding an update, at `flops_per_s`; a forward pass, by its terms. Passes add up."""
    parts = assemble(lenet({"clock": TERMS}))
    ids, sgd = np.array([0]), parts.setting.training.local_sgd(0)
    task = Task(local_sgd=(sgd,), passes=(Pass(), Pass("forward", samples=0), Pass("flops", times=18e9)))
    [seconds] = Pricer(parts.fleet, parts.setting).prices([Order(0, task)], 0.0, Draws(Key(1), ids, ids)).compute_s
    assert seconds == pytest.approx(CLOCKED_S + MEMORY_S + 1e-6 * SAMPLES + 2e-3 * STEPS + 2.0)


def test_all_who_plan_by_time_see_the_same_seconds() -> None:
    """Methods, selections such as FedCS, Oort and TiFL by `expected_of`, and `estimate`."""
    scenario = lenet({"clock": TERMS}, network="ideal")
    parts, ids, job_s = assemble(scenario), np.array([0]), CLOCKED_S + MEMORY_S
    task = Task(local_sgd=(parts.setting.training.local_sgd(0),))
    assert full_speed_s(task, parts.setting, ids) == pytest.approx([job_s])
    assert expected_of(parts.fleet, parts.setting, ids).compute_s == pytest.approx([job_s])
    assert estimate(scenario).totals["sim_time_s"] == pytest.approx(job_s)


@pytest.mark.parametrize(
    "selection",
    [
        {"name": "fedcs", "uploads": "parallel", "count": 3, "deadline": "10 s"},
        {"name": "tifl", "count": 1, "tiers": 4, "probabilities": [1, 1, 1, 0]},
        {"name": "oort", "count": 2},
    ],
    ids=lambda selection: selection["name"],
)
def test_selections_know_which_device_has_slow_memory(selection: dict[str, Any]) -> None:
    """Four devices of equal FLOP/s: the last one's memory is slow, so two rules never ask it and Oort hardly does."""
    fleet = [
        {"cpu": {"flops_per_s": "9 GFLOP/s", "clock": {**TERMS, "bytes": per_byte}}, "count": count}
        for count, per_byte in ((3, "0.4 ns"), (1, "400 us"))
    ]
    changes = {"model": "mlr", "data": {"name": "digits", "train_limit": 80, "test_limit": 20}, "stop": {"rounds": 8}}
    jobs = simulate(lenet({}, fleet=fleet, selection=selection, partition="iid", backend="serial", **changes)).jobs
    assert (jobs["device"] == 3).mean() < 0.1
    assert set(jobs["device"]) >= {0, 1, 2}


def test_a_clock_of_ones_own() -> None:
    """The longer of arithmetic and traffic: 20 GB/s is enough for 9 GFLOP/s at half a byte each, 1 GB/s is not."""
    for bandwidth, job_s in (("20 GB/s", FLOPS / 9e9), ("1 GB/s", 0.5 * FLOPS / 1e9)):
        clock = {"name": "tests.outside.clocks:Roofline", "bandwidth": bandwidth}
        assert job_of(lenet({"clock": clock}))["compute_s"] == pytest.approx(job_s)


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        ({"name": "terms"}, "clock: needs the seconds of at least one kind of work"),
        ({**TERMS, "bytes": "-1 ns"}, "clock.bytes: must be at least 0 s, got '-1 ns'"),
        ({**TERMS, "steps": "1 GHz"}, "clock.steps: '1 GHz' is not a time"),
        ({**TERMS, "byte": "1 ns"}, "clock.byte: unknown key; did you mean 'bytes'"),
        ({**TERMS, "clocked": {"byte": 1.0}}, "clock.clocked: unknown kind of work 'byte'"),
        ({**TERMS, "steps": {"normal": ["1 ms", "9 ms"]}}, "clock.steps: a value drawn from normal"),
    ],
)
def test_impossible_terms_are_refused(clock: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assemble(lenet({"clock": clock}, fleet=[{"count": 50, "cpu": {"flops_per_s": 1e9, "clock": clock}}]))


def test_the_canonical_scenario_is_an_equal_one() -> None:
    scenario = lenet({"clock": {**TERMS, "clocked": {"bytes": 0.25}}})
    assert load_scenario(scenario.canonical()) == scenario
