"""The app of benchmarks/flower.py on Flower's own simulation, with two Ray actors of one CPU each: a contestant there.

It is what the process flwr-simulation does that `flwr run` starts, without SuperLink, app archive and streamed logs.
CONFIG: what `flwr run` gets as --run-config.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType

import workloads

APP = Path(__file__).parent / "flower_w1"
CPUS = 2


def main() -> None:
    """Run the app to its end."""
    simulation = importlib.import_module("flwr.simulation.run_simulation")  # its package has a function of this name
    overrides = parse_config_args([os.environ["CONFIG"]])
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id, run.override_config = 1, NOOP_FEDERATION_ID, overrides
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    parts = get_project_config(APP)["tool"]["flwr"]["app"]["components"]
    sys.path.insert(0, str(APP))
    simulation._run_simulation(
        num_supernodes=workloads.WORKLOADS[os.environ["WORKLOAD"]].devices,
        backend_name="ray",
        backend_config={"init_args": {"num_cpus": CPUS}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        server_app_attr=parts["serverapp"],
        client_app_attr=parts["clientapp"],
        server_app_context=Context(1, 0, {}, RecordDict(), get_fused_config_from_dir(APP, overrides)),
        app_dir=str(APP),
        run=run,
        is_app=True,
        exit_event=EventType.FLWR_SIMULATION_RUN_LEAVE,
    )


if __name__ == "__main__":
    main()
