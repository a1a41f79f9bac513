"""ServerApp: FedAvg, tested on all test images after every round. Prints the line of results of a contestant."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import networks
import workloads
from bare_loop import BareLoop, read

app = ServerApp()


class HostClock(workloads.Clock):
    """Clock that reads this host's, where an app's `time.time` may be that of a simulation."""

    def __init__(self) -> None:
        super().__init__(float(os.environ.get("T0", "0")))
        self._marks = [time.clock_gettime(time.CLOCK_REALTIME)]

    def lap(self) -> None:
        """Note that a round is over."""
        self._marks.append(time.clock_gettime(time.CLOCK_REALTIME))


@app.main()  # type: ignore[misc]
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    config = context.run_config
    workload = workloads.WORKLOADS[str(config["workload"])]
    torch.manual_seed(0)
    loop = BareLoop(
        getattr(networks, workload.network)(), *([read(Path(str(config["data"])), "t10k")] * 2), lr=0.0, batch=1
    )
    clock, accuracies = HostClock(), [0.0]

    def tested(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loop.model = dict(arrays.to_torch_state_dict())
        accuracies.append(loop.accuracy() if server_round else 0.0)
        if server_round:
            clock.lap()
        return MetricRecord({"accuracy": accuracies[-1]})

    def total(replies: list[Any], weighted_by: str) -> MetricRecord:
        return MetricRecord({"steps": sum(reply["metrics"]["steps"] for reply in replies)})

    strategy = FedAvg(
        fraction_train=workload.per_round / workload.devices,
        fraction_evaluate=0.0,
        min_available_nodes=workload.devices,
        train_metrics_aggr_fn=total,
    )
    result = strategy.start(grid, ArrayRecord(loop.model), num_rounds=int(config["rounds"]), evaluate_fn=tested)
    steps = sum(metrics["steps"] for metrics in result.train_metrics_clientapp.values())
    clock.report(steps, accuracies[-1])
