"""What do personal sparse models cost in memory and time? DA-DPFL among peers that each keep a ResNet18 and its masks.

Every device takes one SGD step a round on one random image, so that what is left is the exchange: mixing, moving masks
by random growth, pruning (from round 2 on) and the mean that a run reports. Memory stands beside one model of float32
for each device, what parts of a round take beside its training.

Run: python benchmarks/personal_models.py [--devices N] [--degree M] [--reuse N] [--rounds N] [--model NAME]
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import edgesim
from edgesim.core.update import ModelState
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Simulation
from laps import Laps
from rows import Found, alone, compared

MIB = 2.0**20
FLOAT_BYTES = 4
QUICK = {"devices": 3, "degree": 2, "model": "cnn_cifar10"}
TRAINING = "training"
PARTS = {  # what is timed: file and function -> part of a round; disjoint but for the last
    ("sparse", "mixed"): "mixing (aggregation on devices)",
    ("loop", "run_local_sgd"): TRAINING,
    ("sparse", "moved"): "moving masks (RigL, random growth)",
    ("dadpfl", "_pruned"): "pruning (PQ index)",
    ("pruning", "distance"): "distance to the first model (vote)",
    ("packed", "packed"): "packing",
    ("sparse", "mean_of_sparse"): "mean of all devices (report)",
    ("trainer", "score_chunks"): "evaluation of that mean",
    ("packed", "tensor"): "(unpacking, part of the others)",
}


class Watch(Laps):
    """An observer that notes each round's memory, in bytes, beside when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.learner: Any = None
        self.dense_bytes = 0  # of one float32 model for each device
        self.peak: list[int] = []
        self.kept: list[int] = []  # by devices
        self.with_messages: list[int] = []  # of those, and of the messages that peers can fetch

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Note the figures of a round."""
        super().round_closed(info)
        kept = list(self.learner.memory.values())
        heard = [self.learner.graph.value(node).body for node in self.learner._messages.values()]
        self.peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        self.kept.append(stored_bytes(kept))
        self.with_messages.append(stored_bytes([*kept, *heard]))


def stored_bytes(model_states: Iterable[ModelState]) -> int:
    """Return the bytes of what bundles hold, what they share counted once."""
    found: dict[int, int] = {}
    for tensors in (tensors for model_state in model_states for tensors in model_state.values()):
        for each in getattr(tensors, "stored", tensors).values():
            found[each.data_ptr() if isinstance(each, Tensor) else id(each)] = each.nbytes
    return sum(found.values())


def scenario(devices: int, degree: int, reuse: int, rounds: int, model: str) -> edgesim.Scenario:
    """Return peers that train one step a round, all of whom prune from round 2 on."""
    method = {"name": "dadpfl", "growth": "random", "change_below": 1e9, "b": 0, "c": 1.0}
    return edgesim.load(
        {
            "seed": 1,
            "data": {"name": "noise:RandomImages", "train": devices, "test": 100},
            "partition": {"name": "iid", "samples_per_device": 1},
            "model": model,
            "training": {"local_epochs": 1, "batch": 1, "lr": 0.1},
            "method": {**method, "reuse": reuse} if reuse else method,
            "peers": {"name": "random", "degree": degree},
            "stop": {"rounds": rounds},
            "fleet": [{"count": devices, "cpu": {"flops_per_s": "1 TFLOP/s"}}],
        }
    )


def rows(
    devices: int = 100, degree: int = 10, reuse: int = 0, rounds: int = 2, model: str = "resnet18_gn", repeats: int = 1
) -> Iterator[Found]:
    """Yield memory after each round and CPU time of its parts; `reuse`: peers that a device waits for, 0: all."""
    runs = [_watched(scenario(devices, degree, reuse, rounds, model)) for _ in range(repeats)]
    dense = f"{devices} float32 models"
    for place in range(rounds):
        memory = {
            dense: [watch.dense_bytes / MIB for watch, _ in runs],
            "kept by devices": [watch.kept[place] / MIB for watch, _ in runs],
            "with messages": [watch.with_messages[place] / MIB for watch, _ in runs],
            "peak of the process": [watch.peak[place] / MIB for watch, _ in runs],
        }
        note = f"Memory at the end of the round; devices keep a personal {model}, its masks and what they sent."
        yield from compared(memory, dense, "MiB", note, about=f"round {place + 1}")
    parts = {part: [1e3 * seconds[part] / (devices * rounds) for _, seconds in runs] for part in PARTS.values()}
    yield from compared(parts, TRAINING, "ms", "CPU time of a device in a round.", about="part")


def _watched(chosen: edgesim.Scenario) -> tuple[Watch, dict[str, float]]:
    """Run once; return what was seen, and the CPU seconds of every part."""
    parts, watch, profile = assemble(chosen), Watch(), cProfile.Profile(time.process_time)
    backend = parts.scenario.backend.value.open(parts.make_trainer)
    simulation = Simulation(parts, backend, watch)
    watch.learner = simulation.learner
    watch.dense_bytes = FLOAT_BYTES * parts.setting.cost_profile.params * len(parts.fleet)
    with plain_torch():
        profile.runcall(simulation.run)
    seconds = dict.fromkeys(PARTS.values(), 0.0)
    for (file, _, name), (_, _, _, total_s, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if (Path(file).stem, name) in PARTS:
            seconds[PARTS[Path(file).stem, name]] += total_s
    return watch, seconds


if __name__ == "__main__":
    alone(rows, QUICK)
