"""Does memory grow with a run? Peak memory of timing-only runs with ever more rounds, against the shortest.

Each run is a process of its own that writes its run folder, which is opened and counted. In rounds 1,000 of the devices
are asked each time; the buffered protocol has 500 at work and aggregates 50 updates, and counts a thousand updates as a
round here.

Run: python benchmarks/tables.py [--devices N ...] [--per-round N] [--rounds N ...]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import edgesim
import timing_only
from edgesim.runs.simulate import simulate
from rows import Figures, Found, alone, compared, in_turns, of

ONE = "one"  # the word that makes this program run once, and print its figures
MIB = 2.0**20
AT_ONCE, BUFFER = 500, 50
QUICK = {"devices": (100,), "per_round": 10, "rounds": (2, 4)}


def scenario(protocol: str, devices: int, jobs: int, per_round: int) -> edgesim.Scenario:
    """Return a run of so many jobs, in rounds or buffered."""
    if protocol == "rounds":
        return timing_only.in_rounds(devices, per_round, jobs // per_round)
    buffer = min(BUFFER, per_round)
    return timing_only.buffered(devices, min(AT_ONCE, devices // 2), buffer, jobs // buffer)


def peak_mib() -> float:
    """Return the most resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def once(protocol: str, devices: int, jobs: int, per_round: int) -> Figures:
    """Run once in this process; return what it took. Raises SystemExit if rows are missing."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, start_s = Path(scratch) / "run", time.perf_counter()
        simulate(scenario(protocol, devices, jobs, per_round), folder)
        us, peak = 1e6 * (time.perf_counter() - start_s) / jobs, peak_mib()  # before the tables are read again
        run = edgesim.open(folder)
        merged = int((run.jobs["outcome"] == "ok").sum())
        if merged < jobs or len(run.devices) != devices + 1 or int(run.rounds["used"].sum()) != jobs:
            raise SystemExit(f"incomplete tables: {merged} jobs of {jobs}, {len(run.rounds)} rounds")
        return {"peak": peak, "us": us, "table": (folder / "jobs.parquet").stat().st_size / MIB}


def in_a_process(protocol: str, devices: int, jobs: int, per_round: int) -> Figures:
    """Return the figures of a run in a process of its own."""
    words = [sys.executable, __file__, ONE, protocol, str(devices), str(jobs), str(per_round)]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout)


def rows(
    devices: tuple[int, ...] = (100_000, 1_000_000),
    per_round: int = 1_000,
    rounds: tuple[int, ...] = (125, 250, 500, 1_000),
    repeats: int = 1,
) -> Iterator[Found]:
    """Yield peak memory and seconds of runs with each number of rounds, for each protocol and number of devices."""
    for protocol in ("rounds", "buffered"):
        for count in devices:
            runs = {f"{n:,} rounds": partial(in_a_process, protocol, count, n * per_round, per_round) for n in rounds}
            found, about = in_turns(runs, repeats), f"{protocol}, {count:,} devices"
            base = next(iter(runs))
            note = f"Most resident memory of the process; {per_round:,} jobs a round."
            yield from compared(of(found, "peak"), base, "MiB", note, about=f"{about}, memory")
            note = "Seconds of the run for a job: building it, simulating it and writing its folder."
            yield from compared(of(found, "us"), base, "us", note, about=f"{about}, a job")


if __name__ == "__main__":
    if ONE in sys.argv[1:2]:
        kind, *sizes = sys.argv[2:]
        print(json.dumps(once(kind, *map(int, sizes))))
    else:
        alone(rows, QUICK)
