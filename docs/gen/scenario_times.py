"""Measures how long scenarios run. Usage: python docs/gen/scenario_times.py [--limit SECONDS] [SCENARIO...]

Adds rows to docs/data/scenarios.csv: CPU seconds of `edgesim run` in one process by one thread, its start included. If
`edgesim estimate` says that a run takes longer than the limit, its row is the estimate. Without names the script takes
all that have no row. A scenario that fails, such as one whose data set is missing, gets none.
"""

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from scenario_pages import FOLDER, TIMES, RunTime, files, times

from edgesim.config.load import load_scenario

HEAD = "# CPU seconds of `edgesim run SCENARIO` by one thread, or their estimate: docs/gen/scenario_times.py\n"


def run_time_of(path: Path, limit_s: float) -> RunTime | None:
    """Return how long a scenario runs. None: it fails."""
    # Worker processes are not the run's own children, so their CPU time could not be read.
    alone = [] if load_scenario(path).backend.name == "null" else ["--set", "backend=serial"]
    foreseen = _edgesim("estimate", path, "--json", *alone)  # refused for an app of Flower
    if not foreseen.returncode and (cpu_s := 60 * json.loads(foreseen.stdout)["totals"]["host_minutes"]) > limit_s:
        return RunTime(cpu_s, "estimated")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        done = _edgesim("run", path, "--quiet", "--out", f"{folder}/run", *alone)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(f"{path}: exit code {done.returncode}. {done.stderr.strip()[-200:]}", flush=True)
        return None
    return RunTime(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "measured")


def _edgesim(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edgesim", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def main(scenarios: Annotated[list[Path] | None, typer.Argument()] = None, limit: int = 600) -> None:
    """Measure scenarios, one after the other, and keep each row at once."""
    for path in scenarios or files():
        name = path.absolute().relative_to(FOLDER).as_posix()
        if (not scenarios and name in times()) or (found := run_time_of(path, limit)) is None:
            continue
        rows = {**times(), name: found}
        with TIMES.open("w", encoding="utf-8", newline="") as file:
            file.write(HEAD)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("scenario", "cpu_s", "how"))
            writer.writerows((name, f"{each.cpu_s:.3g}", each.how) for name, each in sorted(rows.items()))
        print(f"{name}: {found.cpu_s:.3g} s, {found.how}", flush=True)


if __name__ == "__main__":
    typer.run(main)
