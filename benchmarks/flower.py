"""What does a Flower app cost? FedAvg of workload W1 as a Flower app: edgesim, Flower's own engine, the loop by hand.

edgesim runs the app in two worker processes, counts its FLOPs and bytes, and simulates 100 boards. "Flower, Ray" is the
engine of `flwr run`, with two actors of one CPU each, but without the SuperLink that `flwr run` starts and asks. The
bare loop trains the same network on the same images in two processes. All are checked to have taken the same number of
SGD steps. Needs flwr, and Ray for its engine.

Run: python benchmarks/flower.py [--rounds N] [--data noise]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import programs
from rivals import NOISE, PROCESSORS, Contestant, data_folder, figures_of
from rows import Figures, Found, LeftOut, alone, compared, of
from workloads import WORKLOADS

HERE = Path(__file__).parent
APP = HERE / "flower_w1"
BASELINE = "bare loop, 2 processes"
QUICK = {"data": NOISE, "rounds": 2}
WORKLOAD = "W1"
FLEET = """
seed = 1
energy = {{ name = "power", idle = "2.7 W", busy = "6.4 W" }}
network = {{ name = "fixed", up = "5 Mbit/s", down = "20 Mbit/s" }}

[[fleet]]
count = {count}
cpu = {{ flops_per_s = {{ uniform = ["0.5 GFLOP/s", "2 GFLOP/s"] }} }}
"""


def contestants(config: str, folder: Path) -> dict[str, Contestant]:
    """Return the programs. `folder`: for the files that they write."""
    fleet = folder / "fleet.toml"
    fleet.write_text(FLEET.format(count=WORKLOADS[WORKLOAD].devices))
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH")]))}
    words = ["-m", "edgesim", "flower", "run", str(APP), "--fleet", str(fleet), "--run-config", config]
    words += ["--out", str(folder / "run"), "--overwrite", "--fresh"]
    found = {
        BASELINE: Contestant(programs.python(str(HERE / "bare_loop.py")), {"PROCESSES": "2"}),
        "edgesim, 2 workers": Contestant(programs.python(*words, "--workers", "2"), paths),
        "edgesim, serial": Contestant(programs.python(*words), paths),
    }
    if find_spec("ray"):
        ray = {**paths, "CONFIG": config, "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
        found["Flower, Ray"] = Contestant(programs.python(str(HERE / "flower_ray.py")), ray, is_ours=False)
    return found


def rows(rounds: int = 20, lr: float = 0.1, data: str = "fashion_mnist", repeats: int = 3) -> Iterator[Found]:
    """Yield seconds of a round and of the whole process."""
    if not find_spec("flwr"):
        yield LeftOut("Flower apps", 'flwr is not installed: pip install "edgesim[flower]"')
        return
    with ExitStack() as stack:
        images = data_folder(data, stack)
        config = f'workload="{WORKLOAD}" rounds={rounds} lr={lr} data="{images}"'
        common = {"WORKLOAD": WORKLOAD, "ROUNDS": str(rounds), "LR": str(lr), "DATA": str(images), "THREADS": "1"}
        programs_by_name = contestants(config, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        found: dict[str, list[Figures]] = {name: [] for name in programs_by_name}
        steps = rounds * WORKLOADS[WORKLOAD].steps_a_round
        for _ in range(repeats):
            for name, contestant in programs_by_name.items():
                found[name].append(figures_of(contestant, common, steps))
        if "Flower, Ray" not in found:
            yield LeftOut("Flower, Ray", "ray is not installed")
        yield from _rows(found)


def _rows(found: Mapping[str, list[Figures]]) -> Iterator[Found]:
    per_round = "Seconds of a round, its test included: the median of the rounds after a run's first"
    for measure, unit, note, fit in (
        ("round", "s", f"{per_round}.", None),
        ("round, best run", "s", f"{per_round}; the best of the runs, the least disturbed one.", min),
        ("first round", "s", "Seconds from the start of training to the end of the first test.", None),
        ("whole process", "s", "Seconds from the start of the process to its end.", None),
        ("processor time", "s", PROCESSORS, None),
        ("peak memory", "MiB", "Most memory of all its processes together, shared pages counted once (PSS).", None),
        ("accuracy", "", "On the test images after the last round: a check that all did the same.", None),
    ):
        extra = {} if fit is None else {"fit": fit}
        yield from compared(of(found, measure), BASELINE, unit, note, about=measure, **extra)


if __name__ == "__main__":
    alone(rows, QUICK)
