"""How much faster are devices trained together? Rounds of FedAvg by cohort against serial, on one device of torch.

Nothing is evaluated, and the first round of each run does not count. The data are random images of CIFAR-10's shape: no
files needed. How far the weights of both lie apart is given as a share of the largest.

Run: python benchmarks/cohort.py [--device cuda] [--devices N] [--samples N] [--rounds N] [--size N] [--workers N]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import edgesim
from edgesim.runs.simulate import simulate
from rows import Figures, Found, alone, compared, in_turns, of

HERE = Path(__file__).stem  # the module's name where scenarios look for classes
TEST_SAMPLES = 100
QUICK = {"devices": 3, "samples": 32, "rounds": 2, "workers": 1}


class Mlp(nn.Sequential):
    """One hidden layer of 200 units on images of CIFAR-10's shape."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 10))


NETWORKS = {"CNN-CIFAR10": "cnn_cifar10", "MLP": f"{HERE}:Mlp"}


class Clock:
    """An observer that notes the seconds between rounds, and what they left to the device."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._marks_s: list[float] = []

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Note when a round is over, what it left to the device included."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        self._marks_s.append(time.perf_counter())

    def close(self) -> None:
        """Nothing to close."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of each round after the first."""
        return [end - start for start, end in zip(self._marks_s, self._marks_s[1:], strict=False)]


def rows(
    device: str = "cpu",
    devices: int = 10,
    samples: int = 500,
    rounds: int = 4,
    size: int = 100,
    workers: int = 0,
    repeats: int = 2,
) -> Iterator[Found]:
    """Yield seconds of a round, and how far weights lie apart. `workers`: on a CPU; 0: one a core."""
    serial = {"name": "serial", "device": device}
    cohort = {"name": "cohort", "device": device, "size": size, **({"workers": workers} if workers else {})}
    for name, model in NETWORKS.items():
        weights: dict[str, Mapping[str, np.ndarray]] = {}

        def trained(backend: Mapping[str, Any], model: str = model, weights: Any = weights) -> Figures:
            clock = Clock(device)
            run = simulate(scenario(model, backend, devices, samples, rounds), observer=clock)
            weights[backend["name"]] = run.weights()
            figures = {"s": median(clock.seconds)}
            return figures | ({"apart": apart(weights)} if len(weights) == 2 else {"apart": 0.0})

        found = in_turns({"serial": lambda: trained(serial), "cohort": lambda: trained(cohort)}, repeats)
        note = f"A round of {devices} devices x {samples} samples on {device}."
        yield from compared(of(found, "s"), "serial", "s", note, about=name, fit=min)
        note = "The largest difference of a weight from serial's, as a share of its tensor's largest number."
        yield from compared({"cohort, weights apart": of(found, "apart")["cohort"]}, "", "", note, about=name)


def apart(weights: Mapping[str, Mapping[str, np.ndarray]]) -> float:
    """Return the largest difference between the weights of two, as a share of their tensor's largest number."""
    one, other = weights.values()
    return max(float(abs(one[name] - other[name]).max() / abs(one[name]).max()) for name in one)


def scenario(model: str, backend: Mapping[str, Any], devices: int, samples: int, rounds: int) -> edgesim.Scenario:
    """Return devices that all train in every round."""
    return edgesim.load(
        {
            "data": {"name": "noise:RandomImages", "train": devices * samples, "test": TEST_SAMPLES},
            "partition": {"name": "iid", "samples_per_device": samples},
            "model": model,
            "method": "fedavg",
            "training": {"batch": 32, "lr": 0.05},
            "selection": "all",
            "backend": dict(backend),
            "evaluation": {"every": rounds},
            "stop": {"rounds": rounds},
            "fleet": [{"count": devices, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
        }
    )


if __name__ == "__main__":
    alone(rows, QUICK)
