"""Measures how long scenarios run. Usage: python docs/gen/scenario_times.py [--limit SECONDS] [SCENARIO...]

Adds rows to docs/data/scenarios.csv: CPU seconds of `edgesim run` by one thread, its start included. Without names it
takes all that have no row. A scenario that fails, such as one whose data set is missing, or that takes longer than the
limit gets none.
"""

import csv
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from scenario_pages import FOLDER, TIMES, files, times

HEAD = "# CPU seconds of `edgesim run SCENARIO` by one thread, from docs/gen/scenario_times.py\n"


def cpu_s_of(path: Path, limit: int) -> float | None:
    """Return the CPU seconds of a run. None: it failed, or took longer than `limit` CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "edgesim", "run", path, "--quiet", "--out", f"{folder}/run"]
        done = subprocess.run(
            words,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(f"{path}: exit code {done.returncode}. {done.stderr.strip()[-200:]}", flush=True)
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(scenarios: Annotated[list[Path] | None, typer.Argument()] = None, limit: int = 600) -> None:
    """Measure scenarios, one after the other, and keep each row at once."""
    for path in scenarios or files():
        name = path.absolute().relative_to(FOLDER).as_posix()
        if (not scenarios and name in times()) or (cpu_s := cpu_s_of(path, limit)) is None:
            continue
        rows = {**times(), name: f"{cpu_s:.3g}"}
        with TIMES.open("w", encoding="utf-8", newline="") as file:
            file.write(HEAD)
            csv.writer(file, lineterminator="\n").writerows([("scenario", "cpu_s"), *sorted(rows.items())])
        print(f"{name}: {cpu_s:.3g} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
