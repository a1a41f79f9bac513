"""What does a what-if cost? Runs under other networks and prices, answered by one that was trained.

Run: python benchmarks/replay.py [--cells N] [--rounds N] [--data NAME]
Prints the seconds of a training run, of the mean cell that is answered, and their ratio; and what a study of all cells
takes against its one training.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path

import edgesim
from edgesim.runtime.answers import Answers
from edgesim.simulation.run import simulate
from edgesim.studies.common import Common

MODELS = {"digits": "cnn_digits", "fashion_mnist": "cnn_mnist", "cifar10": "cnn_cifar10"}


def scenario(data: str, rounds: int, latency_s: float, idle_w: float) -> edgesim.Scenario:
    """Return FedAvg on 100 devices, 10 a round, with a network and a power."""
    return edgesim.load(
        {
            "seed": 1,
            "data": data,
            "partition": {"name": "dirichlet_label", "beta": 0.5, "min_samples": 1},
            "model": MODELS[data],
            "training": {"batch": 20, "lr": 0.1},
            "network": {"name": "fixed", "up": "2 Mbit/s", "down": "20 Mbit/s", "latency": latency_s},
            "energy": {"name": "power", "idle": idle_w, "busy": 6.0},
            "selection": {"name": "uniform", "count": 10},
            "method": "fedavg",
            "stop": {"rounds": rounds},
            "fleet": [{"count": 100, "cpu": {"flops_per_s": {"log_uniform": ["1 GFLOP/s", "10 GFLOP/s"]}}}],
        }
    )


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cells", type=int, default=60)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--data", choices=MODELS, default="digits")
    given = options.parse_args()
    common, seconds = Common(), []
    with tempfile.TemporaryDirectory() as place, closing(Answers(Path(place))) as answers:
        for cell in range(given.cells):
            asked = scenario(given.data, given.rounds, 0.01 * cell, 1.0 + cell % 3)
            begun_s = time.perf_counter()
            run = simulate(asked, Path(place) / str(cell), answers=answers, load=common.load, build=common.build)
            seconds.append(time.perf_counter() - begun_s)
            assert (run.manifest["known"]["jobs"] > 0) == (cell == 0)
    trained_s, answered_s = seconds[0], sum(seconds[1:]) / max(1, given.cells - 1)
    print(f"{given.rounds} rounds of 10 of 100 devices, {given.data}")
    print(f"trained          {trained_s:8.2f} s")
    print(f"answered         {answered_s:8.2f} s   {answered_s / trained_s:6.3f} x")
    print(f"{given.cells:4} cells       {sum(seconds):8.2f} s   {sum(seconds) / trained_s:6.2f} x one training")


if __name__ == "__main__":
    main()
