"""What a job costs the event loop without rounds, and among peers: timing only, against a bare SimPy loop.

Run: python benchmarks/protocols.py [--merges N] [--peers N] [--rounds N]
Prints microseconds a job of an asynchronous run (10,000 devices, 500 at work, 50 updates a merge) and of rounds among
peers (10 random neighbours, each waiting for up to 10 of them), their ratio to a bare loop of one timeout a job, and
by how many bytes a job the memory grows in the second half of the asynchronous run.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from typing import Any

import simpy

import edgesim
from edgesim.runtime.backends.null import NullBackend
from edgesim.simulation.assembly import assemble
from edgesim.simulation.run import Silent, Simulation

DEVICES, CONCURRENCY, BUFFER, DEGREE = 10_000, 500, 50, 10


def scenario(devices: int, **changes: Any) -> edgesim.Scenario:
    """Return a timing-only scenario of devices of different speeds with links of their own."""
    return edgesim.load(
        {
            "seed": 1,
            "partition": {"name": "sizes", "samples_per_device": 600},
            "model": "cnn_mnist",
            "training": {"batch": 32, "lr": 0.1},
            "network": {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "20 Mbit/s"]}, "down": "20 Mbit/s"},
            "energy": {"name": "power", "idle": "2.7 W", "busy": "6.4 W", "transmit": "1 W", "receive": "0.8 W"},
            "backend": "null",
            "fleet": [{"count": devices, "cpu": {"flops_per_s": {"log_uniform": ["1 GFLOP/s", "10 GFLOP/s"]}}}],
            **changes,
        }
    )


def asynchronous(rounds: int) -> Simulation:
    """Return a run of the buffered protocol."""
    protocol = {"name": "buffered", "concurrency": CONCURRENCY, "buffer": BUFFER}
    given = scenario(DEVICES, method="fedbuff", protocol=protocol, stop={"rounds": rounds})
    return Simulation(assemble(given), NullBackend(), Silent())


def among_peers(peers: int, rounds: int) -> Simulation:
    """Return a run of rounds among peers that wait for each other."""
    method = {"name": "dfedavg", "reuse": DEGREE}
    given = scenario(peers, method=method, peers={"name": "random", "degree": DEGREE}, stop={"rounds": rounds})
    return Simulation(assemble(given), NullBackend(), Silent())


def bare_simpy(jobs: int, at_once: int) -> float:
    """Return seconds for a loop in which a job is one timeout and `at_once` of them are pending."""
    env = simpy.Environment()
    started = 0

    def start(_: simpy.Event) -> None:
        nonlocal started
        if started < jobs:
            started += 1
            env.timeout(1.0 + started % 13).callbacks.append(start)

    begun_s = time.process_time()
    for _ in range(at_once):
        start(env.event())
    env.run()
    return time.process_time() - begun_s


def timed_s(simulation: Simulation) -> float:
    """Return the seconds that a run takes."""
    begun_s = time.process_time()
    simulation.run()
    return time.process_time() - begun_s


def growth_bytes_a_job(rounds: int) -> float:
    """Return by how much the memory grows with each job between half of the merges and all of them."""
    simulation = asynchronous(rounds)
    seen: dict[int, int] = {}
    really_close = simulation.rounds.close

    def close(*args: Any) -> Any:
        yield from really_close(*args)
        if simulation.session.round in (rounds // 2, rounds):
            gc.collect()
            seen[simulation.session.round] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    simulation.rounds.close = close  # type: ignore[method-assign]
    simulation.run()
    return (seen[rounds] - seen[rounds // 2]) / (BUFFER * (rounds - rounds // 2))


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--merges", type=int, default=2_000)
    options.add_argument("--peers", type=int, default=2_000)
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    for name, run, jobs, at_once in (
        ("asynchronous", asynchronous(given.merges), given.merges * BUFFER, CONCURRENCY),
        ("peers", among_peers(given.peers, given.rounds), given.peers * given.rounds, given.peers),
    ):
        ours_us, bare_us = 1e6 * timed_s(run) / jobs, 1e6 * bare_simpy(jobs, at_once) / jobs
        print(f"{name:14}{jobs:10,} jobs  edgesim {ours_us:6.1f} us  bare SimPy {bare_us:5.1f} us  "
              f"ratio {ours_us / bare_us:5.1f}")  # fmt: skip
    print(f"{'memory':14}{growth_bytes_a_job(given.merges):10.0f} bytes a job in the second half")


if __name__ == "__main__":
    main()
