"""The cost model of the DA-DPFL study: its unit vectors, and its table from the ledger of simulated runs."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgesim.config import device_profiles
from edgesim.core.errors import ConfigError
from edgesim.core.method import Method
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Task
from edgesim.core.view import Setting, View
from edgesim.studies.tradeoffs import (
    SCALINGS,
    CostScaling,
    RoundCost,
    compute_time_s,
    crossing,
    round_cost,
    total_cost,
    transfer_time_s,
)
from tests.conftest import frames, simulate_null, timing_scenario
from tests.engine.spent import charged_j

DATA = Path(__file__).parent / "data"
TABLE_2 = Path(__file__).parents[2] / "docs" / "data" / "dadpfl_table_2.csv"
DEVICES = 100
THETAS = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
COLUMNS = {"CIFAR10": "C10", "CIFAR100": "C100"}
# which of the reconstruction's corrections a row carries
SCALING_OF = {
    **dict.fromkeys(("FedAvg", "Ditto", "FedDST"), "server_based"),
    **dict.fromkeys(("DA-DPFL_Dir", "DA-DPFL_Pat"), "waiting"),
}


@dataclass(frozen=True, kw_only=True)
class Fixed(Method):
    """Every device computes a number of FLOPs and sends a number of bytes; nothing is learned."""

    flops: float
    nbytes: int

    def init(self, setting: Setting, key: Key) -> Any:
        """Return no state."""

    def task(self, view: View) -> Task:
        """Return the same work for everybody."""
        up = Payload(collections=frozenset(), extra_bytes=self.nbytes)
        return Task(down=None, up=up, passes=(Pass("flops", times=self.flops),))


def rows(name):
    """Return the rows of a published table: a path, or the name of one in DATA."""
    return list(csv.DictReader(line for line in (DATA / name).read_text().splitlines() if not line.startswith("#")))


@cache
def simulated(flops, nbytes):
    """Run one round of 100 GPUs; return a device's seconds and joules, compute and transfer, from jobs and ledger."""
    block = device_profiles.find("dadpfl_gpu").merged({"profile": "dadpfl_gpu", "count": DEVICES})
    method = {"name": "tests.world.test_total_cost:Fixed", "flops": flops, "nbytes": nbytes}
    simulation = simulate_null(timing_scenario(model="mlr", method=method, fleet=[block]))
    jobs, joules = frames(simulation)["jobs"], simulation.devices()
    assert len(jobs) == DEVICES
    assert charged_j(simulation.ledger, simulation.session.now_s) == pytest.approx(
        float(jobs[["compute_j", "up_j"]].to_numpy().sum())
    )
    seconds = (jobs["compute_s"].mean(), jobs["up_s"].mean())
    return *map(float, seconds), float(joules["compute_j"].sum()) / DEVICES, float(joules["up_j"].sum()) / DEVICES


def table_2(method, dataset):
    """Return FLOPs and bytes of one device and round from the paper's Table II."""
    row = next(row for row in rows(TABLE_2) if row["table2_method"] == method)
    column = COLUMNS[dataset]
    return float(row[f"{column}_FLOP_1e12"]) * 1e12, round(float(row[f"{column}_Com_MB"]) * 1e6)


@pytest.mark.parametrize("row", rows("dadpfl_cost_reconstruction.csv"), ids=lambda r: f"{r['dataset']}-{r['method']}")
def test_the_cost_table_comes_out_of_the_ledger(row):
    """All columns of the reconstruction to 4 decimals, the scalings being options of round_cost."""
    spent = simulated(*table_2(row["method"], row["dataset"]))
    cost = round_cost(*spent, scaling=SCALINGS[SCALING_OF.get(row["method"], "none")])
    found = [*spent[:2], *cost, *(total_cost(theta, *cost) for theta in THETAS)]
    names = ["T_comp_s", "T_comm_s", "C_time", "C_energy", *(f"theta{theta:g}" for theta in THETAS)]
    for name, value in zip(names, found, strict=True):
        assert value == pytest.approx(float(row[name]), abs=0.5001e-4), name


def test_the_table_has_all_rows():
    """Two data sets and ten methods."""
    assert len(rows("dadpfl_cost_reconstruction.csv")) == 20


def test_unit_vectors():
    """8e12 FLOPs at 80e12 FLOP/s, five times slower: 0.5 s, 225 J at 450 W; 125 MB at 1 Gbit/s: 1 s, 1 J at 1 W.

    With theta = 0.2 and (1.5 s, 226 J): 0.8 x 1.5 + 0.2 x 226 = 46.4.
    """
    compute_s, transfer_s = compute_time_s(8e12, 80e12, inefficiency=5), transfer_time_s(125e6, 1e9)
    assert (compute_s, transfer_s) == (pytest.approx(0.5), pytest.approx(1.0))
    cost = round_cost(compute_s, transfer_s, 450 * compute_s, 1 * transfer_s)
    assert cost == (pytest.approx(1.5), pytest.approx(226.0))
    assert total_cost(0.2, *cost) == pytest.approx(46.4)


def test_scalings_act_where_they_say():
    """Each factor moves its own part only."""
    spent = (2.0, 3.0, 5.0, 7.0)
    assert round_cost(*spent, CostScaling(compute_energy=0.5)) == (5.0, 9.5)
    assert round_cost(*spent, CostScaling(transfer_energy=0.5)) == (5.0, 8.5)
    assert round_cost(*spent, CostScaling(waiting=2.0)) == (10.0, 12.0)


@pytest.mark.parametrize(
    ("one", "other", "theta"),
    [
        ((5.0, 2.0), (1.0, 8.0), 0.4),  # 0.6 x 5 + 0.4 x 2 = 0.6 x 1 + 0.4 x 8 = 3.8
        ((1.0, 8.0), (5.0, 2.0), 0.4),
        ((5.0, 8.0), (1.0, 2.0), None),  # dearer whatever counts
        ((5.0, 8.0), (5.0, 8.0), None),
        ((5.0, 2.0), (5.0, 8.0), None),  # they meet at theta = 0, and one costs no more anywhere
    ],
)
def test_where_two_cost_the_same(one, other, theta):
    """theta = dT / (dT + dE), if one saves time and the other energy."""
    found = crossing(RoundCost(*one), RoundCost(*other))
    assert found == (theta if theta is None else pytest.approx(theta))


@pytest.mark.parametrize("theta", [-0.1, 1.1, np.nan])
def test_a_weight_outside_its_range_is_refused(theta):
    """theta is a share."""
    with pytest.raises(ConfigError, match=r"theta: must be between 0 .* and 1"):
        total_cost(theta, 1.0, 1.0)


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan])
def test_a_factor_that_is_not_positive_is_refused(factor):
    """The message names the factor."""
    with pytest.raises(ConfigError, match=r"scaling\.waiting: must be above 0"):
        CostScaling(waiting=factor)
