"""What do FedDH and FedDHAD cost the server? Their merges against FedAvg's, and against a whole round.

Run: python benchmarks/server.py [--model NAME] [--rounds N]
Ten devices of 500 random images of the shape of CIFAR-10 train for five epochs a round, the setting of Table 2 of the
FedDHAD paper (arXiv:2507.10430), which prints server overhead as a share and does not say of what. Prints for each
method the median host seconds of a merge, their ratio to FedAvg's and their share of the host's whole round, in which
all devices train one after the other; the server's FLOPs of a merge; and its share of a simulated round with a server
of 10 TFLOP/s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import edgesim
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.feddh import FedDH
from edgesim.methods.feddhad import FedDHAD
from edgesim.simulation.run import simulate

DEVICES, SAMPLES, BATCH = 10, 500, 10
SERVER_FLOPS_PER_S = 1e13
HERE = Path(__file__).stem  # the module's name where scenarios look for classes


class Timed:
    """Goes before a method in a class's bases: notes the seconds of its merges."""

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's own merge with a note."""
        start_s = time.perf_counter()
        merged: Aggregate = super().aggregate(state, global_model, updates, server, key)  # type: ignore[misc]
        return merged._replace(metrics={**merged.metrics, "merge_s": time.perf_counter() - start_s})


@dataclass(frozen=True, kw_only=True)
class TimedFedAvg(Timed, FedAvg):
    """FedAvg with a clock."""


@dataclass(frozen=True, kw_only=True)
class TimedFedDH(Timed, FedDH):
    """FedDH with a clock."""


@dataclass(frozen=True, kw_only=True)
class TimedFedDHAD(Timed, FedDHAD):
    """FedDHAD with a clock."""


class Clock:
    """An observer that notes how long rounds take."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._mark_s = time.perf_counter()

    def round_closed(self, info: Any) -> None:
        """Add the seconds of a round."""
        now_s = time.perf_counter()
        self.seconds.append(now_s - self._mark_s)
        self._mark_s = now_s

    def close(self) -> None:
        """Nothing to close."""


def scenario(method: str, model: str, rounds: int) -> edgesim.Scenario:
    """Return FedDHAD's setting, with the ten devices of a round alone and no tests."""
    return edgesim.load(
        {
            "data": {"name": "noise:RandomImages", "train": DEVICES * SAMPLES, "test": 100},
            "partition": {"name": "dirichlet_label", "beta": 0.5},
            "model": model,
            "training": {"local_epochs": 5, "batch": BATCH, "lr": 0.01},  # small: noise teaches nothing
            "network": {"name": "fixed", "up": "10 Mbit/s", "down": "10 Mbit/s"},
            "server": {"flops_per_s": SERVER_FLOPS_PER_S},
            "method": method,
            "evaluation": {"every": rounds},
            "stop": {"rounds": rounds},
            "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": {"uniform": ["1 GFLOP/s", "10 GFLOP/s"]}}}],
        }
    )


def main() -> None:
    """Print a line for each method."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="lenet5")
    options.add_argument("--rounds", type=int, default=4)
    given = options.parse_args()
    torch.set_num_threads(1)
    plain_s = None
    print(f"{given.model:10} merge ms  to FedAvg  share of host round  server MFLOP  share of simulated round")
    for name in ("FedAvg", "FedDH", "FedDHAD"):
        clock = Clock()
        run = simulate(scenario(f"{HERE}:Timed{name}", given.model, given.rounds), observer=clock)
        merges_s = run.metrics["value"][run.metrics["name"] == "merge_s"].iloc[1:]
        merge_s, server_s = merges_s.median(), run.rounds["server_s"].iloc[1:].mean()
        plain_s = plain_s or merge_s
        round_s = (run.rounds["now_s"] - run.rounds["start_s"]).iloc[1:].mean()
        print(
            f"{name:10}{1e3 * merge_s:9.2f}{merge_s / plain_s:11.2f}{merge_s / median(clock.seconds[1:]):21.5f}"
            f"{server_s * SERVER_FLOPS_PER_S / 1e6:14.2f}{server_s / round_s:26.2e}"
        )


if __name__ == "__main__":
    main()
