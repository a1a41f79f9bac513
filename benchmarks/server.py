"""What do FedDH and FedDHAD cost the server? Their merges against FedAvg's, and against a whole round.

Ten devices of 500 random images of the shape of CIFAR-10 train for five epochs a round, the setting of Table 2 of the
FedDHAD paper (arXiv:2507.10430), which prints server overhead as a share and does not say of what.

Run: python benchmarks/server.py [--model NAME] [--samples N] [--rounds N]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from edgesim.runs.simulate import simulate
from laps import Laps
from rows import Figures, Found, alone, compared, in_turns, of

DEVICES, BATCH = 10, 10
SERVER_FLOPS_PER_S = 1e13
HERE = Path(__file__).stem  # the module's name where scenarios look for classes
QUICK = {"samples": 30, "rounds": 2}


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


def scenario(method: str, model: str, samples: int, rounds: int) -> edgesim.Scenario:
    """Return FedDHAD's setting, with the ten devices of a round alone and no tests."""
    return edgesim.load(
        {
            "data": {"name": "noise:RandomImages", "train": DEVICES * samples, "test": 100},
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


def rows(model: str = "lenet5", samples: int = 500, rounds: int = 4, repeats: int = 3) -> Iterator[Found]:
    """Yield what a merge costs by each method, on the host and in simulated time; at least two rounds."""
    torch.set_num_threads(1)
    contestants = {name: partial(_figures, name, model, samples, rounds) for name in ("FedAvg", "FedDH", "FedDHAD")}
    found = in_turns(contestants, repeats)
    note = "Host time of a merge: median of the rounds after the first."
    yield from compared(of(found, "merge_ms"), "FedAvg", "ms", note, about="merge")
    note = "FLOPs of the server in a merge."
    yield from compared(of(found, "mflop"), "FedAvg", "MFLOP", note, about="server work")
    for name in contestants:
        whole = "a whole round on the host"
        pair = {whole: of(found, "round_ms")[name], "its merge": of(found, "merge_ms")[name]}
        yield from compared(pair, whole, "ms", "Host time, where devices train one after the other.", about=name)
        whole = "a whole simulated round"
        pair = {whole: of(found, "simulated_round_s")[name], "its server work": of(found, "server_s")[name]}
        yield from compared(pair, whole, "s", "Simulated time, with a server of 10 TFLOP/s.", about=name)


def _figures(name: str, model: str, samples: int, rounds: int) -> Figures:
    laps = Laps()
    run = simulate(scenario(f"{HERE}:Timed{name}", model, samples, rounds), observer=laps)
    merges_s = run.metrics["value"][run.metrics["name"] == "merge_s"].iloc[1:]
    server_s = run.rounds["server_s"].iloc[1:].mean()
    return {
        "merge_ms": 1e3 * merges_s.median(),
        "round_ms": 1e3 * median(laps.seconds),
        "mflop": server_s * SERVER_FLOPS_PER_S / 1e6,
        "server_s": server_s,
        "simulated_round_s": (run.rounds["now_s"] - run.rounds["start_s"]).iloc[1:].mean(),
    }


if __name__ == "__main__":
    alone(rows, QUICK)
