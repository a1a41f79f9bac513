"""edgesim as a contestant of benchmarks/rivals.py.

BACKEND: the scenario's backend as JSON, such as {"name": "workers", "workers": 2}. It is run as by a user's script, so
its first round includes what others do before theirs: loading PyTorch and the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgesim
import workloads
from counting import steps_of
from edgesim.core.arrays import Ids
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split

HERE = Path(__file__).stem  # the module's name where scenarios look for classes


@dataclass(frozen=True, kw_only=True)
class SameShards(Partition):
    """The partition that all contestants have."""

    workload: str  # name

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the rows that workloads.shards gives."""
        return Split(tuple(workloads.shards(workloads.WORKLOADS[self.workload], len(y_train))))


class Laps:
    """Hands laps to a clock."""

    def __init__(self, clock: workloads.Clock) -> None:
        self.clock, self.accuracy = clock, 0.0

    def note(self, info: Mapping[str, Any]) -> None:
        """Note a round."""
        self.accuracy = info["accuracy"]
        self.clock.lap()


def scenario(asked: workloads.Asked, backend: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload as a scenario, with links, joules and uneven devices."""
    work = asked.workload
    return {
        "seed": 1,
        "data": {"name": "fashion_mnist", "root": str(asked.data), "normalise": "none"},
        "partition": {"name": f"{HERE}:SameShards", "workload": asked.name},
        "model": f"networks:{work.network}",
        "training": {"local_epochs": 1, "batch": workloads.BATCH, "lr": asked.lr},
        "network": {"name": "fixed", "up": "5 Mbit/s", "down": "20 Mbit/s"},
        "energy": {"name": "power", "idle": "2.7 W", "busy": "6.4 W"},
        "selection": {"name": "uniform", "count": work.per_round},
        "method": "counting:CountingFedAvg",
        "backend": dict(backend),
        "evaluation": {"every": 1},
        "stop": {"rounds": asked.rounds},
        "fleet": [{"count": work.devices, "cpu": {"flops_per_s": {"uniform": ["0.5 GFLOP/s", "2 GFLOP/s"]}}}],
    }


def main() -> None:
    """Do what the environment asks for."""
    asked = workloads.asked()
    laps = Laps(workloads.Clock(asked.started))
    run = edgesim.run(scenario(asked, json.loads(os.environ["BACKEND"])), on_round=laps.note)
    laps.clock.report(steps_of(run), laps.accuracy)


if __name__ == "__main__":
    main()
