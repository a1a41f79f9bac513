"""Published numbers that need no training: the cost table of the DA-DPFL study and the timing of the FedPMT study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgesim.studies.tradeoffs import SCALINGS, round_cost, total_cost
from tests.conftest import frames, simulate_null, timing_scenario
from tests.validation.checks import Item, Row, close, exact, worst
from tests.world.test_total_cost import DEVICES, SCALING_OF, THETAS, simulated, table_2
from tests.world.test_total_cost import rows as published

COLUMNS = ("T_comp_s", "T_comm_s", "C_time", "C_energy", *(f"theta{theta:g}" for theta in THETAS))


def total_costs() -> list[Row]:
    """Return the worst column of every row of the cost table; seconds and joules are read from jobs and ledger."""
    rows = []
    for row in published("dadpfl_cost_reconstruction.csv"):
        spent = simulated(*table_2(row["method"], row["dataset"]))
        cost = round_cost(*spent, scaling=SCALINGS[SCALING_OF.get(row["method"], "none")])
        found = (*spent[:2], *cost, *(total_cost(theta, *cost) for theta in THETAS))
        expected = (float(row[column]) for column in COLUMNS)
        rows.append(worst(f"{row['dataset']}, {row['method']}: worst column", expected, found, 0.5001e-4))
    return rows


# --- deadlines ----------------------------------------------------------------------------------------------

PAPER = {"name": "table", "ratios": [0.46, 0.58, 0.88, 0.94, 1.0]}
DEADLINE = {"name": "deadline", "deadline": "26.5 s"}
LEVELS = (1, 2, 3, 4, 5)
FULL_S = (50.0, 40.0, 30.0, 20.0, 10.0)


def deadlines() -> list[Row]:
    """Return the four hand-made schedules of one device a level."""
    return [*_whole(), *_widths(), *_fedavg(), *_fedpmt(), *_widths_by_deadline()]


def _whole() -> Iterator[Row]:
    jobs, _ = _tables()
    for level, seconds in zip(LEVELS, FULL_S, strict=True):
        yield close(f"Y1 the whole model, level {level}: s", seconds, jobs["compute_s"][level - 1])


def _widths() -> Iterator[Row]:
    jobs, rounds = _tables(method="fedpmt", cost=PAPER)
    for level, seconds in zip(LEVELS, (23.0, 23.2, 26.4, 18.8, 10.0), strict=True):
        yield close(f"Y1 FedPMT, paper's costs, level {level}: s", seconds, jobs["compute_s"][level - 1])
    yield close("Y1 FedPMT, paper's costs: round, s", 26.4, rounds["now_s"][0])
    # forward of all five layers, weight gradients of the last n, input gradients of the last n - 1; MACs a layer:
    macs = (940_800, 1_280_000, 400_000, 150_000, 3_000)
    jobs, _ = _tables(method="fedpmt")
    for level, full_s in zip(LEVELS, FULL_S, strict=True):
        first = 5 - level
        share = (sum(macs) + sum(macs[first:]) + sum(macs[first + 1 :])) / (3 * sum(macs) - macs[0])
        yield close(f"Y1 FedPMT, measured costs, level {level}: s", share * full_s, jobs["compute_s"][level - 1])


def _fedavg() -> Iterator[Row]:
    jobs, rounds = _tables(protocol=DEADLINE)
    for level, (outcome, seconds) in enumerate([*[("late", 26.5)] * 3, ("ok", 20.0), ("ok", 10.0)], start=1):
        yield exact(f"Y2 FedAvg within 26.5 s, level {level}: outcome", outcome, jobs["outcome"][level - 1])
        yield close(f"Y2 FedAvg within 26.5 s, level {level}: s charged", seconds, jobs["compute_s"][level - 1])
    yield close("Y2 FedAvg within 26.5 s: round, s", 26.5, rounds["now_s"][0])
    yield exact("Y2 FedAvg within 26.5 s: models merged", 2, int(rounds["used"][0]))


def _fedpmt() -> Iterator[Row]:
    _, rounds = _tables(method="fedpmt", cost=PAPER, protocol=DEADLINE)
    yield close("Y3 FedPMT within 26.5 s, paper's costs: round, s", 26.4, rounds["now_s"][0])
    yield exact("Y3 FedPMT within 26.5 s, paper's costs: models merged", 5, int(rounds["used"][0]))


def _widths_by_deadline() -> Iterator[Row]:
    method = {"name": "fedpmt", "rule": "deadline"}
    # the last n layers take ratio n x 50, 40, 30, 20, 10 s; the largest n within 26.5 s. Measured ratios: see Y1
    for cost, what, widths in ((PAPER, "paper's", (1, 2, 3, 5, 5)), ("measured", "measured", (3, 3, 4, 5, 5))):
        jobs, _ = _tables(method=method, cost=cost, protocol=DEADLINE)
        for level, width in zip(LEVELS, widths, strict=True):
            part = jobs["submodel"][level - 1]
            yield exact(f"Y4 widths by deadline, {what} costs, level {level}: part", f"last{width}", part)


def _tables(**changes: Any) -> tuple[Any, Any]:
    """Return the jobs by device, row level - 1 that of a level, and the merges."""
    tables = frames(simulate_null(timing_scenario(**changes)))
    return tables["jobs"].sort_values("device", ignore_index=True), tables["rounds"]


ITEMS = (
    Item(
        "The cost table of DA-DPFL",
        "the reconstruction of the paper's cost table from its Table II (`tests/world/data`), to 4 decimals; seconds "
        f"and joules are of a round of {DEVICES} devices `dadpfl_gpu`. Of a row's ten columns, the one farthest off",
        total_costs,
    ),
    Item(
        "Levels, widths and the deadline of FedPMT",
        "H. Wu, thesis (2023), chapter 5: CNN-CIFAR10, 500 samples, 14,761,200 FLOPs a sample, speeds psi/5, psi/4, "
        "psi/3, psi/2 and psi, 10 s on psi; widths at 0.46, 0.58, 0.88, 0.94 and 1 of the cost (Table 5.2), or by the "
        "chain rule: forward of all layers, weight gradients of the last n, input gradients of the last n - 1",
        deadlines,
    ),
)
