"""What do bfloat16 and gradient checkpointing save on this processor? Rounds of FedAvg on large networks.

A vision transformer of four blocks of ViT-B/16, and a ResNet18 with group normalisation, on random images. Each run is
a process of its own with one thread, whose largest memory is noted. The first round of each run does not count.
bfloat16 is faster where the processor has units for it, which `lscpu` names avx512_bf16 or amx_bf16.

Run: python benchmarks/large_networks.py [--devices N] [--samples N] [--batch N] [--pixels N] [--rounds N]
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median
from typing import Any

import edgesim
from edgesim.runs.simulate import simulate
from laps import Laps
from rows import Figures, Found, LeftOut, alone, compared, in_turns, of

MIB = 2**20
QUICK = {"devices": 1, "samples": 2, "batch": 2, "pixels": 32, "rounds": 2}
TRANSFORMER = {"name": "hf", "config": "vit-b-16", "task": "classification", "layers": 4}
AGAIN = {**TRANSFORMER, "gradient_checkpointing": True}
RESNET = {"name": "resnet18_gn"}
MIXED = {"precision": "bfloat16"}
WAYS: Mapping[str, Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {  # the model, and keys of training
    "ViT-B/16, 4 blocks": {
        "float32": (TRANSFORMER, {}),
        "bfloat16": (TRANSFORMER, MIXED),
        "checkpointing": (AGAIN, {}),
        "both": (AGAIN, MIXED),
    },
    "ResNet18": {"float32": (RESNET, {}), "bfloat16": (RESNET, MIXED)},
}


def rows(
    devices: int = 2, samples: int = 8, batch: int = 8, pixels: int = 224, rounds: int = 2, repeats: int = 3
) -> Iterator[Found]:
    """Yield seconds of a round and peaks of memory."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come

    def measured(model: Mapping[str, Any], training: Mapping[str, Any]) -> Figures:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(run, model, training, devices, samples, batch, pixels, rounds).result()

    for network, ways in WAYS.items():
        if TRANSFORMER in (model for model, _ in ways.values()) and find_spec("transformers") is None:
            yield LeftOut(network, "transformers is not installed")
            continue
        contestants = {f"{network}, {way}": partial(measured, *keys) for way, keys in ways.items()}
        found = in_turns(contestants, repeats)
        note = f"A round of {devices} devices x {samples} images of {pixels} pixels in batches of {batch}."
        yield from compared(of(found, "s"), f"{network}, float32", "s", note, about="seconds", fit=min)
        yield from compared(
            of(found, "mib"), f"{network}, float32", "MiB", "Largest memory of the process.", about="memory"
        )


def run(
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    devices: int,
    samples: int,
    batch: int,
    pixels: int,
    rounds: int,
) -> Figures:
    """Return what a run takes, in this process."""
    clock = Laps()
    images = {"name": "noise:RandomImages", "train": devices * samples, "test": 2, "pixels": pixels, "channels": 3}
    simulate(
        edgesim.load(
            {
                "data": images,
                "partition": {"name": "iid", "samples_per_device": samples},
                "model": dict(model),
                "method": "fedavg",
                "training": {"batch": batch, "lr": 0.01, **training},
                "selection": "all",
                "backend": "serial",
                "evaluation": {"every": rounds},
                "stop": {"rounds": rounds},
                "fleet": [{"count": devices, "cpu": {"flops_per_s": "1 TFLOP/s"}}],
            }
        ),
        observer=clock,
    )
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"s": median(clock.seconds), "mib": peak_bytes / MIB}


if __name__ == "__main__":
    alone(rows, QUICK)
