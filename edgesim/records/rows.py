"""The rows of a run's tables by the names of their columns, so that whoever writes one need not know their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class JobRow(NamedTuple):
    """A row of the jobs table; edgesim.records.schema says what each column means, as for all rows below."""

    job: int
    device: int
    round: int
    base_version: int
    task: str
    submodel: str
    sent_s: float
    down_s: float
    compute_s: float
    up_s: float
    link_wait_s: float
    wait_s: float
    end_s: float
    outcome: str
    lacked_s: float
    flops: float
    down_bytes: int
    up_bytes: int
    peer_bytes: int
    down_j: float
    compute_j: float
    up_j: float
    peer_j: float
    link_j: float
    edge: int


class EdgeJobRow(NamedTuple):
    """A row of the edges table."""

    order: int
    edge: int
    round: int
    base_version: int
    sent_s: float
    down_s: float
    work_s: float
    up_s: float
    link_wait_s: float
    end_s: float
    outcome: str
    rounds: int
    asked: int
    used: int
    late: int
    samples: int
    server_s: float
    down_bytes: int
    up_bytes: int
    link_j: float


class RoundRow(NamedTuple):
    """A row of the rounds table, without the columns that follow from the jobs of a finished run."""

    round: int
    version: int
    start_s: float
    now_s: float
    asked: int
    used: int
    late: int
    closed_by: str
    deadline_s: float
    staleness_mean: float
    server_s: float
    flops: float
    down_bytes: int
    up_bytes: int
    energy_j: float
    active_j: float
    idle_j: float
    participant_j: float
    energy_network_j: float
    energy_server_j: float
    total_flops: float
    total_down_bytes: int
    total_up_bytes: int
    total_energy_j: float
    total_active_j: float
    total_idle_j: float
    total_participant_j: float
    total_energy_network_j: float
    total_energy_server_j: float
    total_cost_low: float
    total_cost: float
    total_cost_high: float
    total_co2e_low_g: float
    total_co2e_g: float
    total_co2e_high_g: float


class EvaluationRow(NamedTuple):
    """A row of the evals table."""

    round: int
    version: int
    now_s: float
    split: str
    loss: float
    accuracy: float
    samples: int


class MetricRow(NamedTuple):
    """A row of the metrics table."""

    round: int
    name: str
    device: int
    value: float


class CostRow(NamedTuple):
    """A row of the costs table."""

    round: int
    item: str
    cost_low: float
    cost: float
    cost_high: float
    co2e_low_g: float
    co2e_g: float
    co2e_high_g: float


# By table; the devices table is not written row by row.
ROWS: Mapping[str, type[tuple[object, ...]]] = {
    "jobs": JobRow,
    "rounds": RoundRow,
    "evals": EvaluationRow,
    "metrics": MetricRow,
    "costs": CostRow,
    "edges": EdgeJobRow,
}


def columns_of(row: type[tuple[object, ...]]) -> tuple[str, ...]:
    """Return the names of the columns of a kind of row, in order."""
    names: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
    return names
