"""Fuzzes scenarios: mutated ones have to be refused in one line, or to run as estimated and give sound tables.

python -m tests.fuzz.scenarios --cases 20000 --seed 1 [--case N] [--workers 2]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from edgesim.core.job import ON_TIME_S
from edgesim.files.reading import one_line
from tests.fuzz.bases import bases
from tests.fuzz.mutate import mutated
from tests.fuzz.tries import Limits, Verdict, verdicts

LONGEST_LINE = 800  # characters of a message, which may list all methods
FACTOR = 100  # that a run may take of its estimate
LEAST_S = 0.2  # of an estimate: what a host says of less is noise
WORTH_S = 1.0  # a run that says it takes longer is believed
LIMITS = Limits(cpu_s=120.0, wall_s=600.0)  # of a case, whatever it does
MOST_SHARING = 10_000  # devices that share links: of more, even the estimate's one round takes minutes
EXACT_S = 1e12  # of simulated time, 30,000 years: later on rounding makes idle joules of a short round negative


def text_of(seed: int, case: int) -> bytes:
    """Return the scenario file of a case."""
    random = Random(f"{seed}/{case}")
    known = bases()
    return mutated(known[random.choice(sorted(known))], random)


def judged(text: bytes, folder: Path, worth_s: float = WORTH_S) -> tuple[str, str]:
    """Return how a scenario ended, and the line or fault it ended with: load, validate, estimate, run.

    One whose estimate is more than `worth_s` seconds of the host, which depend on its load, is not run.
    """
    from edgesim.cli.scenarios import checked
    from edgesim.core.errors import ConfigError, DataError, EdgesimError
    from edgesim.runs.estimate import estimate
    from edgesim.runs.simulate import simulate

    path = folder / "scenario.toml"
    path.write_bytes(text)
    try:
        scenario, _, _ = checked(path, [])
    except (ConfigError, DataError) as error:
        return _refused(error)
    devices = sum(block.count for block in scenario.fleet)
    if scenario.network.name == "shared" and devices > MOST_SHARING:
        return "long", f"{devices} devices share links"
    host_s = 0.0
    try:
        minutes = [estimate(alone).totals["host_minutes"] for alone in scenario.trainings]  # of each session by itself
        host_s = sum(math.inf if each is None else 60.0 * each for each in minutes)
    except ConfigError as error:
        if not str(error).startswith("estimate: "):
            return "fault", f"estimate refuses what validate accepts: {error}"
    if host_s > worth_s:
        return "long", f"{host_s:g} s"
    started_s = time.process_time()
    try:
        run = simulate(scenario, folder / "run")
    except EdgesimError as error:
        return "fault", f"run refuses what validate accepts: {type(error).__name__}: {error}"
    took_s = time.process_time() - started_s
    if took_s > FACTOR * max(host_s, LEAST_S):
        return "fault", f"took {took_s:.1f} s, estimated {host_s:.3f} s"
    return next(unsound(run), ("ran", ""))


def _refused(error: Exception) -> tuple[str, str]:
    line = one_line(error)  # as it is printed
    if len(line) > LONGEST_LINE or not line.strip():
        return "fault", f"a message of {len(line)} characters: {line[:300]}"
    return "refused", line


def unsound(run) -> Iterator[tuple[str, str]]:
    """Yield what no table may hold: times, sizes, powers and counts that are negative or not finite."""
    for name in ("jobs", "rounds", "devices"):
        table = run.table(name).select_dtypes("number")
        late = table["now_s"].to_numpy() >= EXACT_S if name == "rounds" else np.zeros(len(table), dtype=bool)
        for column in table.columns.difference(["device", "deadline_s", "edge"]):
            values = table[column].to_numpy(dtype=float, na_value=0.0)
            values = np.where(late & np.isfinite(values) & column.endswith("_j"), np.abs(values), values)
            # none if nobody was asked, in a merge at the instant of the one before, or so late that jobs take no time
            if column == "critical_device":
                now_s, took_s = table["now_s"].to_numpy(), (table["now_s"] - table["start_s"]).to_numpy()
                lasts = (took_s > ON_TIME_S + 4 * np.spacing(now_s)) & ~late
                values = values[lasts & (table["asked"] > 0).to_numpy()]
            if len(values) and not ((values >= 0) & (values < math.inf)).all():
                bad = values[~((values >= 0) & (values < math.inf))][0]
                yield "fault", f"table {name}: {column} has {bad}"


def verdict(seed: int, case: int) -> Verdict:
    """Return the verdict on one case, tried in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="edgesim-fuzz-"))
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return Verdict(case, *judged(text_of(seed, case), folder))
    except Exception as error:
        where = " < ".join(f"{f.name}:{f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__)[-4:]))
        return Verdict(case, "fault", f"{type(error).__name__}: {str(error)[:200]} ({where})")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Try cases and print the faults; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int, help="show this one only")
    given = parser.parse_args()
    if given.case is not None:
        sys.stdout.buffer.write(text_of(given.seed, given.case)[:20_000] + b"\n")
        print(*verdicts(verdict, given.seed, range(given.case, given.case + 1), 1, LIMITS))
        return
    ended: Counter[str] = Counter()
    cases = range(given.first, given.first + given.cases)
    for each in verdicts(verdict, given.seed, cases, given.workers, LIMITS):
        ended[each.ended] += 1
        if each.ended == "fault":
            print(f"--seed {given.seed} --case {each.case}: {each.says}", flush=True)
    print(dict(ended))
    sys.exit(bool(ended["fault"]))


if __name__ == "__main__":
    main()
