"""How fast is the event loop? A million devices, timing only, against a bare SimPy loop with three timeouts a job.

Run: python benchmarks/engine.py [--devices N] [--per-round N] [--rounds N]
Prints microseconds per job of both, their ratio, and the peak memory of this process.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Mapping
from typing import Any

import simpy

import edgesim
from edgesim.runtime.backends.null import NullBackend
from edgesim.simulation.assembly import assemble
from edgesim.simulation.run import Silent, Simulation

FIXED = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "20 Mbit/s"]}, "down": "20 Mbit/s"}
WIRELESS = {
    "name": "wireless",
    "bandwidth": "1 MHz",
    "distance_m": {"uniform": [50, 500]},
    "shadowing_db": 8.0,
    "fading": "per_transfer",
}


def scenario(devices: int, per_round: int, rounds: int, network: Mapping[str, Any] = FIXED) -> edgesim.Scenario:
    """Return a timing-only scenario: heterogeneous speeds and links, synchronous rounds."""
    return edgesim.load(
        {
            "seed": 1,
            "partition": {"name": "sizes", "samples_per_device": 600},
            "model": "cnn_mnist",
            "training": {"batch": 32, "lr": 0.1},
            "network": network,
            "energy": {"name": "power", "idle": "2.7 W", "busy": "6.4 W", "transmit": "1 W", "receive": "0.8 W"},
            "selection": {"name": "uniform", "count": per_round},
            "method": "fedavg",
            "backend": "null",
            "stop": {"rounds": rounds},
            "fleet": [{"count": devices, "cpu": {"flops_per_s": {"log_uniform": ["1 GFLOP/s", "10 GFLOP/s"]}}}],
        }
    )


def bare_simpy(per_round: int, rounds: int) -> float:
    """Return seconds for synchronous rounds of processes that sleep three times: download, compute, upload."""
    env = simpy.Environment()

    def device(k: int) -> simpy.events.ProcessGenerator:
        yield env.timeout(1.0 + k % 7)
        yield env.timeout(2.0 + k % 11)
        yield env.timeout(3.0 + k % 13)

    def server() -> simpy.events.ProcessGenerator:
        for _ in range(rounds):
            yield env.all_of([env.process(device(k)) for k in range(per_round)])

    env.process(server())
    start_s = time.perf_counter()
    env.run()
    return time.perf_counter() - start_s


def ours(devices: int, per_round: int, rounds: int, network: Mapping[str, Any] = FIXED) -> tuple[float, float]:
    """Return seconds to build the run, and seconds to simulate it."""
    start_s = time.perf_counter()
    simulation = Simulation(assemble(scenario(devices, per_round, rounds, network)), NullBackend(), Silent())
    built_s = time.perf_counter()
    simulation.run()
    return built_s - start_s, time.perf_counter() - built_s


def main() -> None:
    """Print the comparison."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--devices", type=int, default=1_000_000)
    options.add_argument("--per-round", type=int, default=1_000)
    options.add_argument("--rounds", type=int, default=200)
    given = options.parse_args()
    jobs = given.per_round * given.rounds
    build_s, run_s = ours(given.devices, given.per_round, given.rounds)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bare_s = bare_simpy(given.per_round, given.rounds)
    _, wireless_s = ours(given.devices, given.per_round, given.rounds, WIRELESS)
    print(f"{given.devices:,} devices, {given.per_round:,} a round, {given.rounds} synchronous rounds: {jobs:,} jobs")
    print(f"bare SimPy, three timeouts a job  {1e6 * bare_s / jobs:8.2f} us a job")
    print(f"edgesim, null backend             {1e6 * run_s / jobs:8.2f} us a job   (built in {build_s:.1f} s)")
    print(f"ratio                             {run_s / bare_s:8.2f}")
    print(f"with fading wireless links        {1e6 * wireless_s / jobs:8.2f} us a job   ({wireless_s / run_s:.2f} x)")
    print(f"peak memory                       {peak_bytes / 2**30:8.2f} GiB")


if __name__ == "__main__":
    main()
