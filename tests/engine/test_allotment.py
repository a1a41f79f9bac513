"""Runs in which a policy chooses frequency, power and bandwidth of every job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from edgesim.core.controller import Choice, ChoiceField, Controller, RoundHistory
from edgesim.core.errors import ConfigError, ContractError
from edgesim.world.resources.base import Choices, Demands, Resources
from tests.conftest import frames, simulate_null, timing_scenario

BITS, FLOPS_PER_S = 8 * 4 * 567_858, 7.3806e8  # CNN-CIFAR10, one way; 10 s of work
CELL = {
    "name": "cell",
    "bandwidth": "1 MHz",
    "distance_m": 100.0,
    "efficiency": 0.5,
    "power": "1 W",
    "latency": "0.1 s",
}
CPU = {"frequency": "2 GHz", "min_frequency": "0.5 GHz", "flops_per_cycle": FLOPS_PER_S / 2e9}
ENERGY = {"name": "cpu", "idle": "2 W", "receive": "0.5 W"}
SNR_HZ = 10 ** ((30 - 90.5 + 174) / 10)  # of 1 W at 100 m
FEDL = {"name": "fedl", "kappa": 1.0}


@dataclass(frozen=True, kw_only=True)
class Quarter(Resources):
    """Half the frequency, half the power, a quarter of the band."""

    def choose(self, demands: Demands) -> Choices:
        """Return the choices for the jobs of a round."""
        devices = demands.devices
        return Choices(devices.most_hz / 2, devices.power_w / 2, np.full(len(demands.bits), demands.band_hz / 4))


def run(**changes: Any) -> Any:
    """Return the finished run of two devices in a cell, whose ledger closes."""
    base = {"fleet": [{"count": 2, "cpu": CPU}], "network": CELL, "energy": ENERGY}
    return simulate_null(timing_scenario(**{**base, **changes}))


def test_jobs_are_as_chosen():
    """By hand: half the frequency takes twice as long and a quarter of the joules a cycle."""
    plain, jobs = (
        frames(run(**given))["jobs"].sort_values("device")
        for given in ({}, {"resources": "tests.engine.test_allotment:Quarter"})
    )
    assert jobs["compute_s"].tolist() == pytest.approx([20.0] * 2, rel=1e-4)
    assert jobs["compute_s"].tolist() == pytest.approx(2 * plain["compute_s"], rel=1e-12)
    assert jobs["compute_j"].tolist() == pytest.approx(plain["compute_j"] / 4, rel=1e-12)
    up_s = BITS / (250e3 * math.log2(1 + SNR_HZ / 2 / 250e3))
    assert jobs["up_s"].tolist() == pytest.approx([0.1 + up_s] * 2, rel=1e-9)
    assert jobs["up_j"].tolist() == pytest.approx([up_s] * 2, rel=1e-9)  # 0.5 W radiated are 1 W drawn
    assert jobs["down_s"].tolist() == plain["down_s"].tolist()


def test_fedl_trades_time_for_energy():
    """Its front: less time and more joules the more a second is worth; all uploads end together."""
    joules, seconds = [], []
    for kappa in (0.01, 0.1, 1.0, 10.0):
        tables = frames(run(resources={**FEDL, "kappa": kappa}))
        joules.append(tables["jobs"][["compute_j", "up_j"]].to_numpy().sum())
        seconds.append(tables["rounds"]["now_s"].iloc[-1])
        assert tables["jobs"]["end_s"].tolist() == pytest.approx([seconds[-1]] * 2, rel=1e-9)
    assert (np.diff(joules) > 0).all() and (np.diff(seconds) < 0).all()


def test_least_energy_keeps_the_deadline_of_the_protocol():
    """All use it up, latencies and downloads included, and take fewer joules than at full speed; none is late."""
    deadline = {"deadline": "35 s"}
    tables = frames(run(resources={"name": "min_energy", **deadline}, protocol={"name": "deadline", **deadline}))
    assert tables["jobs"]["outcome"].tolist() == ["ok"] * 2
    assert tables["jobs"]["end_s"].tolist() == pytest.approx([35.0] * 2, rel=1e-9)
    columns = ["compute_j", "up_j"]
    assert tables["jobs"][columns].to_numpy().sum() < frames(run())["jobs"][columns].to_numpy().sum() / 2


LATE = {"name": "deadline", "deadline": "12 s", "late": "keep", "minimum": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": LATE},
        {"failures": [{"name": "crash", "probability": 0.3}, {"name": "partial_work", "probability": 0.5}]},
        {"failures": [{"name": "link_outage", "up": "2 s", "down": "1 s"}]},
        {"fleet": [{"count": 4, "cpu": CPU, "battery": {"capacity": "150 J", "charge": "3 W", "restart": 0.5}}]},
        {"slowdown": {"name": "log_normal", "sigma": 0.5}, "network": {**CELL, "fading": "per_transfer", "loss": 0.1}},
        {"selection": {"name": "uniform", "count": 3}, "protocol": {"name": "over_selection", "keep": 2}},
    ],
    ids=["late", "crashes", "outages", "batteries", "noise", "over-selection"],
)
def test_the_ledger_closes(changes):
    """Whatever happens to jobs on their way; the joules of uploads are those of the watts that were chosen."""
    fleet = [{"count": 4, "cpu": CPU}]
    tables = frames(run(**{"resources": FEDL, "fleet": fleet, "stop": {"rounds": 6}, **changes}))
    assert tables["rounds"]["used"].sum() > 0
    drawn_w = tables["jobs"].query("outcome == 'ok'").eval("up_j / (up_s - 0.1)")
    assert (drawn_w <= 2.0 + 1e-9).all()


@dataclass(frozen=True, kw_only=True)
class Slower(Controller):
    """Half the frequency."""

    sets: ClassVar[frozenset[ChoiceField]] = frozenset({"frequency"})

    def adapt(self, history: RoundHistory) -> Choice:
        """Return the choice for the next rounds."""
        return Choice(frequency=0.5)


PEERS = {"method": "dfedavg", "peers": "ring"}
FIXED = {"name": "fixed", "up": "1 Mbit/s", "down": "1 Mbit/s"}
BUFFERED = {"name": "buffered", "buffer": 2, "concurrency": 2}
BARE_CELL = {key: CELL[key] for key in ("name", "bandwidth", "distance_m")}
GOVERNED = [{"cpu": {**CPU, "governor": "just_in_time"}}]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"resources": "fedll"}, "resources.name: unknown resources 'fedll'; did you mean 'fedl'?"),
        ({"resources": {"name": "fedl", "kappa": 0}}, "resources.kappa: must be greater than 0, got 0"),
        ({"protocol": BUFFERED, "method": "fedbuff"}, "in rounds, such as protocol sync, found buffered"),
        (PEERS, "resources.name: resources fedl needs a server that asks devices in rounds"),
        ({"network": FIXED}, "network.name: must be 'cell', whose devices share a band; resources fedl chooses power"),
        ({"network": {**CELL, "access": "noma"}}, "network.access: must be 'fdma'"),
        ({"network": BARE_CELL}, "network.efficiency: must be given"),
        (
            {"network": {**CELL, "power_control": "target_snr", "target_snr_db": 3.0}},
            "power_control: chooses the power of devices too; must be 'fixed', found 'target_snr'",
        ),
        ({"network": {**CELL, "waterfall": 1.0}}, "network.waterfall: loses packets"),
        ({"fleet": GOVERNED}, "fleet.0.cpu.governor: resources fedl chooses the frequency; leave just_in_time out"),
        ({"controller": "tests.engine.test_allotment:Slower"}, "sets the frequency, which resources fedl chooses"),
        ({"topology": {"name": "tree", "edge_servers": 1}}, "topology.name: resources fedl divides the band of one"),
        ({"energy": {"name": "power", "busy": "2 W"}}, "energy.name: must be 'cpu' in every block"),
        ({"energy": {**ENERGY, "transmit": "1 W"}}, "energy.transmit: must be 0; with resources fedl a radio draws"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(changes, says):
    with pytest.raises(ConfigError) as refused:
        run(**{"resources": FEDL, **changes})
    assert says in str(refused.value) and "\n" not in str(refused.value)


@dataclass(frozen=True, kw_only=True)
class Odd(Resources):
    """Something else than it should return."""

    fault: str

    def choose(self, demands: Demands) -> Any:
        """Return what is asked for."""
        devices, n = demands.devices, len(demands.bits)
        good = Choices(devices.most_hz, devices.power_w, np.full(n, demands.band_hz / n))
        odd = {
            "shape": good._replace(hertz=good.hertz[:1]),
            "type": tuple(good),
            "slow": good._replace(frequency_hz=devices.least_hz / 2),
            "strong": good._replace(power_w=2 * devices.power_w),
            "silent": good._replace(power_w=0 * devices.power_w),
            "wide": good._replace(hertz=1.1 * good.hertz),
            "nan": good._replace(hertz=np.nan * good.hertz),
        }
        return odd[self.fault]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("shape", "2 floats as hertz"),
        ("type", "Choices, got"),
        ("slow", "frequency_hz from 5e+08 to 2e+09, got 2.5e+08"),
        ("strong", "power_w from 4.94066e-324 to 1, got 2"),
        ("silent", "power_w from"),
        ("wide", "hertz that add up to 1e+06 at most, got 1.1e+06"),
        ("nan", "hertz from"),
    ],
)
def test_a_policy_that_returns_something_else_is_named(fault, says):
    with pytest.raises(ContractError) as refused:
        run(resources={"name": "tests.engine.test_allotment:Odd", "fault": fault})
    assert str(refused.value).startswith("Odd.choose() must return ") and says in str(refused.value)
