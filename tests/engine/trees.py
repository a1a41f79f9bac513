"""Small scenarios with edge servers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import edgesim
from edgesim.reports.load import Run

DEVICE = {"flops_per_s": "1 GFLOP/s"}


def tree(edges: dict[str, Any] | None, servers: int, **other: Any) -> dict[str, Any]:
    """Return the table of a scenario of 4 devices that trains a small network on digits below edge servers."""
    table = {
        "seed": 1,
        "data": {"name": "digits", "train_limit": 160, "test_limit": 50},
        "partition": "iid",
        "model": "cnn_digits",
        "training": {"batch": 16, "lr": 0.1},
        "network": {"name": "shared", "up": "1 Mbit/s", "down": "8 Mbit/s", "latency": "20 ms"},
        "energy": {"name": "power", "idle": "1 W", "busy": "4 W"},
        "selection": "all",
        "method": "fedavg",
        "topology": {"name": "tree", "edge_servers": servers},
        "stop": {"rounds": 2},
        "fleet": [{"count": 4, "cpu": DEVICE}],
    }
    return table | ({} if edges is None else {"edges": edges}) | other


def run(table: dict[str, Any], *overrides: str) -> Run:
    """Return the run of a scenario, in a folder that stays until the tests end."""
    return edgesim.run(edgesim.load(table, list(overrides)), out=Path(tempfile.mkdtemp()) / "run")
