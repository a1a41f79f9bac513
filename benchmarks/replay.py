"""What does a what-if cost? Runs under other networks and prices, answered by one that was trained.

Cells of a study that differ in latency and in watts: the first is trained, the others are simulated and find all that
was learned. In two processes: does a study of four trainings, each in many such cells, train four times and no more?

Run: python benchmarks/replay.py [--cells N] [--rounds N] [--data NAME]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import mean

import edgesim
from edgesim.execution.result_cache import Answers
from edgesim.runs.simulate import simulate
from edgesim.studies.shared import Common
from rows import Found, alone, compared

MODELS = {"digits": "cnn_digits", "fashion_mnist": "cnn_mnist", "cifar10": "cnn_cifar10"}
WATTS = ("1 W", "2 W", "3 W")
QUICK = {"cells": 2, "rounds": 2}


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


def cell_seconds(data: str, cells: int, rounds: int) -> list[float]:
    """Return the seconds of each cell, of which only the first trains."""
    common, seconds = Common(), []
    with tempfile.TemporaryDirectory() as place, closing(Answers(Path(place))) as answers:
        for cell in range(cells):
            asked = scenario(data, rounds, 0.01 * cell, 1.0 + cell % 3)
            begun_s = time.perf_counter()
            run = simulate(asked, Path(place) / str(cell), answers=answers, load=common.load, build=common.build)
            seconds.append(time.perf_counter() - begun_s)
            assert (run.manifest["known"]["jobs"] > 0) == (cell == 0)
    return seconds


def latencies(cells: int) -> int:
    """Return how many latencies a study has that is to have about so many cells."""
    return max(1, cells // (4 * len(WATTS)))


def study_seconds(data: str, cells: int, rounds: int) -> dict[str, float]:
    """Return the seconds of four trainings in two processes, and those of a study of about so many cells with them."""
    axes = {
        "method": ["fedavg", "fedprox"],
        "network.latency": [0.01 * n for n in range(latencies(cells))],
        "energy.idle": list(WATTS),
        "seed": [1, 2],
    }
    base = {**scenario(data, rounds, 0.0, 1.0).canonical(), "backend": "serial"}
    found = {}
    for what, only in {"alone": ["network.latency=0.0,energy.idle=1_W"], "all": []}.items():
        study = edgesim.study(base, axes, ["best_accuracy", "sim_time_s", "energy_j"])
        begun_s = time.perf_counter()
        runs = study.run(workers=2, only=only).runs
        found[what] = time.perf_counter() - begun_s
        assert sum(run.manifest["known"]["jobs"] > 0 for run in runs.values()) == 4
    return found


def rows(data: str = "digits", cells: int = 60, rounds: int = 20, repeats: int = 3) -> Iterator[Found]:
    """Yield seconds of the trained cell, of the mean answered one and of all cells together, and of studies.

    At least two cells.
    """
    found = [cell_seconds(data, cells, rounds) for _ in range(repeats)]
    names = ("trained", "answered", f"study of {cells} cells")
    run = f"{rounds} rounds of FedAvg, 10 of 100 devices a round, {data}"
    sentences = (
        f"A run of {run}: the first cell, which is trained.",
        "A cell with another network or other prices, for which nothing is trained: mean of all but the first.",
        "All cells together, one of them trained.",
    )
    seconds = ([each[0] for each in found], [mean(each[1:]) for each in found], [sum(each) for each in found])
    yield from compared(
        dict(zip(names, seconds, strict=True)), "trained", "s", dict(zip(names, sentences, strict=True))
    )
    studies = [study_seconds(data, cells, rounds) for _ in range(repeats)]
    alone_, all_ = "four trainings, two processes", f"study of {4 * len(WATTS) * latencies(cells)} cells, two processes"
    yield from compared(
        {alone_: [each["alone"] for each in studies], all_: [each["all"] for each in studies]},
        alone_,
        "s",
        {
            alone_: f"A study of four such runs, FedAvg and FedProx with two seeds, in one network: {run}.",
            all_: "The same four in many networks and at many powers: trained four times, too.",
        },
    )


if __name__ == "__main__":
    alone(rows, QUICK)
