"""How fast is training? Rounds of FedAvg on CNN-CIFAR10 against plain PyTorch loops that take the same SGD steps.

A round: ten devices of 500 images, then the test images. Whole runs take turns, as worker processes go on training
while a loop by hand would take a round. The loops go on from where they were. The first round of each run, which
holds edgesim's start-up, does not count. The default data are random images: no files needed.

Run: python benchmarks/training.py [--workers N] [--rounds N] [--data NAME] [--samples N]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgesim
from bare_loop import BareLoop, Samples
from counting import steps_of
from edgesim.learning.data.dataset import Dataset
from edgesim.runs.assembly import assemble
from edgesim.runs.simulate import simulate
from laps import Laps
from rows import Figures, Found, alone, compared, in_turns, of

DEVICES, BATCH, LR = 10, 20, 0.05
TUNED = "bare loop, channels-last, ReLU after pooling"
QUICK = {"samples": 20, "rounds": 2}


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


class ByHand:
    """A loop by hand over the same devices, which goes on where it was."""

    def __init__(self, data: Dataset, shards: Sequence[Any], first: Mapping[str, Tensor], tuned: bool) -> None:
        layout = torch.channels_last if tuned else torch.contiguous_format

        def samples(x: Tensor, y: Tensor) -> Samples:
            return Samples(x.permute(0, 3, 1, 2).contiguous(memory_format=layout), y)

        net = Net(pool_first=tuned).to(memory_format=layout)
        net.load_state_dict(first)
        train, test = samples(data.x_train, data.y_train), samples(data.x_test, data.y_test)
        self.loop = BareLoop(net, train, test, LR, BATCH)
        self._shards = [torch.from_numpy(shard) for shard in shards]
        self._orders = torch.Generator().manual_seed(1)

    def run(self, rounds: int, threads: int) -> Figures:
        """Let every device train, average, test; return what the rounds after the first took."""
        torch.set_num_threads(threads)
        laps, before = Laps(), self.loop.steps
        for _ in range(rounds):
            self.loop.round([shard[torch.randperm(len(shard), generator=self._orders)] for shard in self._shards])
            laps.round_closed({"accuracy": self.loop.accuracy()})
        return figures(laps, self.loop.steps - before)


def figures(laps: Laps, steps: int) -> Figures:
    """Return what is compared."""
    assert laps.accuracy is not None
    return {"round": median(laps.seconds), "best": min(laps.seconds), "accuracy": laps.accuracy, "steps": steps}


def scenario(data: str, workers: int, samples: int, rounds: int) -> edgesim.Scenario:
    """Return the setting of the FedPMT paper's devices, all asked every round."""
    return edgesim.load(
        {
            "data": {"name": data, "train_limit": DEVICES * samples},
            "partition": {"name": "iid", "samples_per_device": samples},
            "model": "cnn_cifar10",
            "training": {"batch": BATCH, "lr": LR},
            "method": "counting:CountingFedAvg",
            "backend": {"name": "workers", "workers": workers},
            "stop": {"rounds": rounds},
            "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
        }
    )


def rows(
    workers: int = 2, data: str = "noise:RandomImages", samples: int = 500, rounds: int = 6, repeats: int = 3
) -> Iterator[Found]:
    """Yield seconds of rounds after the first, with as many threads by hand as worker processes; at least two rounds.

    Raises AssertionError if they did not take the same number of SGD steps.
    """
    chosen = scenario(data, workers, samples, rounds)
    parts = assemble(chosen)
    first = dict(parts.module.named_parameters())

    def edgesim_run() -> Figures:
        laps = Laps()
        return figures(laps, steps_of(simulate(chosen, observer=laps)))

    contestants = {"edgesim": edgesim_run}
    for name, tuned in {TUNED: True, "bare loop, NCHW, convolution - ReLU - pooling": False}.items():
        contestants[name] = partial(ByHand(parts.data, parts.split.train, first, tuned).run, rounds, workers)
    found = in_turns(contestants, repeats)
    assert len({each["steps"] for figures in found.values() for each in figures}) == 1, "not the same work"
    note = f"Seconds of a round, its test included, {workers} workers or threads: median of those after a run's first."
    yield from compared(of(found, "round"), TUNED, "s", note, about="round")
    yield from compared(of(found, "best"), TUNED, "s", "The best round of all.", about="best round", fit=min)
    note = "On the test images after the last round; random images teach nothing."
    yield from compared(of(found, "accuracy"), TUNED, "", note, about="accuracy")


if __name__ == "__main__":
    alone(rows, QUICK)
