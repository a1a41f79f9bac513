"""Runs of random scenarios that fail if they go round in circles."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

import edgesim.runs.assembly
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import frames, timing_scenario

MOST_EVENTS = 100_000  # far more than any of these runs needs


class Watched:
    """A finished run without training, and its tables. `trace`: the file of measured availability, if it has any."""

    def __init__(self, given: Mapping[str, Any], trace: Path) -> None:
        there = [each | {"file": str(trace)} if "file" in each else each for each in given["availability"]]
        scenario = timing_scenario(model="cnn_digits", training={"batch": 8}, **{**given, "availability": there})
        self.simulation = Simulation(edgesim.runs.assembly.assemble(scenario), NullBackend(), Silent())
        env, events = self.simulation.world.env, count()
        step = env.step

        def counting() -> None:
            assert next(events) < MOST_EVENTS, f"still running at {env.now} s"
            step()

        env.step = counting  # type: ignore[method-assign]
        self.simulation.run()  # checks the ledger
        self.tables = {**frames(self.simulation), "devices": pd.DataFrame(self.simulation.devices())}
        self.jobs, self.orders, self.rounds = (self.tables[name] for name in ("jobs", "edges", "rounds"))
        self.end_s, self.given = self.simulation.world.now_s, given
