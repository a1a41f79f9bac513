"""How fast is training? Rounds of FedAvg on CNN-CIFAR10 against a plain PyTorch loop that takes the same SGD steps.

Run: python benchmarks/training.py [--workers N] [--rounds N] [--data NAME]
Both run in turns, a round each, so that a busy machine disturbs them alike. Prints the median seconds of a round after
the first, evaluation of the test images included, and their ratio. The default data are random images: no files needed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgesim
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.learning.data.dataset import Dataset
from edgesim.methods.fedavg import FedAvg
from edgesim.simulation.assembly import assemble
from edgesim.simulation.run import simulate

DEVICES, SAMPLES, BATCH, LR = 10, 500, 20, 0.05
HERE = Path(__file__).stem  # the module's name where scenarios look for classes
CIFAR_TRAIN, CIFAR_TEST = DEVICES * SAMPLES, 10_000


@dataclass(frozen=True, kw_only=True)
class CountingFedAvg(FedAvg):
    """FedAvg that notes how many SGD steps were really taken."""

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return FedAvg's merge with the note "steps"."""
        merged = super().aggregate(state, global_model, updates, server, key)
        return merged._replace(metrics={**merged.metrics, "steps": sum(message.steps for message in updates)})


class Net(nn.Module):
    """CNN-CIFAR10 of the FedPMT paper; `pool_first` applies ReLU to the pooled maps."""

    def __init__(self, pool_first: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 5), nn.Conv2d(16, 32, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(800, 500), nn.Linear(500, 300), nn.Linear(300, 10)
        self.pool_first = pool_first

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        for conv in (self.conv1, self.conv2):
            x = conv(x)
            x = F.relu(F.max_pool2d(x, 2)) if self.pool_first else F.max_pool2d(F.relu(x), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class BareLoop:
    """FedAvg as written by hand: one network, the data as one tensor sliced by index, torch's own optimiser."""

    def __init__(self, data: Dataset, shards: Sequence[np.ndarray], first: Mapping[str, Tensor], tuned: bool) -> None:
        layout = torch.channels_last if tuned else torch.contiguous_format
        self.name = "bare, channels-last, ReLU after pooling" if tuned else "bare, NCHW, convolution - ReLU - pooling"
        self.seconds: list[float] = []
        self.steps = 0
        self.accuracy = 0.0
        self._x = data.x_train.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        self._x_test = data.x_test.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        self._y, self._y_test = data.y_train, data.y_test
        self._shards = [torch.from_numpy(shard) for shard in shards]
        self._model = {name: value.detach().clone() for name, value in first.items()}
        self._net = Net(pool_first=tuned).to(memory_format=layout)
        self._orders = torch.Generator().manual_seed(1)

    def round(self) -> None:
        """Train every device in turn, average, evaluate; add the seconds it took."""
        start_s = time.perf_counter()
        total = {name: torch.zeros_like(value) for name, value in self._model.items()}
        for shard in self._shards:
            self._train(shard[torch.randperm(len(shard), generator=self._orders)])
            for name, value in self._net.state_dict().items():
                total[name] += value / len(self._shards)
        self._model = total
        self._evaluate()
        self.seconds.append(time.perf_counter() - start_s)

    def _train(self, shuffled: Tensor) -> None:
        self._net.load_state_dict(self._model)
        optimizer = torch.optim.SGD(self._net.parameters(), lr=LR)
        for rows in shuffled.split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(self._net(self._x[rows]), self._y[rows]).backward()
            optimizer.step()
            self.steps += 1

    def _evaluate(self) -> None:
        self._net.load_state_dict(self._model)
        with torch.no_grad():
            batches = zip(self._x_test.split(500), self._y_test.split(500), strict=True)
            hits = sum(int((self._net(x).argmax(1) == y).sum()) for x, y in batches)
        self.accuracy = hits / len(self._y_test)


class Turns:
    """An observer that lets the bare loops run a round after each of edgesim's, and times edgesim's alone."""

    def __init__(self, loops: Sequence[BareLoop]) -> None:
        self.seconds: list[float] = []
        self.accuracy: float | None = None
        self._loops = loops
        self._mark_s = time.perf_counter()

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Add the seconds of edgesim's round, then run the others."""
        self.seconds.append(time.perf_counter() - self._mark_s)
        self.accuracy = info["accuracy"]
        for loop in self._loops:
            loop.round()
        self._mark_s = time.perf_counter()

    def close(self) -> None:
        """Nothing to close."""


def scenario(data: str, workers: int, rounds: int) -> edgesim.Scenario:
    """Return the setting of the FedPMT paper's devices, all asked every round."""
    return edgesim.load(
        {
            "data": {"name": data, "train_limit": CIFAR_TRAIN},
            "partition": {"name": "iid", "samples_per_device": SAMPLES},
            "model": "cnn_cifar10",
            "training": {"batch": BATCH, "lr": LR},
            "method": f"{HERE}:CountingFedAvg",
            "backend": {"name": "workers", "workers": workers},
            "stop": {"rounds": rounds},
            "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
        }
    )


def main() -> None:
    """Print the comparison. Raises AssertionError if they did not take the same number of steps."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--data", default="noise:RandomImages", help="a data set's name, such as cifar10")
    given = options.parse_args()
    torch.set_num_threads(given.workers)
    chosen = scenario(given.data, given.workers, given.rounds)
    parts = assemble(chosen)
    first = dict(parts.module.named_parameters())
    loops = [BareLoop(parts.data, parts.split.train, first, tuned) for tuned in (False, True)]
    turns = Turns(loops)
    run = simulate(chosen, observer=turns)
    steps = int(run.metrics["value"][run.metrics["name"] == "steps"].sum())
    assert all(loop.steps == steps for loop in loops), "not the same work"
    report(turns, loops, steps // given.rounds, given.workers)


def report(turns: Turns, loops: Sequence[BareLoop], steps: int, workers: int) -> None:
    """Print one line for each contestant; times are medians of the rounds after the first, ratios edgesim's to it."""
    ours = ("edgesim", turns.seconds, turns.accuracy)
    print(f"CNN-CIFAR10, {DEVICES} devices x {SAMPLES}; a round: {steps} SGD steps, then {CIFAR_TEST:,} test images")
    print(f"{f'{workers} workers or threads':40} s/round  accuracy  first round  ratio  ratio of best rounds")
    for name, seconds, accuracy in (*((loop.name, loop.seconds, loop.accuracy) for loop in loops), ours):
        ratio, best = (fit(turns.seconds[1:]) / fit(seconds[1:]) for fit in (median, min))
        print(f"{name:40}{median(seconds[1:]):8.3f}{accuracy:10.3f}{seconds[0]:13.2f}{ratio:7.2f}{best:22.2f}")
    print("edgesim's first round has its start-up in it: data, cost profile, worker processes")


if __name__ == "__main__":
    main()
