"""What does a second worker process bring? Runs whose jobs are uneven or asynchronous, with two workers against one.

FedAsync aggregates every update as it comes, from ten devices at work, and tests every twentieth model. Rounds of
FedAvg have ten devices whose sizes are drawn from Dirichlet(0.3), and are tested each. Times are from the end of the
first round to that of the last, so that the start of the processes is not part of them. Ideal is a ratio of 0.5.

Run: python benchmarks/two_workers.py [--data NAME] [--model NAME] [--updates N] [--rounds N]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import edgesim
from edgesim.runs.simulate import simulate
from laps import Laps
from rows import Figures, Found, alone, compared, in_turns, of

QUICK = {"data": "digits", "model": "cnn_digits", "updates": 21, "rounds": 3}
DEVICES, AT_ONCE, SCORED_EVERY = 100, 10, 20
ONE, TWO = {"name": "workers", "workers": 1}, {"name": "workers", "workers": 2}


def scenario(data: str, model: str, backend: Mapping[str, Any], **changes: Any) -> edgesim.Scenario:
    """Return devices of different speeds; `changes` name what they do."""
    return edgesim.load(
        {
            "seed": 1,
            "data": {"name": data, "normalise": "none"},
            "model": model,
            "training": {"local_epochs": 1, "batch": 32, "lr": 0.01},
            "network": {"name": "fixed", "up": "5 Mbit/s", "down": "20 Mbit/s"},
            "energy": {"name": "power", "idle": "2.7 W", "busy": "6.4 W"},
            "backend": dict(backend),
            "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": {"uniform": ["0.5 GFLOP/s", "2 GFLOP/s"]}}}],
            **changes,
        }
    )


def measurement(chosen: edgesim.Scenario) -> Callable[[], Figures]:
    """Return what runs a scenario and measures it."""

    def measured() -> Figures:
        laps = Laps()
        simulate(chosen, observer=laps)
        return {"s": laps.from_first_to_last_s}

    return measured


def rows(
    data: str = "fashion_mnist", model: str = "cnn_m", updates: int = 100, rounds: int = 10, repeats: int = 3
) -> Iterator[Found]:
    """Yield seconds of `updates` updates of FedAsync, and of so many uneven rounds of FedAvg; at least two of each."""
    asynchronous = {
        "partition": "iid",
        "method": "fedasync",
        "protocol": {"name": "buffered", "buffer": 1, "concurrency": AT_ONCE},
        "evaluation": {"every": SCORED_EVERY},
        "stop": {"rounds": updates},
    }
    uneven = {
        "partition": {"name": "dirichlet_label", "beta": 0.3, "balance": False, "min_samples": 1},
        "method": "fedavg",
        "selection": {"name": "uniform", "count": AT_ONCE},
        "stop": {"rounds": rounds},
    }
    for about, changes, baseline, backend in (
        (f"FedAsync, {updates} updates", asynchronous, "1 worker", ONE),
        (f"FedAvg, {rounds} uneven rounds", uneven, "serial", {"name": "serial"}),
    ):
        backends = {baseline: backend, "2 workers": TWO}
        contestants = {name: measurement(scenario(data, model, each, **changes)) for name, each in backends.items()}
        note = f"Seconds from the first closed round to the last; {data}, {model}."
        yield from compared(of(in_turns(contestants, repeats), "s"), baseline, "s", note, about=about)


if __name__ == "__main__":
    alone(rows, QUICK)
