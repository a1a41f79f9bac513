"""Frequencies: the optimum of a cycle's joules, deadlines met with the fewest joules, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import minimize_scalar

from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.compute.governors.cpu import CpuArrays, CpuWork
from edgesim.world.compute.governors.dvfs import PLUGINS, Governor

JOBS = 100


def governor(name: str, **fields: Any) -> Governor:
    part: Governor = TypeAdapter(PLUGINS[name]).validate_python(fields)
    return part


def cpus(n: int, **columns: Any) -> CpuArrays:
    typical = {"min_hz": 0.6e9, "max_hz": 2e9, "cores": 4, "capacitance": 1e-28, "static_w": 0.5, "memory_share": 1}
    return CpuArrays(**{name: np.broadcast_to(float(v), n) for name, v in {**typical, **columns}.items()})


def random_jobs() -> tuple[CpuArrays, np.ndarray, np.ndarray, np.ndarray]:
    """Return CPUs, cycles, seconds of communication and deadlines; some cannot be met, some leave much time."""
    draw = Key(3).numpy()
    cpu = CpuArrays(
        min_hz=draw.uniform(0.3e9, 0.8e9, JOBS),
        max_hz=draw.uniform(1e9, 3e9, JOBS),
        cores=draw.integers(1, 9, JOBS).astype(float),
        capacitance=10 ** draw.uniform(-29, -26.5, JOBS),
        static_w=draw.uniform(0, 3, JOBS),
        memory_share=np.ones(JOBS),
    )
    return cpu, draw.uniform(1e9, 5e11, JOBS), draw.uniform(0, 30, JOBS), draw.uniform(20, 600, JOBS)


def clocked(cycles: np.ndarray) -> CpuWork:
    """Return work whose seconds all follow the clock."""
    return CpuWork(cycles, np.zeros(len(cycles)))


def joules(cpu: CpuArrays, cycles: np.ndarray, frequency_hz: np.ndarray) -> np.ndarray:
    """Dynamic and static energy written out: kappa cores C f^2 + P_static C / f."""
    dynamic = cpu.capacitance * cpu.cores * cycles * frequency_hz**2
    total: np.ndarray = dynamic + cpu.static_w * cycles / frequency_hz
    return total


def test_power_times_time_is_the_energy_of_the_formula():
    """C cycles on each core at f: C / f seconds at kappa cores f^3 + static watts."""
    cpu, cycles, _, _ = random_jobs()
    product = cpu.compute_s(clocked(cycles), cpu.max_hz) * cpu.compute_w(cpu.max_hz)
    assert product == pytest.approx(joules(cpu, cycles, cpu.max_hz), rel=1e-12)


def test_the_optimum_of_a_cycle():
    """(0.8 W / (2 x 1e-28 x 4))^(1/3) = 1 GHz, by hand; without static power the slowest, with much the fastest."""
    best = governor("energy_optimal")
    for static_w, hz in ((0.8, 1e9), (0.0, 0.6e9), (0.8 * 0.6**3 / 2, 0.6e9), (100, 2e9)):
        chosen = best.choose(clocked(np.array([1e9])), np.zeros(1), np.inf, cpus(1, static_w=static_w))
        assert chosen[0] == pytest.approx(hz)


def test_the_optimum_is_where_scipy_finds_it():
    """Bounded numerical minimisation of the joules agrees for every random CPU."""
    cpu, cycles, comm_s, deadline_s = random_jobs()
    chosen = governor("energy_optimal").choose(clocked(cycles), comm_s, deadline_s, cpu)
    for i in range(JOBS):
        one = cpu.rows(np.array([i]))
        found = minimize_scalar(
            lambda hz, one=one, i=i: joules(one, cycles[i : i + 1], hz)[0],
            bounds=(one.min_hz[0], one.max_hz[0]),
            method="bounded",
            options={"xatol": 1e2},
        )
        assert chosen[i] == pytest.approx(found.x, rel=1e-4)
        assert joules(one, cycles[i : i + 1], chosen[i : i + 1])[0] <= found.fun * (1 + 1e-12)


def test_just_in_time_is_the_best_of_a_grid_that_meets_the_deadline():
    """100 random jobs: in time within 1e-9 s where full speed is, at no more joules than any grid frequency in time."""
    cpu, cycles, comm_s, deadline_s = random_jobs()
    chosen = governor("just_in_time").choose(clocked(cycles), comm_s, deadline_s, cpu)
    possible = comm_s + cycles / cpu.max_hz <= deadline_s
    assert 20 < possible.sum() < JOBS
    assert (comm_s + cycles / chosen <= deadline_s + 1e-9)[possible].all()
    assert (chosen == cpu.max_hz)[~possible].all()
    assert ((chosen >= cpu.min_hz) & (chosen <= cpu.max_hz)).all()
    kinds = {"bound": 0, "late": 0, "optimal": 0}
    spent = joules(cpu, cycles, chosen)
    for i in np.flatnonzero(possible):
        grid = np.linspace(cpu.min_hz[i], cpu.max_hz[i], 2001)
        in_time = comm_s[i] + cycles[i] / grid <= deadline_s[i]
        energy = cpu.capacitance[i] * cpu.cores[i] * cycles[i] * grid**2 + cpu.static_w[i] * cycles[i] / grid
        assert spent[i] <= energy[in_time].min() * (1 + 1e-12)
        kinds["late" if abs(comm_s[i] + cycles[i] / chosen[i] - deadline_s[i]) < 1e-6 else "optimal"] += 1
    assert kinds["late"] > 10
    assert kinds["optimal"] > 10


def test_memory_lowers_the_optimum_to_where_scipy_finds_it():
    """(C / f + m) (kappa cores f^3 + P_static) J, by bounded minimisation of the formula written out."""
    cpu, cycles, comm_s, deadline_s = random_jobs()
    memory_s = np.where(np.arange(JOBS) % 4, cycles / 1e9 * Key(4).numpy().uniform(0.01, 3, JOBS), 0.0)
    chosen = governor("energy_optimal").choose(CpuWork(cycles, memory_s), comm_s, deadline_s, cpu)
    alone = governor("energy_optimal").choose(clocked(cycles), comm_s, deadline_s, cpu)
    assert (chosen[memory_s == 0] == alone[memory_s == 0]).all()
    assert (chosen <= alone * (1 + 1e-6)).all() and (chosen < 0.9 * alone).sum() > 10
    for i in np.flatnonzero(memory_s):
        a, s = cpu.capacitance[i] * cpu.cores[i], cpu.static_w[i]
        spent = lambda hz, i=i, a=a, s=s: (cycles[i] / hz + memory_s[i]) * (a * hz**3 + s)  # noqa: E731
        bounds = (cpu.min_hz[i], cpu.max_hz[i])
        found = minimize_scalar(spent, bounds=bounds, method="bounded", options={"xatol": 1e2})
        assert spent(chosen[i]) <= min(found.fun, *map(spent, bounds)) * (1 + 1e-9)


def test_memory_leaves_less_of_a_deadline():
    """10 Gcycles in 12 s, of which 2 s are the memory's: 1 GHz."""
    work = CpuWork(np.array([1e10]), np.array([2.0]))
    rule = governor("just_in_time")
    assert rule.choose(work, np.zeros(1), 12.0, cpus(1, static_w=0))[0] == pytest.approx(1e9)
    assert rule.choose(work, np.zeros(1), 2.0, cpus(1, static_w=0)).tolist() == [2e9]


def test_just_in_time_at_its_edges():
    """No deadline: the optimum. No time left: full speed. Much time and no static power: the slowest."""
    rule = governor("just_in_time")
    cycles, none = np.array([1e10]), np.zeros(1)
    assert rule.choose(clocked(cycles), none, np.inf, cpus(1, static_w=0.8))[0] == pytest.approx(1e9)
    assert rule.choose(clocked(cycles), np.array([5.0]), 5.0, cpus(1)).tolist() == [2e9]
    assert rule.choose(clocked(cycles), np.array([7.0]), 5.0, cpus(1)).tolist() == [2e9]
    assert rule.choose(clocked(none), none, 5.0, cpus(1, static_w=0)).tolist() == [0.6e9]
    assert rule.choose(clocked(cycles), none, 1e6, cpus(1, static_w=0)).tolist() == [0.6e9]
    assert rule.choose(clocked(cycles), np.array([2.0]), 12.0, cpus(1, static_w=0))[0] == pytest.approx(1e9)


def test_max_and_fixed():
    """Neither looks at the job."""
    cycles, none = np.array([1.0, 1e12]), np.zeros(2)
    assert governor("max").choose(clocked(cycles), none, 1.0, cpus(2)).tolist() == [2e9, 2e9]
    assert governor("fixed", frequency="1.2 GHz").choose(clocked(cycles), none, 1.0, cpus(2)).tolist() == [1.2e9, 1.2e9]


def test_governors_refuse_what_they_cannot_govern():
    """A frequency out of range, an unknown capacitance and a frequency that is none."""
    with pytest.raises(ConfigError, match=r"^governor\.frequency: 3e\+09 Hz .* one has 6e\+08 Hz to 2e\+09 Hz$"):
        governor("fixed", frequency="3 GHz").check(cpus(2), "governor")
    for name in ("energy_optimal", "just_in_time"):
        for capacitance in (0.0, np.nan):
            with pytest.raises(ConfigError, match=r"^governor\.name: needs an energy model with a capacitance above 0"):
                governor(name).check(cpus(2, capacitance=capacitance), "governor")
    with pytest.raises(ValidationError) as caught:
        governor("fixed", frequency="0 Hz")
    assert "must be above 0 Hz" in reason(caught.value)


@pytest.mark.parametrize("name", PLUGINS)
def test_every_governor_accepts_ordinary_cpus(name):
    """A check that passes, and a choice for many that is the choice for each."""
    fields = {"frequency": "1 GHz"} if name == "fixed" else {}
    cpu, cycles, comm_s, deadline_s = random_jobs()
    rule = governor(name, **fields)
    rule.check(cpu, "governor")
    together = rule.choose(clocked(cycles), comm_s, deadline_s, cpu)
    for i in (7, 3, 98):
        one = cpu.rows(np.array([i]))
        alone = rule.choose(clocked(cycles[i : i + 1]), comm_s[i : i + 1], float(deadline_s[i]), one)
        assert alone.tolist() == [together[i]]
