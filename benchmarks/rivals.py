"""How fast is a whole run? FedAvg on FashionMNIST by edgesim, loops by hand and other simulators, a process each.

W1: 100 devices of 600 images, 10 a round, a network of 21,840 parameters, 20 rounds. W2: the same with a perceptron
784-200-10. W3: 10,000 devices of 60 images, 100 a round, the first network, 12 rounds. Batches of 32, one epoch,
10,000 test images after every round. All are checked to have taken the same number of SGD steps.

Other simulators are scripts in a folder, named bench_ and then NAME.py, which do what benchmarks/workloads.py tells a
contestant. Those that shall run are given with the command that runs them, which is that of their own environment:
--rivals FOLDER pfl=/some/venv/bin/python 'pfl-2proc=/some/venv/bin/torchrun --nproc_per_node=2'. What follows a
hyphen only tells two commands for one script apart. EDGESIM_RIVALS may hold the same words.

Run: python benchmarks/rivals.py [--workloads NAME ...] [--lr X] [--rivals FOLDER NAME=COMMAND ...]
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import programs
from edgesim.config.plugins import places_of
from edgesim.core.errors import ConfigError
from edgesim.learning.data.source import places
from edgesim.learning.data.sources.published import FashionMnist
from noise import write_idx
from rows import Figures, Found, LeftOut, alone, compared, of
from workloads import RESULT, WORKLOADS

HERE = Path(__file__).parent
VARIABLE = "EDGESIM_RIVALS"
BASELINE = "bare loop, 2 processes"
NOISE = "noise"
QUICK = {"workloads": ("W2",), "data": NOISE, "rounds": 2}
MIB = 2.0**20
FIRST_TEST = (
    "Seconds from the start of the process to the end of the first test. PyTorch and the data are loaded in them, and "
    "programs compiled that are not kept yet."
)
PROCESSORS = "Seconds of processors of all its processes together, its start included: other load hardly changes them."


class Contestant(NamedTuple):
    """A program, and what its environment tells it beside the workload."""

    command: Sequence[str]
    environment: Mapping[str, str]
    is_ours: bool = True


def ours() -> dict[str, Contestant]:
    """Return the loops by hand, and edgesim with each backend that trains on this machine alone."""
    bare = programs.python(str(HERE / "bare_loop.py"))
    backends = {
        "2 workers": {"name": "workers", "workers": 2},
        "1 worker": {"name": "workers", "workers": 1},
        "2 workers, compiled": {"name": "workers", "workers": 2, "compile": True},
        "serial": {"name": "serial"},
        **({"cohort": {"name": "cohort"}} if "cohort" in places_of("backend") else {}),
    }
    loop = programs.python(str(HERE / "edgesim_loop.py"))
    return {
        BASELINE: Contestant(bare, {"PROCESSES": "2"}),
        "bare loop, 2 threads": Contestant(bare, {"THREADS": "2"}),
        **{f"edgesim, {name}": Contestant(loop, {"BACKEND": json.dumps(chosen)}) for name, chosen in backends.items()},
    }


def others(given: Sequence[str]) -> dict[str, Contestant | LeftOut]:
    """Return the rivals of `--rivals FOLDER NAME=COMMAND ...`, and for those that cannot run why.

    Raises ConfigError if a word is none of that kind or the folder is not there.
    """
    if not given:
        return {"": LeftOut("other simulators", f"none given (--rivals FOLDER NAME=COMMAND ..., or {VARIABLE})")}
    folder, found = Path(given[0]).expanduser().resolve(), {}
    if not folder.is_dir():
        raise ConfigError(f"--rivals: must be a folder, got {given[0]!r}")
    for word in given[1:]:
        name, equals, command = word.partition("=")
        if not (name and equals and command):
            raise ConfigError(f"--rivals: needs NAME=COMMAND after the folder, got {word!r}")
        script = folder / f"bench_{name.partition('-')[0]}.py"
        there = script.is_file()
        found[name] = (
            Contestant([*shlex.split(command), str(script)], {}, is_ours=False)
            if there
            else LeftOut(name, f"no {script.name} in the folder")
        )
    known = {name.partition("-")[0] for name in found}
    missing = (path.stem.removeprefix("bench_") for path in sorted(folder.glob("bench_*.py")))
    return {**found, **{name: LeftOut(name, "no command given for it") for name in missing if name not in known}}


def rows(
    workloads: tuple[str, ...] = tuple(WORKLOADS),
    rivals: tuple[str, ...] = ("",),
    rounds: int = 0,
    lr: float = 0.1,
    data: str = "fashion_mnist",
    repeats: int = 3,
) -> Iterator[Found]:
    """Yield seconds, memory and accuracy of every contestant on each workload.

    `rounds`: 0 for the workload's own; `data`: "noise" for random images in the place of FashionMNIST.
    """
    if unknown := set(workloads) - WORKLOADS.keys():
        raise ConfigError(f"--workloads: must be of {', '.join(WORKLOADS)}, got {min(unknown)!r}")
    contestants: dict[str, Contestant] = ours()
    words = [word for word in rivals if word] or shlex.split(os.environ.get(VARIABLE, ""))
    for name, each in others(words).items():
        if isinstance(each, LeftOut):
            yield each
        else:
            contestants[name] = each
    with ExitStack() as stack:
        folder = data_folder(data, stack)
        for name in workloads:
            environment = {
                "WORKLOAD": name,
                "ROUNDS": str(rounds or WORKLOADS[name].rounds),
                "LR": str(lr),
                "DATA": str(folder),
                "THREADS": "1",
            }
            yield from _contest(name, contestants, environment, repeats)


def data_folder(data: str, stack: ExitStack) -> Path:
    """Return the folder with the four idx files. Raises ConfigError if FashionMNIST is nowhere."""
    if data == NOISE:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_idx(folder)
        return folder
    for folder in places(None, FashionMnist.folders):
        if (folder / "train-images-idx3-ubyte.gz").is_file():
            return folder
    raise ConfigError(
        f"--data: FashionMNIST as gzipped idx files is nowhere; install {FashionMnist.package}, or use {NOISE}"
    )


def _contest(
    workload: str, contestants: Mapping[str, Contestant], environment: Mapping[str, str], repeats: int
) -> Iterator[Found]:
    found: dict[str, list[Figures]] = {name: [] for name in contestants}
    steps = int(environment["ROUNDS"]) * WORKLOADS[workload].steps_a_round
    for _ in range(repeats):
        for name in tuple(found):
            try:
                found[name].append(figures_of(contestants[name], environment, steps))
            except programs.ProgramError as error:
                if contestants[name].is_ours:
                    raise
                del found[name]
                yield LeftOut(f"{workload}: {name}", str(error))
    rounds = "Seconds of a round, its test included: the median of the rounds after a run's first"
    for measure, unit, note, fit in (
        ("round", "s", f"{rounds}.", None),
        ("round, best run", "s", f"{rounds}; the best of the runs, the least disturbed one.", min),
        ("to the first test", "s", FIRST_TEST, None),
        ("whole process", "s", "Seconds from the start of the process to its end.", None),
        ("processor time", "s", PROCESSORS, None),
        ("peak memory", "MiB", "Most memory of all its processes together, shared pages counted once (PSS).", None),
        ("accuracy", "", "On the test images after the last round: a check that all did the same.", None),
    ):
        extra = {} if fit is None else {"fit": fit}
        yield from compared(of(found, measure), BASELINE, unit, note, about=f"{workload}, {measure}", **extra)


def figures_of(contestant: Contestant, environment: Mapping[str, str], steps: int) -> Figures:
    """Run a contestant once; return its figures. Raises ProgramError if it fails or took other steps."""
    ran = programs.run(contestant.command, {**environment, **contestant.environment}, memory=True)
    line = next((line for line in ran.out.splitlines() if line.startswith(RESULT)), None)
    if line is None:
        raise programs.ProgramError(f"printed no line {RESULT.strip()}")
    result = json.loads(line.removeprefix(RESULT))
    if result["steps"] != steps:
        raise programs.ProgramError(f"took {result['steps']} SGD steps, not {steps}")
    return {
        "round": result["later_med"],
        "round, best run": result["later_med"],
        "to the first test": result["startup_s"] + result["first_s"],
        "whole process": ran.seconds,
        "processor time": ran.processors_s,
        "peak memory": ran.peak_bytes / MIB,
        "accuracy": result["acc"],
    }


if __name__ == "__main__":
    alone(rows, QUICK)
