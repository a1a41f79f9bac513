"""What do batteries, governors and prices by the hour cost a run? Timing only, beside the same fleet without them.

Synchronous rounds with a deadline, so that a governor has a time to keep. Batteries are charged for an hour of each
day. Large ones last longer than the run, and of small ones many run out and are charged again. Electricity has a price
for each hour of the day. Seconds to build the run are not part of it.

Run: python benchmarks/equipped.py [--devices N] [--per_round N] [--rounds N] [--repeats N]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import timing_only
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from rows import Figures, Found, alone, compared, in_turns, of

QUICK = {"devices": 40, "per_round": 5, "rounds": 3}
CPU = {
    "frequency": {"log_uniform": ["1 GHz", "10 GHz"]},
    "min_frequency": "500 MHz",
    "flops_per_cycle": 1,
    "efficiency": 1.0,
}
BATTERY = {
    "capacity": "400 kJ",
    "level": {"uniform": [0.5, 1.0]},
    "charge": "1.5 W",
    "windows": [["0 h", "1 h"]],
}
ENERGY = {"name": "cpu", "capacitance": 1e-28, "static": "0.3 W", "idle": "2.7 W"}
SMALL = {**BATTERY, "capacity": {"uniform": ["100 J", "2 kJ"]}, "charge": "5 W", "phase": {"uniform": ["0 h", "24 h"]}}
PRICES = {"electricity": {"home": {"hours": [f"{20 + hour % 12} EUR/MWh" for hour in range(24)]}}}
BLOCKS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # the fleet block and the scenario's other keys
    "plain": ({"cpu": CPU}, {}),
    "large batteries": ({"cpu": CPU, "battery": BATTERY}, {}),
    "small batteries": ({"cpu": CPU, "battery": SMALL}, {}),
    "governors": ({"cpu": {**CPU, "governor": "just_in_time"}}, {}),
    "prices by the hour": ({"cpu": CPU, "zone": "home"}, {"prices": PRICES}),
}


def rows(devices: int = 10_000, per_round: int = 100, rounds: int = 200, repeats: int = 3) -> Iterator[Found]:
    """Yield processor seconds of a run, with each of them and without."""

    def run(block: Mapping[str, Any], keys: Mapping[str, Any]) -> Callable[[], Figures]:
        def measured() -> Figures:
            changes = {**keys, "energy": ENERGY, "protocol": {"name": "deadline", "deadline": "10 min"}}
            fleet = [{"count": devices, **block}]
            scenario = timing_only.in_rounds(devices, per_round, rounds, fleet=fleet, **changes)
            simulation = Simulation(assemble(scenario), NullBackend(), Silent())
            begun_s = time.process_time()
            simulation.run()
            return {"s": time.process_time() - begun_s}

        return measured

    found = in_turns({name: run(*block) for name, block in BLOCKS.items()}, repeats, warm_ups=1)
    note = f"Processor seconds of {rounds} rounds of {per_round} of {devices:,} devices."
    yield from compared(of(found, "s"), "plain", "s", note)


if __name__ == "__main__":
    alone(rows, QUICK)
