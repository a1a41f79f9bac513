"""Two small runs whose results are kept in this folder, table by table."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import pandas as pd

import edgesim
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.records.written import whole

COMMON: dict[str, Any] = {
    "seed": 7,
    "data": "digits",
    "model": "cnn_digits",
    "partition": {"name": "iid", "samples_per_device": 80},
    "training": {"batch": 16, "lr": 0.2, "lr_decay": 0.99},
    "network": {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": "20 ms"},
    "energy": {"name": "power", "idle": {"uniform": ["0.5 W", "1 W"]}, "busy": "4 W", "transmit": "1 W"},
    "server": {"flops_per_s": "1 MFLOP/s", "idle": "10 W", "busy": "30 W"},
    "stop": {"rounds": 6},
    "fleet": [
        {"count": 4, "level": 1, "cpu": {"flops_per_s": {"uniform": ["20 MFLOP/s", "40 MFLOP/s"]}}},
        {"count": 4, "level": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}},
    ],
}
RUNS: dict[str, dict[str, Any]] = {
    "fedavg_sync": {"method": "fedavg", "selection": {"name": "uniform", "count": 4}},
    "fedpmt_deadline": {
        "method": "fedpmt",
        "selection": {"name": "stratified", "count": 4},
        "protocol": {"name": "deadline", "deadline": "0.6 s"},
    },
}
TABLES = ("jobs", "rounds", "evals")


@plain_torch()
def tables_of(name: str) -> dict[str, pd.DataFrame]:
    """Run a scenario by name and return its tables."""
    parts = assemble(edgesim.load({**COMMON, **RUNS[name]}))
    backend = parts.scenario.backend.value.open(parts.make_trainer)
    try:
        simulation = Simulation(parts, backend, Silent())
        simulation.run()
    finally:
        backend.close()
    frames = whole(simulation.tables)
    return {table: frames[table] for table in TABLES}


def digest_of(name: str) -> str:
    """Return a hash of all numbers of a run, losses included, floats by their repr."""
    texts = [frame.to_csv(index=False) for frame in tables_of(name).values()]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


if __name__ == "__main__":
    print(digest_of(sys.argv[1]))
